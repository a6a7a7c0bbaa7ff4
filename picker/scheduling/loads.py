"""The pool's load in the form that costs are sums of: a row a quantity, a column a slot.

For endpoints that hold equally much of a prompt, the three objectives are a weighted sum of these
rows (fused.py), so a decision is one small matrix product however many endpoints there are. The
rows are brought up to date before a decision: only the slots that changed since the last one, all of
them when somebody joined or left, or a reading changed what counts as usual.

Invariant (`check()`): after `current(snapshot)` every row is what a rebuild would make of it.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from picker.kernels import kernel
from picker.pool.endpoint import Endpoint
from picker.pool.inflight import InflightLedger
from picker.pool.snapshot import Column, Snapshot
from picker.scheduling.rates import Rates

Table = npt.NDArray[np.float64]
"""Shape `(ROWS, width)`, C order."""

REQUESTS: Final = 0
"""Sequences in flight, ours and of pickers that tell us theirs: a request counts as many as it decodes at a time."""
CONTEXT_TOKENS: Final = 1
"""Of those that decode, as known or as reported, whichever is more."""
BACKLOG_TOKENS: Final = 2
"""What of these is to be prefilled before a new request."""
FOREIGN: Final = 3
"""Requests that wait there and that nobody told us of."""
ONES: Final = 4
OVER_TOKENS: Final = 5
"""KV cache in use, less its capacity: below 0 there is room."""
SLOWNESS: Final = 6
"""How many times as long everything takes there."""
ROWS: Final = 7


KERNEL: Final = kernel("picker.scheduling._fused")
"""`None` in the interpreted build."""
_renew: Final[Callable[..., float] | None] = getattr(KERNEL, "renew", None)
_copied: Final[Callable[[Table], Table] | None] = getattr(KERNEL, "copied", None)


_NO_SLOTS: Final[list[int]] = []


class Bounds(NamedTuple):
    """What the rows lie within: sure, not tight. Tells cheaply that nobody is full."""

    requests_max: float
    over_tokens_max: float


class Loads:
    """The rows, kept current. One event loop owns it."""

    def __init__(self, ledger: InflightLedger, rates: Rates) -> None:
        self._ledger = ledger
        self._rates = rates
        self._snapshot: Snapshot | None = None
        self._table: Table = np.ones((ROWS, 0))
        self._rows: list[Column] = []
        self.bounds = Bounds(0.0, 0.0)
        self.capacity_share: Column = np.zeros(0)
        """1 / (capacity * ready endpoints), 0 where none is: its product with a row of tokens is their mean share."""

    def current(self, snapshot: Snapshot) -> Table:
        """The rows as they are now: live, to be copied by who keeps them."""
        changed = self._ledger.changed
        slots = _NO_SLOTS if snapshot is self._snapshot else snapshot.slots_since(self._snapshot)
        if slots is None:
            self._rebuild(snapshot)
        else:
            for slot in slots:
                self._take_reading(slot, snapshot)
            self._snapshot = snapshot
            for endpoint in changed:
                if endpoint.slot >= 0:
                    self._renew(endpoint, snapshot)
        changed.clear()
        return self._table

    def copied(self, snapshot: Snapshot) -> Table:
        """The same, to be kept."""
        table = self.current(snapshot)
        return table.copy() if _copied is None else _copied(table)

    def fullness(self, output_tokens: float) -> float:
        """How full the KV caches are or will soon be, over the pool, as of the last `current`: 0..1.

        `output_tokens`: of the requests in flight; half of them are still to come.
        """
        over, requests = self._rows[OVER_TOKENS], self._rows[REQUESTS]
        share = self.capacity_share
        return min(1.0, 1.0 + float(over.dot(share)) + output_tokens / 2 * float(requests.dot(share)))

    def forget(self) -> None:
        """Rates changed at once for all."""
        self._snapshot = None

    def check(self, snapshot: Snapshot) -> None:
        """Assert the invariant. For tests."""
        kept, bounds = self.current(snapshot).copy(), self.bounds
        self._rebuild(snapshot)
        np.testing.assert_allclose(kept, self._table, rtol=1e-12)
        requests, over = bounds
        assert (kept[REQUESTS] <= requests).all() and (kept[OVER_TOKENS] <= over).all()

    def _take_reading(self, slot: int, snapshot: Snapshot) -> None:
        """What its engine reports is new."""
        endpoint, foreign = snapshot.endpoints[slot], snapshot.foreign_requests
        self._rows[FOREIGN][slot] = 0.0 if foreign is None else foreign.item(slot)
        if endpoint is not None:
            self._renew(endpoint, snapshot)

    def _renew(self, endpoint: Endpoint, snapshot: Snapshot) -> None:
        others, bounds = endpoint.others, self.bounds
        requests = endpoint.in_flight_sequences + others.sequences
        if _renew is None:
            over = self._write(endpoint, snapshot)
        else:
            over = _renew(
                self._table,
                endpoint.slot,
                snapshot.reported_context_tokens,
                snapshot.capacity_tokens,
                self._rates.slowness,
                requests,
                endpoint.context_tokens + others.context_tokens,
                endpoint.memory_tokens + others.memory_tokens,
                endpoint.prefill_tokens + others.prefill_tokens,
            )
        if requests > bounds.requests_max or over > bounds.over_tokens_max:
            self.bounds = Bounds(max(bounds.requests_max, requests), max(bounds.over_tokens_max, over))

    def _write(self, endpoint: Endpoint, snapshot: Snapshot) -> float:
        slot, rows, others = endpoint.slot, self._rows, endpoint.others
        reported = snapshot.reported_context_tokens.item(slot)
        context = endpoint.context_tokens + others.context_tokens
        memory = endpoint.memory_tokens + others.memory_tokens
        over = (memory if memory > reported else reported) - snapshot.capacity_tokens.item(slot)
        rows[REQUESTS][slot] = endpoint.in_flight_sequences + others.sequences
        rows[CONTEXT_TOKENS][slot] = context if context > reported else reported
        rows[OVER_TOKENS][slot] = over
        rows[BACKLOG_TOKENS][slot] = endpoint.prefill_tokens + others.prefill_tokens
        rows[SLOWNESS][slot] = self._rates.slowness.item(slot)
        return over

    def _rebuild(self, snapshot: Snapshot) -> None:
        width = snapshot.width
        if self._table.shape[1] != width:
            self._table = np.ones((ROWS, width))
            self._rows = list(self._table)
        rows = self._rows
        requests, backlog, context, memory = self._ledger.columns(width)
        reported, capacity = snapshot.reported_context_tokens, snapshot.capacity_tokens
        rows[REQUESTS][:] = requests
        np.maximum(context, reported, out=rows[CONTEXT_TOKENS])
        np.maximum(memory, reported, out=rows[OVER_TOKENS])
        rows[OVER_TOKENS] -= capacity
        rows[BACKLOG_TOKENS][:] = backlog
        foreign = snapshot.foreign_requests
        rows[FOREIGN][:] = 0.0 if foreign is None else foreign
        rows[SLOWNESS][:] = self._rates.slowness[:width]
        self.bounds = Bounds(float(requests.max(initial=0.0)), float(rows[OVER_TOKENS].max(initial=-np.inf)))
        self.capacity_share = snapshot.ready_mask / (capacity * max(1, snapshot.ready_count))
        self._snapshot = snapshot
