"""The picker's own CPU for a request, part by part and without sockets: `python -m tests.bench.offline`.

The frames of an Envoy (as recorded from 1.40: HEADERS, the request's headers, its body, the end of it; then
the response's headers; then RST_STREAM) go straight into a connection's buffer, many streams a read as under
load; what it writes goes nowhere. So the figures hold neither kernel nor event loop, repeat within a few
percent, and `--profile` or `valgrind --tool=callgrind` show the picker alone.

    transport   a handler that answers with bytes made beforehand
    exchange    ext_proc on it: messages parsed, the exchange, replies; a decision that is always the same
    telemetry   and what `picker serve` counts and keeps of each request
    whole       and the real decision
"""

import argparse
import asyncio
import cProfile
import json
import pstats
import random
import struct
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import hpack

from picker.config import Config, TransportLimits
from picker.decision import Booking, Picked
from picker.edge.grpc.ext_proc import METHOD, ExtProcService
from picker.edge.grpc.h2.connection import Connection
from picker.edge.grpc.h2.shared import RECEIVE_BYTES, H2Shared
from picker.edge.grpc.transport import Call
from picker.edge.process.malloc import tune_malloc
from picker.edge.telemetry.decisions import DecisionRing
from picker.edge.telemetry.observers import Observers
from picker.edge.telemetry.page import Telemetry
from picker.generated import ext_proc_pb2 as pb
from picker.metering import Metering
from picker.outcomes import Explanation, Reason
from picker.pool.endpoint import Endpoint
from picker.pool.inflight import Charge
from picker.pool.specs import EndpointSpec
from tests.bench.decision import SIZES, chat_body, director_of
from tests.bench.raw_exchange import header_message
from tests.bench.report import Row
from tests.bench.sse_server import event
from tests.bench.transport import data_frames, frame
from tests.faults import raised

ENDPOINTS = 4
FULL_DUPLEX = 4
READ_BYTES = RECEIVE_BYTES
"""A read of a socket, at most."""
WIDTH = 16
"""Streams that a read carries a step of: 16 of 64 connections under load, 1 when paced."""
CHUNKS = 1_000
PARTS = ("transport", "exchange", "telemetry", "whole")

SENT_BY_ENVOY = (
    (":method", "POST"),
    (":scheme", "http"),
    (":path", METHOD),
    (":authority", "picker"),
    ("te", "trailers"),
    ("content-type", "application/grpc"),
    ("x-envoy-internal", "true"),
    ("x-forwarded-for", "10.0.0.1"),
)
REQUEST_HEADERS = {
    ":authority": "gateway.example",
    ":path": "/v1/chat/completions",
    ":method": "POST",
    ":scheme": "http",
    "content-type": "application/json",
    "authorization": "Bearer none",
    "user-agent": "bench",
    "content-length": "2027",
    "x-forwarded-proto": "http",
    "x-request-id": "a0e1a499-6215-4998-b847-e5d642b573b0",
}
RESPONSE_HEADERS = {
    ":status": "200",
    "content-type": "application/json",
    "content-length": "177",
    "date": "Mon, 30 Nov 2026 10:29:49 GMT",
    "server": "envoy",
    "x-envoy-upstream-service-time": "1",
}


class Step(NamedTuple):
    """Frames with stream id 0, and where ids go."""

    frames: bytes
    id_offsets: tuple[int, ...]

    def numbered(self, stream_id: int) -> bytes:
        out = bytearray(self.frames)
        number = stream_id.to_bytes(4, "big")
        for at in self.id_offsets:
            out[at : at + 4] = number
        return bytes(out)


def step(frames: bytes) -> Step:
    offsets, at = [], 0
    while at < len(frames):
        offsets.append(at + 5)
        at += 9 + int.from_bytes(frames[at : at + 3], "big")
    return Step(frames, tuple(offsets))


def _headers_message(field: str, headers: dict[str, str]) -> Any:
    message = header_message(field, headers)
    message.metadata_context.SetInParent()
    return message


def _body_message(field: str, data: bytes, end: bool) -> bytes:
    message = pb.ProcessingRequest()
    body = getattr(message, field)
    body.body, body.end_of_stream = data, end
    message.metadata_context.SetInParent()
    return data_frames(0, message.SerializeToString())


def request_step(block: bytes, body: bytes, response_mode: int) -> Step:
    """HEADERS, the request's headers, its body, and, as Envoy does, the body's end by itself."""
    head = _headers_message("request_headers", REQUEST_HEADERS)
    head.protocol_config.request_body_mode = FULL_DUPLEX
    head.protocol_config.response_body_mode = response_mode
    content = data_frames(0, head.SerializeToString())
    return step(
        frame(1, 4, 0, block)
        + content
        + _body_message("request_body", body, end=False)
        + _body_message("request_body", b"", end=True)
    )


def response_headers_step(content_type: str = "application/json") -> Step:
    message = _headers_message("response_headers", {**RESPONSE_HEADERS, "content-type": content_type})
    served = message.metadata_context.filter_metadata["envoy.lb"].fields["x-gateway-destination-endpoint"]
    served.string_value = "10.0.0.1:8000"
    return step(data_frames(0, message.SerializeToString()))


RESET = step(frame(3, 0, 0, struct.pack(">L", 2)))


class Sink:
    """asyncio's transport, as far as a connection uses it. What is written is counted and gone."""

    def __init__(self) -> None:
        self.bytes = 0

    def set_write_buffer_limits(self, high: int) -> None:
        pass

    def get_extra_info(self, name: str) -> tuple[str, int] | None:
        return ("127.0.0.1", 1234) if name == "peername" else None

    def write(self, data: bytes) -> None:
        self.bytes += len(data)

    def writelines(self, pieces: list[bytes]) -> None:
        self.bytes += sum(map(len, pieces))

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False

    def can_write_eof(self) -> bool:
        return False

    def pause_reading(self) -> None:
        """The rest of a long read waits for the next turn of the loop, which `Peer.receive` gives it."""

    resume_reading = close = abort = pause_reading


class Peer:
    """One connection, and what an Envoy sends on it, read by read."""

    def __init__(self, methods: Any) -> None:
        self.soon: list[Callable[[], None]] = []
        self.errors: list[BaseException] = []
        shared = H2Shared(
            methods,
            TransportLimits(),
            on_error=self.errors.append,
            on_fault=lambda _, why: self.errors.append(RuntimeError(why)),
            clock=time.monotonic,
            call_soon=self.soon.append,
            call_later=lambda seconds, action: None,  # type: ignore[arg-type, return-value]
            call_ended=lambda: None,
        )
        self.connection = Connection(shared)
        self.connection.connection_made(Sink())  # type: ignore[arg-type]
        self.encoder = hpack.Encoder()
        self.next_id = 1
        settings = struct.pack(">HLHL", 4, 1 << 28, 3, 1 << 30)
        self.received = self.connection.get_buffer(-1)
        self.receive(
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, settings) + frame(8, 0, 0, struct.pack(">L", 1 << 30))
        )
        self.first_block = self.encoder.encode(list(SENT_BY_ENVOY))
        self.block = self.encoder.encode(list(SENT_BY_ENVOY))
        assert self.block == self.encoder.encode(list(SENT_BY_ENVOY))
        self.feed(frame(1, 4, 1, self.first_block) + frame(3, 0, 1, struct.pack(">L", 2)))

    def receive(self, data: bytes) -> None:
        """As a loop does, copy and all."""
        self.received[: len(data)] = data
        self.connection.buffer_updated(len(data))
        while self.soon:
            self.soon.pop(0)()

    def feed(self, data: bytes) -> None:
        self.receive(data)
        while self.soon:
            self.soon.pop()()
        if self.errors:
            raise self.errors[0]

    def opening(self) -> int:
        self.next_id += 2
        # The window that a real peer gives back.
        self.connection.sender.window = 1 << 30
        return self.next_id

    def reads(self, pieces: list[bytes]) -> list[bytes]:
        data = b"".join(pieces)
        return [data[at : at + READ_BYTES] for at in range(0, len(data), READ_BYTES)]


class Answering:
    """A handler without a service: a route for the body's end, an answer for the response's headers."""

    __slots__ = ("_call", "_got")
    ROUTE = bytes(126)
    ECHO = bytes(2_040)
    CONTINUE = bytes(4)

    def __init__(self, call: Call) -> None:
        self._call = call
        self._got = 0

    def receive(self, message: bytes) -> None:
        self._got += 1
        if self._got == 3:
            self._call.send(self.ROUTE)
            self._call.send(self.ECHO)
        elif self._got >= 4:
            self._call.send(self.CONTINUE)

    def half_closed(self) -> None:
        self._call.finish()

    def closed(self) -> None:
        pass


class FixedPolicy:
    """The director's part, without its work."""

    limits = Config().limits
    hint_rules = None
    stamp_header = None
    explain_header = False
    models_differ = False
    metering = Metering(Config())

    PICKED = Picked(
        ("10.0.0.1:8000", "10.0.0.2:8000"),
        Reason.LOAD,
        0.0,
        Booking(
            Charge(
                Endpoint(EndpointSpec(address="10.0.0.1:8000", uid="1", name="pod-1"), 0),
                prefill_tokens=0.0,
                context_tokens=0.0,
                memory_tokens=0.0,
                now=0.0,
            ),
            array("Q"),
            None,
            None,
            None,
        ),
        lambda: Explanation("load", "", 0, 0, ()),
        0.05,
        "pod-1",
        500.0,
    )

    def priority(self, objective: str | None) -> int:
        return 0

    def decide(self, request: Any, **_: Any) -> Picked:
        return self.PICKED

    def not_streamed(self, booking: Any) -> None:
        pass

    def first_token(self, booking: Any, now: float) -> None:
        pass

    def answered(self, booking: Any, status: int, now: float, **_: Any) -> bool:
        return False

    def failed_within(self, booking: Any, now: float) -> bool:
        return False

    def served_by(self, booking: Any, address: str, now: float) -> bool:
        return False

    def decide_plainly(self, request: Any, **_: Any) -> Picked:
        return self.PICKED

    def engine_seconds(self, booking: Any, usage: Any) -> float:
        return 0.0

    def created(self, *_: Any, **__: Any) -> None:
        pass

    def ended_well(self, booking: Any, now: float) -> None:
        pass

    def abandoned(self, booking: Any, silent_seconds: float, now: float, **_: Any) -> bool:
        return False

    def finish(self, booking: Any, **_: Any) -> None:
        pass


def methods(part: str) -> Any:
    """The service of a part."""
    if part == "transport":
        return {METHOD: Answering}

    policy: Any = FixedPolicy()
    if part == "whole":
        policy = director_of(ENDPOINTS)
    books = None
    if part in ("telemetry", "whole"):
        telemetry = Telemetry(lambda: None)  # type: ignore[arg-type, return-value]
        books = Observers(DecisionRing(), telemetry)
    return ExtProcService(
        policy,
        clock=time.monotonic,
        rng=random.Random(1),
        finished=books.finished if books else lambda record: None,
        decided=books.decided if books else lambda picked, record: None,
        faulted=raised,
    ).methods()


def requests(peer: Peer, bodies: list[bytes], response_mode: int, width: int, count: int) -> Iterator[list[bytes]]:
    """The reads that carry `count` requests, in groups that overlap as under load: a read ends the last one's.

    A group is made just before it is taken, so that its bytes are as warm as the kernel's copy leaves them.
    """
    steps = [request_step(peer.block, body, response_mode) for body in bodies]
    headers, last = response_headers_step(), step(_body_message("response_body", event(8), end=True))
    ended: list[int] = []
    for first in range(0, count, width):
        ids = [peer.opening() for _ in range(width)]
        opening = [steps[(first + at) % len(steps)].numbered(each) for at, each in enumerate(ids)]
        answers = [headers.numbered(each) for each in ids]
        if response_mode == FULL_DUPLEX:
            answers += [last.numbered(each) for each in ids]
        yield peer.reads([RESET.numbered(each) for each in ended] + opening) + peer.reads(answers)
        ended = ids
    yield peer.reads([RESET.numbered(each) for each in ended])


def chunks(peer: Peer, width: int, chunks_each: int) -> tuple[list[bytes], list[bytes], list[bytes]]:
    """Reads that open `width` streamed answers, that carry their chunks, and that end them."""
    ids = [peer.opening() for _ in range(width)]
    opening = request_step(peer.block, chat_body(2_000, 1), FULL_DUPLEX)
    headers = response_headers_step("text/event-stream")
    chunk = step(_body_message("response_body", event(7), end=False))
    last = step(_body_message("response_body", b"data: [DONE]\n\n", end=True))
    before = peer.reads([opening.numbered(each) for each in ids]) + peer.reads([headers.numbered(each) for each in ids])
    between = [read for _ in range(chunks_each) for read in peer.reads([chunk.numbered(each) for each in ids])]
    after = peer.reads([last.numbered(each) for each in ids]) + peer.reads([RESET.numbered(each) for each in ids])
    return before, between, after


def timed(peer: Peer, reads: list[bytes]) -> float:
    receive, soon, sender = peer.receive, peer.soon, peer.connection.sender
    began = time.process_time()
    for read in reads:
        receive(read)
        while soon:  # what a read leaves for the loop's next turn
            soon.pop(0)()
        sender.window = 1 << 30
    took = time.process_time() - began
    assert not peer.errors and not soon, peer.errors
    return took


def request_us(part: str, size: str, *, width: int, rounds: int, count: int, response_mode: int = 0) -> float:
    """CPU microseconds a request, the best of some rounds."""
    peer = Peer(methods(part))
    bodies = [chat_body(SIZES[size], seed) for seed in range(40)]
    best = float("inf")
    for _ in range(rounds):
        took = sum(timed(peer, reads) for reads in requests(peer, bodies, response_mode, width, count))
        best = min(best, took / count)
        assert not peer.connection.streams
    return best * 1e6


def chunk_us(part: str, *, width: int, rounds: int, count: int) -> float:
    """CPU microseconds a chunk of 200 bytes, the best of some rounds."""
    peer = Peer(methods(part))
    best = float("inf")
    for _ in range(rounds):
        before, between, after = chunks(peer, width, count // width)
        timed(peer, before)
        best = min(best, timed(peer, between) / (count // width * width))
        timed(peer, after)
        assert not peer.connection.streams
    return best * 1e6


def rows(*, quick: bool = False, parts: Sequence[str] = PARTS) -> Iterator[Row]:
    """One row a part."""
    rounds, count = (3, 800) if quick else (7, 2_000)
    for part in parts:
        row: Row = {"": part}
        for name, size in (("2 KB us", "2 KB"), ("400 KB us", "400 KB")):
            calls = count if size == "2 KB" else count // 10
            width = WIDTH if size == "2 KB" else 1
            row[name] = round(request_us(part, size, width=width, rounds=rounds, count=calls), 1)
        row["2 KB, echoed us"] = round(
            request_us(part, "2 KB", width=WIDTH, rounds=rounds, count=count, response_mode=FULL_DUPLEX), 1
        )
        row["2 KB, one a read us"] = round(request_us(part, "2 KB", width=1, rounds=rounds, count=count), 1)
        row["a chunk us"] = round(chunk_us(part, width=WIDTH, rounds=rounds, count=count * 8), 2)
        row["a chunk, one a read us"] = round(chunk_us(part, width=1, rounds=rounds, count=count * 4), 2)
        yield row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", choices=PARTS, help="this part alone: one figure")
    parser.add_argument("--size", choices=tuple(SIZES), default="2 KB")
    parser.add_argument("--echoed", action="store_true", help="with the response's body")
    parser.add_argument("--chunks", action="store_true", help="chunks of a streamed answer instead")
    parser.add_argument("--width", type=int, default=WIDTH)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--count", type=int, default=2_000)
    parser.add_argument("--json", action="store_true", help="all figures of --part")
    parser.add_argument("--quick", action="store_true", help="with --json: fewer rounds")
    parser.add_argument("--profile", action="store_true", help="where the time goes (cProfile)")
    options = parser.parse_args()
    tune_malloc()
    if options.json:
        print(json.dumps(list(rows(quick=options.quick, parts=[options.part] if options.part else PARTS))))
        return
    if options.part is None:
        for row in rows():
            print(row)
        return

    def run() -> float:
        if options.chunks:
            return chunk_us(options.part, width=options.width, rounds=options.rounds, count=options.count)
        return request_us(
            options.part,
            options.size,
            width=options.width,
            rounds=options.rounds,
            count=options.count,
            response_mode=FULL_DUPLEX if options.echoed else 0,
        )

    if options.profile:
        profile = cProfile.Profile()
        profile.runcall(run)
        pstats.Stats(profile).sort_stats("tottime").print_stats(40)
    else:
        print(f"{run():.2f} us")


if __name__ == "__main__":
    asyncio.set_event_loop(None)
    main()
