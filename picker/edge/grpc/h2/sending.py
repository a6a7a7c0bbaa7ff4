"""The sending half of a connection: windows, queues, and one write for everything that one read caused.

Invariants: `queued` is the sum of all calls' queues; a call with a queue is in `_ready` unless its
own window is closed; DATA never exceeds the peer's windows or frame size, nor `ROOM_BYTES` what
the socket has not taken. What waits is in the ledger (`picker.budget`): a queue as its call's, the
socket's as the connection's.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from picker.budget import Holder
from picker.edge.grpc.h2 import frames, responses
from picker.edge.grpc.h2.shared import H2Shared

if TYPE_CHECKING:
    from picker.edge.grpc.h2.call import H2Call


ROOM_BYTES: Final = 1024 * 1024
"""So much at most is given to a socket before it has taken it; the rest stays in the queues of its calls."""


class SendQueue:
    """Answers of one call that wait for the peer's windows, and the block that ends it after them."""

    __slots__ = ("bytes", "chunks", "final_block")

    def __init__(self) -> None:
        self.chunks: deque[memoryview] = deque()
        self.bytes = 0
        self.final_block: bytes | None = None


class Sender(Holder):
    """What one peer lets us send, what waits, and the socket."""

    __slots__ = (
        "_flush_due",
        "_on_drained",
        "_on_overflow",
        "_ready",
        "_shared",
        "answered_at",
        "frame_bytes_max",
        "frames_written",
        "gathering",
        "gathers",
        "held_bytes_of_socket",
        "out",
        "paused",
        "queued",
        "room",
        "scattered",
        "stream_window",
        "table_emptied_due",
        "transport",
        "window",
    )

    def __init__(
        self, shared: H2Shared, on_drained: "Callable[[H2Call, SendQueue], None]", on_overflow: Callable[[], None]
    ) -> None:
        """`on_drained`: a call's queue is empty. `on_overflow`: the peer does not read, and its memory is needed."""
        super().__init__()
        self._shared = shared
        self._on_drained = on_drained
        self._on_overflow = on_overflow
        self.transport: asyncio.Transport | None = None
        self.out: list[bytes | memoryview] = []
        self.gathers = True  # the socket takes pieces as they are; TLS would make a record of each
        self.scattered = False  # `out` has views of large bodies, better written from where they lie
        self.gathering = False  # within a read: flushed at its end
        self.paused = False  # the socket's buffer is full
        self.window = frames.WINDOW_DEFAULT_BYTES
        self.stream_window = frames.WINDOW_DEFAULT_BYTES
        self.frame_bytes_max = frames.FRAME_DEFAULT_BYTES
        self.table_emptied_due = False
        self.queued = 0
        self.room = ROOM_BYTES
        self.held_bytes_of_socket = 0
        self.answered_at = 0.0  # when a call last got its first answer; 0: never
        self.frames_written = 0
        self._ready: dict[H2Call, None] = {}
        self._flush_due = False

    def write_headers(self, stream_id: int, flags: int, block: bytes) -> None:
        """A HEADERS frame; the first after the peer shrank its table says that ours is empty."""
        if self.table_emptied_due:
            self.table_emptied_due = False
            block = responses.TABLE_EMPTIED + block
        self.out.append(frames.frame(frames.HEADERS, frames.END_HEADERS | flags, stream_id, block))

    def enqueue(self, call: "H2Call", message: bytes, body: bytes | memoryview) -> None:
        """A message (with its prefix) that does not fit one frame or the windows: what fits goes at once."""
        queue = call.queue
        if queue is None:
            queue = call.queue = SendQueue()
        queue.chunks.append(memoryview(message))
        if body:
            queue.chunks.append(memoryview(body))
        size = len(message) + len(body)
        queue.bytes += size
        self.queued += size
        budget = self._shared.budget
        budget.answers += size
        budget.take(call, size)
        if call.queue is queue:  # the call has not had to give way
            self.make_ready(call)

    def make_ready(self, call: "H2Call") -> None:
        """The call has a queue and its window may have opened."""
        self._ready[call] = None
        self.send_ready()

    def make_all_ready(self, calls: "list[H2Call]") -> None:
        """Every stream's window has opened."""
        for call in calls:
            if call.queue is not None:
                self._ready[call] = None
        self.send_ready()

    def send_ready(self) -> None:
        """One frame for each waiting call in turn, while the connection's window and the socket's room last."""
        ready = self._ready
        while ready and self.window > 0 and self.room > 0:
            call = next(iter(ready))
            del ready[call]
            queue = call.queue
            if queue is None:
                continue
            size = min(self.window, self.stream_window + call.window_offset, self.frame_bytes_max, queue.bytes)
            if size <= 0:
                continue  # its own window is closed: a WINDOW_UPDATE makes it ready again
            self._write_data(call, queue, size)
            if queue.bytes:
                ready[call] = None
            else:
                call.queue = None
                self._on_drained(call, queue)

    def _write_data(self, call: "H2Call", queue: SendQueue, size: int) -> None:
        out, chunks = self.out, queue.chunks
        out.append(frames.HEADER.pack(size >> 8, size & 0xFF, frames.DATA, 0, call.stream_id))
        self.window -= size
        self.room -= size
        call.window_offset -= size
        queue.bytes -= size
        self.queued -= size
        budget = self._shared.budget
        budget.answers -= size
        budget.give(call, size)
        self.frames_written += 1
        while size:
            chunk = chunks.popleft()
            if len(chunk) > size:
                chunks.appendleft(chunk[size:])
                chunk = chunk[:size]
            out.append(chunk)
            size -= len(chunk)

    def drop(self, call: "H2Call") -> None:
        """The call is reset: what waits for it will never go."""
        queue, call.queue = call.queue, None
        if queue is not None:
            self.queued -= queue.bytes
            budget = self._shared.budget
            budget.answers -= queue.bytes
            budget.give(call, queue.bytes)
            self._ready.pop(call, None)

    def flush_soon(self) -> None:
        """Write what was sent outside a read, together with whatever else this turn of the loop sends."""
        if not self._flush_due:
            self._flush_due = True
            self._shared.call_soon(self.flush)

    def flush(self) -> None:
        """One write of everything gathered."""
        self._flush_due = False
        if self._ready:
            self.send_ready()
        out = self.out
        if not out:
            return
        transport = self.transport
        if transport is not None and not transport.is_closing():
            if self.scattered and self.gathers:
                transport.writelines(out)
            else:
                transport.write(out[0] if len(out) == 1 else b"".join(out))
        out.clear()
        self.scattered = False
        if self.room < ROOM_BYTES // 2:
            self.measure()
            if self._ready and self.window > 0 and self.room > 0:
                self.flush_soon()  # more waits: in turn with whatever else the loop has to do

    def measure(self) -> None:
        """See how much the socket has not taken. What it holds is in the ledger, and so much less is written to it."""
        unsent = self.unsent_bytes()
        self.room = ROOM_BYTES - unsent
        more, self.held_bytes_of_socket = unsent - self.held_bytes_of_socket, unsent
        if more:
            budget = self._shared.budget
            budget.answers += more
            if more > 0:
                budget.take(self, more)
            else:
                budget.give(self, -more)

    def give_way(self) -> None:
        """Memory is short, and what this peer does not take from its socket has been held longest."""
        self._shared.call_soon(self._on_overflow)

    def unsent_bytes(self) -> int:
        """What the socket has not taken yet."""
        return 0 if self.transport is None else self.transport.get_write_buffer_size()
