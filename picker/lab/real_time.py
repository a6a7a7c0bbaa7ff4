"""The engine model on an event loop's clock: what a simulated model server runs.

`speed` engine seconds pass in one second of the loop. A timer wakes the model when it has
something to do; nothing polls. Times of the model come from its formulas, so late timers delay
what a client sees and never add up.
"""

import asyncio
from array import array
from itertools import count

from picker.sim.engine import EngineRequest, Event, Kind, ModelServer
from picker.sim.profiles import Profile


class Ticket:
    """One request in the engine. `first` and `done` complete with its first token and its end."""

    __slots__ = ("cached_tokens", "done", "first", "number", "output_tokens")

    def __init__(self, number: int, output_tokens: int, loop: asyncio.AbstractEventLoop) -> None:
        self.number = number
        self.output_tokens = output_tokens
        self.cached_tokens = 0
        self.first: asyncio.Future[None] = loop.create_future()
        self.done: asyncio.Future[None] = loop.create_future()


class RealTimeEngine:
    """One engine model, driven by the running event loop."""

    def __init__(self, profile: Profile, speed: float = 1.0) -> None:
        self._loop = asyncio.get_running_loop()
        self._speed = speed
        self._zero = self._loop.time()
        self._latest = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._tickets: dict[int, Ticket] = {}
        self._numbers = count(1)
        self.model = ModelServer(profile)

    def now(self) -> float:
        """Engine seconds since the start; never goes back."""
        self._latest = max(self._latest, (self._loop.time() - self._zero) * self._speed)
        return self._latest

    def set_speed(self, speed: float) -> None:
        """From now on so many engine seconds a second."""
        now = self._advance()
        self._speed = speed
        self._zero = self._loop.time() - now / speed
        self._arm()

    def submit(self, prompt_tokens: int, output_tokens: int, ids: "array[int]") -> Ticket:
        """A request arrives. Raises `ValueError` when it could never run."""
        now = self._advance()
        ticket = Ticket(next(self._numbers), output_tokens, self._loop)
        self.model.submit(now, EngineRequest(ticket.number, prompt_tokens, output_tokens, ids))
        self._tickets[ticket.number] = ticket
        self._arm()
        return ticket

    def abort(self, ticket: Ticket) -> None:
        """The client is gone. Fine at any time, also after the end."""
        if self._tickets.pop(ticket.number, None) is None:
            return
        self.model.abort(self._advance(), ticket.number)
        self._arm()

    def generated_tokens(self, ticket: Ticket) -> int:
        """Tokens that the request has so far."""
        now = self._advance()  # may be what finishes it
        if ticket.done.done():
            return ticket.output_tokens
        return self.model.generated_tokens(ticket.number, now) if ticket.number in self.model else 0

    def reset_prefix_cache(self) -> None:
        """Forget every prefix that no request holds."""
        self._advance()
        self.model.cache.forget()

    def stop(self) -> None:
        """Nothing happens any more; whoever waits is cancelled."""
        if self._timer is not None:
            self._timer.cancel()
        for ticket in self._tickets.values():
            ticket.first.cancel()
            ticket.done.cancel()
        self._tickets.clear()

    def _advance(self) -> float:
        now = self.now()
        for event in self.model.advance(now):
            self._tell(event)
        return now

    def _tell(self, event: Event) -> None:
        ticket = self._tickets.get(event.name)  # type: ignore[call-overload]
        if ticket is None:
            return
        ticket.cached_tokens = event.cached_tokens
        if event.kind is Kind.PREEMPTED:
            return
        if not ticket.first.done():
            ticket.first.set_result(None)
        if event.kind is Kind.FINISHED:
            del self._tickets[ticket.number]
            if not ticket.done.done():
                ticket.done.set_result(None)

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        at = self.model.next_event_at()
        if at is not None:
            self._timer = self._loop.call_at(self._zero + at / self._speed, self._wake, at)

    def _wake(self, at: float) -> None:
        # A loop whose timers are whole milliseconds wakes early: take the time it was meant for.
        self._latest = max(self._latest, at)
        self._timer = None
        self._advance()
        self._arm()
