"""Passing over endpoints that fail: N failures in a row put one aside, for longer each time.

A failure is a 5xx, a refused connection (the local 503 of the proxy), a 200 that tells of one or tells nothing, or a
client that gave up long after an answer was due while others answered; a 4xx, a 429 and what the proxy refuses by
itself are none. Success is an answer that ended well, to a request that computes. When its time is over, one trial
request goes there: success clears it, failure ejects it for twice as long. No more than the largest share of the pool
is aside at a time, and ejection is ignored where it would leave no endpoint (the director's rule).

A request that fails wherever it goes says nothing of those who got it: where the same request (`request_key`) has
failed at another endpoint within `SAME_REQUEST_SECONDS`, it does not count again, and what it did there is undone if
that one has answered others since.
"""

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

from picker.config import Ejection
from picker.pool.endpoint import Endpoint
from picker.pool.inflight import Charge

_DOUBLINGS_MAX: Final = 64
"""More would change nothing: from a microsecond, 64 doublings are longer than any limit; a float ends at 1,023."""
SAME_REQUEST_SECONDS: Final = 60.0
REQUESTS_MAX: Final = 1024
"""Failed requests that are remembered, the oldest go."""


ABANDON_SECONDS_MIN: Final = 1.0
"""A client that gives up before this says nothing of the server."""
PATIENCE: Final = 4.0
"""Nor one that does not wait for so many times what was predicted."""
SILENCE_SECONDS_MIN: Final = 40.0
"""The same, once content came: between tokens nothing is predicted."""


class _State:
    __slots__ = ("ejections", "failures", "keys", "trial", "until_seconds")

    def __init__(self) -> None:
        self.failures = 0
        self.ejections = 0
        self.until_seconds: float | None = None
        self.trial: Charge | None = None
        self.keys: list[int] = []
        """Of the requests whose failures in a row count, 0 where a request has none."""


def aside_max(limits: Ejection, pool_size: int) -> int:
    """How many endpoints of so many may be put aside at a time."""
    return max(1, int(limits.share_max * pool_size))


class EjectionBook:
    """Failure counts of the few endpoints that have any. One event loop owns it."""

    def __init__(self) -> None:
        self._states: dict[Endpoint, _State] = {}
        self._failed: OrderedDict[int, tuple[Endpoint, float]] = OrderedDict()
        """By request: where it failed, and when."""
        self.news: list[tuple[Endpoint, float | None, int]] | None = None
        """What other pickers shall hear: until when aside (`None`: it answers again), how many times in a row."""

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
        """An answer of it ended well."""
        if not self._states:
            return
        state = self._states.pop(endpoint, None)
        if state is not None and state.until_seconds is not None and self.news is not None:
            self.news.append((endpoint, None, 0))

    def failed(
        self,
        endpoint: Endpoint,
        charge: Charge,
        now: float,
        limits: Ejection,
        *,
        request_key: int = 0,
        pool_size: int | None = None,
    ) -> bool:
        """It failed. True when that ejects it. `pool_size`: endpoints, for the largest share that may be aside."""
        if endpoint.slot < 0 or (request_key and self._fails_everywhere(request_key, endpoint, now)):
            return False
        state = self._states.setdefault(endpoint, _State())
        state.failures += 1
        state.keys.append(request_key)
        del state.keys[: -limits.failures]
        on_trial = state.trial is charge
        if not on_trial and (state.failures < limits.failures or state.until_seconds is not None):
            return False
        if state.until_seconds is None and pool_size is not None and self._aside() >= aside_max(limits, pool_size):
            return False
        seconds = min(limits.seconds * 2**state.ejections, limits.seconds_max)
        state.ejections = min(state.ejections + 1, _DOUBLINGS_MAX)
        state.until_seconds = now + seconds
        state.trial = None
        if self.news is not None:
            self.news.append((endpoint, state.until_seconds, state.ejections))
        return True

    def told(self, endpoint: Endpoint, until_seconds: float | None, ejections: int, aside_max: int) -> None:
        """Another picker put it aside until then, or (`None`) got an answer from it. `aside_max`: at a time."""
        if until_seconds is None:
            self._states.pop(endpoint, None)
            return
        known = self._states.get(endpoint)
        if (known is None or known.until_seconds is None) and self._aside() >= aside_max:
            return
        state = self._states.setdefault(endpoint, _State())
        if state.until_seconds is None or until_seconds > state.until_seconds:
            state.until_seconds = until_seconds
            state.ejections = min(max(state.ejections, ejections), _DOUBLINGS_MAX)
            state.trial = None

    def aside(self, now: float) -> list[tuple[Endpoint, float, int]]:
        """Who is put aside, until when, and how many times in a row."""
        return [
            (endpoint, state.until_seconds, state.ejections)
            for endpoint, state in self._states.items()
            if state.until_seconds is not None and state.until_seconds > now
        ]

    def released(self, charge: Charge) -> None:
        """A charge is over. A trial that ended without an answer leaves room for another."""
        state = self._states.get(charge.endpoint)
        if state is not None and state.trial is charge:
            state.trial = None

    def forget(self, endpoint: Endpoint) -> None:
        """It left the pool."""
        self._states.pop(endpoint, None)

    def _aside(self) -> int:
        return sum(state.until_seconds is not None for state in self._states.values())

    def _fails_everywhere(self, request_key: int, endpoint: Endpoint, now: float) -> bool:
        """Whether the same request failed elsewhere lately; what it counted for there may be taken back."""
        before = self._failed.pop(request_key, None)
        self._failed[request_key] = (endpoint, now)
        while len(self._failed) > REQUESTS_MAX:
            self._failed.popitem(last=False)
        if before is None or before[0] is endpoint or now - before[1] > SAME_REQUEST_SECONDS:
            return False
        state = self._states.get(before[0])
        if state is not None and request_key in state.keys and before[0].answered_at_seconds > before[1]:
            counted = state.keys.count(request_key)
            state.keys = [key for key in state.keys if key != request_key]
            state.failures = max(0, state.failures - counted)
            if not state.keys:
                self._states.pop(before[0], None)
        return True


def overdue(
    endpoint: Endpoint,
    pool: Iterable[Endpoint],
    silent_seconds: float,
    due_seconds: float,
    now: float,
    *,
    begun: bool,
) -> bool:
    """Whether `endpoint` let a request wait, `silent_seconds` until `now`, far beyond what was predicted.

    Only if it answered nobody in that time while others did: else the pool is slow, or the client in a hurry.
    """
    if silent_seconds < max(SILENCE_SECONDS_MIN if begun else ABANDON_SECONDS_MIN, PATIENCE * due_seconds):
        return False
    since = now - silent_seconds
    return endpoint.answered_at_seconds <= since and any(each.answered_at_seconds > since for each in pool)
