"""The receiving half of calls: gRPC messages cut out of DATA as it comes, in whatever pieces.

Invariants: `buffered` is the sum of the unfinished messages of the connection's calls, up to what
the read in progress has added; what they hold is at most twice that. A call with an unfinished message
is in `partials`.
"""

from typing import Final

from picker.edge.grpc.h2 import frames
from picker.edge.grpc.h2.allowance import Floods
from picker.edge.grpc.h2.bulk import Assembly, new_assembly
from picker.edge.grpc.h2.call import H2Call
from picker.edge.grpc.h2.shared import H2Shared
from picker.edge.grpc.transport import GrpcStatus

_MESSAGE_BYTES_FREE: Final = 16
"""Messages shorter than this, prefix and all, count as frames that move no data: 5 bytes buy a handler call."""


class PartialMessage:
    """A gRPC message that has begun to arrive."""

    __slots__ = ("assembly", "begun_at_seconds", "counted", "length", "missing", "prefix")

    def __init__(self, now: float) -> None:
        self.prefix = b""
        self.assembly: Assembly | None = None  # from when the prefix is complete
        self.length = -1  # unknown while the prefix is incomplete
        self.missing = -1
        self.counted = 0  # in `buffered`
        self.begun_at_seconds = now


class Messages:
    """One connection's unfinished messages, and the delivery of whole ones."""

    __slots__ = ("_floods", "_shared", "buffered", "growing", "now", "partials")

    def __init__(self, shared: H2Shared, floods: Floods, now: float) -> None:
        self._shared = shared
        self._floods = floods
        self.now = now  # when the read in progress began
        self.buffered = 0
        self.partials: dict[H2Call, PartialMessage] = {}
        self.growing: H2Call | None = None  # has pieces that are not counted yet

    def deliver(self, call: H2Call, data: bytes, start: int, stop: int) -> None:
        """Give `data[start:stop]` to the call's handler, message by message; keep what is unfinished."""
        handler = call.handler
        assert handler is not None
        if call.partial is not None:
            start = self._extend(call, call.partial, data, start, stop)
        unpack, message_max = frames.MESSAGE.unpack_from, self._shared.limits.message_bytes_max
        first, count = start, 0
        compressed: int
        length: int
        while stop - start >= 5 and not call.ended:
            compressed, length = unpack(data, start)
            following = start + 5 + length
            if following > stop or compressed or length > message_max:
                break
            call.received_at_seconds = self.now
            try:
                handler.receive(data[start + 5 : following])
            except Exception as error:
                call.fail(error)
            start = following
            count += 1
        if count * _MESSAGE_BYTES_FREE > start - first:
            self._floods.spend_idle(count - (start - first) // _MESSAGE_BYTES_FREE)
        if start < stop and not call.ended:
            call.partial = self.partials[call] = PartialMessage(self.now)
            self._extend(call, call.partial, data, start, stop)

    def _extend(self, call: H2Call, partial: PartialMessage, data: bytes, start: int, stop: int) -> int:
        """Add to the unfinished message, deliver it when it is whole; returns where the next begins."""
        if partial.length < 0:
            end = min(start + 5 - len(partial.prefix), stop)
            partial.prefix += data[start:end]
            start = end
            if len(partial.prefix) < 5 or not self._accept_prefix(call, partial):
                return start
        assembly = partial.assembly
        assert assembly is not None
        end = min(start + partial.missing, stop)
        if end > start:
            assembly.add(data, start, end)
            partial.missing -= end - start
        if partial.missing:
            self.grow(call)
            return end
        message = assembly.whole()
        self.drop(call)
        call.received_at_seconds = self.now
        handler = call.handler
        assert handler is not None
        try:
            handler.receive(message)
        except Exception as error:
            call.fail(error)
        return end

    def _accept_prefix(self, call: H2Call, partial: PartialMessage) -> bool:
        compressed, length = frames.MESSAGE.unpack(partial.prefix)
        partial.length = partial.missing = length
        if compressed:
            # grpc/grpc doc/compression.md: an unsupported encoding is UNIMPLEMENTED, a flag without one INTERNAL.
            encoding = call.head.encoding
            if encoding == "identity":
                call.finish(GrpcStatus.INTERNAL, "compressed message without grpc-encoding")
            else:
                call.finish(GrpcStatus.UNIMPLEMENTED, f"grpc-encoding {encoding!r} is not supported: send identity")
        elif length > self._shared.limits.message_bytes_max:
            text = f"message of {length} bytes, above the limit of {self._shared.limits.message_bytes_max}"
            call.finish(GrpcStatus.RESOURCE_EXHAUSTED, text)
        if call.ended:
            return False
        partial.assembly = new_assembly(length)
        return True

    def grow(self, call: H2Call) -> None:
        """The call's unfinished message has new pieces. They are counted once a read, not once a frame."""
        if self.growing is not None and self.growing is not call:
            self.count()
        self.growing = call

    def count(self) -> None:
        """Charge the ledger for what `growing` has received; whoever holds most ends when there is no room."""
        call, self.growing = self.growing, None
        partial = None if call is None else call.partial
        if call is None or partial is None or partial.length < 0:
            return
        added = partial.length - partial.missing - partial.counted
        partial.counted += added
        self.buffered += added
        budget = self._shared.budget
        budget.messages += added
        budget.take(call, added)
        if self.buffered > self._shared.limits.connection_buffered_bytes_max:
            largest = max(self.partials, key=_counted)
            largest.finish(GrpcStatus.RESOURCE_EXHAUSTED, "too many bytes of unfinished messages are held")

    def drop(self, call: H2Call) -> None:
        """The message is whole, or its call over: give its bytes back to the budgets."""
        partial, call.partial = call.partial, None
        if partial is not None and self.partials.pop(call, None) is not None:
            self.buffered -= partial.counted
            budget = self._shared.budget
            budget.messages -= partial.counted
            budget.give(call, partial.counted)

    def end_stalled(self, now: float) -> None:
        """A message begun has to come at a rate: a byte now and then does not keep what it holds."""
        limits = self._shared.limits
        for call, partial in list(self.partials.items()):
            received = partial.length - partial.missing if partial.length >= 0 else 0
            seconds = limits.message_stall_seconds + received / limits.message_bytes_per_second_min
            if now - partial.begun_at_seconds > seconds and call.partial is partial:
                call.finish(GrpcStatus.CANCELLED, "a message was begun and not finished in time")

    def forgive(self, seconds: float) -> None:
        """The process stood still so long: no peer is to blame for it."""
        for partial in self.partials.values():
            partial.begun_at_seconds += seconds


def _counted(call: H2Call) -> int:
    partial = call.partial
    return 0 if partial is None else partial.counted
