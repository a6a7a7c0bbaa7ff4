"""Full or not: each measure alone at its mark, unknown never, and every endpoint must be."""

import numpy as np
import pytest

from picker import admission
from picker.config import Saturation
from picker.pool.datastore import Datastore
from picker.pool.inflight import InflightLedger
from picker.pool.specs import EndpointSpec, EngineSample

LIMITS = Saturation()


def snapshot(*readings, now=10.0):
    store = Datastore(InflightLedger(), stale_seconds=5.0, default_capacity_tokens=1000)
    names = [f"10.0.0.{number}:80" for number in range(len(readings))]
    store.replace(EndpointSpec(address=name, uid=name, name=name) for name in names)
    for name, (waiting, utilization, age) in zip(names, readings, strict=True):
        if age is not None:
            store.record(
                EngineSample(
                    uid=name,
                    taken_at_seconds=now - age,
                    engine="vllm",
                    waiting_requests=waiting,
                    kv_cache_utilization=utilization,
                )
            )
    return store.snapshot(now)


@pytest.mark.parametrize(
    ("waiting", "utilization", "age", "backlog", "full"),
    [
        (5, 0.0, 0.0, 0.0, True),
        (4, 0.79, 0.0, 9.99, False),
        (0, 0.8, 0.0, 0.0, True),
        (0, 0.0, 0.0, 10.0, True),
        (None, None, 0.0, 0.0, False),
        (None, None, None, 0.0, False),
        (None, None, None, 10.0, True),
        (99, 1.0, 5.0, 0.0, False),
        (99, None, 4.9, 0.0, True),
    ],
)
def test_each_measure_fills_alone_and_unknown_or_stale_never_does(waiting, utilization, age, backlog, full):
    pool = snapshot((waiting, utilization, age))
    assert admission.saturated_mask(pool, np.array([backlog]), LIMITS).tolist() == [full]
    assert admission.all_saturated(pool, pool.ready_mask, np.array([backlog]), LIMITS) is full


def test_one_that_is_not_full_or_not_known_is_enough():
    full, idle, unknown = (9, 0.9, 0.0), (0, 0.1, 0.0), (None, None, None)
    nothing = np.zeros(2)
    for other in (idle, unknown):
        pool = snapshot(full, other)
        assert not admission.all_saturated(pool, pool.ready_mask, nothing, LIMITS)
        assert admission.all_saturated(pool, np.array([True, False]), nothing, LIMITS), "of those that stand"
    pool = snapshot(full, full)
    assert admission.all_saturated(pool, pool.ready_mask, nothing, LIMITS)
    assert not admission.all_saturated(pool, np.array([False, False]), nothing, LIMITS), "nobody is not everybody"


def test_the_pools_fullness_is_the_mean_of_each_endpoints_fullest_known_measure():
    pool = snapshot((5, 0.2, 0.0), (None, 0.4, 0.0), (None, None, None))
    # 5/5 = 1; max(0.4/0.8, 2/10) = 0.5; only the backlog is known: 3/10
    assert admission.pool_saturation(pool, np.array([0.0, 2.0, 3.0]), LIMITS) == pytest.approx((1 + 0.5 + 0.3) / 3)
    assert admission.pool_saturation(snapshot(), np.array([]), LIMITS) is None


def test_objectives_are_looked_up_and_only_below_zero_is_sheddable():
    known = {"batch": -1, "chat": 5}
    assert [admission.priority(name, known) for name in ("batch", "chat", "other", "", None)] == [-1, 5, 0, 0, 0]
    assert [admission.is_sheddable(value) for value in (-5, -1, 0, 1)] == [True, True, False, False]
