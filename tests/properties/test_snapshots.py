"""A snapshot that is kept current is one made anew, after any order of events.

Two pools live through the same: one as it serves, the other makes every snapshot of nothing but the books after
each reading. Whatever a decision can see must be equal, and so must the rows of load that are kept beside.
"""

from random import Random

import msgspec
import numpy as np
import pytest

from picker.config import Routing
from picker.pool.datastore import Datastore
from picker.pool.inflight import Charge, InflightLedger
from picker.pool.snapshot import Snapshot
from picker.pool.specs import EndpointSpec, EngineSample
from picker.scheduling.loads import Loads
from picker.scheduling.rates import Rates

STALE_SECONDS = 5.0
COLUMNS = (
    "ready_mask",
    "waiting_requests",
    "kv_cache_utilization",
    "foreign_requests",
    "reported_context_tokens",
    "capacity_tokens",
    "fresh_mask",
    "gpu_utilization",
)
PLAIN = ("ready_bits", "ready_count", "synced", "width")


class Pool:
    """A datastore with what it needs, and the rows of load over it."""

    def __init__(self) -> None:
        self.ledger = InflightLedger()
        self.store = Datastore(self.ledger, stale_seconds=STALE_SECONDS, default_capacity_tokens=1000)
        self.rates = Rates(Routing(), models_max=4)
        self.loads = Loads(self.ledger, self.rates)
        self.open: list[Charge] = []

    def replace(self, specs: list[EndpointSpec]) -> None:
        change = self.store.replace(specs)
        self.rates.adopt([endpoint.slot for endpoint in change.joined])

    def forget(self) -> None:
        """The next snapshot is made anew."""
        self.store.reconfigure(stale_seconds=STALE_SECONDS, default_capacity_tokens=1000)
        self.loads.forget()


def same(kept: Snapshot, anew: Snapshot) -> None:
    for name in PLAIN:
        assert getattr(kept, name) == getattr(anew, name), name
    for name in COLUMNS:
        one, other = getattr(kept, name), getattr(anew, name)
        assert (one is None) == (other is None), name
        if one is not None:
            np.testing.assert_array_equal(one, other, err_msg=name)
    for one, other in zip(kept.endpoints, anew.endpoints, strict=True):
        assert (one and one.spec) == (other and other.spec)
    assert {at: each.slot for at, each in kept.by_address.items()} == {
        at: each.slot for at, each in anew.by_address.items()
    }


def sample(rng: Random, uid: str, now: float, *, whole: float) -> EngineSample:
    """`whole`: how likely each field is known."""

    def known(value):
        return value if rng.random() < whole else None

    return EngineSample(
        uid=uid,
        taken_at_seconds=now - rng.choice([0.0, 0.0, 0.1, 1.0]),
        engine="vllm",
        waiting_requests=known(rng.choice([0, 0, 0, 1, 7])),
        kv_cache_utilization=known(rng.choice([0.0, 0.25, 0.5, 1.0])),
        kv_capacity_tokens=known(6000 if rng.random() < 0.02 else 4000),
        gpu_utilization=rng.choice([None, None, 0.5]) if whole < 1 else None,
    )


@pytest.mark.parametrize("seed", range(40))
def test_a_snapshot_kept_current_is_one_made_anew(seed):
    rng = Random(seed)
    kept, anew = Pool(), Pool()
    pools = (kept, anew)
    width, whole = rng.choice([3, 12, 40]), rng.choice([1.0, 1.0, 1.0, 0.97])
    lives = dict.fromkeys(range(width), 0)
    now = 10.0
    shared = seen = 0
    before: Snapshot | None = None

    def specs() -> list[EndpointSpec]:
        return [EndpointSpec(address=f"10.0.0.{at}:80", uid=f"{at}/{life}", name=str(at)) for at, life in lives.items()]

    for pool in pools:
        pool.replace(specs())
    for step in range(400):
        event = rng.random()
        if event < 0.02:
            at = rng.randrange(width)
            if at in lives and rng.random() < 0.5 and len(lives) > 1:
                del lives[at]
            else:
                lives[at] = step
            for pool in pools:
                pool.replace(specs())
                pool.store.check()
        elif event < 0.65:
            for at in rng.sample(list(lives), min(len(lives), rng.choice([1, 1, 3, width]))):
                told = sample(rng, f"{at}/{lives[at]}", now, whole=whole)
                for pool in pools:
                    pool.store.record(told)
                anew.forget()
        elif event < 0.8:
            address = f"10.0.0.{rng.choice(list(lives))}:80"
            tokens = rng.choice([10.0, 500.0])
            for pool in pools:
                endpoint = pool.store.snapshot(now).by_address[address]
                charge = pool.ledger.charge(endpoint, prefill_tokens=tokens, context_tokens=2 * tokens, now=now)
                pool.open.append(charge)
        elif event < 0.9 and kept.open:
            number = rng.randrange(len(kept.open))
            for pool in pools:
                pool.ledger.release(pool.open.pop(number))
        else:
            now += rng.choice([0.01, 0.1, 0.5, 3.0])
        snapshots = [pool.store.snapshot(now) for pool in pools]
        same(*snapshots)
        if before is not None and snapshots[0] is not before:
            seen += 1
            shared += snapshots[0].changed_slots is before.changed_slots
        before = snapshots[0]
        tables = [pool.loads.current(snapshot) for pool, snapshot in zip(pools, snapshots, strict=True)]
        np.testing.assert_allclose(tables[0], tables[1], rtol=1e-12)
        if step % 100 == 99:
            kept.loads.check(snapshots[0])
    if whole == 1.0:
        assert shared > seen / 3, "many come of the ones before"


def test_a_snapshot_stays_as_it_was():
    pool = Pool()
    pool.store.replace([EndpointSpec(address=f"10.0.0.{at}:80", uid=str(at), name=str(at)) for at in range(4)])
    rng = Random(1)
    for at in range(4):
        pool.store.record(sample(rng, str(at), 1.0, whole=1.0))
    first = pool.store.snapshot(1.0)
    seen = {name: None if (column := getattr(first, name)) is None else column.copy() for name in COLUMNS}
    for _ in range(20):
        pool.store.record(sample(rng, str(rng.randrange(4)), 1.5, whole=1.0))
        pool.store.snapshot(1.5)
    for name, column in seen.items():
        now = getattr(first, name)
        assert (now is None) == (column is None)
        if column is not None:
            np.testing.assert_array_equal(now, column)


def test_a_reading_that_says_nothing_new_leaves_the_snapshot_in_place():
    pool = Pool()
    pool.store.replace([EndpointSpec(address="10.0.0.1:80", uid="1", name="1")])
    told = EngineSample(
        uid="1",
        taken_at_seconds=1.0,
        engine="vllm",
        waiting_requests=0,
        kv_cache_utilization=0.5,
        kv_capacity_tokens=4000,
        running_requests=1,
    )
    pool.store.record(told)
    first = pool.store.snapshot(1.0)
    pool.store.record(msgspec.structs.replace(told, taken_at_seconds=3.0))
    assert pool.store.snapshot(3.0) is first
    assert pool.store.snapshot(7.9).fresh_mask.tolist() == [True], "its time is that of the second reading"
    assert pool.store.snapshot(8.1).fresh_mask.tolist() == [False]


def test_a_reading_that_arrives_late_is_old_when_its_own_time_says():
    pool = Pool()
    pool.replace([EndpointSpec(address=f"10.0.0.{at}:80", uid=str(at), name=str(at)) for at in range(2)])
    rng = Random(2)
    for at in range(2):
        pool.store.record(msgspec.structs.replace(sample(rng, str(at), 2.0, whole=1.0), taken_at_seconds=2.0))
    pool.store.snapshot(2.0)
    pool.store.record(msgspec.structs.replace(sample(rng, "0", 2.0, whole=1.0), taken_at_seconds=1.5))
    assert pool.store.snapshot(2.1).fresh_mask.tolist() == [True, True]
    assert pool.store.snapshot(6.6).fresh_mask.tolist() == [False, True]
