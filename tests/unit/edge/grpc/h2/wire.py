"""A connection without a socket: a clock to turn, bytes to send, frames (read by hyperframe) to look at."""

import struct
from collections.abc import Callable, Iterable

import hpack
from hyperframe.frame import (
    DataFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from picker.config import TransportLimits
from picker.edge.grpc.h2.connection import Connection
from picker.edge.grpc.h2.shared import H2Shared
from picker.edge.grpc.transport import Call, GrpcStatus

SMALL_LIMITS = TransportLimits(
    concurrent_streams_max=8,
    message_bytes_max=2_000,
    stream_window_bytes=65_535,
    connection_window_bytes=70_000,
    connection_buffered_bytes_max=4_000,
    send_queue_bytes_max=20_000,
    stream_send_queue_bytes_max=1_000,
    resets_max=20,
    idle_frames_max=50,
)
"""So that arbitrary bytes reach them."""

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
CALL_FIELDS = (
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/test.Echo/Echo"),
    (":authority", "epp"),
    ("content-type", "application/grpc"),
    ("te", "trailers"),
)


def message(content: bytes, compressed: int = 0) -> bytes:
    """A gRPC length-prefixed message."""
    return struct.pack(">BL", compressed, len(content)) + content


class Socket:
    """The part of asyncio's transport that a connection uses. `sticky`: nothing is ever taken."""

    def __init__(self, tls: object = None) -> None:
        self.tls = tls
        self.written = bytearray()
        self.gathered_writes = 0
        self.reading = True
        self.eof = self.closed = self.aborted = False
        self.unsent = 0
        self.takes: int | None = None  # all; else so much before it is asked to `take`
        self.writes = 0

    def set_write_buffer_limits(self, high: int) -> None:
        pass

    def get_extra_info(self, name: str) -> object:
        return {"peername": ("127.0.0.1", 1234), "sslcontext": self.tls}.get(name)

    def write(self, data: bytes) -> None:
        self.writes += 1
        self.written += data
        if self.takes is not None:
            self.unsent += len(data)

    def take(self, size: int) -> None:
        """The kernel has room again for so much."""
        self.unsent = max(0, self.unsent - size)

    def writelines(self, pieces: list[bytes]) -> None:
        self.gathered_writes += 1
        self.write(b"".join(pieces))

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def is_closing(self) -> bool:
        return self.closed or self.aborted

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.eof = True

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.aborted = True


class Timer:
    def __init__(self, due: float, action: Callable[[], None]) -> None:
        self.due = due
        self.action = action
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Echo:
    """Answers each message with itself, and keeps what it saw. Some messages ask for something else."""

    def __init__(self, wire: "Wire", call: Call) -> None:
        self.wire = wire
        self.call = call
        self.seen: list[bytes | str] = []
        wire.handlers.append(self)

    def receive(self, content: bytes) -> None:
        assert "closed" not in self.seen
        self.seen.append(content)
        if content == b"raise":
            raise RuntimeError("handler's own")
        if content == b"finish":
            self.call.finish(GrpcStatus.UNAVAILABLE, "busy")
        elif content != b"silent":
            self.call.send(content)

    def half_closed(self) -> None:
        assert "closed" not in self.seen
        self.seen.append("half_closed")
        if b"silent" not in self.seen:
            self.call.finish()

    def closed(self) -> None:
        assert "closed" not in self.seen
        self.seen.append("closed")
        self.call.send(b"too late")
        self.call.finish()


class Wire:
    """One peer and its connection."""

    def __init__(
        self,
        limits: TransportLimits | None = None,
        *,
        greet: bool = True,
        beside: "Wire | None" = None,
        tls: object = None,
    ) -> None:
        """`beside`: another connection of the same server, with its clock, loop and handlers."""
        self.now = 1000.0
        self.soon: list[Callable[[], None]] = [] if beside is None else beside.soon
        self.timers: list[Timer] = []
        self.errors: list[BaseException] = []
        self.handlers: list[Echo] = []
        self.faults: list[tuple[str, str]] = []
        self.shared = (
            beside.shared  # type: ignore[has-type]
            if beside is not None
            else H2Shared(
                {"/test.Echo/Echo": lambda call: Echo(self, call)},
                limits or TransportLimits(),
                on_error=self.errors.append,
                on_fault=lambda peer, reason: self.faults.append((peer, reason)),
                clock=lambda: self.now,
                call_soon=self.soon.append,
                call_later=self._call_later,
                call_ended=lambda: None,
            )
        )
        self.socket = Socket(tls)
        self.connection = Connection(self.shared)
        self.connection.connection_made(self.socket)  # type: ignore[arg-type]
        self.encoder = hpack.Encoder()
        self.decoder = hpack.Decoder()
        self.data: dict[int, bytes] = {}
        if greet:
            self.send_raw(PREFACE)
            self.send(SettingsFrame(0))
            self.frames()

    def _call_later(self, seconds: float, action: Callable[[], None]) -> Timer:
        timer = Timer(self.now + seconds, action)
        self.timers.append(timer)
        return timer

    def pass_time(self, seconds: float) -> None:
        """Turn the clock; timers that are due run, then the connection's tick."""
        self.now += seconds
        for timer in [each for each in self.timers if each.due <= self.now]:
            self.timers.remove(timer)
            if not timer.cancelled:
                timer.action()
        self.connection.upkeep.tick(self.now)
        self.turn()

    def turn(self) -> None:
        """One turn of the event loop."""
        while self.soon:
            self.soon.pop(0)()

    def send_raw(self, data: bytes) -> None:
        room = self.connection.get_buffer(-1)
        for at in range(0, len(data), len(room)):
            piece = data[at : at + len(room)]
            room[: len(piece)] = piece
            self.connection.buffer_updated(len(piece))
        self.turn()

    def send(self, *frames: Frame) -> None:
        self.send_raw(b"".join(frame.serialize() for frame in frames))

    def headers(
        self, stream_id: int, fields: Iterable[tuple[str, str]] = CALL_FIELDS, flags: Iterable[str] = ()
    ) -> HeadersFrame:
        return HeadersFrame(stream_id, self.encoder.encode(list(fields)), flags=["END_HEADERS", *flags])

    def open(self, stream_id: int, *contents: bytes, end: bool = False) -> None:
        """A call, with some messages in one DATA frame each."""
        frames: list[Frame] = [self.headers(stream_id)]
        frames += [DataFrame(stream_id, message(content)) for content in contents]
        if end:
            frames.append(DataFrame(stream_id, b"", flags=["END_STREAM"]))
        self.send(*frames)

    def frames(self) -> list[Frame]:
        """What was written since the last look. Read by hyperframe, headers by hpack."""
        found: list[Frame] = []
        data = memoryview(bytes(self.socket.written))
        self.socket.written.clear()
        while data:
            frame, length = Frame.parse_frame_header(data[:9])
            frame.parse_body(data[9 : 9 + length])
            data = data[9 + length :]
            if isinstance(frame, HeadersFrame):
                frame.fields = self.decoder.decode(frame.data)  # type: ignore[attr-defined]
            if isinstance(frame, DataFrame):
                self.data[frame.stream_id] = self.data.get(frame.stream_id, b"") + frame.data
            found.append(frame)
        return found

    def answers(self, stream_id: int) -> list[bytes]:
        """The whole messages that a stream has answered with, so far."""
        self.frames()
        found, data = [], self.data.get(stream_id, b"")
        while len(data) >= 5:
            length = struct.unpack(">L", data[1:5])[0]
            if len(data) < 5 + length:
                break
            found.append(data[5 : 5 + length])
            data = data[5 + length :]
        return found

    def goaway_code(self) -> int | None:
        """The error code of the GOAWAY among the frames written, if there is one."""
        codes = [frame.error_code for frame in self.frames() if isinstance(frame, GoAwayFrame)]
        return codes[-1] if codes else None

    def reset_codes(self) -> dict[int, int]:
        return {frame.stream_id: frame.error_code for frame in self.frames() if isinstance(frame, RstStreamFrame)}

    def widen(self, stream_id: int, increment: int) -> None:
        self.send(WindowUpdateFrame(stream_id, increment))
