"""GPU utilisation as an optional scorer: off at weight 0, monotone, unknown neither idle nor busy."""

from random import Random

import numpy as np
import pytest

from picker.api.request import InferenceRequest
from picker.config import Config, Routing, Weights
from picker.director import Director
from picker.pool.specs import EndpointSpec, EngineSample

R, S, C, E = 10_000.0, 5e-5, 5.6e-8, 250.0


def director(*utilizations, weight=3.0) -> Director:
    made = Director(Config(epsilon=0.0, weights=Weights(gpu=weight), routing=Routing(shared_weight=1.0)))
    made.replace_endpoints(
        EndpointSpec(address=f"10.0.0.{n}:80", uid=str(n), name=str(n)) for n in range(len(utilizations))
    )
    for uid, share in enumerate(utilizations):
        made.record_sample(EngineSample(uid=str(uid), taken_at_seconds=1.0, engine="vllm", gpu_utilization=share))
    return made


def decide(made, now=1.0, seed=1, prompt_bytes=40_000):
    request = InferenceRequest(api="completions", prompt=b"x" * prompt_bytes, prompt_bytes=prompt_bytes)
    return made.decide(request, now=now, rng=Random(seed))


def seconds(decision):
    return {int(each.name): each.seconds.get("gpu") for each in decision.explain().endpoints}


def test_seconds_are_the_requests_own_work_times_the_utilization():
    """10,000 tokens: 1 s of prefill and 250 * (5e-5 + 5.6e-8 * 10,000) s of decoding."""
    own = 10_000 / R + E * (S + C * 10_000)
    found = seconds(decide(director(0.0, 0.5, 1.0)))
    assert found == pytest.approx({0: 0.0, 1: 0.5 * own, 2: own})


def test_the_less_busy_is_picked():
    assert {decide(director(0.9, 0.2, 0.6), seed=seed).addresses for seed in range(10)} == {("10.0.0.1:80",)}


def test_unknown_counts_as_the_mean_of_the_known():
    found = seconds(decide(director(0.2, None, 0.8)))
    assert found[1] == pytest.approx((found[0] + found[2]) / 2)


def test_a_stale_reading_is_unknown():
    made = director(0.9, 0.1)
    assert None not in seconds(decide(made)).values()
    assert set(seconds(decide(made, now=60.0)).values()) == {None}


def test_nothing_is_said_where_nothing_is_reported_or_the_weight_is_zero():
    assert set(seconds(decide(director(None, None))).values()) == {None}
    off = director(0.9, 0.1, weight=0.0)
    assert set(seconds(decide(off)).values()) == {None}
    assert {decide(director(0.9, 0.1, weight=0.0), seed=seed).addresses for seed in range(30)} == {
        ("10.0.0.0:80",),
        ("10.0.0.1:80",),
    }


def test_a_slot_that_is_used_again_begins_unknown():
    made = director(0.9, 0.1)
    made.replace_endpoints([EndpointSpec(address="10.0.0.1:80", uid="1", name="1")])
    made.replace_endpoints(
        [
            EndpointSpec(address="10.0.0.1:80", uid="1", name="1"),
            *(EndpointSpec(address=f"10.0.0.{n}:80", uid=str(n), name=str(n)) for n in range(2, 20)),
        ]
    )
    column = made.datastore.snapshot(1.0).gpu_utilization
    assert column is not None
    known = np.flatnonzero(~np.isnan(column))
    assert [made.datastore.snapshot(1.0).endpoints[slot].spec.uid for slot in known] == ["1"]
