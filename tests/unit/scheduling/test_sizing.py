"""The index's share of an endpoint follows what the engine is seen to keep."""

from collections import OrderedDict
from random import Random

import pytest

from picker.api.request import InferenceRequest
from picker.config import Config, Routing
from picker.director import Director
from picker.outcomes import Usage
from picker.pool.specs import EndpointSpec, EngineSample
from picker.scheduling.sizing import (
    AGE_SECONDS_MIN,
    FACTOR_MAX,
    FACTOR_MIN,
    GAIN,
    STEP_MAX,
    Expected,
    IndexSizing,
)

CACHE = 100_000.0


def expected(share, *, age=10.0, forgotten=False, likelihood=1.0, slot=0):
    return Expected(slot, 10_000.0, share, 384.0, age, forgotten, likelihood)


def test_what_was_predicted_and_is_not_there_makes_it_smaller_down_to_a_half():
    sizing = IndexSizing()
    for _ in range(200):
        sizing.observe(expected(0.9), 10_000, 0, CACHE)
    assert sizing.factor(0) == FACTOR_MIN
    assert sizing.factor(1) == 1.0, "each endpoint by itself"


def test_what_was_dropped_and_is_there_makes_it_larger_up_to_twice():
    sizing = IndexSizing()
    for _ in range(500):
        sizing.observe(expected(0.0, forgotten=True), 10_000, 9_000, CACHE)
    assert sizing.factor(0) == FACTOR_MAX


@pytest.mark.parametrize(
    ("what", "cached"),
    [
        (expected(0.5), 5_000),
        (expected(0.5), 5_000 - 384 - 200),  # a block and a half, and a fiftieth
        (expected(0.9, age=AGE_SECONDS_MIN / 2), 0),  # still being computed
        (expected(0.5), 9_000),  # the answer's own blocks, or of other clients: the index never had them
    ],
)
def test_what_says_nothing_of_the_capacity_changes_nothing(what, cached):
    sizing = IndexSizing()
    assert not sizing.observe(what, 10_000, cached, CACHE)
    assert sizing.factor(0) == 1.0


def test_one_odd_answer_moves_little_and_whoever_met_a_holder_by_chance_counts_for_the_others():
    sizing = IndexSizing()
    sizing.observe(expected(1.0), 1_000_000, 0, CACHE)
    assert 1.0 > sizing.factor(0) >= 1.0 - STEP_MAX
    sure, chance = IndexSizing(), IndexSizing()
    sure.observe(expected(0.0, forgotten=True), 10_000, 4_000, CACHE)
    chance.observe(expected(0.0, forgotten=True, likelihood=0.5), 10_000, 4_000, CACHE)
    assert chance.factor(0) - 1.0 == pytest.approx(2 * (sure.factor(0) - 1.0), rel=0.02)


def test_a_resize_is_asked_for_when_it_is_worth_it():
    sizing = IndexSizing()
    asked = [sizing.observe(expected(0.1), 10_000, 0, CACHE) for _ in range(4)]
    assert asked == [False, False, False, True], "2 % less"
    assert sizing.known(0) == pytest.approx(1 - 4 * GAIN * 0.01, rel=1e-3)
    sizing.factor(0)
    assert not sizing.observe(expected(0.1), 10_000, 0, CACHE), "applied"
    sizing.forget(0)
    assert sizing.factor(0) == 1.0


# Counters, where answers do not report cached tokens ---------------------------------------------


def counted(sizing, *, share, hits, queries=100_000, forgotten=False):
    sizing.sent(expected(0.0), 0)
    sizing.counted(0, 1_000, 500, CACHE)
    for _ in range(10):
        sizing.sent(expected(share, forgotten=forgotten), 10_000)
    return sizing.counted(0, 1_000 + queries, 500 + hits, CACHE)


def test_the_engines_counters_stand_in():
    fell, rose, agreed = IndexSizing(), IndexSizing(), IndexSizing()
    assert counted(fell, share=0.9, hits=30_000) and fell.factor(0) < 1.0
    assert counted(rose, share=0.3, hits=90_000, forgotten=True) and rose.factor(0) > 1.0
    assert not counted(agreed, share=0.9, hits=90_000) and agreed.factor(0) == 1.0
    unexplained = IndexSizing()
    assert not counted(unexplained, share=0.3, hits=90_000), "more than predicted, but nothing was dropped"


def test_counters_of_an_engine_that_others_use_too_say_nothing():
    sizing = IndexSizing()
    assert not counted(sizing, share=0.9, hits=30_000, queries=200_000) and sizing.factor(0) == 1.0


def test_answers_that_report_are_believed_before_counters():
    sizing = IndexSizing()
    sizing.observe(expected(0.5), 10_000, 5_000, CACHE)
    assert not counted(sizing, share=0.9, hits=0) and sizing.factor(0) == 1.0


# In the director -------------------------------------------------------------------------------


class Engine:
    """A prefix cache of whole sessions, the least recent of which goes first: `tokens` in all."""

    def __init__(self, tokens):
        self.tokens = tokens
        self.held = OrderedDict()

    def serve(self, session, prompt_tokens):
        cached = self.held.pop(session, 0)
        self.held[session] = prompt_tokens
        while sum(self.held.values()) > self.tokens:
            self.held.popitem(last=False)
        return min(cached, prompt_tokens)


def drive(oversize, *, true_share, requests=3000, report=True):
    """One engine that says 100,000 tokens and keeps `true_share` of them; returns its share of the index in tokens."""
    director = Director(Config(epsilon=0.0, routing=Routing(index_oversize=oversize, learn=False)))
    director.replace_endpoints([EndpointSpec(address="10.0.0.1:80", uid="a", name="a")])
    director.record_sample(EngineSample(uid="a", taken_at_seconds=0.0, engine="vllm", kv_capacity_tokens=100_000))
    engine, rng = Engine(100_000 * true_share), Random(5)
    queries = hits = 0
    for number in range(requests):
        now = number * 1.0
        session = int(rng.paretovariate(1.0)) % 60
        prompt = Random(session).randbytes(4 * 4_096)
        request = InferenceRequest(api="completions", model="m", prompt=prompt, prompt_bytes=len(prompt))
        decision = director.decide(request, now=now, rng=rng)
        cached = engine.serve(session, 4_096)
        queries, hits = queries + 4_096, hits + cached
        usage = Usage(4_096, 10, cached if report else None)
        director.finish(decision.booking, reached=True, usage=usage)
        sample = EngineSample(
            uid="a", taken_at_seconds=now, engine="vllm", kv_capacity_tokens=100_000,
            prefix_queries_total=queries, prefix_hits_total=hits,
        )  # fmt: skip
        director.record_sample(sample)
        director.index.check()
    return 100_000 * oversize * director.shares.sizing.known(0)


@pytest.mark.parametrize("oversize", [0.6, 1.0, 1.5])
@pytest.mark.parametrize("report", [True, False])
def test_wherever_it_starts_it_comes_to_what_the_engine_keeps(oversize, report):
    assert drive(oversize, true_share=0.8, report=report) == pytest.approx(80_000, rel=0.2)


def test_it_is_off_where_the_configuration_says_so_and_a_restart_forgets():
    director = Director(Config(epsilon=0.0, routing=Routing(index_adapts=False)))
    director.replace_endpoints([EndpointSpec(address="10.0.0.1:80", uid="a", name="a")])
    request = InferenceRequest(api="completions", model="m", prompt=bytes(8192), prompt_bytes=8192)
    assert director.decide(request, now=0.0, rng=Random(1)).booking.expected is None
    director = Director(Config(epsilon=0.0))
    director.replace_endpoints([EndpointSpec(address="10.0.0.1:80", uid="a", name="a")])
    director.record_sample(EngineSample(uid="a", taken_at_seconds=0.0, engine="vllm", started_at_seconds=1.0))
    director.shares.sizing.observe(expected(0.9), 10_000, 0, CACHE)
    assert director.shares.sizing.known(0) < 1.0
    director.record_sample(EngineSample(uid="a", taken_at_seconds=1.0, engine="vllm", started_at_seconds=2.0))
    assert director.shares.sizing.known(0) == 1.0


def test_a_block_that_the_index_dropped_for_room_is_remembered_by_slot():
    director = Director(Config())
    index = director.index
    from picker.prefix.blocks import block_hashes, chain_seed

    chains = [block_hashes(chain_seed(str(number), None), [bytes(10 * 1024)]) for number in range(2)]
    index.set_capacity(3, 12)
    index.record(chains[0], 3, 1.0)
    recorded = index.record(chains[1], 3, 2.0)
    assert recorded.last_used_seconds == 0.0, "nothing was held before"
    assert index.evicted_from(chains[0][2]) == 1 << 3 and index.match(chains[0]).steps == ((1 << 3, 2),)
    assert not index.evicted_from(chains[0][1]) and not index.evicted_from(chains[1][2])
    assert index.record(chains[1], 3, 5.0).last_used_seconds == pytest.approx(2.0)
    index.check()
