"""What time alone can tell about a connection: slow peers, dead peers, and when a drain is over.

`tick` is called about once a second, for all connections by one timer.
"""

from typing import TYPE_CHECKING, Final

from picker.edge.grpc.h2 import frames

if TYPE_CHECKING:
    from picker.edge.grpc.h2.call import H2Call
    from picker.edge.grpc.h2.connection import Connection

_KEEPALIVE_PING: Final = b"picker k"
_DRAIN_PING: Final = b"picker d"
_DRAIN_PING_SECONDS: Final = 1.0


class Upkeep:
    """The clocks of one connection."""

    __slots__ = (
        "_connected_at",
        "_connection",
        "_drain_ping_at",
        "_ping_sent_at",
        "_queued_before",
        "_stalled_since",
        "_unsent_before",
        "close_at",
        "draining",
        "read_at",
    )

    def __init__(self, connection: "Connection", now: float) -> None:
        self._connection = connection
        self._connected_at = now
        self.read_at = now
        self.close_at: float | None = None
        self.draining = False
        self._drain_ping_at: float | None = None
        self._ping_sent_at: float | None = None
        self._queued_before = 0
        self._unsent_before: tuple[int, int] | None = None
        self._stalled_since = now

    def tick(self, now: float) -> None:
        connection = self._connection
        limits = connection.shared.limits
        if connection.closing:
            if self.close_at is None or now >= self.close_at:
                connection.abort()
            return
        if not connection.settled and now - self._connected_at > limits.handshake_seconds:
            connection.fail(frames.ENHANCE_YOUR_CALM, "no connection preface in time")
            return
        pending = connection.requests.pending
        if pending is not None and now - pending.since_seconds > limits.header_block_seconds:
            connection.fail(frames.ENHANCE_YOUR_CALM, "header block not finished in time")
            return
        if self._drain_ping_at is not None and now - self._drain_ping_at >= _DRAIN_PING_SECONDS:
            self._end_drain_warning()
        connection.messages.end_stalled(now)
        connection.sender.measure()
        self._end_hog()
        if not self._check_stall(now):
            self._keep_alive(now)
        connection.sender.flush()

    def forgive(self, seconds: float) -> None:
        """The process stood still so long: what its peers did not do in that time is not held against them."""
        self._connected_at += seconds
        self._stalled_since += seconds
        self.read_at += seconds
        if self.close_at is not None:
            self.close_at += seconds
        if self._ping_sent_at is not None:
            self._ping_sent_at += seconds
        pending = self._connection.requests.pending
        if pending is not None:
            pending.since_seconds += seconds
        self._connection.messages.forgive(seconds)

    def start_drain(self, now: float) -> None:
        """Graceful shutdown (section 6.8): warn, and for one round trip accept what is under way."""
        if self.draining or self._connection.closing:
            return
        self.draining = True
        self._drain_ping_at = now
        out = self._connection.sender.out
        out.append(frames.goaway(frames.WINDOW_MAX_BYTES, frames.NO_ERROR, "draining"))
        out.append(frames.ping(_DRAIN_PING, ack=False))

    def ping_answered(self, payload: bytes) -> None:
        if payload == _DRAIN_PING and self._drain_ping_at is not None:
            self._end_drain_warning()

    def _end_drain_warning(self) -> None:
        self._drain_ping_at = None
        self._connection.refuse_streams()

    def _end_hog(self) -> None:
        """Answers fill the connection's queue and do not get fewer: the call with most of them ends, not the others."""
        connection = self._connection
        queued, limit = connection.sender.queued, connection.shared.limits.send_queue_bytes_max
        if limit < self._queued_before <= queued:
            connection.cut(max(connection.streams.values(), key=_queued))
        self._queued_before = connection.sender.queued

    def _check_stall(self, now: float) -> bool:
        """Cut a peer that takes nothing of what waits for it. True while something waits.

        One call whose window stays closed is no such peer: its client may just be slow, and its
        queue is bounded.
        """
        sender = self._connection.sender
        unsent = sender.unsent_bytes()
        if not unsent and (not sender.queued or sender.window > 0):
            self._unsent_before = None
            return False
        found = (unsent, sender.frames_written)
        if found != self._unsent_before:
            self._unsent_before, self._stalled_since = found, now
        elif now - self._stalled_since > self._connection.shared.limits.send_stall_seconds:
            self._connection.abort("takes nothing of what waits for it")
        return True

    def _keep_alive(self, now: float) -> None:
        limits = self._connection.shared.limits
        if self._ping_sent_at is not None and self.read_at > self._ping_sent_at:
            self._ping_sent_at = None
        if self._ping_sent_at is not None:
            if now - self._ping_sent_at > limits.keepalive_timeout_seconds:
                self._connection.abort("does not answer a keepalive PING")
        elif now - self.read_at > limits.keepalive_seconds:
            self._ping_sent_at = now
            self._connection.sender.out.append(frames.ping(_KEEPALIVE_PING, ack=False))


def _queued(call: "H2Call") -> int:
    return 0 if call.queue is None else call.queue.bytes
