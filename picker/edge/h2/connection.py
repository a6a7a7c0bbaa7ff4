"""One HTTP/2 connection, server side: bytes of a read in, calls on handlers, one write out.

Frames are parsed straight out of `data_received`. A DATA frame need not be complete: gRPC
messages are cut out of the byte stream as it comes. Everything that handlers answer during one
read leaves in one write.

Invariants:
* an exception never leaves `data_received`: a peer's fault ends in GOAWAY or RST_STREAM, a
  handler's in INTERNAL for its call, ours in GOAWAY INTERNAL_ERROR and `on_error`;
* a call is in `streams` from its HEADERS until its last byte is written or it is reset;
  its handler's `closed()` has run by then;
* what is held for a peer is bounded: unfinished messages (`buffered`), answers (`queued`, and
  the socket's buffer), streams, header blocks. See `H2Limits`.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final, cast

from picker.edge.h2 import frames, responses
from picker.edge.h2.allowance import Allowance
from picker.edge.h2.call import H2Call, PartialMessage, SendQueue
from picker.edge.h2.frames import ConnectionFault, StreamFault
from picker.edge.h2.heads import Head, HeadReader
from picker.edge.h2.shared import Shared
from picker.edge.transport import GrpcStatus

_DISCARDED_BYTES_MAX: Final = 65_536
"""How much of the body of a request that is not gRPC is read before it is answered."""

_REMEMBERED_IDS_MAX: Final = 1_024
_EARNED_PER_FRAME: Final = 8
_KEEPALIVE_PING: Final = b"picker k"
_DRAIN_PING: Final = b"picker d"
_DRAIN_PING_SECONDS: Final = 1.0
_HTTP1_METHODS = (b"GET ", b"POST", b"HEAD", b"PUT ", b"OPTI", b"DELE", b"PATC", b"CONN")
_HTTP1_ANSWER = (
    b"HTTP/1.1 505 HTTP Version Not Supported\r\nConnection: close\r\nContent-Type: text/plain\r\n"
    b"Content-Length: 50\r\n\r\nThis port speaks gRPC: HTTP/2 with prior knowledge"
)


class PendingBlock:
    """A header block of which CONTINUATION frames are due."""

    __slots__ = ("block", "fin", "frames", "since_seconds", "stream_id")

    def __init__(self, stream_id: int, fin: int, block: bytes, now: float) -> None:
        self.stream_id = stream_id
        self.fin = fin
        self.block = bytearray(block)
        self.frames = 0
        self.since_seconds = now


class Connection(asyncio.Protocol):
    """The server's end of one connection."""

    def __init__(
        self,
        shared: Shared,
        on_made: "Callable[[Connection], str]" = lambda _: "",
        on_lost: "Callable[[Connection], None]" = lambda _: None,
    ) -> None:
        """`on_made(self)` is told of the socket and may answer why it is refused; `on_lost(self)` when it is gone."""
        limits = shared.limits
        self.shared = shared
        self.peer = "unknown"
        self.streams: dict[int, H2Call] = {}
        self.out: list[bytes | memoryview] = []
        self.reading = False
        # What the peer lets us send.
        self.window = frames.WINDOW_DEFAULT_BYTES
        self.stream_window = frames.WINDOW_DEFAULT_BYTES
        self.frame_bytes_max = frames.FRAME_DEFAULT_BYTES
        self.table_emptied_due = False
        self.queued = 0
        # What we let the peer send.
        self.buffered = 0
        self._received = 0
        self._grant_at = limits.connection_window_bytes // 2
        self._stream_grant_at = limits.stream_window_bytes // 2
        self._limits = limits
        self._on_made = on_made
        self._on_lost = on_lost
        self._heads = HeadReader(limits.header_list_bytes_max)
        now = shared.clock()
        self._read_at = self._connected_at = now
        self._resets = Allowance(limits.resets_max, limits.resets_per_second, now)
        self._idle = Allowance(limits.idle_frames_max, limits.idle_frames_per_second, now)
        self._useful = 0
        self._transport: asyncio.Transport | None = None
        self._tail = b""
        self._preface_left = frames.PREFACE
        self._settled = False
        self._pending: PendingBlock | None = None
        self._data_left = 0
        self._data_stream_id = 0
        self._data_fin = 0
        self._last_id = -1
        self._gaps: deque[tuple[int, int]] = deque(maxlen=16)
        self._reset_ids: dict[int, None] = {}
        self._ready: dict[H2Call, None] = {}
        self._partials: dict[H2Call, None] = {}
        self._flush_due = False
        self._write_paused = False
        self._closing = False
        self._close_at: float | None = None
        self._ping_sent_at: float | None = None
        self._drain_ping_at: float | None = None
        self._refusing = False
        self._stall: tuple[int, int] | None = None
        self._stalled_since = now
        self._frames_written = 0

    # -- asyncio.Protocol ------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=1024 * 1024)
        self.peer = _address(transport.get_extra_info("peername"))
        refusal = self._on_made(self)
        if refusal:
            self._greet()
            self.fail(frames.ENHANCE_YOUR_CALM, refusal)

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        self._read_at = self.shared.clock()
        self.reading = True
        try:
            self._parse(data)
        except ConnectionFault as fault:
            self.fail(fault.code, str(fault))
        except Exception as error:
            self.shared.on_error(error)
            self.fail(frames.INTERNAL_ERROR, "")
        finally:
            self.reading = False
            self._flush()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        """The peer does not read: neither do we, until it does."""
        self._write_paused = True
        if self._transport is not None and not self._closing:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._write_paused = False
        if self._transport is not None and not self._closing:
            self._transport.resume_reading()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._closing = True
        self._end_all_calls()
        self._transport = None
        self._on_lost(self)

    # -- parsing ---------------------------------------------------------------------------

    def _parse(self, data: bytes) -> None:
        position = 0
        if self._preface_left:
            position = self._read_preface(data)
            if self._preface_left:
                return
        if self._tail:
            position = self._complete_tail(data, position)
        size = len(data)
        if position < size:
            position = self._frames(data, position, size)
            if position < size:
                self._tail = data[position:]

    def _read_preface(self, data: bytes) -> int:
        expected = self._preface_left
        found = data[: len(expected)]
        if not expected.startswith(found):
            if expected is frames.PREFACE and data.startswith(_HTTP1_METHODS):
                self.out.append(_HTTP1_ANSWER)
                self._close()
                return len(data)
            raise ConnectionFault(frames.PROTOCOL_ERROR, "not an HTTP/2 connection preface")
        self._preface_left = expected[len(found) :]
        if not self._preface_left:
            self._greet()
        return len(found)

    def _greet(self) -> None:
        """Our own preface. It waits for the peer's, so that HTTP/1 clients can be told what this port is."""
        limits = self._limits
        self.out.append(
            frames.settings(
                {
                    frames.MAX_CONCURRENT_STREAMS: limits.concurrent_streams_max,
                    frames.INITIAL_WINDOW_SIZE: limits.stream_window_bytes,
                    frames.MAX_FRAME_SIZE: limits.frame_bytes_max,
                    frames.MAX_HEADER_LIST_SIZE: limits.header_list_bytes_max,
                }
            )
        )
        wider = limits.connection_window_bytes - frames.WINDOW_DEFAULT_BYTES
        if wider:
            self.out.append(frames.window_update(0, wider))

    def _complete_tail(self, data: bytes, position: int) -> int:
        """Finish the frame that the last read broke off; returns where the next one begins."""
        while self._tail:
            tail = self._tail
            wanted = frames.FRAME_HEADER_BYTES
            if len(tail) >= wanted:
                wanted += int.from_bytes(tail[:3], "big")
            missing = wanted - len(tail)
            if missing > 0:
                tail += data[position : position + missing]
                position = min(position + missing, len(data))
            self._tail = b""
            taken = self._frames(tail, 0, len(tail))
            self._tail = tail[taken:]
            if position == len(data):
                break
        return position

    def _frames(self, data: bytes, position: int, size: int) -> int:
        """Handle every frame in `data[position:size]`; returns where an incomplete one begins."""
        streams, remembered = self.streams, self._heads.remembered
        unpack, length_max = frames.HEADER.unpack_from, self._limits.frame_bytes_max
        if self._data_left:
            position = self._continue_data(data, position, size)
        while size - position >= 9:
            high, low, kind, flags, stream_id = unpack(data, position)
            length = high << 8 | low
            stream_id &= 0x7FFFFFFF
            body = position + 9
            stop = body + length
            if length > length_max:
                raise ConnectionFault(frames.FRAME_SIZE_ERROR, "frame above SETTINGS_MAX_FRAME_SIZE")
            if self._pending is not None:
                if kind != 9 or stream_id != self._pending.stream_id:
                    raise ConnectionFault(frames.PROTOCOL_ERROR, "CONTINUATION expected")
            elif kind == 0 and not flags & 0x8 and self._settled:  # DATA without padding
                call = streams.get(stream_id)
                self._account(call, stream_id, length)
                if stop > size:
                    self._data_left = stop - size
                    self._data_stream_id = stream_id
                    self._data_fin = flags & 1
                    self._deliver(call, data, body, size, 0)
                    return size
                self._deliver(call, data, body, stop, flags & 1)
                position = stop
                continue
            if stop > size:
                return position
            position = stop
            if kind == 1 and flags & 0xFE == 4 and stream_id > self._last_id and self._settled:  # HEADERS, nothing else
                head = remembered.get(data[body:stop])
                if head is not None:
                    self._open(stream_id, head, flags & 1)
                    continue
            self._other_frame(kind, flags, stream_id, data[body:stop])
            if self._closing:
                return size
        return position

    def _other_frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if not self._settled:
            if kind != frames.SETTINGS or flags & frames.ACK:
                raise ConnectionFault(frames.PROTOCOL_ERROR, "the first frame has to be SETTINGS")
            self._settled = True
        if kind > frames.CONTINUATION:
            self._spend_idle(1)
            return
        try:
            _HANDLERS[kind](self, flags, stream_id, payload)
        except StreamFault as fault:
            self.reset(fault.stream_id, fault.code)

    # -- DATA ------------------------------------------------------------------------------

    def _account(self, call: H2Call | None, stream_id: int, length: int) -> None:
        """Flow control for a DATA frame: windows count whole frames, padding and all (section 6.9.1)."""
        if not length:
            self._spend_idle(1)
        else:
            self._useful += 1
            self._received += length
            if self._received >= self._grant_at:
                self._grant_connection()
        if call is None:
            self._check_closed(stream_id)
            return
        call.received = received = call.received + length
        if received >= self._stream_grant_at:
            self._grant_stream(call)

    def _check_closed(self, stream_id: int) -> None:
        """DATA for a stream that is not open: an error unless we cut it off ourselves (section 5.1)."""
        if stream_id > self._last_id or not stream_id & 1:
            raise ConnectionFault(frames.PROTOCOL_ERROR, "DATA on an idle stream")
        if stream_id not in self._reset_ids:
            self.reset(stream_id, frames.STREAM_CLOSED)

    def _grant_connection(self) -> None:
        if self._received > self._limits.connection_window_bytes:
            raise ConnectionFault(frames.FLOW_CONTROL_ERROR, "more DATA than the connection's window")
        if self.queued <= self._limits.send_queue_bytes_max // 2:
            self.out.append(frames.window_update(0, self._received))
            self._received = 0

    def _grant_stream(self, call: H2Call) -> None:
        if call.received > self._limits.stream_window_bytes:
            raise ConnectionFault(frames.FLOW_CONTROL_ERROR, "more DATA than the stream's window")
        if call.queue is None or call.queue.bytes <= self._limits.stream_send_queue_bytes_max:
            self.out.append(frames.window_update(call.stream_id, call.received))
            call.received = 0

    def _continue_data(self, data: bytes, position: int, size: int) -> int:
        """More of a DATA frame whose header came with an earlier read."""
        stop = position + self._data_left
        fin = self._data_fin
        if stop > size:
            stop, fin = size, 0
        self._data_left -= stop - position
        self._deliver(self.streams.get(self._data_stream_id), data, position, stop, fin)
        return stop

    def _data(self, flags: int, stream_id: int, payload: bytes) -> None:
        """A padded DATA frame (or one before SETTINGS, refused by then)."""
        call = self.streams.get(stream_id)
        self._account(call, stream_id, len(payload))
        content = frames.without_padding(payload, flags)
        self._deliver(call, content, 0, len(content), flags & 1)

    def _deliver(self, call: H2Call | None, data: bytes, start: int, stop: int, fin: int) -> None:
        """Give a piece of a call's bytes to its handler, message by message."""
        if call is None:
            return
        if call.remote_closed:
            self.reset(call.stream_id, frames.STREAM_CLOSED)
            return
        if fin:
            call.remote_closed = True
        if call.content_left is not None and not self._content_fits(call, stop - start, fin):
            return
        handler = call.handler
        if handler is None:
            self._discard(call, stop - start, fin)
            return
        if call.partial is not None:
            start = self._extend(call, data, start, stop)
        unpack, message_max = frames.MESSAGE.unpack_from, self._limits.message_bytes_max
        while stop - start >= 5 and not call.ended:
            compressed, length = unpack(data, start)
            following = start + 5 + length
            if following > stop or compressed or length > message_max:
                break
            call.received_at_seconds = self._read_at
            try:
                handler.receive(data[start + 5 : following])
            except Exception as error:
                call.fail(error)
            start = following
        if call.ended:
            return
        if start < stop:
            self._begin_partial(call, data, start, stop)
        if fin and not call.ended:
            self._half_close(call)

    def _half_close(self, call: H2Call) -> None:
        call.remote_closed = True
        if call.partial is not None:
            call.finish(GrpcStatus.INTERNAL, "the stream ended inside a message")
        elif call.handler is not None:
            try:
                call.handler.half_closed()
            except Exception as error:
                call.fail(error)

    def _content_fits(self, call: H2Call, size: int, fin: int) -> bool:
        """content-length against what really came (section 8.1.1)."""
        assert call.content_left is not None
        call.content_left -= size
        if call.content_left < 0 or (fin and call.content_left):
            self.reset(call.stream_id, frames.PROTOCOL_ERROR)
            return False
        return True

    def _discard(self, call: H2Call, size: int, fin: int) -> None:
        """The body of a call that ended, or of a request that is not gRPC."""
        if call.ended:
            return
        discarded = call.partial.size + size if call.partial is not None else size
        if fin or discarded > _DISCARDED_BYTES_MAX:
            call.partial = None
            self._answer_plainly(call)
            return
        if call.partial is None:
            call.partial = PartialMessage(self._read_at)
        call.partial.size = discarded

    # -- unfinished messages ---------------------------------------------------------------

    def _begin_partial(self, call: H2Call, data: bytes, start: int, stop: int) -> None:
        call.partial = PartialMessage(self._read_at)
        self._partials[call] = None
        self._extend(call, data, start, stop)

    def _extend(self, call: H2Call, data: bytes, start: int, stop: int) -> int:
        """Add to the unfinished message, and deliver it when it is whole; returns where the next begins."""
        partial = call.partial
        assert partial is not None
        partial.progress_at_seconds = self._read_at
        if partial.missing < 0:
            needed = start + 5 - len(partial.prefix)
            partial.prefix += data[start : min(needed, stop)]
            start = min(needed, stop)
            if len(partial.prefix) < 5 or not self._accept_prefix(call, partial):
                return start
        end = min(start + partial.missing, stop)
        taken = end - start
        if taken:
            partial.pieces.append(data[start:end])
            partial.missing -= taken
            partial.size += taken
            self.buffered += taken
            self.shared.buffered_bytes += taken
        if partial.missing:
            limits = self._limits
            if self.buffered > limits.connection_buffered_bytes_max or (
                self.shared.buffered_bytes > limits.buffered_bytes_max
            ):
                call.finish(GrpcStatus.RESOURCE_EXHAUSTED, "too many bytes of unfinished messages are held")
            return end
        message = partial.pieces[0] if len(partial.pieces) == 1 else b"".join(partial.pieces)
        self.drop_partial(call)
        call.received_at_seconds = self._read_at
        handler = call.handler
        assert handler is not None
        try:
            handler.receive(message)
        except Exception as error:
            call.fail(error)
        return end

    def _accept_prefix(self, call: H2Call, partial: PartialMessage) -> bool:
        compressed, length = frames.MESSAGE.unpack(partial.prefix)
        partial.missing = length
        if compressed:
            # grpc/grpc doc/compression.md: an unsupported encoding is UNIMPLEMENTED, a flag without one INTERNAL.
            if call.head.encoding == "identity":
                call.finish(GrpcStatus.INTERNAL, "compressed message without grpc-encoding")
            else:
                call.finish(
                    GrpcStatus.UNIMPLEMENTED, f"grpc-encoding {call.head.encoding!r} is not supported: send identity"
                )
        elif length > self._limits.message_bytes_max:
            call.finish(
                GrpcStatus.RESOURCE_EXHAUSTED,
                f"message of {length} bytes, above the limit of {self._limits.message_bytes_max}",
            )
        return not call.ended

    def drop_partial(self, call: H2Call) -> None:
        """The message is complete, or its call over: give its bytes back to the budgets."""
        partial, call.partial = call.partial, None
        if partial is not None and call in self._partials:
            del self._partials[call]
            self.buffered -= partial.size
            self.shared.buffered_bytes -= partial.size

    # -- HEADERS ---------------------------------------------------------------------------

    def _headers(self, flags: int, stream_id: int, payload: bytes) -> None:
        if not stream_id:
            raise ConnectionFault(frames.PROTOCOL_ERROR, "HEADERS on stream 0")
        block = frames.without_padding(payload, flags)
        self_dependent = False
        if flags & frames.PRIORITIZED:
            block, self_dependent = frames.without_priority(block, stream_id)
        if flags & frames.END_HEADERS:
            self._header_block(stream_id, block, flags & 1)
        else:
            self._pending = PendingBlock(stream_id, flags & 1, block, self._read_at)
        if self_dependent:
            raise StreamFault(stream_id, frames.PROTOCOL_ERROR)

    def _continuation(self, flags: int, _stream_id: int, payload: bytes) -> None:
        pending = self._pending
        if pending is None:
            raise ConnectionFault(frames.PROTOCOL_ERROR, "CONTINUATION without HEADERS")
        pending.frames += 1
        pending.block += payload
        limits = self._limits
        if pending.frames > limits.continuation_frames_max or len(pending.block) > limits.header_block_bytes_max:
            raise ConnectionFault(frames.ENHANCE_YOUR_CALM, "header block too long")
        if flags & frames.END_HEADERS:
            self._pending = None
            self._header_block(pending.stream_id, bytes(pending.block), pending.fin)

    def _header_block(self, stream_id: int, block: bytes, fin: int) -> None:
        if not stream_id & 1:
            raise ConnectionFault(frames.PROTOCOL_ERROR, "a client's streams have odd numbers")
        if stream_id > self._last_id:
            head = self._heads.remembered.get(block)
            if head is None:
                self._spend_idle(1 + len(block) // 256)
                head = self._heads.read(block)
            self._open(stream_id, head, fin)
            return
        well_formed = self._heads.read_trailers(block)
        call = self.streams.get(stream_id)
        if call is None:
            if stream_id in self._reset_ids:
                return
            never_opened = any(first <= stream_id <= last for first, last in self._gaps)
            raise ConnectionFault(
                frames.PROTOCOL_ERROR if never_opened else frames.STREAM_CLOSED, "HEADERS on a closed stream"
            )
        if call.remote_closed:
            raise StreamFault(stream_id, frames.STREAM_CLOSED)
        if not well_formed or not fin or call.content_left:
            raise StreamFault(stream_id, frames.PROTOCOL_ERROR)
        call.remote_closed = True
        if call.handler is None:
            self._discard(call, 0, 1)
        else:
            self._half_close(call)

    def _open(self, stream_id: int, head: Head, fin: int) -> None:
        """A new call."""
        if not stream_id & 1:
            raise ConnectionFault(frames.PROTOCOL_ERROR, "a client's streams have odd numbers")
        if stream_id != self._last_id + 2:
            self._gaps.append((self._last_id + 2, stream_id - 2))
        self._last_id = stream_id
        self._useful += 1
        if self._refusing or len(self.streams) >= self._limits.concurrent_streams_max:
            self.reset(stream_id, frames.REFUSED_STREAM)
            return
        if head.malformed or (fin and head.content_length):
            self.reset(stream_id, frames.PROTOCOL_ERROR)
            return
        call = H2Call(self, stream_id, head, self._read_at)
        self.streams[stream_id] = call
        if fin:
            call.remote_closed = True
        if head.http_status != 200:
            if fin:
                self._answer_plainly(call)
            return
        make = self.shared.methods.get(head.path)
        if make is None or head.bad_timeout:
            self._refuse_call(call)
            return
        if head.timeout_seconds is not None:
            call.deadline = self.shared.call_later(head.timeout_seconds, call.expire)
        try:
            handler = make(call)
        except Exception as error:
            call.fail(error)
            return
        call.handler = handler
        if call.ended:
            call.handler = None
            try:
                handler.closed()
            except Exception as error:
                self.shared.on_error(error)
        elif fin:
            self._half_close(call)

    def _answer_plainly(self, call: H2Call) -> None:
        """A request that is not gRPC: an HTTP status and a line of text."""
        block, text = responses.http_error(call.head.http_status)
        call.headers_sent = True
        self.write_headers(call.stream_id, 0, block)
        self.enqueue(call, b"", text)
        call.finish_with(b"")

    def _refuse_call(self, call: H2Call) -> None:
        path = call.head.path
        if call.head.bad_timeout:
            call.finish(GrpcStatus.INTERNAL, "malformed grpc-timeout")
        else:
            call.finish(GrpcStatus.UNIMPLEMENTED, f"unknown method {path[:200]}")

    # -- the other frames ------------------------------------------------------------------

    def _priority(self, _flags: int, stream_id: int, payload: bytes) -> None:
        self._spend_idle(1)
        if not stream_id:
            raise ConnectionFault(frames.PROTOCOL_ERROR, "PRIORITY on stream 0")
        if len(payload) != 5:
            raise StreamFault(stream_id, frames.FRAME_SIZE_ERROR)
        if frames.depends_on_itself(payload, stream_id):
            raise StreamFault(stream_id, frames.PROTOCOL_ERROR)

    def _rst_stream(self, _flags: int, stream_id: int, payload: bytes) -> None:
        self._spend_idle(1)
        frames.read_long(payload, "RST_STREAM")
        if stream_id > self._last_id or not stream_id & 1:
            raise ConnectionFault(frames.PROTOCOL_ERROR, "RST_STREAM on an idle stream")
        call = self.streams.get(stream_id)
        if call is None:
            return
        if not call.ended and not self._resets.spend(1, self._read_at):
            raise ConnectionFault(frames.ENHANCE_YOUR_CALM, "too many streams reset")
        self._forget(call)

    def _settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise ConnectionFault(frames.PROTOCOL_ERROR, "SETTINGS on a stream")
        if flags & frames.ACK:
            if payload:
                raise ConnectionFault(frames.FRAME_SIZE_ERROR, "SETTINGS acknowledgement with a payload")
            self._spend_idle(1)
            return
        entries = frames.read_settings(payload)
        self._spend_idle(1 + len(entries) // 8)
        stream_window = self.stream_window
        for key, value in entries:
            if key == frames.INITIAL_WINDOW_SIZE:
                stream_window = value  # only where it ends up matters: one pass over the streams, not one an entry
            elif key == frames.MAX_FRAME_SIZE:
                self.frame_bytes_max = value
            elif key == frames.HEADER_TABLE_SIZE and value < frames.HEADER_TABLE_DEFAULT_BYTES:
                self.table_emptied_due = True
        self.out.append(frames.frame(frames.SETTINGS, frames.ACK, 0))
        if stream_window != self.stream_window:
            self._change_stream_window(stream_window)

    def _change_stream_window(self, value: int) -> None:
        """SETTINGS_INITIAL_WINDOW_SIZE moves every stream's window (section 6.9.2)."""
        self._spend_idle(len(self.streams) // 64)
        wider = value > self.stream_window
        self.stream_window = value
        if not wider:
            return
        for call in list(self.streams.values()):
            if value + call.window_offset > frames.WINDOW_MAX_BYTES:
                raise ConnectionFault(frames.FLOW_CONTROL_ERROR, "a stream's window above 2^31-1")
            if call.queue is not None:
                self._ready[call] = None
        self._send_ready()

    def _push_promise(self, _flags: int, _stream_id: int, _payload: bytes) -> None:
        raise ConnectionFault(frames.PROTOCOL_ERROR, "a client cannot push")

    def _ping(self, flags: int, stream_id: int, payload: bytes) -> None:
        self._spend_idle(1)
        if stream_id:
            raise ConnectionFault(frames.PROTOCOL_ERROR, "PING on a stream")
        if len(payload) != 8:
            raise ConnectionFault(frames.FRAME_SIZE_ERROR, "PING is not 8 bytes long")
        if not flags & frames.ACK:
            self.out.append(frames.ping(payload, ack=True))
        elif payload == _DRAIN_PING and self._drain_ping_at is not None:
            self._refuse_streams()

    def _goaway(self, _flags: int, stream_id: int, payload: bytes) -> None:
        self._spend_idle(1)
        if stream_id:
            raise ConnectionFault(frames.PROTOCOL_ERROR, "GOAWAY on a stream")
        if len(payload) < 8:
            raise ConnectionFault(frames.FRAME_SIZE_ERROR, "GOAWAY is shorter than 8 bytes")

    def _window_update(self, _flags: int, stream_id: int, payload: bytes) -> None:
        self._spend_idle(1)
        increment = frames.read_long(payload, "WINDOW_UPDATE") & frames.WINDOW_MAX_BYTES
        if not stream_id:
            if not increment:
                raise ConnectionFault(frames.PROTOCOL_ERROR, "WINDOW_UPDATE of 0")
            self.window += increment
            if self.window > frames.WINDOW_MAX_BYTES:
                raise ConnectionFault(frames.FLOW_CONTROL_ERROR, "the connection's window above 2^31-1")
            self._send_ready()
            return
        if stream_id > self._last_id or not stream_id & 1:
            raise ConnectionFault(frames.PROTOCOL_ERROR, "WINDOW_UPDATE on an idle stream")
        call = self.streams.get(stream_id)
        if call is None:
            return
        if not increment:
            raise StreamFault(stream_id, frames.PROTOCOL_ERROR)
        call.window_offset += increment
        if self.stream_window + call.window_offset > frames.WINDOW_MAX_BYTES:
            raise StreamFault(stream_id, frames.FLOW_CONTROL_ERROR)
        if call.queue is not None:
            self._ready[call] = None
            self._send_ready()

    def _spend_idle(self, amount: int) -> None:
        idle = self._idle
        idle.left -= amount
        if idle.left <= 0:
            earned, self._useful = self._useful * _EARNED_PER_FRAME, 0
            if not idle.refill(self._read_at, earned):
                raise ConnectionFault(frames.ENHANCE_YOUR_CALM, "too many frames that move no data")

    # -- sending ---------------------------------------------------------------------------

    def write_headers(self, stream_id: int, flags: int, block: bytes) -> None:
        if self.table_emptied_due:
            self.table_emptied_due = False
            block = responses.TABLE_EMPTIED + block
        self.out.append(frames.frame(frames.HEADERS, frames.END_HEADERS | flags, stream_id, block))

    def enqueue(self, call: H2Call, prefix: bytes, message: bytes) -> None:
        """A message that does not fit one frame or the windows: what fits goes at once, the rest waits."""
        queue = call.queue
        if queue is None:
            queue = call.queue = SendQueue()
        queue.chunks.extend(memoryview(chunk) for chunk in (prefix, message) if chunk)
        size = len(prefix) + len(message)
        queue.bytes += size
        self.queued += size
        self._ready[call] = None
        self._send_ready()
        if self.queued > self._limits.send_queue_bytes_max:
            self.shared.call_soon(self._give_up)

    def _give_up(self) -> None:
        self.fail(frames.ENHANCE_YOUR_CALM, "too many answers wait for windows")

    def _send_ready(self) -> None:
        """One frame for each waiting call in turn, while the connection's window lasts."""
        ready = self._ready
        while ready and self.window > 0:
            call = next(iter(ready))
            del ready[call]
            queue = call.queue
            if queue is None:
                continue
            room = min(self.window, self.stream_window + call.window_offset, self.frame_bytes_max, queue.bytes)
            if room <= 0:
                continue  # its own window is closed: a WINDOW_UPDATE makes it ready again
            self._write_data(call, queue, room)
            if queue.bytes:
                ready[call] = None
            else:
                self._drained(call, queue)

    def _write_data(self, call: H2Call, queue: SendQueue, size: int) -> None:
        out, chunks = self.out, queue.chunks
        out.append(frames.HEADER.pack(size >> 8, size & 0xFF, frames.DATA, 0, call.stream_id))
        self.window -= size
        call.window_offset -= size
        queue.bytes -= size
        self.queued -= size
        self._frames_written += 1
        while size:
            chunk = chunks.popleft()
            if len(chunk) > size:
                chunks.appendleft(chunk[size:])
                chunk = chunk[:size]
            out.append(chunk)
            size -= len(chunk)

    def _drained(self, call: H2Call, queue: SendQueue) -> None:
        call.queue = None
        if queue.trailers is not None:
            self.end_stream(call, queue.trailers)
        elif call.received >= self._stream_grant_at:
            self._grant_stream(call)
        if self._received >= self._grant_at:
            self._grant_connection()

    def end_stream(self, call: H2Call, block: bytes) -> None:
        """The call's last frame: trailers, or where `block` is empty an empty DATA frame.

        A peer that still sends is told to stop (section 8.1).
        """
        stream_id = call.stream_id
        if block:
            self.write_headers(stream_id, frames.END_STREAM, block)
        else:
            self.out.append(frames.frame(frames.DATA, frames.END_STREAM, stream_id))
        if not call.remote_closed:
            self.out.append(frames.rst_stream(stream_id, frames.NO_ERROR))
            self._remember_reset(stream_id)
        self._remove(stream_id)

    def reset(self, stream_id: int, code: int) -> None:
        """RST_STREAM, for a peer's fault: it counts like a reset of the peer's own."""
        self.out.append(frames.rst_stream(stream_id, code))
        self._remember_reset(stream_id)
        call = self.streams.get(stream_id)
        if call is not None:
            self._forget(call)
        if not self._resets.spend(1, self._read_at):
            raise ConnectionFault(frames.ENHANCE_YOUR_CALM, "too many stream errors")

    def _remember_reset(self, stream_id: int) -> None:
        reset_ids = self._reset_ids
        reset_ids[stream_id] = None
        if len(reset_ids) > _REMEMBERED_IDS_MAX:
            del reset_ids[next(iter(reset_ids))]

    def _forget(self, call: H2Call) -> None:
        """Drop a call that can have nothing more written, and tell its handler."""
        self._remove(call.stream_id)
        if call.queue is not None:
            self.queued -= call.queue.bytes
            call.queue = None
            self._ready.pop(call, None)
        call.close()

    def _remove(self, stream_id: int) -> None:
        del self.streams[stream_id]
        self.shared.call_ended()
        if self._refusing and not self.streams:
            self.shared.call_soon(self._close_if_idle)

    def flush_soon(self) -> None:
        """Write what was sent outside a read, together with whatever else this turn of the loop sends."""
        if not self._flush_due:
            self._flush_due = True
            self.shared.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_due = False
        out = self.out
        if not out:
            return
        if self._transport is not None:
            self._transport.write(out[0] if len(out) == 1 else b"".join(out))
            if self._write_paused and not self._closing:
                size = self._transport.get_write_buffer_size()
                if size + self.queued > self._limits.send_queue_bytes_max:
                    self.abort()
        out.clear()

    # -- ending ----------------------------------------------------------------------------

    def fail(self, code: int, text: str) -> None:
        """GOAWAY, end every call, close."""
        if self._closing:
            return
        self.out.append(frames.goaway(max(self._last_id, 0), code, text))
        self._close()

    def _close(self) -> None:
        """Write what is due and close, letting the peer read it: a socket closed on unread input would cut it off."""
        if self._closing:
            return
        self._closing = True
        self._end_all_calls()
        self._flush()
        self._close_at = self.shared.clock() + self._limits.close_seconds
        transport = self._transport
        if transport is None:
            return
        if transport.is_closing() or not transport.can_write_eof():
            transport.close()
            return
        try:
            transport.write_eof()
        except OSError:  # the peer was faster
            transport.close()

    def abort(self) -> None:
        """Cut the socket; nothing queued is worth waiting for."""
        self._closing = True
        if self._transport is not None:
            self._transport.abort()

    def _end_all_calls(self) -> None:
        for call in list(self.streams.values()):
            if call.stream_id in self.streams:
                self._forget(call)

    # -- drain and time --------------------------------------------------------------------

    def drain(self) -> None:
        """Graceful shutdown (section 6.8): warn, wait one round trip, then refuse and close when idle."""
        if self._closing or self._refusing or self._drain_ping_at is not None:
            return
        self._drain_ping_at = self.shared.clock()
        self.out.append(frames.goaway(frames.WINDOW_MAX_BYTES, frames.NO_ERROR, "draining"))
        self.out.append(frames.ping(_DRAIN_PING, ack=False))
        self._flush()

    def _refuse_streams(self) -> None:
        self._drain_ping_at = None
        self._refusing = True
        self.out.append(frames.goaway(max(self._last_id, 0), frames.NO_ERROR, "draining"))
        if not self.streams:
            self.shared.call_soon(self._close_if_idle)

    def _close_if_idle(self) -> None:
        if not self.streams:
            self._close()

    def tick(self, now: float) -> None:
        """What time alone can tell: called about once a second."""
        limits = self._limits
        if self._closing:
            if self._close_at is None or now >= self._close_at:
                self.abort()
            return
        if not self._settled and now - self._connected_at > limits.handshake_seconds:
            self.fail(frames.ENHANCE_YOUR_CALM, "no connection preface in time")
            return
        if self._pending is not None and now - self._pending.since_seconds > limits.header_block_seconds:
            self.fail(frames.ENHANCE_YOUR_CALM, "header block not finished in time")
            return
        if self._drain_ping_at is not None and now - self._drain_ping_at > _DRAIN_PING_SECONDS:
            self._refuse_streams()
        for call in [each for each in self._partials if each.partial is not None]:
            partial = call.partial
            if partial is not None and now - partial.progress_at_seconds > limits.message_stall_seconds:
                call.finish(GrpcStatus.CANCELLED, "a message was begun and not finished in time")
        if not self._check_stall(now):
            self._keep_alive(now)
        self._flush()

    def _check_stall(self, now: float) -> bool:
        """Cut a peer that takes nothing of what waits for it. One slow stream alone is no such peer."""
        transport = self._transport
        unsent = transport.get_write_buffer_size() if transport is not None else 0
        blocked = self.queued if self.window <= 0 else 0
        if not unsent and not blocked:
            self._stall = None
            return False
        found = (unsent, self._frames_written)
        if found != self._stall:
            self._stall, self._stalled_since = found, now
        elif now - self._stalled_since > self._limits.send_stall_seconds:
            self.abort()
        return True

    def _keep_alive(self, now: float) -> None:
        if self._ping_sent_at is not None and self._read_at >= self._ping_sent_at:
            self._ping_sent_at = None
        if self._ping_sent_at is not None:
            if now - self._ping_sent_at > self._limits.keepalive_timeout_seconds:
                self.abort()
        elif now - self._read_at > self._limits.keepalive_seconds:
            self._ping_sent_at = now
            self.out.append(frames.ping(_KEEPALIVE_PING, ack=False))


_HANDLERS: Final = (
    Connection._data,
    Connection._headers,
    Connection._priority,
    Connection._rst_stream,
    Connection._settings,
    Connection._push_promise,
    Connection._ping,
    Connection._goaway,
    Connection._window_update,
    Connection._continuation,
)


def _address(peername: Any) -> str:
    if not isinstance(peername, tuple) or len(peername) < 2:
        return "unknown"
    host, port = peername[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
