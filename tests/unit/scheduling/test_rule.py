"""The vectorised rule against a scalar one written from docs/routing.md alone, on random states."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from picker.api.request import InferenceRequest
from picker.config import Config, Routing, Weights
from picker.decision import Picked
from picker.director import Director
from picker.pool.inflight import Charge
from picker.pool.specs import EndpointSpec, EngineSample
from picker.prefix.blocks import block_hashes, chain_seed
from tests.unit.scheduling.oracle import One, Rule

NOW = 1000.0

charges = st.lists(st.tuples(st.integers(0, 60_000), st.integers(0, 120_000), st.booleans()), max_size=6)
endpoints = st.fixed_dictionaries(
    {
        "slowness": st.sampled_from([1.0, 1.0, 4.0, 0.25, 30.0]),
        "charges": charges,
        "waiting": st.none() | st.integers(0, 12),
        "utilization": st.none() | st.floats(0, 1),
        "capacity": st.none() | st.integers(10_000, 600_000),
        "age": st.sampled_from([None, 0.0, 4.9, 5.0, 60.0]),
        "share": st.sampled_from([0.0, 0.0, 0.3, 0.5, 0.79, 0.8, 0.9, 1.0]),
        "stands": st.sampled_from([True, True, True, False]),
        "ejected": st.sampled_from([False, False, False, True]),
    }
)
states = st.fixed_dictionaries(
    {
        "endpoints": st.lists(endpoints, min_size=1, max_size=5),
        "prompt_bytes": st.sampled_from([0, 100, 1023, 1024, 2047, 5 * 1024, 20 * 1024 + 7, 100 * 1024, 300_000]),
        "max_tokens": st.none() | st.sampled_from([0, 1, 16, 250, 4096, -3]),
        "weights": st.sampled_from([(3.0, 3.0, 2.0), (3.0, 5.0, 2.0), (1.0, 0.0, 0.0), (0.5, 2.0, 9.0)]),
        "threshold": st.sampled_from([0.8, 0.8, 0.55, 0.3, 1.0]),
        "use_subset": st.booleans(),
    }
)


def build(state) -> tuple[Director, InferenceRequest, list[str] | None, Rule]:
    """The same world twice: in a director, and as the rule's own symbols."""
    wp, wq, wk = state["weights"]
    director = Director(
        Config(
            weights=Weights(prefix=wp, queue=wq, kv=wk, eviction=0.0),
            threshold=state["threshold"],
            epsilon=0.0,
            routing=Routing(shared_weight=1.0),
        )
    )
    prompt = Random(7).randbytes(state["prompt_bytes"])
    full = len(prompt) // 1024
    output = 250.0 if state["max_tokens"] is None else min(250.0, max(0, state["max_tokens"]))
    rule = Rule(len(prompt), full, expected_output=output, weights=state["weights"], threshold=state["threshold"])
    names = [f"10.0.0.{number}:80" for number in range(len(state["endpoints"]))]
    director.replace_endpoints(EndpointSpec(address=name, uid=name, name=name) for name in names)
    hashes = block_hashes(chain_seed("m", None), [prompt])
    for name, given_one in zip(names, state["endpoints"], strict=True):
        endpoint = director.datastore.find(name)
        one = One(name, slowness=given_one["slowness"], foreign=None, capacity=None)
        director.rates.slowness[endpoint.slot] = one.slowness
        waiting_for_first = 0
        for prefill, context, begun in given_one["charges"]:
            charge = director.ledger.charge(endpoint, prefill_tokens=prefill, context_tokens=context, now=NOW)
            one.d += 1
            one.context += context
            if begun:
                director.ledger.first_token(charge)
            else:
                one.Q += prefill
                waiting_for_first += 1
        if given_one["age"] is not None:
            director.record_sample(
                EngineSample(
                    uid=name,
                    taken_at_seconds=NOW - given_one["age"],
                    engine="vllm",
                    waiting_requests=given_one["waiting"],
                    kv_cache_utilization=given_one["utilization"],
                    kv_capacity_tokens=given_one["capacity"],
                )
            )
            if given_one["capacity"] is not None:
                one.capacity = given_one["capacity"]
            if given_one["age"] < 5.0:
                one.utilization = given_one["utilization"]
                if given_one["waiting"] is not None:
                    one.foreign = max(0, given_one["waiting"] - waiting_for_first)
            if given_one["utilization"] is not None and one.d:  # all that were in flight then still are
                foreign = 0 if given_one["waiting"] is None else max(0, given_one["waiting"] - waiting_for_first)
                one.last = (1.0, given_one["utilization"], foreign)
        one.matched_blocks = int(given_one["share"] * full)
        one.stands = given_one["stands"] or not state["use_subset"]
        if given_one["ejected"]:
            for _ in range(3):
                charge = Charge(endpoint, prefill_tokens=0.0, context_tokens=0.0, memory_tokens=0.0, now=NOW)
                director.ejection.failed(endpoint, charge, NOW, director.config.ejection)
        rule.endpoints.append(one)
    for one in rule.endpoints:  # after all capacities are known, which size the index
        if one.matched_blocks:
            slot = director.datastore.find(one.name).slot
            director.index.set_capacity(slot, 10_000)
            director.index.record(hashes[: one.matched_blocks], slot, NOW)
    subset = [one.name for one in rule.endpoints if one.stands] if state["use_subset"] else None
    ejected = {name for name, given_one in zip(names, state["endpoints"], strict=True) if given_one["ejected"]}
    if any(one.stands and one.name not in ejected for one in rule.endpoints):  # else ejection is ignored
        for one in rule.endpoints:
            one.stands = one.stands and one.name not in ejected
    request = InferenceRequest(
        api="completions", model="m", prompt=prompt, prompt_bytes=len(prompt), max_tokens=state["max_tokens"]
    )
    return director, request, subset, rule


def decide(director, request, subset, seed=0):
    return director.decide(request, now=NOW, rng=Random(seed), subset=subset)


@settings(max_examples=400, deadline=None)
@given(states, st.integers(0, 3))
def test_costs_and_picks_are_those_of_the_rule(state, seed):
    director, request, subset, rule = build(state)
    decision = decide(director, request, subset, seed)
    if not any(one.stands for one in rule.endpoints):
        assert decision.reason_word == "subset_empty"
        return
    explained = decision.explain()
    by_name = {one.name: one for one in rule.endpoints}
    for view in explained.endpoints:
        one = by_name[view.address]
        assert one.stands
        assert dict(view.seconds) == pytest.approx(rule.seconds(one), rel=1e-9, abs=1e-12)
        assert view.cost_seconds == pytest.approx(rule.cost(one), rel=1e-9, abs=1e-12)
        assert view.matched_share == pytest.approx(rule.share(one))
    picked = decision.addresses[0]
    reason = "load" if decision.reason == "headers" else decision.reason
    assert (picked, reason) in rule.picks()
    assert (decision.reason == "headers") == (not request.prompt)
    # The books: u_r and p of the picked one, nothing elsewhere.
    one, endpoint = by_name[picked], director.datastore.find(picked)
    assert endpoint.in_flight_requests == one.d + 1
    assert endpoint.prefill_tokens == pytest.approx(one.Q + rule.p - rule.m(one))
    assert endpoint.context_tokens == pytest.approx(one.context + rule.p)
    for other in rule.endpoints:
        if other is not one:
            assert director.datastore.find(other.name).in_flight_requests == other.d
    director.datastore.check()
    director.index.check()


@settings(max_examples=200, deadline=None)
@given(states)
def test_an_exploring_draw_takes_the_cheapest_other_within_the_regret(state):
    director, request, subset, rule = build(state)
    director.config = Config(
        weights=director.config.weights, threshold=state["threshold"], epsilon=1.0, routing=director.config.routing
    )
    decision = decide(director, request, subset)
    if isinstance(decision, Picked):
        reason = decision.reason
        permitted = rule.explored()
        assert (decision.addresses[0], reason) in permitted or (
            reason == "headers" and decision.addresses[0] in {name for name, _ in permitted}
        )
