"""One HTTP/2 connection, server side: bytes of a read in, calls on handlers, one write out.

Frames are parsed straight out of what a read brought, before the loop goes on; so all connections share
one buffer. A DATA frame need not be complete: gRPC messages are cut out of the byte stream as it comes,
and the middle of a large one goes from the buffer to the message without another copy. Everything
that handlers answer during one read leaves in one write.

Invariants:
* an exception never leaves `buffer_updated`: a peer's fault ends in GOAWAY or RST_STREAM, a
  handler's in INTERNAL for its call, ours in GOAWAY INTERNAL_ERROR and `on_error`;
* a call is in `streams` from its HEADERS until its last byte is written or it is reset;
  its handler's `closed()` has run by then;
* what is held for a peer is in the ledger (`picker.budget`): unfinished messages (`messages`), answers
  (`sender`), open calls. Header blocks have bounds of their own. See `TransportLimits`.
"""

import asyncio
import sys
from collections.abc import Callable
from itertools import islice
from typing import Any, Final, cast

from picker.edge.grpc.h2 import control, frames, responses
from picker.edge.grpc.h2.allowance import Floods
from picker.edge.grpc.h2.call import H2Call
from picker.edge.grpc.h2.frames import ConnectionFault, StreamFault
from picker.edge.grpc.h2.messages import Messages
from picker.edge.grpc.h2.requests import Requests, continuation, headers
from picker.edge.grpc.h2.sending import Sender, SendQueue
from picker.edge.grpc.h2.shared import H2Shared
from picker.edge.grpc.h2.upkeep import Upkeep
from picker.edge.grpc.transport import GrpcStatus

_DISCARDED_BYTES_MAX: Final = 65_536
"""How much of the body of a request that is not gRPC is read before it is answered."""

_WRITE_BUFFER_BYTES: Final = 512 * 1024
"""With so much in the socket's buffer a peer is not read from until it reads."""

_SLICE_BYTES: Final = 16_384
"""What is parsed at a time. It is copied for that: what is cut out of bytes are bytes, which can be keys."""

_TURN_SECONDS: Final = 0.004
"""So long one read may hold the loop, and a slice more."""

_ENDED_AT_ONCE_MAX: Final = 256
"""Calls of a lost connection; then other work gets its turn."""

_SMALL_FRAME_BYTES: Final = 16
"""A shorter DATA frame costs more than it moves."""

_NEVER_PAUSES: Final = (3, 12, 0) <= sys.version_info[:3] < (3, 12, 9) or (3, 13, 0) <= sys.version_info[:3] < (
    3,
    13,
    2,
)
"""There asyncio's `writelines` tells nobody that the socket's buffer is full (CVE-2024-12254)."""

_QUIET_SECONDS: Final = 30.0
"""A call of which nothing has come for so long does not keep its connection when places are short."""
_LOOKED_AT_MAX: Final = 64

_REMEMBERED_IDS_MAX: Final = 1_024
_WHOLE_MESSAGE_BYTES_MIN: Final = 16
"""Shorter messages are `messages`' to count: they move too little data for a handler call."""

_HTTP1_METHODS: Final = (b"GET ", b"POST", b"HEAD", b"PUT ", b"OPTI", b"DELE", b"PATC", b"CONN")


class Connection(asyncio.BufferedProtocol):
    """The server's end of one connection."""

    def __init__(
        self,
        shared: H2Shared,
        on_made: "Callable[[Connection], str]" = lambda _: "",
        on_lost: "Callable[[Connection], None]" = lambda _: None,
    ) -> None:
        """`on_made(self)` is told of the socket and may answer why it is refused; `on_lost(self)` when it is gone."""
        now = shared.clock()
        self.shared = shared
        self.peer = "unknown"
        self.streams: dict[int, H2Call] = {}
        self.sender = Sender(shared, self._drained, self._overflowed)
        self.floods = Floods(shared.limits, now)
        self.messages = Messages(shared, self.floods, now)
        self.upkeep = Upkeep(self, now)
        self.settled = False  # the peer's preface and SETTINGS have come
        self.closing = False
        self.requests = Requests(self)
        self._on_made = on_made
        self._on_lost = on_lost
        self._limits = shared.limits
        self._buffer = shared.received
        self._preface_left = frames.PREFACE
        self._tail = b""  # the beginning of a frame, from the last read
        self._rest = b""  # of a read that is too much work for one turn of the loop
        self._has_turn = False  # to go on with it
        self._data_left = 0  # of a DATA frame whose beginning has been handled
        self._data_stream_id = 0
        self._data_fin = 0
        self._received = 0  # DATA bytes since the last window we granted
        self._grant_at = shared.limits.connection_window_bytes // 2
        self._stream_grant_at = shared.limits.stream_window_bytes // 2
        self._reset_ids: dict[int, None] = {}  # streams that we reset: their peer may not know yet

    # -- asyncio.BufferedProtocol ----------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.sender.transport = cast(asyncio.Transport, transport)
        self.sender.transport.set_write_buffer_limits(high=_WRITE_BUFFER_BYTES)
        self.peer = _address(transport.get_extra_info("peername"))
        self.sender.gathers = _takes_pieces(transport)
        refusal = self._on_made(self)
        if refusal:
            self._greet()
            self.fail(frames.ENHANCE_YOUR_CALM, refusal)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self.closing:
            return
        if self._rest:  # TLS hands on what it had decrypted before it was told to pause
            self._rest += self._buffer[:nbytes]
            return
        if nbytes > _SLICE_BYTES and self.shared.turns.waited_for and not self._has_turn:
            self._wait(self._buffer[:nbytes])
            return
        now = self.shared.clock()
        self.upkeep.read_at = self.messages.now = self.floods.now = self.shared.budget.now = now
        self.sender.gathering = True
        try:
            if nbytes <= _SLICE_BYTES:
                self._parse(bytes(self._buffer[:nbytes]))
            else:
                self._read(nbytes, now + _TURN_SECONDS)
            if self.messages.growing is not None:
                self.messages.count()
        except ConnectionFault as fault:
            self.fail(fault.code, str(fault))
        except Exception as error:
            self.shared.on_error(error)
            self.fail(frames.INTERNAL_ERROR, "internal error")
        finally:
            self.sender.gathering = False
            self.sender.flush()

    def eof_received(self) -> bool:
        """A peer that sends no more gets no more either: half-open connections are not a thing of HTTP/2."""
        return False

    def pause_writing(self) -> None:
        """The peer does not read: neither do we, until it does."""
        self.sender.paused = True
        if self.sender.transport is not None and not self.closing:
            self.sender.transport.pause_reading()

    def resume_writing(self) -> None:
        self.sender.paused = False
        if self.sender.transport is not None and not self.closing:
            if not self._rest:
                self.sender.transport.resume_reading()
            self.sender.measure()
            self.sender.flush()

    def connection_lost(self, exc: BaseException | None) -> None:
        self.closing = True
        self._end_all_calls()
        self.sender.out.clear()
        self.sender.transport = None
        self.sender.measure()
        self._on_lost(self)

    # -- parsing ---------------------------------------------------------------------------

    def _read(self, size: int, until: float) -> None:
        """What a large read brought, slice by slice; the middle of a large message by itself.

        A read can be four thousand calls. What is not done `until` then waits for the next turn of the loop.
        """
        buffer, position = self._buffer, 0
        while position < size and not self.closing:
            if position and self.shared.clock() > until:
                self._wait(buffer[position:size])
                return
            if self._data_left:
                stop = min(position + self._data_left, size)
            else:
                if size - position > frames.FRAME_DEFAULT_BYTES and not self._tail and self.requests.pending is None:
                    position = self._take(position, size)
                stop = min(position + _SLICE_BYTES, size)
            self._parse(bytes(buffer[position:stop]))
            position = stop

    def _wait(self, rest: memoryview) -> None:
        """What is left of a read, until it is this connection's turn."""
        self._rest = bytes(rest)
        if self.sender.transport is not None:
            self.sender.transport.pause_reading()
        self.shared.turns.wait(self._go_on)

    def _go_on(self) -> None:
        """The rest of a read."""
        rest, self._rest = self._rest, b""
        if self.closing:
            return
        self._has_turn = True
        for start in range(0, len(rest), len(self._buffer)):
            piece = rest[start : start + len(self._buffer)]
            if self._rest:
                self._rest += piece
                continue
            self._buffer[: len(piece)] = piece
            self.buffer_updated(len(piece))
        self._has_turn = False
        if not self._rest and not self.sender.paused and not self.closing and self.sender.transport is not None:
            self.sender.transport.resume_reading()

    def _take(self, position: int, size: int) -> int:
        """The frames at `position`, if they are of the middle of a call's message. Returns where others begin."""
        call = self.streams.get(int.from_bytes(self._buffer[position + 5 : position + 9], "big"))
        partial = None if call is None else call.partial
        if call is None or partial is None or partial.assembly is None or call.content_left is not None:
            return position
        stop, taken = partial.assembly.take(self._buffer, position, size, call.stream_id, self._limits.frame_bytes_max)
        if taken:
            length = stop - position - taken * frames.FRAME_HEADER_BYTES
            partial.missing -= length
            self.messages.grow(call)
            self.floods.useful += taken
            self._received += length
            call.received += length
            self._grant(call)
        return stop

    def _parse(self, data: bytes) -> None:
        position = 0
        if self._preface_left:
            position = self._read_preface(data)
            if self._preface_left:
                return
        if self._tail:
            position = self._complete_tail(data, position)
        size = len(data)
        if position < size and not self.closing:
            position = self._frames(data, position, size)
            if position < size:
                self._tail = data[position:]

    def _read_preface(self, data: bytes) -> int:
        expected = self._preface_left
        found = data[: len(expected)]
        if not expected.startswith(found):
            if expected is frames.PREFACE and data.startswith(_HTTP1_METHODS):
                self.sender.out.append(responses.HTTP1_ANSWER)
                self.close()
                return len(data)
            raise ConnectionFault(frames.PROTOCOL_ERROR, "not an HTTP/2 connection preface")
        self._preface_left = expected[len(found) :]
        if not self._preface_left:
            self._greet()
        return len(found)

    def _greet(self) -> None:
        """Our own preface. It waits for the peer's, so that HTTP/1 clients can be told what this port is."""
        limits = self._limits
        values = {
            frames.MAX_CONCURRENT_STREAMS: limits.concurrent_streams_max,
            frames.INITIAL_WINDOW_SIZE: limits.stream_window_bytes,
            frames.MAX_FRAME_SIZE: limits.frame_bytes_max,
            frames.MAX_HEADER_LIST_SIZE: limits.header_list_bytes_max,
        }
        self.sender.out.append(frames.settings(values))
        wider = limits.connection_window_bytes - frames.WINDOW_DEFAULT_BYTES
        if wider:
            self.sender.out.append(frames.window_update(0, wider))

    def _complete_tail(self, data: bytes, position: int) -> int:
        """Finish the frame that the last read broke off; returns where the next one begins."""
        while self._tail and not self.closing:
            tail = self._tail
            wanted = frames.FRAME_HEADER_BYTES
            if len(tail) >= wanted:
                wanted += int.from_bytes(tail[:3], "big")
            missing = wanted - len(tail)
            if missing > 0:
                tail += data[position : position + missing]
                position = min(position + missing, len(data))
            taken = self._frames(tail, 0, len(tail))
            self._tail = tail[taken:]
            if position == len(data):
                break
        return position

    def _frames(self, data: bytes, position: int, size: int) -> int:
        """Handle every frame in `data[position:size]`; returns where an incomplete one begins.

        The two frames that requests are made of are handled here, the others by `_HANDLERS`.
        """
        streams, messages, requests = self.streams, self.messages, self.requests
        remembered = requests.heads.remembered
        length_max, message_max = self._limits.frame_bytes_max, self._limits.message_bytes_max
        floods, connection_grant_at, stream_grant_at = self.floods, self._grant_at, self._stream_grant_at
        if self._data_left:
            position = self._continue_data(data, position, size)
        while size - position >= 9:
            # Byte by byte: `frames.HEADER`, whose tuple costs three times as much in the compiled build.
            length = data[position] << 16 | data[position + 1] << 8 | data[position + 2]
            kind, flags = data[position + 3], data[position + 4]
            stream_id = (data[position + 5] & 0x7F) << 24 | data[position + 6] << 16
            stream_id |= data[position + 7] << 8 | data[position + 8]
            body = position + 9
            stop = body + length
            if length > length_max:
                raise ConnectionFault(frames.FRAME_SIZE_ERROR, "frame above SETTINGS_MAX_FRAME_SIZE")
            if requests.pending is not None:
                if kind != 9 or stream_id != requests.pending.stream_id:
                    raise ConnectionFault(frames.PROTOCOL_ERROR, "CONTINUATION expected")
            elif kind == 0 and not flags & 0x8 and self.settled:  # DATA without padding
                call = streams.get(stream_id)
                if call is not None and length:  # what `_account` does, without the call
                    if length >= _SMALL_FRAME_BYTES:
                        floods.useful += 1
                    else:
                        floods.spend_idle(1)
                    self._received += length
                    call.received += length
                    if self._received >= connection_grant_at or call.received >= stream_grant_at:
                        self._grant(call)
                else:
                    self._account(call, stream_id, length)
                if stop > size:
                    self._data_left = stop - size
                    self._data_stream_id = stream_id
                    self._data_fin = flags & 1
                    self._deliver(call, data, body, size, 0)
                    return size
                position = stop
                if call is not None:
                    partial = call.partial
                    if (
                        partial is not None
                        and partial.assembly is not None
                        and partial.missing > length
                        and not flags
                        and call.content_left is None
                    ):
                        partial.assembly.add(data, body, stop)  # the middle of a long message
                        partial.missing -= length
                        if messages.growing is not call:
                            messages.grow(call)
                    elif (
                        partial is None
                        and length >= _WHOLE_MESSAGE_BYTES_MIN
                        and not flags
                        and data[body] == 0  # not compressed
                        and int.from_bytes(data[body + 1 : body + 5], "big") == length - 5 <= message_max
                        and (handler := call.handler) is not None
                        and not call.remote_closed
                        and call.content_left is None
                    ):  # one frame, one message: what `messages.deliver` would do, in two calls less
                        call.received_at_seconds = messages.now
                        try:
                            handler.receive(data[body + 5 : stop])
                        except Exception as error:
                            call.fail(error)
                    else:
                        self._deliver(call, data, body, stop, flags & 1)
                continue
            if stop > size:
                return position
            position = stop
            if kind == 1 and flags & 0xFE == 4 and stream_id > requests.last_id and self.settled:  # HEADERS, whole
                head = remembered.get(data[body:stop])
                if head is not None:
                    requests.open(stream_id, head, flags & 1)
                    continue
            elif kind == 3 and length == 4:  # RST_STREAM of a call that was answered: how Envoy ends each
                call = streams.get(stream_id)
                if call is not None and call.headers_sent:
                    self.forget(call)
                    continue
            self._other_frame(kind, flags, stream_id, data[body:stop])
        return position

    def _other_frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if not self.settled:
            if kind != frames.SETTINGS or flags & frames.ACK:
                raise ConnectionFault(frames.PROTOCOL_ERROR, "the first frame has to be SETTINGS")
            self.settled = True
        if kind > frames.CONTINUATION:
            self.floods.spend_idle(1)  # an extension's: ignored (section 4.1)
            return
        try:
            _HANDLERS[kind](self, flags, stream_id, payload)
        except StreamFault as fault:
            self.reset(fault.stream_id, fault.code)

    def is_idle_stream(self, stream_id: int) -> bool:
        """Never opened, by the peer or by us (we open none)."""
        return stream_id > self.requests.last_id or not stream_id & 1

    # -- DATA ------------------------------------------------------------------------------

    def _account(self, call: H2Call | None, stream_id: int, length: int) -> None:
        """Flow control for a DATA frame: windows count whole frames, padding and all (section 6.9.1)."""
        if length < _SMALL_FRAME_BYTES:
            self.floods.spend_idle(1)
        else:
            self.floods.useful += 1
        self._received += length
        if call is None:
            if self._received >= self._grant_at:
                self._grant_connection()
            if self.is_idle_stream(stream_id):
                raise ConnectionFault(frames.PROTOCOL_ERROR, "DATA on an idle stream")
            if stream_id not in self._reset_ids:
                self.reset(stream_id, frames.STREAM_CLOSED)
            return
        call.received += length
        self._grant(call)

    def _grant(self, call: H2Call) -> None:
        """Give back what windows are due."""
        if self._received >= self._grant_at:
            self._grant_connection()
        if call.received >= self._stream_grant_at:
            self._grant_stream(call)

    def _grant_connection(self) -> None:
        if self._received > self._limits.connection_window_bytes:
            raise ConnectionFault(frames.FLOW_CONTROL_ERROR, "more DATA than the connection's window")
        self.sender.out.append(frames.window_update(0, self._received))
        self._received = 0

    def _grant_stream(self, call: H2Call) -> None:
        if call.received > self._limits.stream_window_bytes:
            raise ConnectionFault(frames.FLOW_CONTROL_ERROR, "more DATA than the stream's window")
        if call.queue is None or call.queue.bytes <= self._limits.stream_send_queue_bytes_max:
            self.sender.out.append(frames.window_update(call.stream_id, call.received))
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

    def _padded_data(self, flags: int, stream_id: int, payload: bytes) -> None:
        call = self.streams.get(stream_id)
        self._account(call, stream_id, len(payload))
        content = frames.without_padding(payload, flags)
        self._deliver(call, content, 0, len(content), flags & 1)

    def _deliver(self, call: H2Call | None, data: bytes, start: int, stop: int, fin: int) -> None:
        """A piece of a call's bytes, and whether it is the last."""
        if call is None:
            return
        if call.remote_closed:
            self.reset(call.stream_id, frames.STREAM_CLOSED)
            return
        if fin:
            call.remote_closed = True
        if call.content_left is not None:  # content-length against what really comes (section 8.1.1)
            call.content_left -= stop - start
            if call.content_left < 0 or (fin and call.content_left):
                self.reset(call.stream_id, frames.PROTOCOL_ERROR)
                return
        if call.handler is None:
            self.discard(call, stop - start, fin)
            return
        self.messages.deliver(call, data, start, stop)
        if fin and not call.ended:
            self.half_close(call)

    def half_close(self, call: H2Call) -> None:
        """The peer's last byte on this call has come."""
        call.remote_closed = True
        if call.partial is not None:
            call.finish(GrpcStatus.INTERNAL, "the stream ended inside a message")
        elif call.handler is not None:
            try:
                call.handler.half_closed()
            except Exception as error:
                call.fail(error)

    def discard(self, call: H2Call, size: int, fin: int) -> None:
        """The body of a call that has ended, or of a request that is not gRPC and is answered after it."""
        if call.ended:
            return
        call.discarded += size
        if fin or call.discarded > _DISCARDED_BYTES_MAX:
            block, text = responses.http_error(call.head.http_status)
            call.headers_sent = True
            self.shared.budget.answered(call)
            self.sender.write_headers(call.stream_id, 0, block)
            self.sender.enqueue(call, text, b"")
            call.finish_with(b"")

    # -- the end of streams ----------------------------------------------------------------

    def end_stream(self, call: H2Call, block: bytes) -> None:
        """The call's last frame: trailers, or where `block` is empty an empty DATA frame.

        A peer that still sends is told to stop (section 8.1).
        """
        stream_id = call.stream_id
        if block:
            self.sender.write_headers(stream_id, frames.END_STREAM, block)
        else:
            self.sender.out.append(frames.frame(frames.DATA, frames.END_STREAM, stream_id))
        if not call.remote_closed:
            self.sender.out.append(frames.rst_stream(stream_id, frames.NO_ERROR))
            self._remember_reset(stream_id)
        self._remove(stream_id)

    def reset(self, stream_id: int, code: int) -> None:
        """RST_STREAM for a peer's fault. It counts like a reset of the peer's own, or it would be a way around."""
        self.sender.out.append(frames.rst_stream(stream_id, code))
        self._remember_reset(stream_id)
        call = self.streams.get(stream_id)
        if call is not None:
            self.forget(call)
        self.floods.spend_reset()

    def cut(self, call: H2Call) -> None:
        """RST_STREAM for a call whose memory is needed, and what waits for it dropped. Safe to retry."""
        self.sender.out.append(frames.rst_stream(call.stream_id, frames.ENHANCE_YOUR_CALM))
        self._remember_reset(call.stream_id)
        self.forget(call)
        if not self.sender.gathering:
            self.sender.flush_soon()

    def forget(self, call: H2Call) -> None:
        """Drop a call that can have nothing more written, and tell its handler."""
        self._remove(call.stream_id)
        if call.queue is not None:
            self.sender.drop(call)
        call.close()

    def was_reset(self, stream_id: int) -> bool:
        """By us, lately: its peer may send on until it hears of it (section 5.1)."""
        return stream_id in self._reset_ids

    def _remember_reset(self, stream_id: int) -> None:
        reset_ids = self._reset_ids
        reset_ids[stream_id] = None
        if len(reset_ids) > _REMEMBERED_IDS_MAX:
            del reset_ids[next(iter(reset_ids))]

    def _remove(self, stream_id: int) -> None:
        del self.streams[stream_id]
        self.shared.call_ended()
        if self.requests.refusing and not self.streams:
            self.shared.call_soon(self._close_if_idle)

    def _drained(self, call: H2Call, queue: SendQueue) -> None:
        """A queue is empty: its call can end, and a window that was held back because of it opens."""
        if queue.final_block is not None:
            self.end_stream(call, queue.final_block)
        elif call.received >= self._stream_grant_at:
            self._grant_stream(call)

    # -- the end of the connection ---------------------------------------------------------

    def drain(self) -> None:
        """New calls are told to go elsewhere, those that run finish, then the connection closes."""
        self.upkeep.start_drain(self.shared.clock())
        self.sender.flush()

    def refuse_streams(self) -> None:
        """The drain's warning has reached the peer: from here on its calls are refused (it may retry them)."""
        self.requests.refusing = True
        self.sender.out.append(frames.goaway(max(self.requests.last_id, 0), frames.NO_ERROR, "draining"))
        if not self.streams:
            self.shared.call_soon(self._close_if_idle)

    def _close_if_idle(self) -> None:
        if not self.streams:
            self.close()

    def busy(self, now: float) -> bool:
        """Whether a call of it was answered and goes on: somebody's request. Looks at the newest few."""
        newest = islice(reversed(self.streams.values()), _LOOKED_AT_MAX)
        return any(call.headers_sent and now - call.received_at_seconds < _QUIET_SECONDS for call in newest)

    @property
    def rank(self) -> tuple[float, float]:
        """The lower, the less it is missed."""
        return self.sender.answered_at, self.upkeep.read_at

    def make_room(self) -> None:
        """Close, for another to come. Its peer may come again."""
        self.fail(frames.NO_ERROR, "idle, and its place is needed")
        self.upkeep.close_at = self.shared.clock()

    def _overflowed(self) -> None:
        self.abort("takes nothing of what waits for it, and memory is short")

    def fail(self, code: int, text: str) -> None:
        """GOAWAY, end every call, close."""
        if not self.closing:
            if code != frames.NO_ERROR:
                self.shared.on_fault(self.peer, text)
            self.sender.out.append(frames.goaway(max(self.requests.last_id, 0), code, text))
            self.close()

    def close(self) -> None:
        """Write what is due and close, letting the peer read it: a socket closed on unread input would cut it off."""
        if self.closing:
            return
        self.closing = True
        self._end_all_calls()
        self.sender.flush()
        self.upkeep.close_at = self.shared.clock() + self._limits.close_seconds
        transport = self.sender.transport
        if transport is None:
            return
        if transport.is_closing() or not transport.can_write_eof():
            transport.close()
            return
        try:
            transport.write_eof()
            transport.resume_reading()  # to its end: what comes is not looked at
        except (OSError, RuntimeError):  # the peer was faster
            transport.close()

    def abort(self, reason: str = "") -> None:
        """Cut the socket; nothing queued is worth waiting for."""
        if reason:
            self.shared.on_fault(self.peer, reason)
        self.closing = True
        if self.sender.transport is not None:
            self.sender.transport.abort()

    def _end_all_calls(self) -> None:
        """Of a connection that is over: some at once, the others in the turns of the loop that follow."""
        turns = self.shared.turns
        many = len(self.streams) > _ENDED_AT_ONCE_MAX
        if not (many and turns.waited_for) or self._has_turn:
            for stream_id, call in list(islice(self.streams.items(), _ENDED_AT_ONCE_MAX)):
                if stream_id in self.streams:
                    self.forget(call)
        if self.streams:
            turns.wait(self._end_more)

    def _end_more(self) -> None:
        self._has_turn = True
        self._end_all_calls()


_HANDLERS: Final[tuple[Callable[[Connection, int, int, bytes], None], ...]] = (
    Connection._padded_data,
    headers,
    control.priority,
    control.rst_stream,
    control.settings,
    control.push_promise,
    control.ping,
    control.goaway,
    control.window_update,
    continuation,
)
"""By frame type."""


def _takes_pieces(transport: asyncio.BaseTransport) -> bool:
    """Whether a large body is better written from where it lies. TLS would make a record of each piece."""
    return transport.get_extra_info("sslcontext") is None and not _NEVER_PAUSES


def _address(peername: Any) -> str:
    if not isinstance(peername, tuple) or len(peername) < 2:
        return "unknown"
    host, port = peername[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
