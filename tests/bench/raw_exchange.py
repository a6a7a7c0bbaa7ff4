"""Whole exchanges, streamed responses too, driven at a real `picker serve` by raw frames: faster than Envoy does.

In lockstep: each stream sends its next message when the last one is answered, as a proxy whose
upstream is never slow. `HeldClient` stops after the decision: a request in flight.
"""

import asyncio
import time
from collections.abc import Iterable
from typing import Any

import hpack

from picker.generated import ext_proc_pb2 as pb
from tests.bench.decision import chat_body
from tests.bench.processes import cpu_seconds
from tests.bench.sse_server import event
from tests.bench.transport import HEADERS, Client, data_frames, frame

FULL_DUPLEX = 4
METHOD = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"


def header_message(field: str, headers: dict[str, str]) -> Any:
    """A ProcessingRequest with the headers in one of its fields."""
    message = pb.ProcessingRequest()
    target = getattr(message, field).headers.headers
    for key, value in headers.items():
        target.add(key=key, raw_value=value.encode())
    return message


def opening(body_bytes: int) -> bytes:
    """Request headers and the whole body, both bodies in full-duplex mode."""
    head = header_message("request_headers", HEADERS)
    head.protocol_config.request_body_mode = head.protocol_config.response_body_mode = FULL_DUPLEX
    body = pb.ProcessingRequest()
    body.request_body.body, body.request_body.end_of_stream = chat_body(body_bytes, 1), True
    return data_frames(0, head.SerializeToString()) + data_frames(0, body.SerializeToString())


def chunk_message(data: bytes, end: bool = False) -> bytes:
    """One piece of the response's body."""
    message = pb.ProcessingRequest()
    message.response_body.body, message.response_body.end_of_stream = data, end
    return data_frames(0, message.SerializeToString())


class StreamingClient(Client):
    """`width` answers of `chunks` events at a time, `calls` in all."""

    def __init__(self, width: int, calls: int, body: int, chunks: int = 0) -> None:
        super().__init__(width, calls, body, chunks)
        self.fields = [(key, METHOD if key == ":path" else value) for key, value in self.fields]
        self.encoder = hpack.Encoder()  # the other has told its table of a path that is never sent
        self.first_block = self.encoder.encode(self.fields)
        self.block = self.encoder.encode(self.fields)
        self.headers = opening(body)
        answer = {":status": "200", "content-type": "text/event-stream"}
        self.response_headers = data_frames(0, header_message("response_headers", answer).SerializeToString())
        self.chunk = chunk_message(event(7))
        usage = {"prompt_tokens": 500, "completion_tokens": chunks}
        self.last = chunk_message(event(8, choices=[], usage=usage) + b"data: [DONE]\n\n", end=True)
        self.content: dict[int, bytes] = {}

    def content_came(self, stream_id: int, content: bytes) -> Iterable[bytes]:
        """grpcio puts several messages into a frame, or one into several."""
        content = self.content.pop(stream_id, b"") + content
        out = []
        while len(content) >= 5 and len(content) >= (whole := 5 + int.from_bytes(content[1:5], "big")):
            content = content[whole:]
            out.append(self.answered(stream_id))
        if content:
            self.content[stream_id] = content
        return out

    def is_fault(self, kind: int, stream_id: int) -> bool:
        return kind in (3, 7) and stream_id in self.state

    def answered(self, stream_id: int) -> bytes:
        state = self.state[stream_id] = self.state[stream_id] + 1
        if state == 1:  # the route; the body's echo follows
            return b""
        if state == 2:
            return self.numbered(self.response_headers, stream_id)
        sent = state - 3
        if sent < self.chunks - 1:
            return self.numbered(self.chunk, stream_id)
        return self.numbered(self.last, stream_id) if sent == self.chunks - 1 else frame(0, 1, stream_id)


class HeldClient(StreamingClient):
    """Each call stays where its request has been routed."""

    def answered(self, stream_id: int) -> bytes:
        self.state[stream_id] += 1
        if self.state[stream_id] != 2:
            return b""
        self.ended += 1
        if self.ended == self.calls and not self.done.done():
            self.done.set_result(None)
        return self.open() if self.opened < self.calls else b""


async def _connect(kind: type[StreamingClient], address: str, *arguments: int) -> StreamingClient:
    host, _, port = address.rpartition(":")
    _, client = await asyncio.get_running_loop().create_connection(lambda: kind(*arguments), host, int(port))
    async with asyncio.timeout(60):
        await client.done
    return client


def stream(address: str, pid: int, *, calls: int, width: int = 32, chunks: int = 1_000) -> tuple[float, float]:
    """Chunks a second of the wall, and picker CPU microseconds a chunk (the request's own included)."""

    async def run() -> None:
        (await _connect(StreamingClient, address, width, calls, 2_000, chunks)).transport.abort()

    before, began = cpu_seconds(pid), time.perf_counter()
    asyncio.run(run())
    used, took = cpu_seconds(pid) - before, time.perf_counter() - began
    return calls * chunks / took, 1e6 * used / (calls * chunks)


def held(address: str, streams: int, weigh: Any) -> float:
    """`weigh()` while so many requests are in flight."""

    async def run() -> float:
        client = await _connect(HeldClient, address, 64, streams, 2_000)
        weight = float(weigh())
        client.transport.abort()
        return weight

    return asyncio.run(run())
