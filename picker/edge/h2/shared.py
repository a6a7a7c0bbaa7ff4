"""What the connections of one h2 transport have in common."""

from collections.abc import Callable
from typing import Final, Protocol

from picker.edge.h2.limits import H2Limits
from picker.edge.transport import MethodTable

RECEIVE_BYTES: Final = 262_144
"""Of one read, at most."""


class Timer(Protocol):
    """asyncio's TimerHandle, as far as it is needed."""

    def cancel(self) -> object: ...


class Shared:
    """Methods, limits, clock and scheduling, and the budget of what is held for peers."""

    __slots__ = (
        "buffered_bytes",
        "call_ended",
        "call_later",
        "call_soon",
        "clock",
        "limits",
        "methods",
        "on_error",
        "on_fault",
        "received",
    )

    def __init__(
        self,
        methods: MethodTable,
        limits: H2Limits,
        *,
        on_error: Callable[[BaseException], None],
        on_fault: Callable[[str, str], None] = lambda _peer, _reason: None,
        clock: Callable[[], float],
        call_soon: Callable[[Callable[[], None]], object],
        call_later: Callable[[float, Callable[[], None]], Timer],
        call_ended: Callable[[], None],
    ) -> None:
        """`on_fault(peer, reason)` is told of each connection that ends for its peer's fault, `call_ended` after
        each call; clock and scheduling are asyncio's, passed in.
        """
        self.methods = methods
        self.limits = limits
        self.on_error = on_error
        self.on_fault = on_fault
        self.clock = clock
        self.call_soon = call_soon
        self.call_later = call_later
        self.call_ended = call_ended
        self.received = memoryview(bytearray(RECEIVE_BYTES))  # what a read brings, until the connection has taken it
        self.buffered_bytes = 0  # unfinished messages and queued answers of all connections
