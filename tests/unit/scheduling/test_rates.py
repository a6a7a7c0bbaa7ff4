"""What is learned: bounded, slow to move, per endpoint and per model, and forgotten with whom it was learned from."""

from heapq import heappop, heappush
from itertools import count
from math import exp, inf
from random import Random

import pytest

from picker.api.request import InferenceRequest
from picker.config import Config, Routing
from picker.director import Director
from picker.outcomes import Usage
from picker.pool.specs import EndpointSpec
from picker.scheduling.rates import Rates


@pytest.fixture
def rates() -> Rates:
    return Rates(Routing(), models_max=3)


def rate(rates, slot=0):
    return 1 / rates.rate_inverse[slot]


def test_before_anything_is_learned_the_configured_constants_hold(rates):
    assert rate(rates) == pytest.approx(10_000) and rates.mean_uncached_tokens == 512
    assert tuple(rates.model("m")) == (4.0, 250.0) == tuple(rates.model(None))


@pytest.mark.parametrize("true_rate", [2_000.0, 10_000.0, 50_000.0])
def test_a_rate_converges_to_what_is_observed_and_only_there(rates, true_rate):
    for _ in range(300):
        rates.observe_prefill(1, 5000, 5000 / true_rate, now=0.0)
    assert rate(rates, 1) == pytest.approx(true_rate, rel=0.01)
    assert rate(rates, 0) == pytest.approx(10_000)


@pytest.mark.parametrize("seconds", [1e-12, 1e-6, 1e6, 1e300])
def test_a_learned_rate_stays_within_thirty_times_the_configured_one(rates, seconds):
    for _ in range(1000):
        rates.observe_prefill(0, 2000, seconds, now=0.0)
    assert 10_000 / 30.001 <= rate(rates) <= 10_000 * 30.001


@pytest.mark.parametrize(
    ("slot", "tokens", "seconds"), [(0, 1023, 9.0), (0, 5000, 0.0), (0, 5000, -1.0), (-1, 5000, 9.0)]
)
def test_what_teaches_nothing_changes_nothing(rates, slot, tokens, seconds):
    before = rates.rate_inverse.copy()
    rates.observe_prefill(slot, tokens, seconds, now=0.0)
    assert (rates.rate_inverse == before).all()


def test_one_odd_answer_moves_little(rates):
    rates.observe_prefill(0, 5000, 5000.0, now=0.0)
    assert rate(rates) > 10_000 / 2.5
    rates.observe_usage("m", 4000, Usage(input_tokens=1, output_tokens=10**6))
    assert rates.model("m").bytes_per_token <= 4.0 + 0.05 * 12.0001


def test_a_slot_with_a_new_life_knows_nothing(rates):
    rates.observe_prefill(0, 5000, 100.0, now=0.0)
    rates.adopt([0])
    assert rate(rates) == pytest.approx(10_000)
    rates.adopt([500])
    assert len(rates.rate_inverse) > 500 and rate(rates, 499) == pytest.approx(10_000)


def test_sizes_are_learned_by_model_from_usage(rates):
    for _ in range(200):
        rates.observe_usage("a", 3000, Usage(input_tokens=1000, output_tokens=40))
    assert tuple(rates.model("a")) == pytest.approx((3.0, 40.0), rel=0.01)
    assert tuple(rates.model("b")) == (4.0, 250.0)


@pytest.mark.parametrize(
    ("prompt_bytes", "usage"),
    [
        (511, Usage(input_tokens=1)),
        (None, Usage(input_tokens=100)),
        (4000, Usage(input_tokens=0)),
        (4000, Usage(input_tokens=None)),
    ],
)
def test_bytes_per_token_are_not_learned_from_what_says_nothing_of_them(rates, prompt_bytes, usage):
    rates.observe_usage("m", prompt_bytes, usage)
    assert tuple(rates.model("m")) == (4.0, 250.0)


def test_no_answer_at_all_is_an_answer_length(rates):
    for _ in range(200):
        rates.observe_usage("m", None, Usage(output_tokens=0))
    assert rates.model("m").output_tokens == pytest.approx(0, abs=0.1)


def test_bytes_per_token_stay_between_a_half_and_sixteen(rates):
    for _ in range(500):
        rates.observe_usage("low", 1000, Usage(input_tokens=10**9))
        rates.observe_usage("high", 10**9, Usage(input_tokens=1))
    assert rates.model("low").bytes_per_token >= 0.5 and rates.model("high").bytes_per_token <= 16.0


def test_models_are_bounded_in_number_and_in_the_length_of_their_names(rates):
    for name in ("a", "b", "a", "c", "d"):
        rates.observe_usage(name, None, Usage(output_tokens=1))
    assert [rates.model(name).output_tokens < 250 for name in "abcd"] == [True, False, True, True]
    rates.observe_usage("n" * 1_000_000, None, Usage(output_tokens=1))
    assert max(map(len, rates._models)) <= 256
    assert rates.model("n" * 1_000_000).output_tokens < 250


def test_learning_can_be_switched_off(rates):
    rates.observe_prefill(0, 5000, 50.0, now=0.0)
    rates.reconfigure(Routing(learn=False), models_max=3)
    assert rate(rates) == pytest.approx(10_000)
    rates.observe_prefill(0, 5000, 50.0, now=0.0)
    rates.observe_usage("m", 4000, Usage(input_tokens=100, output_tokens=1))
    assert rate(rates) == pytest.approx(10_000) and tuple(rates.model("m")) == (4.0, 250.0)


def test_a_reload_keeps_what_was_learned_unless_the_constant_itself_changed(rates):
    for _ in range(100):
        rates.observe_prefill(0, 5000, 50.0, now=0.0)
    learned = rate(rates)
    rates.reconfigure(Routing(affinity_break=2.0), models_max=3)
    assert rate(rates) == learned
    rates.reconfigure(Routing(prefill_tokens_per_second=5000.0), models_max=3)
    assert rate(rates) == pytest.approx(5000)


def teach(rates, rounds, seconds_per_token, *, slots=range(4), noise=0.0):
    """Each slot answers in turn, `seconds_per_token[slot]` a token but for the noise."""
    rng = Random(1)
    for _ in range(rounds):
        for slot in slots:
            rates.observe_prefill(slot, 4000, 4000 * seconds_per_token[slot] * exp(rng.gauss(0.0, noise)), now=0.0)


@pytest.mark.parametrize("true_rate", [3_000.0, 10_000.0, 30_000.0])
def test_equals_are_equals_whatever_their_rate_and_however_their_samples_scatter(rates, true_rate):
    teach(rates, 200, [1 / true_rate] * 4, noise=0.7)
    assert rates.slowness[:4] == pytest.approx(1.0, abs=0.1)


def test_one_of_a_third_of_the_speed_is_found_within_thirty_answers(rates):
    teach(rates, 30, [1 / 30_000] * 3 + [1 / 9_000], noise=0.3)
    ratios = rates.slowness[3] / rates.slowness[:3]
    assert ((ratios > 1.8) & (ratios < 3.4)).all()


def test_a_busy_hour_makes_nobody_slow(rates):
    teach(rates, 50, [1 / 30_000] * 3 + [1 / 9_000])
    for slower in (5, 1):
        teach(rates, 50, [slower / 30_000] * 3 + [slower / 9_000])
        assert rates.slowness[:3] == pytest.approx(1.0, abs=0.2) and 1.8 < rates.slowness[3] < 3.4


def test_nobody_knows_it_yet_so_it_is_like_the_others(rates):
    teach(rates, 100, [1 / 30_000] * 3, slots=range(3))
    assert rates.slowness[3] == 1.0 and rates.slowness[:3] == pytest.approx(1.0)
    rates.adopt([3])
    rates.observe_prefill(3, 4000, 4.0, now=0.0)  # thirty times as long, once
    assert rates.slowness[3] < 2.0


def test_slowness_is_forgotten_with_the_endpoint_and_where_learning_ends(rates):
    for forget in (lambda: rates.adopt([3]), lambda: rates.reconfigure(Routing(learn=False), models_max=3)):
        teach(rates, 60, [1 / 30_000] * 3 + [1 / 9_000])
        assert rates.slowness[3] > 2
        forget()
        assert rates.slowness[3] == 1.0
    teach(rates, 60, [1 / 30_000] * 3 + [1 / 9_000])
    assert (rates.slowness == 1.0).all()


@pytest.mark.parametrize("seconds", [1e-12, 1e6])
def test_slowness_is_bounded(rates, seconds):
    for _ in range(500):
        rates.observe_prefill(0, 2000, 0.2, now=0.0)
        rates.observe_prefill(1, 2000, seconds, now=0.0)
    assert ((rates.slowness >= 1 / 10.001) & (rates.slowness <= 10.001)).all()


def test_slowness_fades_where_nothing_teaches_any_more(rates):
    for _ in range(30):
        for slot in range(3):
            rates.observe_prefill(slot, 4000, 4.0 if slot == 0 else 0.4, now=100.0)
    slow = rates.slowness[0]
    assert slow > 3 and rates.fade_due_at_seconds == 160.0
    rates.fade(159.9)
    assert rates.slowness[0] == slow, "a minute of silence is nothing yet"
    seen = []
    for second in range(160, 1000, 10):
        if second >= rates.fade_due_at_seconds:
            rates.fade(float(second))
        seen.append(rates.slowness[0])
    assert seen == sorted(seen, reverse=True) and seen[6] < 3 and seen[-1] == 1.0
    assert rates.fade_due_at_seconds == inf, "nothing is left to fade"
    rates.observe_prefill(0, 4000, 4.0, now=2000.0)
    assert rates.slowness[0] > 1 and rates.fade_due_at_seconds == 2060.0


def test_what_is_faster_than_the_others_does_not_fade(rates):
    """It gets requests to learn from: nothing has to bring it back."""
    for _ in range(60):
        for slot in range(3):
            rates.observe_prefill(slot, 4000, 0.1 if slot == 0 else 1.0, now=100.0)
    fast = rates.slowness[0]
    assert fast < 0.7
    assert rates.slowness[1] > 1, "the others are slower than the pool, and fade"
    for second in (200.0, 400.0, 1000.0):
        rates.fade(second)
    assert rates.slowness[0] == fast and rates.slowness[1] == 1.0


def test_an_endpoint_that_recovered_gets_work_again():
    """Four servers at a tenth of their load; one is ten times as slow for ten minutes, then as fast as the others."""
    director = Director(Config())
    director.replace_endpoints(EndpointSpec(address=f"10.0.0.{at}:80", uid=str(at), name=str(at)) for at in range(4))
    rng = Random(1)
    now, free, events, first_work_at = 0.0, [0.0] * 4, [], None
    picks = [0] * 4
    for number in count():
        now += rng.expovariate(3.0)
        if now > 1100.0:
            break
        while events and events[0][0] <= now:
            at, _, ended, booking = heappop(events)
            if ended:
                director.finish(booking, reached=True)
            else:
                director.first_token(booking, at)
        prompt = rng.randbytes(rng.choice([8, 16, 24]) * 1024)
        request = InferenceRequest(api="completions", prompt=prompt, prompt_bytes=len(prompt), stream=True)
        decision = director.decide(request, now=now, rng=rng, first_chunk_visible=True)
        slot = decision.booking.endpoint.slot
        factor = 10.0 if slot == 0 and 60.0 <= now < 660.0 else 1.0
        free[slot] = max(free[slot], now) + factor * len(prompt) / 4 / 30_000
        heappush(events, (free[slot], number, False, decision.booking))
        heappush(events, (free[slot] + 2.0, number, True, decision.booking))
        if now >= 660.0 and slot == 0 and first_work_at is None:
            first_work_at = now
        if now >= 960.0:
            picks[slot] += 1
    assert first_work_at is not None and first_work_at < 760.0
    assert picks[0] > sum(picks) / 8, picks
