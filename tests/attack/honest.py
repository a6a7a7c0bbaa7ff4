"""`python -m tests.attack.honest PORT plain|tls|http`: 50 requests a second until its input closes; what became of all.

A process of its own, so that what the attacker does with its own CPU is not taken for the picker's doing. Requests
start by the clock whatever became of those before (an open loop), and their time counts from when they
were due. Direct, it is a proxy's connection to the gRPC port; with `http`, a client of an Envoy.
"""

import asyncio
import json
import ssl
import struct
import sys
import time

from tests.attack.raw import (
    ANSWER,
    CHAT,
    DATA,
    GOAWAY,
    HEADERS,
    OPEN,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    SMALL_BODY,
    WINDOW_MAX,
    WINDOW_UPDATE,
    frame,
    message,
    request_body,
    request_headers,
    response_headers,
)

PERIOD_SECONDS = 0.02
TIMEOUT_SECONDS = 45.0
"""Longer than the longest pause that an attack makes of the picker itself."""


class Answers(asyncio.Protocol):
    """The reading side of one connection: who waits for which stream."""

    def __init__(self) -> None:
        self.waiting: dict[int, asyncio.Future[bool]] = {}
        self.buffer = b""
        self.over = False
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        window = struct.pack(">HL", 4, WINDOW_MAX)
        update = struct.pack(">L", WINDOW_MAX - 65_535)
        transport.write(PREFACE + frame(SETTINGS, 0, 0, window) + frame(WINDOW_UPDATE, 0, 0, update))

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        while len(self.buffer) >= 9:
            length = int.from_bytes(self.buffer[:3], "big")
            if len(self.buffer) < 9 + length:
                return
            kind, flags = self.buffer[3], self.buffer[4]
            stream_id = int.from_bytes(self.buffer[5:9], "big")
            payload, self.buffer = self.buffer[9 : 9 + length], self.buffer[9 + length :]
            assert self.transport is not None
            if kind == SETTINGS and not flags & 1:
                self.transport.write(frame(SETTINGS, 1, 0))
            elif kind == PING and not flags & 1:
                self.transport.write(frame(PING, 1, 0, payload))
            elif kind == GOAWAY:
                self.over = True
            elif kind == DATA and payload:
                self._tell(stream_id, payload[5:6] == b"\x0a")  # ProcessingResponse.request_headers: a route
            elif kind == RST_STREAM or (kind == HEADERS and flags & 1):
                self._tell(stream_id, False)

    def _tell(self, stream_id: int, routed: bool) -> None:
        waits = self.waiting.pop(stream_id, None)
        if waits is not None and not waits.done():
            waits.set_result(routed)

    def connection_lost(self, exc: Exception | None) -> None:
        self.over = True
        for stream_id in list(self.waiting):
            self._tell(stream_id, False)


class Honest:
    """Counts of what was asked for."""

    def __init__(self, port: int, how: str) -> None:
        self.port = port
        self.http = how == "http"
        self.context: ssl.SSLContext | None = None
        if how == "tls":
            self.context = ssl.create_default_context()
            self.context.check_hostname, self.context.verify_mode = False, ssl.CERT_NONE
            self.context.set_alpn_protocols(["h2"])
        self.latencies: list[tuple[float, float]] = []
        self.failures: list[tuple[float, str]] = []
        self.connection: Answers | None = None
        self.last_id = -1
        self.connecting = asyncio.Lock()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        stop = asyncio.Event()
        loop.add_reader(sys.stdin, stop.set)
        tasks: set[asyncio.Task[None]] = set()
        due = time.monotonic()
        print("asking", flush=True)
        while not stop.is_set():
            task = asyncio.create_task(self._one(due))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            due += PERIOD_SECONDS
            await asyncio.sleep(max(0.0, due - time.monotonic()))
        await asyncio.gather(*tasks)
        print(json.dumps({"latencies": self.latencies, "failures": self.failures}), flush=True)

    async def _one(self, due: float) -> None:
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                why = await (self._http() if self.http else self._call())
        except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            why = type(error).__name__
        if why:
            self.failures.append((due, why))
        else:
            self.latencies.append((due, time.monotonic() - due))

    async def _call(self) -> str:
        async with self.connecting:
            if self.connection is None or self.connection.over:
                loop = asyncio.get_running_loop()
                _, self.connection = await loop.create_connection(Answers, "127.0.0.1", self.port, ssl=self.context)
                self.last_id = -1
        connection = self.connection
        self.last_id += 2
        stream_id = self.last_id
        waits = connection.waiting[stream_id] = asyncio.get_running_loop().create_future()
        assert connection.transport is not None
        connection.transport.write(
            frame(HEADERS, 4, stream_id, OPEN)
            + frame(DATA, 0, stream_id, message(request_headers(CHAT)))
            + frame(DATA, 0, stream_id, message(request_body(SMALL_BODY, end=True)))
        )
        if not await waits:
            return "no route"
        connection.transport.write(
            frame(DATA, 0, stream_id, message(response_headers()))
            + frame(DATA, 0, stream_id, message(ANSWER))
            + frame(DATA, 1, stream_id)
        )
        return ""

    async def _http(self) -> str:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        try:
            writer.write(head + b"connection: close\r\ncontent-length: %d\r\n\r\n" % len(SMALL_BODY) + SMALL_BODY)
            line = await reader.readline()
            await reader.read()
            return "" if b" 200 " in line else line.decode("latin-1").strip() or "closed"
        finally:
            writer.close()


if __name__ == "__main__":
    asyncio.run(Honest(int(sys.argv[1]), sys.argv[2]).run())
