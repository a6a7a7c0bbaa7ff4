"""The in-flight ledger: what we have sent where and what is left of it.

A charge is made at the pick and released in two steps: the prefill when it is over, the rest at
the end, however the end comes. Each step happens exactly once, on the endpoint that was charged,
also when that endpoint has left the pool meanwhile. Nothing goes below zero.

When is a prefill over? At the first body chunk of a streamed answer (`first_token`). Where no
such chunk will be seen (`timed`), when the backlog at the charge and the request's own tokens
have had their time at the endpoint's rate: `expire` releases what is due by our own clock.

The columns (float64, one value a slot) are what the whole pool is judged by; they mirror the counters of
the endpoints that have a slot, brought up to date when they are asked for. Columns double when slots are added.
"""

from heapq import heappop, heappush

import numpy as np
import numpy.typing as npt

from picker.pool.endpoint import Endpoint

Column = npt.NDArray[np.float64]

_COLUMNS = ("requests", "prefill_tokens", "context_tokens", "memory_tokens")


class Charge:
    """One request's load on one endpoint. Only the ledger changes it."""

    __slots__ = (
        "backlog_tokens",
        "charged_at_seconds",
        "context_tokens",
        "endpoint",
        "memory_tokens",
        "prefill_tokens",
        "prefilling",
        "released",
        "timed",
    )

    def __init__(
        self, endpoint: Endpoint, *, prefill_tokens: float, context_tokens: float, memory_tokens: float, now: float
    ) -> None:
        self.endpoint = endpoint
        self.prefill_tokens = prefill_tokens
        self.context_tokens = context_tokens
        self.memory_tokens = memory_tokens
        self.charged_at_seconds = now
        self.backlog_tokens = endpoint.prefill_tokens
        self.timed = False
        self.prefilling = True
        self.released = False


class InflightLedger:
    """All charges, as columns by slot. One event loop owns it."""

    def __init__(self, slots: int = 8) -> None:
        self.requests = np.zeros(slots)
        self.prefill_tokens = np.zeros(slots)
        self.context_tokens = np.zeros(slots)
        self.memory_tokens = np.zeros(slots)
        self.open_charges = 0
        self.changed: set[Endpoint] = set()
        """Whose columns changed; emptied by who keeps sums of them (scheduling/loads.py)."""
        self._unmirrored: set[Endpoint] = set()
        """Whose counters the columns do not show yet: they are asked for more rarely than those change."""
        self._due: list[tuple[float, int, Charge]] = []
        self._sequence = 0
        self._views: tuple[Column, Column, Column, Column] | None = None

    def columns(self, width: int) -> "tuple[Column, Column, Column, Column]":
        """Views of the first `width` slots, as they are now: requests, prefill, context, memory tokens. Read only."""
        self._settle()
        views = self._views
        if views is None or len(views[0]) != width:
            views = self._views = (
                self.requests[:width],
                self.prefill_tokens[:width],
                self.context_tokens[:width],
                self.memory_tokens[:width],
            )
        return views

    def adopt(self, endpoint: Endpoint) -> None:
        """A slot begins a new life: its columns start from this endpoint's counters."""
        if endpoint.slot >= len(self.requests):
            self._grow(endpoint.slot + 1)
        self.changed.add(endpoint)
        self._mirror(endpoint)

    def retire(self, slot: int) -> None:
        """The slot has no endpoint any more. Charges on the endpoint that left go on without it."""
        for name in _COLUMNS:
            getattr(self, name)[slot] = 0.0

    def charge(
        self,
        endpoint: Endpoint,
        *,
        prefill_tokens: float,
        context_tokens: float,
        now: float,
        memory_tokens: float | None = None,
        prefill_seconds: float | None = None,
    ) -> Charge:
        """Book a request on `endpoint`.

        `memory_tokens`: KV cache it needs beyond what others hold there with it; `None`: all its context.
        `prefill_seconds`: from now until its prefill counts as over, for answers whose first
        chunk will not be seen; `None` waits for `first_token`.
        """
        charge = Charge(
            endpoint,
            prefill_tokens=prefill_tokens,
            context_tokens=context_tokens,
            memory_tokens=context_tokens if memory_tokens is None else memory_tokens,
            now=now,
        )
        endpoint.in_flight_requests += 1
        endpoint.prefilling_requests += 1
        endpoint.prefill_tokens += prefill_tokens
        endpoint.context_tokens += context_tokens
        endpoint.memory_tokens += charge.memory_tokens
        self.open_charges += 1
        self._changed(endpoint)
        if prefill_seconds is not None:
            self.time_prefill(charge, now + prefill_seconds)
        return charge

    def time_prefill(self, charge: Charge, due_at_seconds: float) -> None:
        """No first chunk will be seen after all: the prefill is over at `due_at_seconds`."""
        if not charge.timed and charge.prefilling:
            charge.timed = True
            self._sequence += 1
            heappush(self._due, (due_at_seconds, self._sequence, charge))

    def first_token(self, charge: Charge) -> bool:
        """The prefill is over. True the first time."""
        if not charge.prefilling:
            return False
        charge.prefilling = False
        endpoint = charge.endpoint
        self._changed(endpoint)
        endpoint.prefilling_requests -= 1
        tokens = endpoint.prefill_tokens - charge.prefill_tokens
        endpoint.prefill_tokens = tokens if tokens > 0.0 and endpoint.prefilling_requests else 0.0  # no residue
        return True

    def release(self, charge: Charge) -> bool:
        """The request is over. True the first time; later calls change nothing."""
        if charge.released:
            return False
        self.first_token(charge)
        charge.released = True
        endpoint = charge.endpoint
        self._changed(endpoint)
        endpoint.in_flight_requests -= 1
        context = endpoint.context_tokens - charge.context_tokens
        memory = endpoint.memory_tokens - charge.memory_tokens
        running = endpoint.in_flight_requests > 0
        endpoint.context_tokens = context if context > 0.0 and running else 0.0
        endpoint.memory_tokens = memory if memory > 0.0 and running else 0.0
        self.open_charges -= 1
        return True

    def expire(self, now: float) -> None:
        """Release the prefills that are over by the clock."""
        due = self._due
        while due and due[0][0] <= now:
            self.first_token(heappop(due)[2])
        if len(due) > 64 + 2 * self.open_charges:  # of requests that ended before their time
            self._due = sorted(entry for entry in due if entry[2].prefilling)

    def check(self, endpoints: list[Endpoint]) -> None:
        """Assert the invariants over the live `endpoints`. For tests."""
        assert self.open_charges >= 0
        self._settle()
        for endpoint in endpoints:
            assert endpoint.in_flight_requests >= endpoint.prefilling_requests >= 0
            assert endpoint.prefill_tokens >= 0.0 and endpoint.context_tokens >= endpoint.memory_tokens - 1e-6
            assert endpoint.memory_tokens >= 0.0
            assert self.requests[endpoint.slot] == endpoint.in_flight_requests
            assert self.prefill_tokens[endpoint.slot] == endpoint.prefill_tokens
            assert self.context_tokens[endpoint.slot] == endpoint.context_tokens
            assert self.memory_tokens[endpoint.slot] == endpoint.memory_tokens

    def _changed(self, endpoint: Endpoint) -> None:
        self.changed.add(endpoint)
        self._unmirrored.add(endpoint)

    def _settle(self) -> None:
        """Bring the columns up to date."""
        for endpoint in self._unmirrored:
            self._mirror(endpoint)
        self._unmirrored.clear()

    def _mirror(self, endpoint: Endpoint) -> None:
        slot = endpoint.slot
        if slot >= 0:
            self.requests[slot] = endpoint.in_flight_requests
            self.prefill_tokens[slot] = endpoint.prefill_tokens
            self.context_tokens[slot] = endpoint.context_tokens
            self.memory_tokens[slot] = endpoint.memory_tokens

    def _grow(self, slots: int) -> None:
        size = max(slots, 2 * len(self.requests))
        for name in _COLUMNS:
            column = np.zeros(size)
            old = getattr(self, name)
            column[: len(old)] = old
            setattr(self, name, column)
        self._views = None
