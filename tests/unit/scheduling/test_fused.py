"""The product of all objectives at once is the sum of what the scorers say one by one."""

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from picker.config import Config, Weights
from picker.director import Director
from picker.pool.specs import EndpointSpec, EngineSample
from picker.prefix.matches import Match
from picker.scheduling import fused, loads
from picker.scheduling.scorers import SCORERS
from tests.contracts.test_scorers import columns

worlds = st.fixed_dictionaries(
    {
        "width": st.sampled_from([1, 2, 9, 20, 70]),
        "kind": st.sampled_from(["idle", "busy", "full", "unknown"]),
        "prompt_tokens": st.sampled_from([0.0, 1.0, 700.0, 9_999.0, 10_000.0, 25_600.0, 400_000.0]),
        "slowness": st.sampled_from([(1.0, 1.0), (0.3, 3.0), (0.01, 100.0)]),
        "shares": st.lists(st.floats(0.0, 1.0), max_size=4),
        "shared": st.sampled_from([(), ((256.0, 0.2),), ((256.0, 0.2), (2_560.0, 0.7))]),
        "output_tokens": st.sampled_from([0.0, 250.0]),
        "weights": st.sampled_from([(3.0, 3.0, 2.0), (3.0, 5.0, 2.0), (1.0, 0.0, 0.0)]),
        "seed": st.integers(0, 99),
    }
)


@given(worlds)
def test_the_sum_is_the_scorers(world):
    rng, width = Random(world["seed"]), world["width"]
    blocks = int(world["prompt_tokens"] // 256)
    left = list(range(width))
    rng.shuffle(left)
    steps = []
    for share in sorted({int(share * blocks) for share in world["shares"]} - {0}):
        some, left = left[: rng.randrange(len(left) + 1)], left[len(left) // 2 :]
        some = [slot for slot in some if slot not in left]
        if some:
            steps.append((sum(1 << slot for slot in some), share))
    low, high = world["slowness"]
    given_columns = columns(
        width,
        kind=world["kind"],
        rows={loads.SLOWNESS: np.array([rng.uniform(low, high) for _ in range(width)])},
        prompt_tokens=world["prompt_tokens"],
        output_tokens=world["output_tokens"],
        match=Match(tuple(steps), (), blocks),
        shared=world["shared"] if world["prompt_tokens"] > 2_560 else (),
    )
    prefix, queue, kv = world["weights"]
    expected = sum(
        weight / prefix * SCORERS[name](given_columns)
        for name, weight in (("prefix", prefix), ("queue", queue), ("kv", kv))
    )
    found = fused.cost(given_columns, Weights(prefix=prefix, queue=queue, kv=kv))
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


def test_a_group_is_right_whether_few_or_many_hold_it():
    """1 of 40 holds everything, 20 a half, 19 nothing: a single one, a row of its own, the base."""
    half = sum(1 << slot for slot in range(20))
    given_columns = columns(40, match=Match(((half, 50), (1 << 39, 100)), (), 100), kind="idle")
    found = fused.cost(given_columns, Weights())
    by_hand = {0: 12_800 * 1e-4, 20: 25_600 * 1e-4, 39: 0.0}
    decoding = 2 / 3 * 250 * (5e-5 + 5.6e-8 * 25_600)
    for slot, seconds in by_hand.items():
        assert found[slot] == pytest.approx(seconds + decoding)


@pytest.fixture
def director():
    found = Director(Config())
    found.replace_endpoints(EndpointSpec(address=f"10.0.0.{at}:80", uid=str(at), name=str(at)) for at in range(1, 6))
    return found


def test_rows_follow_every_change(director):
    rng = Random(4)
    running = []
    for step in range(400):
        now = step * 0.1
        endpoint = rng.choice(director.datastore.endpoints)
        act = rng.randrange(7)
        if act <= 2:
            tokens = rng.uniform(0, 1e5)
            running.append(
                director.ledger.charge(
                    endpoint, prefill_tokens=tokens, context_tokens=tokens, now=now, prefill_seconds=2
                )
            )
        elif act == 3 and running:
            director.ledger.release(running.pop(rng.randrange(len(running))))
        elif act == 4:
            sample = EngineSample(
                uid=endpoint.spec.uid,
                taken_at_seconds=now,
                engine="vllm",
                waiting_requests=rng.choice([None, 0, 9]),
                kv_cache_utilization=rng.choice([None, rng.random()]),
                kv_capacity_tokens=rng.choice([None, 100_000]),
            )
            director.record_sample(sample)
        elif act == 5:
            director.rates.observe_prefill(endpoint.slot, 5_000, rng.random(), now=now)
            director.ledger.changed.add(endpoint)
        else:
            keep = [each.spec for each in director.datastore.endpoints if rng.random() < 0.95]
            joined = EndpointSpec(address=f"10.0.1.{step % 250}:80", uid=f"n{step}", name=f"n{step}")
            director.replace_endpoints([*keep, joined] if len(keep) < 8 else keep)
        director.ledger.expire(now)
        director.loads.check(director.datastore.snapshot(now))


def test_fullness_is_the_mean_share_of_the_capacity(director):
    first, second, *_ = director.datastore.endpoints
    director.ledger.charge(first, prefill_tokens=0, context_tokens=100_000, now=0.0)
    director.ledger.charge(second, prefill_tokens=0, context_tokens=40_000, memory_tokens=20_000, now=0.0)
    director.loads.current(director.datastore.snapshot(0.0))
    # 400,000 tokens each, five endpoints, two requests with 125 of 250 tokens to come.
    assert director.loads.fullness(250.0) == pytest.approx((100_125 + 20_125) / 400_000 / 5)
