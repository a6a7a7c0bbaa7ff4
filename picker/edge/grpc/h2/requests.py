"""Header blocks become calls, or the answer that says why not.

Invariants: a block is decoded whatever becomes of its stream, because HPACK's state is the
connection's; stream ids only grow; while a block is unfinished nothing else is accepted.
"""

from collections import deque
from typing import TYPE_CHECKING

from picker.edge.grpc.h2 import frames
from picker.edge.grpc.h2.call import H2Call
from picker.edge.grpc.h2.frames import ConnectionFault, StreamFault
from picker.edge.grpc.h2.heads import Head, HeadReader
from picker.edge.grpc.transport import GrpcStatus

if TYPE_CHECKING:
    from picker.edge.grpc.h2.connection import Connection


class PendingBlock:
    """A header block of which CONTINUATION frames are due."""

    __slots__ = ("block", "fin", "frames", "self_dependent", "since_seconds", "stream_id")

    def __init__(self, stream_id: int, fin: int, block: bytes, self_dependent: bool, now: float) -> None:
        self.stream_id = stream_id
        self.fin = fin
        self.block = bytearray(block)
        self.self_dependent = self_dependent
        self.frames = 0
        self.since_seconds = now


class Requests:
    """The request side of one connection."""

    __slots__ = ("_connection", "_skipped_ids", "heads", "last_id", "pending", "refusing")

    def __init__(self, connection: "Connection") -> None:
        self._connection = connection
        self.heads = HeadReader(connection.shared.limits.header_list_bytes_max)
        self.pending: PendingBlock | None = None
        self.refusing = False  # a drain is past its warning
        self.last_id = -1
        self._skipped_ids: deque[tuple[int, int]] = deque(maxlen=16)

    def block(self, stream_id: int, block: bytes, fin: int, self_dependent: bool) -> None:
        """A whole header block."""
        connection = self._connection
        if stream_id <= self.last_id:
            self._trailers(stream_id, block, fin)
            return
        head = self.heads.remembered.get(block)
        if head is None:
            connection.floods.spend_idle(1 + len(block) // 256)  # decoding is dear
            head = self.heads.read(block)
        self.open(stream_id, head, fin, self_dependent)

    def open(self, stream_id: int, head: Head, fin: int, self_dependent: bool = False) -> None:
        """A new call."""
        connection = self._connection
        shared, streams = connection.shared, connection.streams
        if not stream_id & 1:
            raise ConnectionFault(frames.PROTOCOL_ERROR, "a client's streams have odd numbers")
        if stream_id != self.last_id + 2:
            self._skipped_ids.append((self.last_id + 2, stream_id - 2))
        self.last_id = stream_id
        connection.floods.useful += 1
        if self.refusing or len(streams) >= shared.limits.concurrent_streams_max:
            connection.reset(stream_id, frames.REFUSED_STREAM)
            return
        if head.malformed or self_dependent or (fin and head.content_length):
            connection.reset(stream_id, frames.PROTOCOL_ERROR)
            return
        call = streams[stream_id] = H2Call(connection, stream_id, head, connection.messages.now)
        if fin:
            call.remote_closed = True
        make = shared.methods.get(head.path)
        if make is None or head.http_status != 200 or head.bad_timeout:
            self._refuse(call, fin)
            return
        if head.timeout_seconds is not None:
            call.deadline = shared.call_later(head.timeout_seconds, call.expire)
        try:
            handler = make(call)
        except Exception as error:
            call.fail(error)
            return
        call.handler = handler
        if call.ended:  # by its own constructor
            call.handler = None
            try:
                handler.closed()
            except Exception as error:
                shared.on_error(error)
        elif fin:
            connection.half_close(call)

    def _refuse(self, call: H2Call, fin: int) -> None:
        if call.head.http_status != 200:
            if fin:
                self._connection.discard(call, 0, fin)
        elif call.head.bad_timeout:
            call.finish(GrpcStatus.INTERNAL, "malformed grpc-timeout")
        else:
            call.finish(GrpcStatus.UNIMPLEMENTED, f"unknown method {call.head.path[:200]}")

    def _trailers(self, stream_id: int, block: bytes, fin: int) -> None:
        """A header block on a stream that is or was open."""
        connection = self._connection
        connection.floods.spend_idle(1 + len(block) // 256)
        well_formed = self.heads.read_trailers(block)
        call = connection.streams.get(stream_id)
        if call is None:
            if connection.was_reset(stream_id):
                return
            skipped = any(first <= stream_id <= last for first, last in self._skipped_ids)
            code = frames.PROTOCOL_ERROR if skipped else frames.STREAM_CLOSED
            raise ConnectionFault(code, "HEADERS on a closed stream")
        if call.remote_closed:
            raise StreamFault(stream_id, frames.STREAM_CLOSED)
        if not well_formed or not fin or call.content_left:
            raise StreamFault(stream_id, frames.PROTOCOL_ERROR)
        call.remote_closed = True
        if call.handler is None:
            connection.discard(call, 0, fin)
        else:
            connection.half_close(call)


def headers(connection: "Connection", flags: int, stream_id: int, payload: bytes) -> None:
    """A HEADERS frame with padding, priority, CONTINUATION to come, or a block not seen before."""
    if not stream_id & 1:
        raise ConnectionFault(frames.PROTOCOL_ERROR, "a client's streams have odd numbers")
    block = frames.without_padding(payload, flags)
    self_dependent = False
    if flags & frames.PRIORITIZED:
        block, self_dependent = frames.without_priority(block, stream_id)
    requests, fin = connection.requests, flags & frames.END_STREAM
    if flags & frames.END_HEADERS:
        requests.block(stream_id, block, fin, self_dependent)
    else:
        requests.pending = PendingBlock(stream_id, fin, block, self_dependent, connection.messages.now)


def continuation(connection: "Connection", flags: int, _stream_id: int, payload: bytes) -> None:
    """More of a header block. The parser has seen to it that it is the right stream's."""
    requests, limits = connection.requests, connection.shared.limits
    pending = requests.pending
    if pending is None:
        raise ConnectionFault(frames.PROTOCOL_ERROR, "CONTINUATION without HEADERS")
    pending.frames += 1
    pending.block += payload
    if pending.frames > limits.continuation_frames_max or len(pending.block) > limits.header_block_bytes_max:
        raise ConnectionFault(frames.ENHANCE_YOUR_CALM, "header block too long")
    if flags & frames.END_HEADERS:
        requests.pending = None
        requests.block(pending.stream_id, bytes(pending.block), pending.fin, pending.self_dependent)
