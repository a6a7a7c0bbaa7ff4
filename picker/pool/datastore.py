"""The endpoint cache: sources put descriptions in, the scraper readings, decisions take snapshots.

`replace` takes the whole set a source knows and works out who joined and who left, so a source
can never leave a stale endpoint behind by missing an event. Endpoints are told apart by uid: the
same address with another uid is another endpoint. Readings carry their age; one that is older
than `stale_seconds` counts as unknown, and nothing is kept for an endpoint that left. What unknown
counts as in sums is said in `snapshot`.

A reading changes one slot, so the next snapshot shares with the last one whatever that leaves alone, and a reading
that says nothing new leaves the last one in place. Where something of some endpoint is unknown, and so counts as
the mean of all others, every reading changes the mean, and the snapshot is made anew.

Invariants (`check()`): every endpoint has its own slot, the lowest that was free; a free slot is in no snapshot; a
slot's columns are unknown until its endpoint was read; a snapshot is what one made anew would be.
"""

from collections.abc import Iterable
from heapq import heappop, heappush
from math import isnan
from typing import NamedTuple

import numpy as np

from picker.pool.endpoint import Endpoint
from picker.pool.inflight import InflightLedger
from picker.pool.model_lists import ModelLists
from picker.pool.snapshot import Column, Mask, Snapshot, mask_to_bits
from picker.pool.specs import EndpointSpec, EngineSample, split_address


class Change(NamedTuple):
    """What a `replace` did. Those who left have slot -1; `left_slots` are the slots they had."""

    joined: tuple[Endpoint, ...]
    left: tuple[Endpoint, ...]
    left_slots: tuple[int, ...]


class Reading(NamedTuple):
    """What a `record` meant for the endpoint."""

    endpoint: Endpoint
    restarted: bool
    """The engine started anew, or its counters fell: its cache is empty."""
    capacity_changed: bool


class Datastore:
    """Live endpoints and their last readings. One event loop owns it."""

    def __init__(self, ledger: InflightLedger, *, stale_seconds: float, default_capacity_tokens: int) -> None:
        self.stale_seconds = stale_seconds
        self.default_capacity_tokens = default_capacity_tokens
        self.synced = False
        self.memberships = 0
        """How often somebody joined or left."""
        self.samples: dict[str, EngineSample] = {}
        """Last reading by uid, whatever its age."""
        self.models = ModelLists()
        self.closed_slots: list[int] = []
        """Of endpoints whose own port refused a connection when it was last tried."""
        self._ledger = ledger
        self._by_uid: dict[str, Endpoint] = {}
        self._slots: list[Endpoint | None] = []
        self._free_slots: list[int] = []
        """A heap; some may have been taken or cut off meanwhile."""
        self._columns = _Columns()
        self._usual_capacity: float | None = None
        self._members: _Members | None = None
        self._snapshot: Snapshot | None = None
        """The last one; `None`: it says nothing of the next."""
        self._snapshot_until = -1.0
        self._whole = False
        """Nothing that enters sums is unknown in it."""
        self._read_slots: set[int] = set()
        """Those that were read since."""

    def reconfigure(self, *, stale_seconds: float, default_capacity_tokens: int) -> None:
        """Other constants from now on."""
        self.stale_seconds = stale_seconds
        self.default_capacity_tokens = default_capacity_tokens
        self._usual_capacity = self._snapshot = None

    @property
    def endpoints(self) -> list[Endpoint]:
        """All live endpoints."""
        return list(self._by_uid.values())

    def find(self, uid: str) -> Endpoint | None:
        """The live endpoint with this uid."""
        return self._by_uid.get(uid)

    def replace(self, specs: Iterable[EndpointSpec]) -> Change:
        """Make the live set equal to `specs` (first of equal uids or addresses wins). Marks it synced."""
        wanted: dict[str, EndpointSpec] = {}
        addresses: set[str] = set()
        for spec in specs:
            if spec.uid not in wanted and spec.address not in addresses:
                wanted[spec.uid] = spec
                addresses.add(spec.address)
        left, left_slots = [], []
        for uid, endpoint in list(self._by_uid.items()):
            spec_now = wanted.get(uid)
            if spec_now is None or spec_now.address != endpoint.spec.address:
                left.append(endpoint)
                left_slots.append(endpoint.slot)
                self._remove(uid, endpoint)
            elif spec_now != endpoint.spec:
                endpoint.spec = spec_now
                self._members = self._snapshot = None
        joined = [self._add(spec) for uid, spec in wanted.items() if uid not in self._by_uid]
        if not self.synced:
            self.synced = True
            self._snapshot = None
        return Change(tuple(joined), tuple(left), tuple(left_slots))

    def record(self, sample: EngineSample) -> Reading | None:
        """Keep a reading. `None` if its endpoint left meanwhile."""
        endpoint = self._by_uid.get(sample.uid)
        if endpoint is None:
            return None
        before = self.samples.get(sample.uid)
        self.samples[sample.uid] = sample
        known_waiting = endpoint.prefilling_requests + endpoint.others.prefilling_requests
        self._columns.put(endpoint.slot, sample, known_waiting=known_waiting)
        if sample.kv_cache_utilization is not None:
            self._ledger.read(endpoint)
        self.models.put(endpoint.slot, sample)
        self._read_slots.add(endpoint.slot)
        capacity_changed = sample.kv_capacity_tokens != (before.kv_capacity_tokens if before else None)
        if capacity_changed:
            self._usual_capacity = self._snapshot = None
        return Reading(endpoint, before is not None and _restarted(before, sample), capacity_changed)

    def refused(self, uid: str) -> None:
        """The endpoint's own port refuses connections."""
        endpoint = self._by_uid.get(uid)
        if endpoint is not None and endpoint.slot not in self.closed_slots:
            self.closed_slots.append(endpoint.slot)

    def accepted(self, uid: str) -> None:
        """Its port takes connections."""
        endpoint = self._by_uid.get(uid)
        if endpoint is not None and endpoint.slot in self.closed_slots:
            self.closed_slots.remove(endpoint.slot)

    def capacity_tokens(self, slot: int) -> float:
        """Of its KV cache; where it is not known the mean of those that are, then the configured one."""
        known: float = self._columns.capacity.item(slot)
        return self.usual_capacity_tokens() if isnan(known) else known

    def tells_capacity(self, slot: int) -> bool:
        """Whether its own capacity is known."""
        return not isnan(self._columns.capacity.item(slot))

    def usual_capacity_tokens(self) -> float:
        """The mean of the capacities that are known; where none is the configured one."""
        if self._usual_capacity is None:
            self._usual_capacity = _mean_of_known(self._columns.capacity, float(self.default_capacity_tokens))
        return self._usual_capacity

    def snapshot(self, now: float) -> Snapshot:
        """The pool as it is known at `now`. The same object until something changes."""
        last = self._snapshot
        if last is not None and now < self._snapshot_until:
            if not self._read_slots:
                return last
            found = self._next(last, now)
            if found is not None:
                self._snapshot = found
                self._read_slots.clear()
                return found
        self._read_slots.clear()
        self._snapshot = found = self._build(now)
        return found

    def check(self) -> None:
        """Assert the invariants. For tests."""
        slots = [endpoint.slot for endpoint in self._by_uid.values()]
        assert len(set(slots)) == len(slots) and all(self._slots[slot] is not None for slot in slots)
        assert sum(endpoint is not None for endpoint in self._slots) == len(slots)
        assert set(self.samples) <= set(self._by_uid)
        for endpoint in self.endpoints:
            assert (endpoint.spec.uid in self.samples) == (self._columns.taken_at[endpoint.slot] > -np.inf)
        free = {slot for slot, endpoint in enumerate(self._slots) if endpoint is None}
        assert free <= set(self._free_slots) and (not self._slots or self._slots[-1] is not None)
        self._ledger.check(self.endpoints)
        self.models.check()

    def _add(self, spec: EndpointSpec) -> Endpoint:
        slot = self._free_slot()
        endpoint = Endpoint(spec, slot)
        self._slots[slot] = endpoint
        self._by_uid[spec.uid] = endpoint
        self.memberships += 1
        self._ledger.adopt(endpoint)
        self._columns.forget(slot)
        self._members = self._snapshot = None
        return endpoint

    def _free_slot(self) -> int:
        while self._free_slots:
            slot = heappop(self._free_slots)
            if slot < len(self._slots) and self._slots[slot] is None:
                return slot
        self._slots.append(None)
        return len(self._slots) - 1

    def _remove(self, uid: str, endpoint: Endpoint) -> None:
        del self._by_uid[uid]
        self.samples.pop(uid, None)
        self._slots[endpoint.slot] = None
        self.memberships += 1
        self._ledger.retire(endpoint.slot)
        self._columns.forget(endpoint.slot)
        self.models.forget(endpoint.slot)
        if endpoint.slot in self.closed_slots:
            self.closed_slots.remove(endpoint.slot)
        self._read_slots.discard(endpoint.slot)
        heappush(self._free_slots, endpoint.slot)
        endpoint.slot = -1
        while self._slots and self._slots[-1] is None:
            self._slots.pop()
        self._usual_capacity = self._members = self._snapshot = None

    def _next(self, last: Snapshot, now: float) -> Snapshot | None:
        """The snapshot after `last`, of which only the slots that were read may differ; `None`: make it anew."""
        columns, width = self._columns, last.width
        if not self._whole or len(last.changed_slots) + len(self._read_slots) > width + _CHANGES_MAX:
            return None
        changed = [slot for slot in self._read_slots if not columns.shown_by(last, slot)]
        until = self._snapshot_until
        for slot in self._read_slots:
            due = columns.taken_at.item(slot) + self.stale_seconds
            if due <= now or not columns.whole(slot):
                return None
            until = min(until, due)
        gpu = last.gpu_utilization
        if (gpu is None) is not (columns.gpu is None):
            return None
        self._snapshot_until = until
        if not changed:
            return last
        waiting, utilization = last.waiting_requests.copy(), last.kv_cache_utilization.copy()
        reported, capacity = last.reported_context_tokens.copy(), last.capacity_tokens
        foreign = None if last.foreign_requests is None else last.foreign_requests.copy()
        if gpu is not None and columns.gpu is not None:
            gpu = gpu.copy()
            for slot in changed:
                gpu[slot] = columns.gpu.item(slot)
        for slot in changed:
            waiting[slot] = columns.waiting.item(slot)
            used = columns.utilization.item(slot)
            utilization[slot] = used
            reported[slot] = used * capacity.item(slot)
            others = columns.foreign.item(slot)
            if others and foreign is None:
                foreign = np.zeros(width)
            if foreign is not None:
                foreign[slot] = others
        last.changed_slots.extend(changed)
        return Snapshot(
            endpoints=last.endpoints,
            ready_mask=last.ready_mask,
            ready_bits=last.ready_bits,
            ready_count=last.ready_count,
            waiting_requests=waiting,
            kv_cache_utilization=utilization,
            foreign_requests=foreign if foreign is not None and foreign.any() else None,
            reported_context_tokens=reported,
            capacity_tokens=capacity,
            by_address=last.by_address,
            by_host=last.by_host,
            synced=last.synced,
            fresh_mask=last.fresh_mask,
            gpu_utilization=gpu,
            label_masks=last.label_masks,
            width=width,
            changed_slots=last.changed_slots,
            changes=len(last.changed_slots),
        )

    def _build(self, now: float) -> Snapshot:
        if self._members is None:
            self._members = _Members.of(self._slots)
        members, columns, width = self._members, self._columns, len(self._slots)
        taken = columns.taken_at[:width]
        fresh = taken > now - self.stale_seconds
        utilization = np.where(fresh, columns.utilization[:width], np.nan)
        capacity = columns.capacity[:width]
        unsized = np.isnan(capacity)
        capacity = np.where(unsized, self.usual_capacity_tokens(), capacity) if unsized.any() else capacity.copy()
        foreign = np.where(fresh, columns.foreign[:width], np.nan)
        reported = utilization * capacity
        oldest = taken[fresh].min() if fresh.any() else np.inf
        self._snapshot_until = float(oldest) + self.stale_seconds
        unread, uncounted = np.isnan(reported), np.isnan(foreign)
        unknown = unread | uncounted
        self._whole = not (unknown & members.ready_mask).any()
        if unknown.any() and self._assume(reported, foreign, utilization, capacity, unread, uncounted):
            self._snapshot_until = min(self._snapshot_until, now + _SILENT_SECONDS)
        return Snapshot(
            endpoints=members.endpoints,
            ready_mask=members.ready_mask,
            ready_bits=members.ready_bits,
            ready_count=len(self._by_uid),
            waiting_requests=np.where(fresh, columns.waiting[:width], np.nan),
            kv_cache_utilization=utilization,
            foreign_requests=foreign if foreign.any() else None,
            reported_context_tokens=reported,
            capacity_tokens=capacity,
            by_address=members.by_address,
            by_host=members.by_host,
            synced=self.synced,
            fresh_mask=fresh,
            gpu_utilization=None if columns.gpu is None else np.where(fresh, columns.gpu[:width], np.nan),
            label_masks=members.label_masks,
            width=width,
            changed_slots=[],
            changes=0,
        )

    def _assume(
        self, reported: Column, foreign: Column, utilization: Column, capacity: Column, unread: Mask, uncounted: Mask
    ) -> bool:
        """Put in the first two what unknown counts as. True if some of it is what a silent endpoint said last."""
        assert self._members is not None
        ready, columns, width = self._members.ready_mask, self._columns, len(reported)
        share, tokens = _mean_of_known(utilization, 0.0), _mean_of_known(reported, 0.0)
        # In tokens and as a share: caches of different sizes are neither drawn to nor starved by the mean.
        np.copyto(reported, np.where(ready, np.minimum(share * capacity, tokens), 0.0), where=unread)
        np.copyto(foreign, np.where(ready, _mean_of_known(foreign, 0.0), 0.0), where=uncounted)
        spoke = (columns.last_utilization[:width] > 0.0) | (columns.last_foreign[:width] > 0.0)
        remembered = False
        for slot in ((unread | uncounted) & spoke).nonzero()[0].tolist():
            endpoint = self._slots[slot]
            if endpoint is not None and endpoint.requests_since_reading:
                still = endpoint.requests_since_reading / endpoint.requests_at_reading
                if unread[slot]:
                    used = still * columns.last_utilization.item(slot) * capacity.item(slot)
                    reported[slot] = max(reported.item(slot), used)
                if uncounted[slot]:
                    foreign[slot] = max(foreign.item(slot), still * columns.last_foreign.item(slot))
                remembered = True
        return remembered


_CHANGES_MAX = 256
"""A list of changes is begun anew when it holds as many as the pool has slots, and so many more."""

_SILENT_SECONDS = 1.0
"""How long a snapshot lasts that remembers what silent endpoints said: our requests there end meanwhile."""


def _mean_of_known(column: Column, otherwise: float) -> float:
    known = column[~np.isnan(column)]
    return float(known.mean()) if known.size else otherwise


class _Members(NamedTuple):
    """The part of a snapshot that only joining and leaving changes."""

    endpoints: tuple[Endpoint | None, ...]
    ready_mask: Mask
    ready_bits: int
    by_address: dict[str, Endpoint]
    by_host: dict[str, list[Endpoint]]
    label_masks: dict[str, Mask | None]

    @classmethod
    def of(cls, slots: list[Endpoint | None]) -> "_Members":
        live = [endpoint for endpoint in slots if endpoint is not None]
        by_address = {endpoint.spec.address: endpoint for endpoint in live}
        by_host: dict[str, list[Endpoint]] = {}
        for endpoint in live:
            by_host.setdefault(split_address(endpoint.spec.address)[0], []).append(endpoint)
            for alias in endpoint.spec.aliases:
                by_address.setdefault(alias, endpoint)
                by_host.setdefault(split_address(alias)[0], []).append(endpoint)
        ready: Mask = np.array([endpoint is not None for endpoint in slots], dtype=np.bool_)
        return cls(
            tuple(slots),
            ready,
            mask_to_bits(ready),
            by_address,
            by_host,
            {},
        )


class _Columns:
    """Last readings by slot; NaN is unknown. A reading writes one slot, a snapshot copies all."""

    def __init__(self) -> None:
        self.taken_at = np.full(8, -np.inf)
        self.waiting = np.full(8, np.nan)
        self.utilization = np.full(8, np.nan)
        self.capacity = np.full(8, np.nan)
        self.foreign = np.full(8, np.nan)
        self.last_utilization = np.zeros(8)
        """As last known, however long ago."""
        self.last_foreign = np.zeros(8)
        """The same."""
        self.gpu: Column | None = None
        """Made when the first endpoint reports it: few pools have an exporter."""

    def put(self, slot: int, sample: EngineSample, *, known_waiting: int) -> None:
        """`known_waiting`: requests there without a first token, of ours and of the pickers that tell us theirs, at
        about the scrape's time."""
        unknown = np.nan
        waiting = sample.waiting_requests
        self.taken_at[slot] = sample.taken_at_seconds
        self.waiting[slot] = unknown if waiting is None else waiting
        self.utilization[slot] = unknown if sample.kv_cache_utilization is None else sample.kv_cache_utilization
        self.capacity[slot] = unknown if sample.kv_capacity_tokens is None else sample.kv_capacity_tokens
        self.foreign[slot] = unknown if waiting is None else max(0, waiting - known_waiting)
        if sample.kv_cache_utilization is not None:
            self.last_utilization[slot] = sample.kv_cache_utilization
        if waiting is not None:
            self.last_foreign[slot] = max(0, waiting - known_waiting)
        if self.gpu is None and sample.gpu_utilization is not None:
            self.gpu = np.full(len(self.taken_at), unknown)
        if self.gpu is not None:
            self.gpu[slot] = unknown if sample.gpu_utilization is None else sample.gpu_utilization

    def whole(self, slot: int) -> bool:
        """Whether nothing is unknown that enters sums."""
        return not (isnan(self.utilization.item(slot)) or isnan(self.foreign.item(slot)))

    def shown_by(self, snapshot: Snapshot, slot: int) -> bool:
        """Whether a snapshot in which nothing is unknown says of the slot what its last reading did."""
        foreign, gpu = snapshot.foreign_requests, snapshot.gpu_utilization
        return (
            _same(snapshot.waiting_requests.item(slot), self.waiting.item(slot))
            and _same(snapshot.kv_cache_utilization.item(slot), self.utilization.item(slot))
            and _same(0.0 if foreign is None else foreign.item(slot), self.foreign.item(slot))
            and (gpu is None or self.gpu is None or _same(gpu.item(slot), self.gpu.item(slot)))
        )

    def forget(self, slot: int) -> None:
        """Nothing is known of this slot."""
        if slot >= len(self.taken_at):
            self._grow("taken_at", slot, -np.inf)
            for name in ("waiting", "utilization", "capacity", "foreign"):
                self._grow(name, slot, np.nan)
            for name in ("last_utilization", "last_foreign"):
                self._grow(name, slot, 0.0)
            if self.gpu is not None:
                self._grow("gpu", slot, np.nan)
        self.taken_at[slot] = -np.inf
        self.waiting[slot] = self.utilization[slot] = self.capacity[slot] = self.foreign[slot] = np.nan
        self.last_utilization[slot] = self.last_foreign[slot] = 0.0
        if self.gpu is not None:
            self.gpu[slot] = np.nan

    def _grow(self, name: str, slot: int, empty: float) -> None:
        old = getattr(self, name)
        column = np.full(max(slot + 1, 2 * len(old)), empty)
        column[: len(old)] = old
        setattr(self, name, column)


def _same(one: float, other: float) -> bool:
    return one == other or (isnan(one) and isnan(other))


def _restarted(before: EngineSample, after: EngineSample) -> bool:
    """Another start time, or a counter that fell."""
    old, new = before.started_at_seconds, after.started_at_seconds
    if old is not None and new is not None and old != new:
        return True
    return (
        _fell(before.prompt_tokens_total, after.prompt_tokens_total)
        or _fell(before.prefix_queries_total, after.prefix_queries_total)
        or _fell(before.prefix_hits_total, after.prefix_hits_total)
    )


def _fell(before: float | None, after: float | None) -> bool:
    return before is not None and after is not None and after < before
