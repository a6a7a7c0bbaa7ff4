"""The endpoint cache: sources put descriptions in, the scraper readings, decisions take snapshots.

`replace` takes the whole set a source knows and works out who joined and who left, so a source
can never leave a stale endpoint behind by missing an event. Endpoints are told apart by uid: the
same address with another uid is another endpoint. Readings carry their age; one that is older
than `stale_seconds` counts as unknown, and nothing is kept for an endpoint that left.

Invariants (`check()`): every endpoint has its own slot; a free slot is in no snapshot; a slot's
columns are unknown until its endpoint was read.
"""

from collections.abc import Iterable
from typing import NamedTuple

import msgspec
import numpy as np

from picker.pool.endpoint import Endpoint
from picker.pool.inflight import InflightLedger
from picker.pool.model_lists import ModelLists
from picker.pool.snapshot import Column, Mask, Snapshot
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
        self.samples: dict[str, EngineSample] = {}
        """Last reading by uid, whatever its age."""
        self.models = ModelLists()
        self._ledger = ledger
        self._by_uid: dict[str, Endpoint] = {}
        self._slots: list[Endpoint | None] = []
        self._columns = _Columns()
        self._members: _Members | None = None
        self._snapshot: Snapshot | None = None
        self._snapshot_until = -1.0

    def reconfigure(self, *, stale_seconds: float, default_capacity_tokens: int) -> None:
        """Other constants from now on."""
        self.stale_seconds = stale_seconds
        self.default_capacity_tokens = default_capacity_tokens
        self._snapshot = None

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
        self._columns.put(endpoint.slot, sample, ours_waiting=endpoint.prefilling_requests)
        self.models.put(endpoint.slot, sample)
        self._snapshot = None
        capacity_before = before.kv_capacity_tokens if before else None
        return Reading(
            endpoint, before is not None and _restarted(before, sample), sample.kv_capacity_tokens != capacity_before
        )

    def snapshot(self, now: float) -> Snapshot:
        """The pool as it is known at `now`. The same object until something changes."""
        if self._snapshot is None or now >= self._snapshot_until:
            self._snapshot = self._build(now)
        return self._snapshot

    def check(self) -> None:
        """Assert the invariants. For tests."""
        slots = [endpoint.slot for endpoint in self._by_uid.values()]
        assert len(set(slots)) == len(slots) and all(self._slots[slot] is not None for slot in slots)
        assert sum(endpoint is not None for endpoint in self._slots) == len(slots)
        assert set(self.samples) <= set(self._by_uid)
        for endpoint in self.endpoints:
            assert (endpoint.spec.uid in self.samples) == (self._columns.taken_at[endpoint.slot] > -np.inf)
        self._ledger.check(self.endpoints)
        self.models.check()

    def _add(self, spec: EndpointSpec) -> Endpoint:
        try:
            slot = self._slots.index(None)
        except ValueError:
            slot = len(self._slots)
            self._slots.append(None)
        endpoint = Endpoint(spec, slot)
        self._slots[slot] = endpoint
        self._by_uid[spec.uid] = endpoint
        self._ledger.adopt(endpoint)
        self._columns.forget(slot)
        self._members = self._snapshot = None
        return endpoint

    def _remove(self, uid: str, endpoint: Endpoint) -> None:
        del self._by_uid[uid]
        self.samples.pop(uid, None)
        self._slots[endpoint.slot] = None
        self._ledger.retire(endpoint.slot)
        self._columns.forget(endpoint.slot)
        self.models.forget(endpoint.slot)
        endpoint.slot = -1
        while self._slots and self._slots[-1] is None:
            self._slots.pop()
        self._members = self._snapshot = None

    def _build(self, now: float) -> Snapshot:
        if self._members is None:
            self._members = _Members.of(self._slots)
        members, columns, width = self._members, self._columns, len(self._slots)
        taken = columns.taken_at[:width]
        fresh = taken > now - self.stale_seconds
        utilization = np.where(fresh, columns.utilization[:width], np.nan)
        capacity = np.where(
            np.isnan(columns.capacity[:width]), float(self.default_capacity_tokens), columns.capacity[:width]
        )
        foreign = np.where(fresh, columns.foreign[:width], 0.0)
        oldest = taken[fresh].min() if fresh.any() else np.inf
        self._snapshot_until = float(oldest) + self.stale_seconds
        return Snapshot(
            endpoints=members.endpoints,
            ready_mask=members.ready_mask,
            ready_bits=members.ready_bits,
            ready_count=len(self._by_uid),
            waiting_requests=np.where(fresh, columns.waiting[:width], np.nan),
            kv_cache_utilization=utilization,
            foreign_requests=foreign if foreign.any() else None,
            reported_context_tokens=np.nan_to_num(utilization) * capacity,
            capacity_tokens=capacity,
            by_address=members.by_address,
            by_host=members.by_host,
            synced=self.synced,
            fresh_mask=fresh,
            gpu_utilization=None if columns.gpu is None else np.where(fresh, columns.gpu[:width], np.nan),
            label_masks=members.label_masks,
            width=width,
        )


class _Members(NamedTuple):
    """The part of a snapshot that only joining and leaving changes."""

    endpoints: tuple[Endpoint | None, ...]
    ready_mask: Mask
    ready_bits: int
    by_address: dict[str, Endpoint]
    by_host: dict[str, tuple[Endpoint, ...]]
    label_masks: dict[str, Mask | None]

    @classmethod
    def of(cls, slots: list[Endpoint | None]) -> "_Members":
        live = [endpoint for endpoint in slots if endpoint is not None]
        by_host: dict[str, tuple[Endpoint, ...]] = {}
        for endpoint in live:
            host = split_address(endpoint.spec.address)[0]
            by_host[host] = (*by_host.get(host, ()), endpoint)
        return cls(
            tuple(slots),
            np.array([endpoint is not None for endpoint in slots], dtype=np.bool_),
            sum(1 << endpoint.slot for endpoint in live),
            {endpoint.spec.address: endpoint for endpoint in live},
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
        self.foreign = np.zeros(8)
        self.gpu: Column | None = None
        """Made when the first endpoint reports it: few pools have an exporter."""

    def put(self, slot: int, sample: EngineSample, *, ours_waiting: int) -> None:
        """`ours_waiting`: our own requests there without a first token, at about the scrape's time."""
        unknown = np.nan
        waiting = sample.waiting_requests
        self.taken_at[slot] = sample.taken_at_seconds
        self.waiting[slot] = unknown if waiting is None else waiting
        self.utilization[slot] = unknown if sample.kv_cache_utilization is None else sample.kv_cache_utilization
        self.capacity[slot] = unknown if sample.kv_capacity_tokens is None else sample.kv_capacity_tokens
        self.foreign[slot] = 0.0 if waiting is None else max(0, waiting - ours_waiting)
        if self.gpu is None and sample.gpu_utilization is not None:
            self.gpu = np.full(len(self.taken_at), unknown)
        if self.gpu is not None:
            self.gpu[slot] = unknown if sample.gpu_utilization is None else sample.gpu_utilization

    def forget(self, slot: int) -> None:
        """Nothing is known of this slot."""
        if slot >= len(self.taken_at):
            self._grow("taken_at", slot, -np.inf)
            for name in ("waiting", "utilization", "capacity"):
                self._grow(name, slot, np.nan)
            self._grow("foreign", slot, 0.0)
            if self.gpu is not None:
                self._grow("gpu", slot, np.nan)
        self.taken_at[slot] = -np.inf
        self.waiting[slot] = self.utilization[slot] = self.capacity[slot] = np.nan
        self.foreign[slot] = 0.0
        if self.gpu is not None:
            self.gpu[slot] = np.nan

    def _grow(self, name: str, slot: int, empty: float) -> None:
        old = getattr(self, name)
        column = np.full(max(slot + 1, 2 * len(old)), empty)
        column[: len(old)] = old
        setattr(self, name, column)


_COUNTERS = ("prompt_tokens_total", "prefix_queries_total", "prefix_hits_total")


def _restarted(before: EngineSample, after: EngineSample) -> bool:
    """Another start time, or a counter that fell."""
    old, new = before.started_at_seconds, after.started_at_seconds
    if old is not None and new is not None and old != new:
        return True
    old_values, new_values = msgspec.structs.asdict(before), msgspec.structs.asdict(after)
    return any(
        old_values[name] is not None and new_values[name] is not None and new_values[name] < old_values[name]
        for name in _COUNTERS
    )
