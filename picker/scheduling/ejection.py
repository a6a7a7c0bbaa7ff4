"""Passing over endpoints that fail: N failures in a row put one aside, for longer each time.

A failure is a 5xx or a refused connection (the proxy's local 503); a 4xx or 429 is none. When
its time is over, one trial request goes there: success clears it, failure ejects it for twice
as long. Ejection is ignored where it would leave no endpoint (the director's rule).
"""

from picker.config import Ejection
from picker.pool.endpoint import Endpoint
from picker.pool.inflight import Charge

_DOUBLINGS_MAX = 64
"""More would change nothing: from a microsecond, 64 doublings are longer than any limit; a float ends at 1,023."""


class _State:
    __slots__ = ("ejections", "failures", "trial", "until_seconds")

    def __init__(self) -> None:
        self.failures = 0
        self.ejections = 0
        self.until_seconds: float | None = None
        self.trial: Charge | None = None


class EjectionBook:
    """Failure counts of the few endpoints that have any. One event loop owns it."""

    def __init__(self) -> None:
        self._states: dict[Endpoint, _State] = {}

    def ejected(self, now: float) -> list[int]:
        """Slots to pass over: aside, or with a trial under way. Empty in peace, and then free."""
        if not self._states:
            return []
        return [
            endpoint.slot
            for endpoint, state in self._states.items()
            if state.until_seconds is not None and (state.until_seconds > now or state.trial is not None)
        ]

    def picked(self, endpoint: Endpoint, charge: Charge, now: float) -> None:
        """The endpoint got a request. Where its time aside is over, this one is the trial."""
        state = self._states.get(endpoint)
        if state is not None and state.until_seconds is not None and state.until_seconds <= now:
            state.trial = charge

    def succeeded(self, endpoint: Endpoint) -> None:
        """It answered."""
        self._states.pop(endpoint, None)

    def failed(self, endpoint: Endpoint, charge: Charge, now: float, limits: Ejection) -> bool:
        """It failed. True when that ejects it."""
        if endpoint.slot < 0:
            return False
        state = self._states.setdefault(endpoint, _State())
        state.failures += 1
        on_trial = state.trial is charge
        if not on_trial and (state.failures < limits.failures or state.until_seconds is not None):
            return False
        seconds = min(limits.seconds * 2**state.ejections, limits.seconds_max)
        state.ejections = min(state.ejections + 1, _DOUBLINGS_MAX)
        state.until_seconds = now + seconds
        state.trial = None
        return True

    def released(self, charge: Charge) -> None:
        """A charge is over. A trial that ended without an answer leaves room for another."""
        state = self._states.get(charge.endpoint)
        if state is not None and state.trial is charge:
            state.trial = None

    def forget(self, endpoint: Endpoint) -> None:
        """It left the pool."""
        self._states.pop(endpoint, None)
