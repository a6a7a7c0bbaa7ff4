"""What the connections of one h2 transport have in common."""

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from picker.budget import Budget
from picker.config import TransportLimits
from picker.edge.grpc.transport import MethodTable

RECEIVE_BYTES: Final = 262_144
"""One read takes at most so many bytes."""

BUFFERED_BYTES: Final = 1024 * 1024 * 1024
"""What may be held where nobody says how much: in tests and tools."""


class Timer(Protocol):
    """asyncio's TimerHandle, as far as it is needed."""

    def cancel(self) -> object: ...


class Turns:
    """Whoever has more work than a turn of the loop may take waits here. One of them goes on in each turn.

    Twenty connections that flood would hold the loop for twenty turns at a time, if each went on in every one.
    """

    __slots__ = ("_call_soon", "_waiting")

    def __init__(self, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self._call_soon = call_soon
        self._waiting: deque[Callable[[], None]] = deque()

    def wait(self, go_on: Callable[[], None]) -> None:
        """Once for each time it is called."""
        self._waiting.append(go_on)
        if len(self._waiting) == 1:
            self._call_soon(self._next)

    @property
    def waited_for(self) -> bool:
        """Somebody waits."""
        return bool(self._waiting)

    def _next(self) -> None:
        go_on = self._waiting.popleft()
        if self._waiting:
            self._call_soon(self._next)
        go_on()


class H2Shared:
    """Methods, limits, clock and scheduling, and the ledger of what is held for peers."""

    __slots__ = (
        "budget",
        "call_ended",
        "call_later",
        "call_soon",
        "clock",
        "limits",
        "methods",
        "on_error",
        "on_fault",
        "received",
        "turns",
    )

    def __init__(
        self,
        methods: MethodTable,
        limits: TransportLimits,
        *,
        on_error: Callable[[BaseException], None],
        on_fault: Callable[[str, str], None] = lambda _peer, _reason: None,
        clock: Callable[[], float],
        call_soon: Callable[[Callable[[], None]], object],
        call_later: Callable[[float, Callable[[], None]], Timer],
        call_ended: Callable[[], None],
        budget: Budget | None = None,
    ) -> None:
        """`on_fault(peer, reason)` is told of each connection that ends for its peer's fault, `call_ended` after
        each call; clock and scheduling are asyncio's, passed in. `budget` is one for all ports of the process.
        """
        self.methods = methods
        self.limits = limits
        self.on_error = on_error
        self.on_fault = on_fault
        self.clock = clock
        self.call_soon = call_soon
        self.turns = Turns(call_soon)
        self.call_later = call_later
        self.call_ended = call_ended
        self.received = memoryview(bytearray(RECEIVE_BYTES))  # what a read brings, until the connection has taken it
        self.budget = Budget(limits.buffered_bytes_max or BUFFERED_BYTES) if budget is None else budget

    @property
    def buffered_bytes(self) -> int:
        """Unfinished messages and answers that wait, of all connections."""
        return self.budget.messages + self.budget.answers
