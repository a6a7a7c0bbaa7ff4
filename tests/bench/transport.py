"""What a gRPC call costs each transport: `python -m tests.bench.transport`.

A server process per transport, its handler answering each message with 60 bytes ("upb": after
parsing it as the ProcessingRequest that it is), and a client of raw frames (prepared bytes, no
gRPC library) so that the load is cheap. Server CPU is user + system time of the server process
from /proc, per call. A call is what Envoy makes of a request: HEADERS, a message, its answer, a
second message with the body, its answer, END_STREAM, trailers, RST_STREAM. "traced": its headers
carry a new traceparent each time.
"""

import argparse
import asyncio
import json
import os
import random
import struct
import subprocess
import sys
import time
from collections.abc import Iterable
from typing import Any

import hpack

from picker.generated import ext_proc_pb2 as pb
from tests.bench.processes import cpu_seconds

PATH = "/bench.Bench/Bench"
ANSWER = b"a" * 60
HEADERS = {
    ":method": "POST",
    ":path": "/v1/chat/completions",
    ":scheme": "http",
    ":authority": "gateway.example",
    "content-type": "application/json",
    "content-length": "2048",
    "user-agent": "OpenAI/Python 1.40.0",
    "accept": "application/json",
    "authorization": "Bearer " + "x" * 60,
    "x-request-id": "5d3d4f4e-8a1c-4c55-9a55-2f5a4b1c9c11",
    "x-forwarded-proto": "http",
    "x-forwarded-for": "10.0.0.1",
    "x-envoy-expected-rq-timeout-ms": "86400000",
}
FRAME = struct.Struct(">HBBBL")


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    return FRAME.pack(len(payload) >> 8, len(payload) & 255, kind, flags, stream_id) + payload


def data_frames(stream_id: int, message: bytes, size: int = 16_384) -> bytes:
    """One gRPC message in DATA frames of Envoy's size."""
    content = struct.pack(">BL", 0, len(message)) + message
    return b"".join(frame(0, 0, stream_id, content[at : at + size]) for at in range(0, len(content), size))


class Handler:
    """Answers; ends when the peer does."""

    __slots__ = ("call",)

    def __init__(self, call: Any) -> None:
        self.call = call

    def receive(self, _message: bytes) -> None:
        self.call.send(ANSWER)

    def half_closed(self) -> None:
        self.call.finish()

    def closed(self) -> None:
        pass


class ParsingHandler(Handler):
    """The same, and pays for the protobuf."""

    __slots__ = ()

    def receive(self, message: bytes) -> None:
        parsed = pb.ProcessingRequest.FromString(message)
        if parsed.WhichOneof("request") == "request_body":
            _ = parsed.request_body.body
        self.call.send(ANSWER)


def request_headers() -> bytes:
    message = pb.ProcessingRequest()
    for key, value in HEADERS.items():
        message.request_headers.headers.headers.add(key=key, raw_value=value.encode())
    return message.SerializeToString()


def request_body(size: int) -> bytes:
    message = pb.ProcessingRequest()
    message.request_body.body = b"b" * size
    message.request_body.end_of_stream = True
    return message.SerializeToString()


def serve(kind: str, loop: str, tune: bool, parse: bool, seconds: float) -> None:
    """The server process: says its port, runs, stops by itself."""
    from picker.edge.grpc.grpcio_transport import GrpcioTransport
    from picker.edge.grpc.h2 import H2Transport
    from picker.edge.process.malloc import tune_malloc

    if tune:
        tune_malloc()
    make = {"h2": H2Transport, "grpcio": GrpcioTransport}[kind]

    async def main() -> None:
        transport = make(
            {PATH: Handler}, host="127.0.0.1", port=0, on_error=lambda error: print(error, file=sys.stderr)
        )
        await transport.start()
        print(transport.port, flush=True)
        await asyncio.sleep(seconds)
        await transport.stop()

    if loop == "uvloop":
        import uvloop

        uvloop.run(main())
    else:
        asyncio.run(main())


class Client(asyncio.Protocol):
    """A closed loop of `width` calls on one connection, `calls` in all; or calls held open, or one long stream."""

    traced = False

    def __init__(self, width: int, calls: int, body: int, chunks: int = 0) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.width, self.calls, self.chunks = width, calls, chunks
        encoder = hpack.Encoder()
        fields = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", PATH),
            (":authority", "ext_proc"),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            ("x-envoy-internal", "true"),
            ("x-forwarded-for", "10.0.0.1"),
        ]
        self.encoder, self.fields = encoder, fields
        self.first_block, self.block = encoder.encode(fields), encoder.encode(fields)
        self.opened, self.ended = 0, 0
        self.state: dict[int, int] = {}
        self.headers = data_frames(0, request_headers())
        self.body = data_frames(0, request_body(body))
        self.buffer = b""
        self.window_left = 0

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.set_write_buffer_limits(high=1 << 30)
        settings = frame(4, 0, 0, struct.pack(">HL", 4, 1 << 24))
        transport.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + settings + frame(8, 0, 0, struct.pack(">L", 1 << 30)))
        transport.write(b"".join(self.open() for _ in range(min(self.width, self.calls))))

    def numbered(self, frames: bytes, stream_id: int) -> bytes:
        out, at = bytearray(frames), 0
        while at < len(out):
            length = int.from_bytes(out[at : at + 3], "big")
            out[at + 5 : at + 9] = stream_id.to_bytes(4, "big")
            at += 9 + length
        return bytes(out)

    def open(self) -> bytes:
        stream_id = self.opened * 2 + 1
        block = self.block if self.opened else self.first_block
        if self.traced and self.opened:
            trace = ("traceparent", f"00-{random.getrandbits(128):032x}-{random.getrandbits(64):016x}-01")
            block = self.encoder.encode([*self.fields, trace])
        self.opened += 1
        self.state[stream_id] = 0
        return frame(1, 4, stream_id, block) + self.numbered(self.headers, stream_id)

    def data_received(self, data: bytes) -> None:
        data = self.buffer + data
        at, size, out = 0, len(data), []
        while size - at >= 9:
            high, low, kind, flags, stream_id = FRAME.unpack_from(data, at)
            stop = at + 9 + (high << 8 | low)
            if stop > size:
                break
            if kind == 0:
                out += self.content_came(stream_id, data[at + 9 : stop])
            elif kind == 1 and flags & 1:
                out.append(self.finished(stream_id))
            elif kind == 6 and not flags & 1:
                out.append(frame(6, 1, 0, data[at + 9 : stop]))
            elif kind == 4 and not flags & 1:
                out.append(frame(4, 1, 0))
            elif self.is_fault(kind, stream_id) and not self.done.done():
                self.done.set_exception(RuntimeError(f"frame {data[at:stop]!r}"))
            at = stop
        self.buffer = data[at:]
        if out:
            self.transport.write(b"".join(out))

    def content_came(self, stream_id: int, content: bytes) -> Iterable[bytes]:
        """A DATA frame: one whole message. What to send for it."""
        return (self.answered(stream_id),) if content else ()

    def is_fault(self, kind: int, stream_id: int) -> bool:
        """A frame that ends the run: GOAWAY."""
        return kind == 7

    def answered(self, stream_id: int) -> bytes:
        state = self.state[stream_id] = self.state[stream_id] + 1
        if state <= max(self.chunks, 1):
            return self.numbered(self.body, stream_id)
        if self.chunks or state == 2:
            return frame(0, 1, stream_id)
        return b""

    def finished(self, stream_id: int) -> bytes:
        del self.state[stream_id]
        self.ended += 1
        if self.ended == self.calls and not self.done.done():
            self.done.set_result(None)
        again = self.open() if self.opened < self.calls else b""
        return frame(3, 0, stream_id, struct.pack(">L", 0)) + again

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(error or ConnectionError("closed"))


class TracedClient(Client):
    """Its header block is never the same twice."""

    traced = True


def resident_kb(pid: int) -> int:
    with open(f"/proc/{pid}/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS"))


async def load(
    port: int, *, connections: int, width: int, calls: int, body: int, chunks: int = 0, kind: type[Client] = Client
) -> None:
    loop = asyncio.get_running_loop()
    clients = [
        (await loop.create_connection(lambda: kind(width, calls // connections, body, chunks), "127.0.0.1", port))[1]
        for _ in range(connections)
    ]
    await asyncio.gather(*(client.done for client in clients))
    for client in clients:
        client.transport.abort()


async def hold(port: int, pid: int, streams: int) -> float:
    """Resident bytes a held stream: opened, one message each answered, then nothing."""

    class Holder(Client):
        def answered(self, stream_id: int) -> bytes:
            self.ended += 1
            if self.ended == self.calls:
                self.done.set_result(None)
            return self.open() if self.opened < self.calls else b""

    loop = asyncio.get_running_loop()
    await load(port, connections=1, width=64, calls=2_000, body=100)
    before = resident_kb(pid)
    _, client = await loop.create_connection(lambda: Holder(64, streams, 10), "127.0.0.1", port)
    await client.done
    after = resident_kb(pid)
    client.transport.abort()
    return (after - before) * 1024 / streams


CELLS = {
    # name: connections, width, calls, body bytes, chunks, client
    "2 KB": (2, 32, 40_000, 2_048, 0, Client),
    "2 KB traced": (2, 32, 20_000, 2_048, 0, TracedClient),
    "32 KB": (2, 32, 20_000, 32_768, 0, Client),
    "400 KB": (2, 8, 4_000, 400_000, 0, Client),
    "chunks of 200 B": (2, 32, 128, 200, 1_000, Client),
}


def measure(kind: str, loop: str, tune: bool, parse: bool, scale: float) -> dict[str, float]:
    command = [sys.executable, "-m", "tests.bench.transport", "--serve", kind, "--loop", loop]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("MALLOC_")}
    server = subprocess.Popen(
        command + ["--tune"] * tune + ["--parse"] * parse, stdout=subprocess.PIPE, env=environment
    )
    figures: dict[str, float] = {}
    try:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        asyncio.run(load(port, connections=1, width=8, calls=500, body=2_048))
        for name, (connections, width, calls, body, chunks, client) in CELLS.items():
            calls = max(connections * width, int(calls * scale * (1 if kind == "h2" else 0.2)))
            before, began = cpu_seconds(server.pid), time.perf_counter()
            asyncio.run(
                load(port, connections=connections, width=width, calls=calls, body=body, chunks=chunks, kind=client)
            )
            used, took = cpu_seconds(server.pid) - before, time.perf_counter() - began
            units = calls * (chunks or 1)
            figures[f"{name}: us"] = round(used / units * 1e6, 1)
            figures[f"{name}: /s"] = round(units / took)
        figures["held stream: bytes"] = round(asyncio.run(hold(port, server.pid, 10_000 if kind == "h2" else 2_000)))
        figures["RSS: MB"] = round(resident_kb(server.pid) / 1024)
    finally:
        server.kill()
        server.wait()
        if server.stdout is not None:
            server.stdout.close()
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--serve", choices=("h2", "grpcio"), help=argparse.SUPPRESS)
    parser.add_argument("--loop", choices=("asyncio", "uvloop"), default="uvloop")
    parser.add_argument("--tune", action="store_true", help="serve with picker.edge.process.malloc")
    parser.add_argument("--parse", action="store_true", help="serve with a handler that parses")
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of calls")
    parser.add_argument("--only", help="a part of a row's name")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.serve, arguments.loop, arguments.tune, arguments.parse, 600)
        return
    rows = {
        f"{kind}, {loop}{', upb' if parse else ''}{'' if tune else ', malloc not tuned'}": (kind, loop, tune, parse)
        for kind, loop, tune, parse in (
            ("h2", "uvloop", True, False),
            ("h2", "uvloop", True, True),
            ("h2", "uvloop", False, True),
            ("h2", "asyncio", True, True),
            ("grpcio", "uvloop", True, True),
            ("grpcio", "asyncio", True, True),
        )
    }
    results = {
        name: measure(*row, arguments.scale)
        for name, row in rows.items()
        if not arguments.only or arguments.only in name
    }
    if arguments.json:
        print(json.dumps(results, indent=1))
        return
    names = list(next(iter(results.values())))
    print("| transport | " + " | ".join(names) + " |\n|---" * 1 + "|---" * len(names) + "|")
    for name, figures in results.items():
        print(f"| {name} | " + " | ".join(f"{figures[each]:,}" for each in names) + " |")


if __name__ == "__main__":
    main()
