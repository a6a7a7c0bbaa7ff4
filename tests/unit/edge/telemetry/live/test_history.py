"""Differences of what telemetry counts, five seconds at a time."""

import asyncio
from typing import Any

import pytest

from picker.decision import Finished
from picker.edge.telemetry.live.history import BUCKETS_MAX, History, quantile
from picker.edge.telemetry.page import Telemetry
from picker.edge.telemetry.view import PoolView
from picker.outcomes import Outcome, Reason, Usage
from tests.faults import raised
from tests.unit.edge.telemetry.live.pool_of import NOW, director_of, read


class Rig:
    def __init__(self, endpoints: int = 2) -> None:
        self.now = NOW
        self.enabled = True
        self.director = director_of(endpoints)
        self.telemetry = Telemetry(lambda: PoolView(pool_name="p"))
        self.history = History(
            self.telemetry,
            self.director,
            clock=lambda: self.now,
            wall=lambda: 1e9 + self.now,
            enabled=lambda: self.enabled,
            faulted=raised,
        )

    def sample(self) -> None:
        asyncio.run(self.history.sample())
        self.now += 5.0

    def ended(self, **more) -> None:
        given: dict[str, Any] = {
            "outcome": Outcome.COMPLETED,
            "path": "completions",
            "model": "m",
            "status": 200,
            "reason": Reason.AFFINITY,
            "address": "10.0.0.0:80",
            "matched_share": 0.5,
            "cached_share": 0.5,
            "prompt_tokens_estimate": 1000,
        }
        self.telemetry.finished(Finished(**(given | more)))


def test_a_bucket_has_what_came_since_the_last_one():
    rig = Rig()
    rig.ended()
    rig.sample()
    assert not rig.history.buckets, "the first look has nothing to take a difference from"
    for _ in range(3):
        rig.ended(ttft_seconds=0.2)
    rig.ended(outcome=Outcome.SHED, status=429, reason=None, address=None, matched_share=None)
    rig.ended(outcome=Outcome.ABORTED, status=None, reason=Reason.LOAD)
    rig.ended(status=502)
    rig.ended(outcome=Outcome.UNAVAILABLE, status=503, reason=None, address=None, matched_share=None)
    rig.sample()
    (bucket,) = rig.history.buckets
    assert (bucket.requests, bucket.shed, bucket.aborted, bucket.failed) == (7, 1, 1, 2)
    assert bucket.reasons == {"affinity": 4, "load": 1}
    assert bucket.seconds == 5.0 and bucket.at == 1e9 + NOW + 5.0
    assert bucket.ttft_p50_seconds == pytest.approx(0.2, rel=0.25)
    rig.sample()
    assert rig.history.buckets[-1].requests == 0 and rig.history.buckets[-1].ttft_p50_seconds is None


def test_what_the_proxy_never_showed_is_no_request():
    rig = Rig()
    rig.sample()
    rig.telemetry.finished(Finished(outcome=Outcome.UNSEEN, path="other"))
    rig.sample()
    assert rig.history.buckets[-1].requests == 0


def test_hits_are_what_answers_told():
    rig = Rig()
    rig.sample()
    rig.ended(usage=Usage(input_tokens=1200, cached_tokens=900, output_tokens=5))
    rig.ended(cached_share=0.1, usage=Usage(input_tokens=800, output_tokens=5))  # does not say what was cached
    rig.sample()
    bucket = rig.history.buckets[-1]
    assert bucket.hit_observed == 0.75
    assert bucket.hit_expected == pytest.approx(0.3)  # (500 + 100) of 2,000
    assert rig.history.hits_of("u0") == (pytest.approx(0.3), 0.75)
    assert rig.history.hits_of("u1") == (None, None)


def test_hits_are_what_engines_count_where_answers_tell_nothing():
    rig = Rig()
    read(rig.director, 0, prefix_queries_total=5000.0, prefix_hits_total=1000.0)
    rig.sample()
    read(rig.director, 0, prefix_queries_total=6000.0, prefix_hits_total=1400.0)
    rig.sample()
    assert rig.history.buckets[-1].hit_observed == 0.4
    assert rig.history.hits_of("u0") == (None, pytest.approx(0.4))
    read(rig.director, 0, prefix_queries_total=10.0, prefix_hits_total=10.0)  # it began anew
    rig.sample()
    assert rig.history.buckets[-1].hit_observed is None


def test_an_endpoints_hits_fade_and_go_with_it():
    rig = Rig()
    rig.sample()
    rig.ended(cached_share=1.0)
    rig.sample()
    for _ in range(24):  # two minutes: 1/e of it counts
        rig.sample()
    rig.ended(cached_share=0.0)
    rig.sample()
    expected, _ = rig.history.hits_of("u0")
    weight = 2.718281828 ** (-25 * 5 / 120)
    assert expected == pytest.approx(weight / (1 + weight), abs=1e-3)
    rig.director.replace_endpoints([])
    rig.sample()
    assert rig.history.hits_of("u0") == (None, None)


def test_fifteen_minutes_are_kept():
    rig = Rig()
    for _ in range(BUCKETS_MAX + 20):
        rig.sample()
    assert len(rig.history.buckets) == BUCKETS_MAX == 15 * 60 / 5
    assert rig.history.sampled_total == BUCKETS_MAX + 19


def test_quantiles():
    bounds = (1.0, 2.0, 4.0)
    assert quantile([0, 0, 0, 0], bounds, 0.5) is None
    assert quantile([0, 4, 0, 0], bounds, 0.5) == 1.5
    assert quantile([1, 1, 2, 0], bounds, 0.75) == 3.0
    assert quantile([0, 0, 0, 3], bounds, 0.5) == 4.0
