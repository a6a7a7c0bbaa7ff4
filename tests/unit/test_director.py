"""The whole policy, case by case: numbers by hand from docs/routing.md, books after every step."""

from collections import Counter
from random import Random

import pytest

from picker.api.request import InferenceRequest
from picker.config import Config, Ejection, Objective, Routing
from picker.decision import Picked
from picker.director import Director
from picker.outcomes import Reason, Shed, Unavailable, Usage
from picker.pool.specs import EndpointSpec, EngineSample
from picker.residency.residency import Residency

NOW = 100.0
KIB = 1024


class Dice(Random):
    """Counts its throws."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self.throws = 0

    def random(self) -> float:
        self.throws += 1
        return super().random()


def names(count):
    return [f"10.0.0.{number}:80" for number in range(count)]


def make(endpoints=2, **config) -> Director:
    config.setdefault("epsilon", 0.0)
    config.setdefault("routing", Routing(shared_weight=1.0))
    director = Director(Config(**config))
    director.replace_endpoints(EndpointSpec(address=name, uid=name, name=name) for name in names(endpoints))
    return director


def prompt(size=8 * KIB, seed=0, model="m", **more) -> InferenceRequest:
    text = Random(seed).randbytes(size)
    return InferenceRequest(api="completions", model=model, prompt=text, prompt_bytes=size, **more)


def ask(director, request=None, now=NOW, rng=None, **more):
    decision = director.decide(request or prompt(), now=now, rng=rng or Random(1), **more)
    check(director)
    return decision


def check(director):
    director.datastore.check()
    director.index.check()


def find(director, name):
    return director.datastore.find(name)


def busy(director, name, *, backlog=0.0, context=0.0, count=1):
    for _ in range(count):
        director.ledger.charge(find(director, name), prefill_tokens=backlog, context_tokens=context, now=NOW)


def sample(name, at=NOW, **more):
    return EngineSample(uid=name, taken_at_seconds=at, engine="vllm", **more)


def load(director, name):
    endpoint = find(director, name)
    return (endpoint.in_flight_requests, endpoint.prefill_tokens, endpoint.context_tokens)


A, B, C = names(3)


# Who is picked ---------------------------------------------------------------------------------


def test_equals_are_picked_at_random():
    counts = Counter(ask(make(3), rng=Random(seed)).addresses[0] for seed in range(300))
    assert set(counts) == {A, B, C} and min(counts.values()) > 60


@pytest.mark.parametrize(("waiting", "picks"), [(1, {A, B}), (2, {B})])
def test_what_is_within_two_percent_ties_and_what_is_beyond_does_not(waiting, picks):
    """40,960 tokens cost 4.26 s in all, 2 % are 85 ms; a foreign request waiting is 512 tokens, 51 ms."""
    seen = set()
    for seed in range(40):
        director = make()
        director.record_sample(sample(A, waiting_requests=waiting))
        director.record_sample(sample(B, waiting_requests=0))
        seen.add(ask(director, prompt(160 * KIB), rng=Random(seed)).addresses[0])
    assert seen == picks


def test_a_burst_of_different_prompts_spreads_before_any_gauge_moves():
    director = make(4)
    counts = Counter(ask(director, prompt(seed=number), rng=Random(number)).addresses[0] for number in range(40))
    assert set(counts) == set(names(4)) and max(counts.values()) - min(counts.values()) <= 2


def test_one_long_prompt_weighs_what_it_is_long():
    director = make()
    (first,) = ask(director, prompt(400 * KIB)).addresses
    others = {ask(director, prompt(KIB, seed=number)).addresses[0] for number in range(1, 12)}
    assert first not in others


@pytest.mark.parametrize(("backlog", "reason"), [(127_000, Reason.AFFINITY), (128_000, Reason.BREAK)])
def test_the_affinity_break_by_hand(backlog, reason):
    """25,600 cached tokens save 2.56 s, times k = 4 is 10.24 s.

    The home is dearer by backlog / 10,000 + 0.025 s (one more sequence at 2/3) - 2.56 s.
    """
    director = make()
    request = prompt(100 * KIB)
    home = ask(director, request)
    director.finish(home.booking, reached=True)
    busy(director, home.addresses[0], backlog=backlog)
    second = ask(director, request)
    assert second.reason is reason and (second.addresses == home.addresses) == (reason is Reason.AFFINITY)


def test_affinity_is_left_by_one_request_and_not_by_all():
    director = make()
    old, short = prompt(100 * KIB), prompt(2 * KIB, seed=9)
    home = ask(director, old)
    director.finish(home.booking, reached=True)
    director.finish(ask(director, short, subset=[home.addresses[0]]).booking, reached=True)
    busy(director, home.addresses[0], backlog=10_000)
    assert ask(director, old).reason is Reason.AFFINITY, "2.56 s saved, 1 s to wait"
    assert ask(director, short).reason is Reason.BREAK, "0.05 s saved"


@pytest.mark.parametrize(
    ("held", "total", "reason"),
    [(80, 100, Reason.AFFINITY), (8, 100, Reason.AFFINITY), (1, 100, Reason.AFFINITY), (0, 100, Reason.LOAD)],
)
def test_partial_matches_count_from_256_tokens(held, total, reason):
    director = make()
    request = prompt(total * KIB)
    if held:
        part = InferenceRequest(api="x", model="m", prompt=request.prompt[: held * KIB], prompt_bytes=held * KIB)
        director.finish(ask(director, part, subset=[A]).booking, reached=True)
    decision = ask(director, request)
    assert (decision.reason, decision.matched_share) == (reason, held / total if decision.addresses == (A,) else 0.0)


@pytest.mark.parametrize("size", [0, 1, 1023])
def test_a_prompt_shorter_than_a_block_matches_nothing(size):
    director = make()
    ask(director, prompt(size))
    assert director.index.blocks == 0
    again = ask(director, prompt(size))
    assert again.reason is (Reason.LOAD if size else Reason.HEADERS)


def test_what_is_expected_in_the_cache_is_the_full_blocks_of_the_whole_prompt():
    director = make()
    request = prompt(3 * KIB + 512)
    first = ask(director, request)
    assert (first.matched_share, first.cached_share) == (0.0, 0.0)
    director.finish(first.booking, reached=True)
    second = ask(director, request)
    assert (second.matched_share, second.cached_share) == (1.0, 3072 / 3584)
    assert ask(director, prompt(0)).cached_share is None


@pytest.mark.parametrize(("size", "held"), [(3 * KIB + 512, 3072 + 256), (8 * KIB, 3072 + 512)])
def test_where_the_engine_says_what_it_holds_half_of_the_next_block_is_expected_too(size, held):
    """On the mean a match ends in the middle of a block of ours, and in the middle of one of the engine's."""
    director = make(1)
    director.listen(Residency(director.index))
    common = Random(0).randbytes(3 * KIB)

    def said(*pieces):
        text = b"".join(pieces)
        return InferenceRequest(api="completions", model="m", prompt=text, prompt_bytes=len(text))

    head, request, other = said(common), *(said(common, Random(n).randbytes(size - 3 * KIB)) for n in (1, 2))
    director.finish(ask(director, head).booking, reached=True)
    assert ask(director, request).cached_share == pytest.approx(3072 / size), "nobody said that it is there"
    director.residency.heard(0)
    assert ask(director, other).cached_share == pytest.approx((held / 4 - 8) / (size / 4))
    unknown = prompt(size, seed=5)
    assert ask(director, unknown).cached_share == 0.0


def test_models_adapters_and_salts_are_chains_of_their_own():
    director = make()
    ask(director)
    for other in (prompt(model="n"), prompt(model=None), prompt(cache_salt="s"), prompt(model="", cache_salt="m")):
        assert ask(director, other).matched_share == 0.0
    assert ask(director).matched_share == 1.0


def test_a_hot_endpoint_outside_the_subset_or_ejected_is_passed_over():
    director = make(3)
    request = prompt(64 * KIB)
    director.finish(ask(director, request, subset=[A]).booking, reached=True)
    half = InferenceRequest(api="x", model="m", prompt=request.prompt[: 32 * KIB], prompt_bytes=32 * KIB)
    director.finish(ask(director, half, subset=[B]).booking, reached=True)
    outside = ask(director, request, subset=[B, C])
    assert (outside.addresses, outside.reason, outside.matched_share) == ((B,), Reason.AFFINITY, 0.5)
    director.finish(outside.booking, reached=False)


# Exploration -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("epsilon", "explores"), [(0.0, 0), (1.0, 200)])
def test_epsilon_zero_never_and_one_always_explores(epsilon, explores):
    reasons = Counter()
    for seed in range(200):
        director = make(2, epsilon=epsilon)
        director.finish(ask(director, prompt(4 * KIB), subset=[A]).booking, reached=True)
        reasons[ask(director, prompt(4 * KIB), rng=Random(seed)).reason] += 1
    assert reasons[Reason.EXPLORE] == explores


def test_epsilon_is_the_share_of_explorations():
    rng, explored = Random(3), 0
    director = make(2, epsilon=0.2)
    for _ in range(2000):
        decision = director.decide(prompt(4 * KIB), now=NOW, rng=rng)
        explored += decision.reason is Reason.EXPLORE
        director.finish(decision.booking, reached=True)
    assert 330 <= explored <= 470


@pytest.mark.parametrize(
    ("endpoints", "subset", "throws"), [(1, None, 0), (3, [A], 0), (2, None, 1), (3, [A, B], 1), (5, None, 1)]
)
def test_exactly_one_draw_decides_on_exploration_where_two_or_more_stand(endpoints, subset, throws):
    director = make(endpoints, epsilon=0.5)
    for number, name in enumerate(names(endpoints)):  # no ties anywhere: a tie is another draw
        busy(director, name, backlog=number * 50_000)
    dice = Dice()
    ask(director, rng=dice, subset=subset)
    assert dice.throws == throws


@pytest.mark.parametrize(("more", "explores"), [(0.15, True), (0.25, False)])
def test_regret_is_bounded(more, explores):
    """The other is dearer by its backlog and by 25 ms for the request it has."""
    director = make(epsilon=1.0)
    busy(director, B, backlog=(more - 0.025) * 10_000)
    decision = ask(director, prompt(KIB - 1))
    assert (decision.addresses[0] == B) is explores
    assert (decision.reason is Reason.EXPLORE) is explores


def test_alone_there_is_nothing_to_explore():
    assert ask(make(1, epsilon=1.0)).addresses == (A,)
    director = make(3, epsilon=1.0)
    assert {ask(director, subset=[B], rng=Random(seed)).addresses[0] for seed in range(20)} == {B}


# Who stands ------------------------------------------------------------------------------------


def test_nobody_is_unavailable_and_says_whether_the_source_has_spoken():
    director = Director(Config())
    assert ask(director).reason_word == "not_synced"
    director.replace_endpoints([])
    assert isinstance(ask(director), Unavailable) and ask(director).reason_word == "no_endpoints"


@pytest.mark.parametrize("subset", [[], ["10.9.9.9"], ["10.0.0.0:81"], [""], ["nonsense", "10.0.0"]])
def test_a_subset_without_a_ready_endpoint_is_unavailable(subset):
    assert ask(make(), subset=subset).reason_word == "subset_empty"


def test_when_all_are_ejected_ejection_is_ignored():
    director = make()
    for name in (A, B):
        for _ in range(3):
            decision = ask(director, subset=[name])
            director.answered(decision.booking, 503, NOW)
            director.finish(decision.booking, reached=True)
    assert isinstance(ask(director), Picked)
    assert ask(director, subset=[A]).addresses == (A,)


def test_an_ejected_endpoint_is_passed_over_until_its_trial():
    director = make(ejection=Ejection(failures=2))
    for expected in (False, True):
        decision = ask(director, subset=[A])
        assert director.answered(decision.booking, 500, NOW) is expected
        director.finish(decision.booking, reached=True)
    assert {ask(director, prompt(seed=seed)).addresses[0] for seed in range(30)} == {B}
    assert ask(director, prompt(seed=31), now=NOW + 5.0).addresses == (A,), "B is busy by now: A gets its trial"
    assert {ask(director, prompt(seed=seed), now=NOW + 5.0).addresses[0] for seed in range(40, 60)} == {B}


@pytest.mark.parametrize("status", [400, 401, 404, 422, 429])
def test_a_clients_mistake_or_a_full_queue_ejects_nobody(status):
    director = make()
    for _ in range(20):
        decision = ask(director, subset=[A])
        assert not director.answered(decision.booking, status, NOW)
        director.finish(decision.booking, reached=True)
    assert ask(director, subset=[A, B]) and not director.ejection.ejected(NOW)


def test_a_full_queue_between_failures_breaks_no_row():
    director = make()
    for status, ejects in ((503, False), (429, False), (503, False), (503, True)):
        decision = ask(director, subset=[A])
        assert director.answered(decision.booking, status, NOW) is ejects


# Shedding --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("readings", "sheds"),
    [
        ([{"waiting_requests": 5}, {"kv_cache_utilization": 0.8}], True),
        ([{"waiting_requests": 5}, {"kv_cache_utilization": 0.79}], False),
        ([{"waiting_requests": 5}, {}], False),
        ([{"waiting_requests": 5}, None], False),
    ],
)
def test_only_negative_priority_is_shed_and_only_while_every_endpoint_is_known_to_be_full(readings, sheds):
    director = make(objectives={"batch": -1, "chat": 1})
    for name, reading in zip((A, B), readings, strict=True):
        if reading is not None:
            director.record_sample(sample(name, **reading))
    assert isinstance(ask(director, objective="batch"), Shed) is sheds
    for objective in (None, "chat", "unheard of"):
        assert isinstance(ask(director, objective=objective), Picked)
    stale = NOW + 5.0
    assert isinstance(ask(director, objective="batch", now=stale), Picked), "stale is not full"


def test_our_own_backlog_sheds_without_any_gauge_and_shedding_charges_nothing():
    director = make(objectives={"batch": -1})
    for name in (A, B):
        busy(director, name, backlog=100_000)
    before = director.ledger.open_charges
    shed = ask(director, objective="batch")
    assert (shed.retry_after_seconds, director.ledger.open_charges, director.index.blocks) == (1, before, 0)


def test_priorities_of_the_configuration_win_over_the_clusters():
    director = make(objectives={"x": -1})
    director.objectives = {"x": 5, "y": 7}
    assert [director.priority(name) for name in ("x", "y", "z", None)] == [-1, 7, 0, 0]


def test_an_objective_that_has_targets_alone_leaves_its_priority_to_the_cluster():
    director = make(objectives={"x": Objective(ttft_seconds=1.0), "y": Objective(priority=-2), "z": 3})
    director.objectives = {"x": 5, "y": 7}
    assert [director.priority(name) for name in ("x", "y", "z")] == [5, -2, 3]
    director.reconfigure(Config(objectives={"x": Objective(priority=-1)}))
    assert [director.priority(name) for name in ("x", "y", "z")] == [-1, 7, 0]


# What arrives ----------------------------------------------------------------------------------


def test_streams_teach_how_many_replicas_are_wanted():
    """40 answers, one after the other: 0.1 s of prefill, then 101 tokens at 12 ms: a tenth of it is a sequence's."""
    director = make(2)
    now = NOW
    for number in range(40):
        picked = ask(director, prompt(seed=number, stream=True), now=now, first_chunk_visible=True)
        assert director.wanted_replicas(now) is None or number >= 10
        director.answered(picked.booking, 200, now)
        director.first_token(picked.booking, now + 0.1)
        director.ended_well(picked.booking, now + 1.3)
        director.finish(picked.booking, reached=True, usage=Usage(2048, 101))
        now += 1.3
    wanted = director.wanted_replicas(now)
    assert wanted is not None and 0.0 < wanted < 0.5, "one request at a time keeps one replica busy, not full"


def test_a_busy_pool_learns_from_no_more_answers_than_a_quiet_one():
    director = make(1)
    foots = []
    for number in range(20):
        picked = ask(director, prompt(seed=number, stream=True), now=NOW + number / 1000, first_chunk_visible=True)
        director.first_token(picked.booking, NOW + 0.1)
        director.ended_well(picked.booking, NOW + 2.0 + number / 1000)
        director.finish(picked.booking, reached=True, usage=Usage(2048, 101))
        foots.append(director.demand.step_seconds)
    assert len(set(foots)) == 1, "20 answers within 20 ms: the first one taught"


def test_answers_that_fail_or_do_not_come_whole_teach_nothing_of_decoding():
    director = make(1)
    before = director.demand.step_seconds
    for number in range(30):
        picked = ask(director, prompt(seed=number, stream=True), first_chunk_visible=True)
        director.first_token(picked.booking, NOW + 0.1)
        director.finish(picked.booking, reached=True, usage=Usage(2048, 101))
    assert director.demand.step_seconds == before


def test_who_is_shed_and_who_finds_no_endpoint_is_wanted_for():
    director = make(2, objectives={"batch": -1})
    ask(director)
    for name in (A, B):
        busy(director, name, backlog=100_000)
    before = director.demand._sum
    assert isinstance(ask(director, objective="batch"), Shed)
    once = director.demand._sum
    director.replace_endpoints(())
    assert isinstance(ask(director), Unavailable)
    assert before < once < director.demand._sum


# The books -------------------------------------------------------------------------------------


def test_a_pick_charges_uncached_and_context_tokens():
    director = make(1)
    director.finish(ask(director, prompt(8 * KIB)).booking, reached=True)
    longer = InferenceRequest(
        api="x", model="m", prompt=prompt(8 * KIB).prompt + b"z" * 4 * KIB, prompt_bytes=12 * KIB, stream=True
    )
    ask(director, longer, first_chunk_visible=True)
    assert load(director, A) == (1, KIB, 3 * KIB)


def test_a_list_of_prompts_is_charged_as_all_and_matched_as_the_first():
    director = make(1)
    many = InferenceRequest(api="x", model="m", prompt=prompt(4 * KIB).prompt, prompt_bytes=40 * KIB)
    director.finish(ask(director, many).booking, reached=True)
    ask(director, many)
    assert load(director, A) == (1, 9 * KIB, 10 * KIB)


def test_token_ids_are_exact_whatever_was_learned_of_the_model():
    director = make(1)
    for _ in range(200):
        director.rates.observe_usage("m", 8000, Usage(input_tokens=1000))
    ids = InferenceRequest(api="x", model="m", prompt=b"\1\0\0\0" * 1000, prompt_bytes=4000, exact_tokens=True)
    ask(director, ids)
    assert load(director, A)[2] == 1000


@pytest.mark.parametrize(
    ("stream", "visible", "timed"), [(True, True, False), (False, True, True), (True, False, True)]
)
def test_a_prefill_ends_by_its_first_chunk_or_by_the_clock(stream, visible, timed):
    """50,000 tokens wait, 2,048 are ours: 5.2048 s at 10,000 a second."""
    director = make(1)
    busy(director, A, backlog=50_000)
    decision = ask(director, prompt(8 * KIB, stream=stream), first_chunk_visible=visible)
    assert decision.predicted_ttft_seconds == pytest.approx(5.2048)
    for after, left in ((5.2, 52_048), (5.21, 50_000 if timed else 52_048)):
        director.ledger.expire(NOW + after)
        assert load(director, A)[1] == left
    director.first_token(decision.booking, NOW + 6)
    assert load(director, A)[1] == 50_000
    director.finish(decision.booking, reached=True)
    assert load(director, A) == (1, 50_000, 0)


def test_an_answer_that_does_not_stream_after_all_ends_its_prefill_by_the_clock():
    director = make(1)
    decision = ask(director, prompt(stream=True), first_chunk_visible=True)
    director.not_streamed(decision.booking)
    director.ledger.expire(NOW + 0.2)
    assert load(director, A)[1] == 2048
    director.ledger.expire(NOW + 0.21)
    assert load(director, A)[:2] == (1, 0)


def test_rates_are_learned_from_streams_alone():
    director = make(1)
    for stream, learns in ((False, False), (True, True)):
        decision = ask(director, prompt(64 * KIB, seed=stream, stream=stream), first_chunk_visible=True)
        director.first_token(decision.booking, NOW + 16.384)
        director.finish(decision.booking, reached=True)
        # 16,384 tokens in 16.384 s: 1,000 a second, one twentieth of the way from 1/10,000
        expected = 1e-4 + 0.05 * (1e-3 - 1e-4) if learns else 1e-4
        assert director.rates.rate_inverse[0] == pytest.approx(expected)


def test_every_end_releases_once_also_on_an_endpoint_that_was_recreated():
    director = make()
    decision = ask(director, prompt(), subset=[A])
    old = decision.booking.endpoint
    director.replace_endpoints([EndpointSpec(address=A, uid="new", name=A), EndpointSpec(address=B, uid=B, name=B)])
    check(director)
    assert director.index.blocks == 0, "its entries went with it"
    fresh = ask(director, prompt(seed=5), subset=[A])
    for _ in range(3):
        director.first_token(decision.booking, NOW + 1)
        director.answered(decision.booking, 500, NOW + 1)
        director.finish(decision.booking, reached=False)
        check(director)
    assert (old.in_flight_requests, old.prefill_tokens, old.context_tokens) == (0, 0, 0)
    assert load(director, "new") == (1, 2048, 2048)
    assert ask(director, prompt(seed=5), subset=[A]).matched_share == 1.0, "and withdrew nothing of the new one's"
    director.finish(fresh.booking, reached=True)


def test_a_request_that_never_got_there_leaves_no_prefix():
    director = make()
    kept = ask(director, prompt(4 * KIB), subset=[A])
    director.finish(kept.booking, reached=True)
    longer = InferenceRequest(api="x", model="m", prompt=prompt(4 * KIB).prompt + b"y" * 4 * KIB, prompt_bytes=8 * KIB)
    lost = ask(director, longer, subset=[A])
    director.finish(lost.booking, reached=False)
    check(director)
    assert ask(director, longer, subset=[A]).matched_share == 0.5


@pytest.mark.parametrize(("status", "left"), [(200, 8), (404, 0), (400, 0), (429, 0), (503, 0)])
def test_an_error_computed_nothing(status, left):
    director = make(1)
    director.answered(ask(director).booking, status, NOW)
    check(director)
    assert director.index.blocks == left


def test_another_endpoint_served_so_everything_moves_there():
    director = make(3)
    for name in (A, B, C):
        busy(director, name, backlog=10_000)
    decision = ask(director, prompt(64 * KIB, stream=True), subset=[A], first_chunk_visible=True)
    assert director.served_by(decision.booking, C, NOW + 1.0)
    check(director)
    assert (load(director, A), load(director, C)) == ((1, 10_000, 0), (2, 26_384, 16_384))
    assert not director.served_by(decision.booking, C, NOW + 1.0), "once"
    again = ask(director, prompt(64 * KIB), subset=[A, C])
    assert again.addresses == (C,) and again.matched_share == 1.0
    director.finish(again.booking, reached=True)
    # The rate of C is learned over the whole time since the pick: 26,384 tokens in 2.6384 s are 10,000 a second.
    director.first_token(decision.booking, NOW + 2.6384)
    assert director.rates.rate_inverse[find(director, C).slot] == pytest.approx(1e-4)
    director.finish(decision.booking, reached=True)
    assert load(director, C) == (1, 10_000, 0)


def test_what_a_stranger_served_is_booked_nowhere():
    director = make(2)
    decision = ask(director, prompt(64 * KIB, stream=True), first_chunk_visible=True)
    assert not director.served_by(decision.booking, "10.9.9.9:80", NOW + 1.0)
    check(director)
    assert director.ledger.open_charges == 0 and director.index.blocks == 0
    assert director.served.unknown_total == director.served.told_total == 1
    director.finish(decision.booking, reached=True)
    check(director)


def test_a_proxy_that_does_not_heed_is_told_once_and_ejects_nobody():
    director = make(3, ejection=Ejection(failures=3))
    warnings = []
    for number in range(40):
        decision = ask(director, prompt(2 * KIB, seed=number), subset=[A])
        director.served_by(decision.booking, B if number % 2 else "10.9.9.9:80", NOW)
        director.finish(decision.booking, reached=True)
        warnings.append(director.served.warning())
    told = [each for each in warnings if each is not None]
    assert len(told) == 1 and "served 20 of 20 requests elsewhere than picked (10 at addresses" in told[0]
    assert director.ejection.ejected(NOW) == [], "a proxy that does not heed says nothing of the pick"


def test_a_request_that_fails_wherever_it_goes_ejects_one_at_most():
    director = make(3, ejection=Ejection(failures=2))
    poison = prompt(4 * KIB)
    for name in (A, B, C):
        for _ in range(3):
            decision = ask(director, poison, subset=[name])
            director.answered(decision.booking, 500, NOW)
            director.finish(decision.booking, reached=True)
    assert len(director.ejection.ejected(NOW)) <= 1


def test_no_more_than_a_share_of_the_pool_is_aside():
    director = make(4, ejection=Ejection(failures=1, share_max=0.5))
    for number, name in enumerate(("10.0.0.0:80", "10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80")):
        decision = ask(director, prompt(2 * KIB, seed=number), subset=[name])
        director.answered(decision.booking, 500, NOW)
    assert len(director.ejection.ejected(NOW)) == 2


@pytest.mark.parametrize(
    ("waited", "others", "itself", "ejected"),
    [(30.0, True, False, True), (0.5, True, False, False), (30.0, False, False, False), (30.0, True, True, False)],
    ids=["hangs", "a quick cancel", "nobody answers", "it answers others"],
)
def test_a_client_that_gives_up_late_while_others_answer_is_the_servers_failure(waited, others, itself, ejected):
    director = make(2, ejection=Ejection(failures=1))
    decision = ask(director, prompt(2 * KIB, stream=True), subset=[A], first_chunk_visible=True)
    for name, answers in ((B, others), (A, itself)):
        if answers:
            other = ask(director, prompt(3 * KIB, seed=7, stream=True), subset=[name], first_chunk_visible=True)
            director.first_token(other.booking, NOW + waited / 2)
    found = director.abandoned(decision.booking, waited, NOW + waited, begun=False, streams=True)
    director.finish(decision.booking, reached=True)
    assert found is ejected
    assert director.ejection.ejected(NOW + waited) == ([find(director, A).slot] if ejected else [])


def test_what_the_proxy_refuses_itself_is_nobodys_failure():
    director = make(2, ejection=Ejection(failures=1))
    assert not director.answered(ask(director).booking, 503, NOW, by_proxy=True)
    assert director.ejection.ejected(NOW) == []


def test_ports_that_refuse_are_passed_over_while_others_answer():
    director = make(3)
    for name in (A, B):
        director.datastore.refused(find(director, name).spec.uid)
    picks = {ask(director, prompt(2 * KIB, seed=n)).addresses[0] for n in range(20)}
    assert picks == {C}
    assert ask(director, subset=[A]).addresses == (A,), "rather that than nobody"
    director.datastore.accepted(find(director, B).spec.uid)
    assert {ask(director, prompt(2 * KIB, seed=n)).addresses[0] for n in range(20, 60)} == {B, C}


def test_requests_that_do_not_read_the_cache_have_no_affinity_but_leave_their_prefix():
    director = make(4)
    shots = [ask(director, prompt(64 * KIB, reads_cache=False)) for _ in range(8)]
    assert {each.matched_share for each in shots} == {0.0} and len({each.addresses for each in shots}) > 1
    again = ask(director, prompt(64 * KIB))
    assert again.matched_share == 1.0


def test_what_one_answer_hides_is_charged_for_all_of_it():
    director = make(1)
    one = ask(director, prompt(8 * KIB))
    many = ask(director, prompt(8 * KIB, seed=3, choices=32))
    endpoint = find(director, A)
    assert (endpoint.in_flight_requests, endpoint.in_flight_sequences) == (2, 33)
    director.finish(many.booking, reached=True, usage=Usage(2048, 32 * 10))
    assert director.rates.model("m").output_tokens < 250.0, "ten tokens an answer, not 320"
    director.finish(one.booking, reached=True)
    assert (endpoint.in_flight_sequences, endpoint.context_tokens) == (0, 0.0)


def test_a_fault_while_deciding_leaves_a_plain_pick_and_nothing_behind():
    director = make(2)
    director.index._heads = _Broken()
    with pytest.raises(ZeroDivisionError):
        director.decide(prompt(8 * KIB), now=NOW, rng=Random(1))
    assert director.ledger.open_charges == 0
    picked = director.decide_plainly(prompt(8 * KIB), now=NOW, subset=[B])
    assert picked.addresses == (B,) and "fault" in picked.explain().summary
    director.finish(picked.booking, reached=True)
    assert director.ledger.open_charges == 0


class _Broken(dict):  # type: ignore[type-arg]
    """Memory that fails when it is asked, in both builds."""

    def get(self, *_: object) -> object:
        raise ZeroDivisionError

    __getitem__ = __contains__ = __setitem__ = get  # type: ignore[assignment]


def test_an_answer_counts_for_whoever_served():
    director = make(ejection=Ejection(failures=2))
    first = ask(director, subset=[B])
    assert not director.answered(first.booking, 502, NOW)
    decision = ask(director, subset=[A])
    director.served_by(decision.booking, B, NOW)
    assert director.answered(decision.booking, 502, NOW), "the second in a row of B"
    assert director.ejection.ejected(NOW) == [find(director, B).slot]


# Engines ---------------------------------------------------------------------------------------


def test_an_engine_that_restarted_has_lost_its_cache_and_the_others_have_not():
    director = make()
    for name in (A, B):
        director.finish(ask(director, subset=[name]).booking, reached=True)
        director.record_sample(sample(name, started_at_seconds=50.0, kv_capacity_tokens=100_000))
    assert director.record_sample(sample(A, started_at_seconds=90.0, kv_capacity_tokens=100_000))
    check(director)
    assert ask(director, subset=[A]).matched_share == 0.0 and ask(director, subset=[B]).matched_share == 1.0


@pytest.mark.parametrize("restart", [False, True])
def test_an_engines_size_bounds_its_index(restart):
    """1,024 tokens at 4 bytes: four blocks."""
    director = make(1, routing=Routing(shared_weight=1.0, index_oversize=1.0))
    if restart:
        director.record_sample(sample(A, started_at_seconds=1.0, kv_capacity_tokens=1024))
    director.record_sample(sample(A, started_at_seconds=2.0, kv_capacity_tokens=1024))
    director.finish(ask(director, prompt(20 * KIB)).booking, reached=True)
    assert director.index.blocks_held == {0: 4}
    director.record_sample(sample(A, started_at_seconds=2.0, kv_capacity_tokens=2048))
    director.finish(ask(director, prompt(20 * KIB, seed=1)).booking, reached=True)
    assert director.index.blocks_held == {0: 8}


def test_a_refused_prompt_takes_the_place_of_nobodys_prefix():
    director = make(1)
    director.record_sample(sample(A, kv_capacity_tokens=8192))  # 32 blocks
    kept = prompt(30 * KIB)
    answered = ask(director, kept)
    director.answered(answered.booking, 200, NOW)
    director.finish(answered.booking, reached=True)
    for seed in range(1, 20):
        refused = ask(director, prompt(30 * KIB, seed=seed))
        assert ask(director, prompt(30 * KIB, seed=seed)).matched_share == 1.0, "a burst of it stays together"
        director.answered(refused.booking, 400, NOW)
        director.finish(refused.booking, reached=True)
    assert ask(director, kept).matched_share == 1.0
    check(director)


def test_kv_that_will_not_fit_drives_away_what_queues_alone_would_not():
    director = make()
    director.record_sample(sample(A, kv_capacity_tokens=10_000, kv_cache_utilization=0.9))
    director.record_sample(sample(B, kv_capacity_tokens=10_000, kv_cache_utilization=0.1, waiting_requests=1))
    # On A 9,000 + 4,096 - 10,000 tokens do not fit: 0.3 x 3,096 / 10,000 = 93 ms, at 2/3; on B 51 ms to wait.
    assert ask(director, prompt(16 * KIB)).addresses == (B,)


def test_a_reload_changes_weights_and_capacities_and_keeps_books_and_index():
    director = make(1)
    decision = ask(director, prompt(20 * KIB))
    smaller = Routing(kv_capacity_tokens=1000, bytes_per_token=4.0, index_oversize=2.0)
    director.reconfigure(Config(epsilon=0.0, routing=smaller))
    check(director)
    assert director.index.blocks_held == {0: 7}, "1,000 tokens x 4 bytes x 2 / 1,024"
    assert director.datastore.snapshot(NOW).capacity_tokens.tolist() == [1000]
    assert load(director, A)[0] == 1
    director.record_sample(sample(A, kv_capacity_tokens=512))
    director.reconfigure(Config(epsilon=0.0, routing=Routing(index_oversize=1.0)))
    check(director)
    assert director.index.blocks_held == {0: 2}
    director.finish(decision.booking, reached=True)


# What is said ----------------------------------------------------------------------------------


def test_the_fallback_list_is_the_next_cheapest_of_those_that_stand():
    director = make(5, destinations_max=3)
    for number, name in enumerate(names(5)):
        busy(director, name, backlog=10_000 * (5 - number))
    assert ask(director, subset=names(4)).addresses == (names(5)[3], names(5)[2], names(5)[1])
    assert ask(director, subset=[A]).addresses == (A,)


def test_an_explanation_shows_holders_the_pick_and_three_others_and_adds_up():
    director = make(8)
    director.finish(ask(director, subset=[A]).booking, reached=True)
    for number, name in enumerate(names(8)):
        busy(director, name, backlog=1000 * number, context=500)
    explained = ask(director).explain()
    assert explained.endpoints[0].address == A and len(explained.endpoints) == 4
    assert [view.picked for view in explained.endpoints] == [True, False, False, False]
    for view in explained.endpoints:
        seconds = view.seconds
        assert view.cost_seconds == pytest.approx(seconds["prefix"] + seconds["queue"] + seconds["kv"] * 2 / 3)
        assert view.why
    assert (explained.reason, explained.prompt_blocks, explained.prompt_tokens) == ("affinity", 8, 2048)


def test_normalized_scoring_compares_scraped_gauges_and_no_books():
    director = make(3, scoring="normalized")
    for name, waiting, kv in ((A, 10, 0.1), (B, 0, 0.1), (C, 0, 0.9)):
        director.record_sample(sample(name, waiting_requests=waiting, kv_cache_utilization=kv))
    busy(director, B, backlog=1_000_000)
    decision = ask(director)
    assert decision.addresses == (B,)
    view = next(view for view in decision.explain().endpoints if view.address == B)
    # prefix 1 - 0, queue 1 - 1, kv 0.1, as (3 + 0 + 0.2) / 3
    assert view.cost_seconds == pytest.approx(3.2 / 3)
