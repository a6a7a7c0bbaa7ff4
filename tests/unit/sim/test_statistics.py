"""A run's figures, against values worked out by hand."""

import msgspec
import pytest

from picker.sim.statistics import Sample, Summary, hit_rate, percentiles, spread, summarize


def sample(**fields):
    return Sample(session=1, turn=0, due_seconds=0.0, status=200, **fields)


def test_percentiles_interpolate():
    found = percentiles([4.0, 1.0, 3.0, 2.0, 5.0])
    assert (found.mean, found.p50, found.p90, found.p95) == pytest.approx((3.0, 3.0, 4.6, 4.8))
    assert percentiles([]) is None


def test_spread_is_over_all_replicas_idle_ones_too():
    assert spread([5, 5, 5]).variation == 0.0
    found = spread([4, 0])
    assert (found.variation, found.max_over_mean) == (1.0, 2.0)
    assert spread([0, 0]) is None
    assert spread([]) is None


def test_hit_rate_weighs_by_tokens_and_leaves_out_what_did_not_report():
    samples = [
        sample(prompt_tokens=1000, cached_tokens=900),
        sample(prompt_tokens=100, cached_tokens=0),
        sample(prompt_tokens=5000),
    ]
    assert hit_rate(samples) == pytest.approx(900 / 1100)
    assert hit_rate([sample(prompt_tokens=10)]) is None


def test_a_failed_request_is_an_error_and_nothing_else():
    good = sample(endpoint="a:1", ttft_seconds=0.1, e2e_seconds=1.0, prompt_tokens=10, cached_tokens=5, output_tokens=2)
    bad = sample(endpoint="b:1", ttft_seconds=9.0, e2e_seconds=9.0, error="status 503")
    found = summarize([good, good, bad], ["a:1", "b:1"], 2.5)
    assert (found.requests, found.errors, found.hit_rate) == (3, 1, 0.5)
    assert found.ttft.p99 == pytest.approx(0.1)
    assert found.requests_by_endpoint == {"a:1": 2, "b:1": 0}
    assert found.spread_tokens.max_over_mean == 2.0


def test_a_summary_survives_json():
    found = summarize([], ["a:1"], 0.0)
    assert (found.hit_rate, found.ttft, found.spread_requests) == (None, None, None)
    assert msgspec.json.decode(msgspec.json.encode(found), type=Summary) == found
