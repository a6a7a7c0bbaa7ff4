"""One HTTP/2 stream as a `Call`: an object and nothing else, no task, queue or future.

What only some calls need (an unfinished message, answers that wait for a window) hangs off it
and is there only while it is needed, so that a held stream costs a few hundred bytes.
"""

from typing import TYPE_CHECKING, Final

from picker.budget import Holder
from picker.edge.grpc.h2 import frames, responses
from picker.edge.grpc.h2.bulk import data_frame, data_frames
from picker.edge.grpc.h2.frames import MESSAGE
from picker.edge.grpc.h2.heads import Head
from picker.edge.grpc.h2.sending import SendQueue
from picker.edge.grpc.h2.shared import Timer
from picker.edge.grpc.transport import GrpcStatus, Handler

if TYPE_CHECKING:
    from picker.edge.grpc.h2.connection import Connection
    from picker.edge.grpc.h2.messages import PartialMessage

_RESPONSE_PREFIX: Final = frames.frame(frames.HEADERS, frames.END_HEADERS, 0, responses.RESPONSE_HEADERS)[:5]
_OK_TRAILERS: Final = responses.trailers(GrpcStatus.OK)


class H2Call(Holder):
    """The transport's end of one call. `ended` is set before `closed()` and never unset."""

    __slots__ = (
        "_connection",
        "_sender",
        "body_bytes",
        "content_left",
        "deadline",
        "discarded",
        "ended",
        "handler",
        "head",
        "headers_sent",
        "partial",
        "peer",
        "queue",
        "received",
        "received_at_seconds",
        "remote_closed",
        "stream_id",
        "window_offset",
    )

    def __init__(self, connection: "Connection", stream_id: int, head: Head, now: float) -> None:
        super().__init__()
        self.peer = connection.peer
        self.received_at_seconds = now
        self._connection = connection
        self._sender = connection.sender
        self.stream_id = stream_id
        self.head = head
        self.handler: Handler | None = None
        self.ended = False
        self.headers_sent = False
        self.remote_closed = False
        self.received = 0  # bytes since the last window we granted
        self.window_offset = 0  # what the peer's window is above its SETTINGS_INITIAL_WINDOW_SIZE
        self.content_left = head.content_length
        self.discarded = 0  # bytes of a body that nobody reads
        self.partial: PartialMessage | None = None
        self.queue: SendQueue | None = None
        self.deadline: Timer | None = None
        self.body_bytes = 0  # what the handler keeps of messages
        connection.shared.budget.begin(self)

    def send(self, message: bytes, body: bytes | memoryview = b"") -> None:
        """Queue one message for the peer, `body` behind `message`."""
        if self.ended:
            return
        sender = self._sender
        out = sender.out
        if not self.headers_sent:
            self.headers_sent = True
            budget = self._connection.shared.budget
            budget.answered(self)
            sender.answered_at = budget.now
            if sender.table_emptied_due:
                sender.write_headers(self.stream_id, 0, responses.RESPONSE_HEADERS)
            else:
                out.append(_RESPONSE_PREFIX + self.stream_id.to_bytes(4, "big") + responses.RESPONSE_HEADERS)
        length = len(message) + len(body)
        size = length + 5
        fits = (
            size <= sender.window
            and size <= sender.room
            and size <= sender.stream_window + self.window_offset
            and self.queue is None
        )
        if fits and size <= sender.frame_bytes_max:
            sender.window -= size
            sender.room -= size
            self.window_offset -= size
            out.append(data_frame(self.stream_id, message, len(body)))
            if body:
                out.append(body)
        elif fits and data_frames is not None:
            sender.window -= size
            sender.room -= size
            self.window_offset -= size
            data_frames(out, self.stream_id, sender.frame_bytes_max, MESSAGE.pack(0, length) + message, body)
            sender.scattered = True
            sender.frames_written += 1
        else:
            sender.enqueue(self, MESSAGE.pack(0, length) + message, body)
        if not sender.gathering:
            sender.flush_soon()

    def finish(self, status: GrpcStatus = GrpcStatus.OK, text: str = "") -> None:
        """End the call with a status. `text` reaches the peer as grpc-message."""
        if self.ended:
            return
        if not self.headers_sent:
            block = responses.trailers_only(status, text)
        elif status is GrpcStatus.OK and not text:
            block = _OK_TRAILERS
        else:
            block = responses.trailers(status, text)
        self.finish_with(block)

    def finish_with(self, block: bytes) -> None:
        """End the call with this header block (empty: with DATA), behind whatever is queued."""
        if self.queue is None:
            self._connection.end_stream(self, block)
        else:
            self.queue.final_block = block
        self.close()
        if not self._sender.gathering:
            self._sender.flush_soon()

    def hold(self, size: int) -> None:
        """The handler keeps `size` bytes of what it has received, in all."""
        if self.ended:
            return
        budget, more = self._connection.shared.budget, size - self.body_bytes
        self.body_bytes = size
        budget.bodies += more
        if more > 0:
            budget.take(self, more)
        else:
            budget.give(self, -more)

    def give_way(self) -> None:
        """Memory is short, and this call has held most for longest."""
        connection = self._connection
        handler = self.handler
        answer = getattr(handler, "give_way", None)
        if answer is not None and self.queue is None:
            try:
                answer()
            except Exception as error:
                self.fail(error)
        if self.stream_id not in connection.streams:
            return
        if self.queue is None and not self.ended:
            self.finish(GrpcStatus.RESOURCE_EXHAUSTED, "the memory for requests is full (limits.memory_bytes_max)")
        if self.stream_id in connection.streams:  # answers that wait would keep it
            connection.cut(self)
        elif not self._sender.gathering:
            self._sender.flush_soon()

    def fail(self, error: BaseException) -> None:
        """The handler raised: say so to us, and nothing of it to the peer."""
        self._connection.shared.on_error(error)
        self.finish(GrpcStatus.INTERNAL, "internal error")

    def close(self) -> None:
        """The call is over for its handler. Idempotent."""
        if self.ended:
            return
        if self.partial is not None:
            self._connection.messages.drop(self)
        if self.body_bytes:
            self.hold(0)
        self.ended = True
        self._connection.shared.budget.end(self, self.headers_sent)
        if self.deadline is not None:
            self.deadline.cancel()
            self.deadline = None
        handler, self.handler = self.handler, None
        if handler is not None:
            try:
                handler.closed()
            except Exception as error:
                self._connection.shared.on_error(error)

    def expire(self) -> None:
        """grpc-timeout has passed."""
        self.deadline = None
        self.finish(GrpcStatus.DEADLINE_EXCEEDED, "the call's deadline has passed")
