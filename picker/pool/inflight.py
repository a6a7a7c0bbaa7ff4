"""The in-flight ledger: what we have sent where and what is left of it.

A charge is made at the pick and released in two steps: the prefill when it is over, the rest at
the end, however the end comes. Each step happens exactly once, on the endpoint that was charged,
also when that endpoint has left the pool meanwhile. Nothing goes below zero.

When is a prefill over? At the first body chunk of a streamed answer (`first_token`). Where no
such chunk will be seen (`timed`), when the backlog at the charge and the request's own tokens
have had their time at the endpoint's rate: `expire` releases what is due by our own clock.

Other pickers' requests stand beside ours (`others_have`): they count in the columns, and never in
the counters that a charge moves.

The columns (float64, one value a slot) are what the whole pool is judged by; they mirror the counters of
the endpoints that have a slot, brought up to date when they are asked for. Columns double when slots are added.
"""

from heapq import heappop, heappush

import numpy as np
import numpy.typing as npt

from picker.pool.endpoint import Endpoint, Load

Column = npt.NDArray[np.float64]

_COLUMNS = ("sequences", "prefill_tokens", "context_tokens", "memory_tokens")


class Charge:
    """One request's load on one endpoint. Only the ledger changes it."""

    __slots__ = (
        "backlog_tokens",
        "beside_sequences",
        "beside_tokens",
        "charged_at_seconds",
        "context_tokens",
        "decoding_since_seconds",
        "endpoint",
        "memory_tokens",
        "prefill_tokens",
        "prefilled_before_tokens",
        "prefilling",
        "readings",
        "released",
        "sequences",
        "timed",
    )

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        prefill_tokens: float,
        context_tokens: float,
        memory_tokens: float,
        now: float,
        sequences: int = 1,
    ) -> None:
        self.endpoint = endpoint
        self.sequences = sequences
        self.prefill_tokens = prefill_tokens
        self.context_tokens = context_tokens
        self.memory_tokens = memory_tokens
        self.charged_at_seconds = now
        self.backlog_tokens = endpoint.prefill_tokens + endpoint.others.prefill_tokens
        self.readings = endpoint.readings
        self.timed = False
        self.prefilling = True
        self.released = False
        self.decoding_since_seconds = -1.0
        """Below 0: its prefill is not over, or nobody knows since when."""
        self.beside_sequences = self.beside_tokens = 0.0
        """What decoded there by then, itself included, and its context."""
        self.prefilled_before_tokens = 0.0


class InflightLedger:
    """All charges, as columns by slot. One event loop owns it."""

    def __init__(self, slots: int = 8) -> None:
        self.sequences = np.zeros(slots)
        self.prefill_tokens = np.zeros(slots)
        self.context_tokens = np.zeros(slots)
        self.memory_tokens = np.zeros(slots)
        self.open_charges = 0
        self.changed: set[Endpoint] = set()
        """Slots whose columns changed. scheduling/loads.py keeps sums of the columns, and empties it."""
        self._unmirrored: set[Endpoint] = set()
        """Slots whose counters the columns do not show yet. Columns are read more rarely than counters change."""
        self._due: list[tuple[float, int, Charge]] = []
        self._sequence = 0
        self._views: tuple[Column, Column, Column, Column] | None = None

    def columns(self, width: int) -> "tuple[Column, Column, Column, Column]":
        """Views of the first `width` slots, as they are now: sequences, prefill, context, memory tokens. Read only."""
        self._settle()
        views = self._views
        if views is None or len(views[0]) != width:
            views = self._views = (
                self.sequences[:width],
                self.prefill_tokens[:width],
                self.context_tokens[:width],
                self.memory_tokens[:width],
            )
        return views

    def adopt(self, endpoint: Endpoint) -> None:
        """A slot begins a new life: its columns start from this endpoint's counters."""
        if endpoint.slot >= len(self.sequences):
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
        sequences: int = 1,
    ) -> Charge:
        """Book a request on `endpoint`.

        `memory_tokens`: KV cache it needs beyond what others hold there with it; `None`: all its context.
        `prefill_seconds`: from now until its prefill counts as over, for answers whose first
        chunk will not be seen; `None` waits for `first_token`.
        `sequences`: how many it decodes at a time.
        """
        charge = Charge(
            endpoint,
            prefill_tokens=prefill_tokens,
            context_tokens=context_tokens,
            memory_tokens=context_tokens if memory_tokens is None else memory_tokens,
            now=now,
            sequences=sequences,
        )
        endpoint.in_flight_requests += 1
        endpoint.in_flight_sequences += sequences
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

    def first_token(self, charge: Charge, at_seconds: float = -1.0) -> bool:
        """The prefill is over, since `at_seconds` (below 0: unknown). True the first time."""
        if not charge.prefilling:
            return False
        charge.prefilling = False
        endpoint = charge.endpoint
        self._changed(endpoint)
        endpoint.prefilling_requests -= 1
        tokens = endpoint.prefill_tokens - charge.prefill_tokens
        endpoint.prefill_tokens = tokens if tokens > 0.0 and endpoint.prefilling_requests else 0.0  # no residue
        endpoint.prefilled_tokens += charge.prefill_tokens
        charge.prefilled_before_tokens = endpoint.prefilled_tokens
        charge.decoding_since_seconds = at_seconds
        charge.beside_sequences, charge.beside_tokens = endpoint.decoding()
        return True

    def moved(self, charge: Charge, endpoint: Endpoint) -> Charge:
        """The request is on another endpoint, and was so all the time: rates are learned from its pick on."""
        prefilling = charge.prefilling
        self.release(charge)
        anew = self.charge(
            endpoint,
            prefill_tokens=charge.prefill_tokens,
            context_tokens=charge.context_tokens,
            memory_tokens=charge.memory_tokens,
            now=charge.charged_at_seconds,
            sequences=charge.sequences,
        )
        if not prefilling:
            self.first_token(anew)
        return anew

    def release(self, charge: Charge) -> bool:
        """The request is over. True the first time; later calls change nothing."""
        if charge.released:
            return False
        self.first_token(charge)
        charge.released = True
        endpoint = charge.endpoint
        self._changed(endpoint)
        endpoint.in_flight_requests -= 1
        endpoint.in_flight_sequences -= charge.sequences
        if charge.readings != endpoint.readings:  # it was there at the last reading
            endpoint.requests_since_reading -= 1
        context = endpoint.context_tokens - charge.context_tokens
        memory = endpoint.memory_tokens - charge.memory_tokens
        running = endpoint.in_flight_requests > 0
        endpoint.context_tokens = context if context > 0.0 and running else 0.0
        endpoint.memory_tokens = memory if memory > 0.0 and running else 0.0
        self.open_charges -= 1
        return True

    def others_have(self, endpoint: Endpoint, load: Load) -> None:
        """Other pickers have this much in flight there, all together."""
        endpoint.others = load
        self._changed(endpoint)

    def read(self, endpoint: Endpoint) -> None:
        """Its KV cache's use is read: the requests in flight now are those that it is about."""
        endpoint.readings += 1
        endpoint.requests_at_reading = endpoint.requests_since_reading = endpoint.in_flight_requests

    def expire(self, now: float) -> None:
        """Release the prefills that are over by the clock."""
        due = self._due
        while due and due[0][0] <= now:
            at, _, charge = heappop(due)
            self.first_token(charge, at)
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
            assert endpoint.in_flight_sequences >= endpoint.in_flight_requests
            others = endpoint.others
            assert self.sequences[endpoint.slot] == endpoint.in_flight_sequences + others.sequences
            assert self.prefill_tokens[endpoint.slot] == endpoint.prefill_tokens + others.prefill_tokens
            assert self.context_tokens[endpoint.slot] == endpoint.context_tokens + others.context_tokens
            assert self.memory_tokens[endpoint.slot] == endpoint.memory_tokens + others.memory_tokens
            assert endpoint.in_flight_requests >= endpoint.requests_since_reading >= 0
            assert endpoint.requests_at_reading >= endpoint.requests_since_reading

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
            others = endpoint.others
            self.sequences[slot] = endpoint.in_flight_sequences + others.sequences
            self.prefill_tokens[slot] = endpoint.prefill_tokens + others.prefill_tokens
            self.context_tokens[slot] = endpoint.context_tokens + others.context_tokens
            self.memory_tokens[slot] = endpoint.memory_tokens + others.memory_tokens

    def _grow(self, slots: int) -> None:
        size = max(slots, 2 * len(self.sequences))
        for name in _COLUMNS:
            column = np.zeros(size)
            old = getattr(self, name)
            column[: len(old)] = old
            setattr(self, name, column)
        self._views = None
