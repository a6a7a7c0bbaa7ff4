"""The simulator is repeatable, loses no request, and agrees with formulas and a naive LRU computed apart from it."""

from array import array
from collections import OrderedDict
from pathlib import Path

import msgspec
import pytest

from picker.config import Config, Routing
from picker.sim.fleet import Failure
from picker.sim.policies import POLICIES
from picker.sim.policies.picker import PickerPolicy
from picker.sim.pooled_lru import PooledLru
from picker.sim.profiles import PROFILES
from picker.sim.scripts import SimRequest
from picker.sim.simulate import Knees, Run, fleet_of, play, simulate
from picker.sim.sources import Trace, Workload
from picker.sim.workloads import WORKLOADS

QUICK = Run(source=Workload("agents"), policy="picker", rate=6.0, requests=400, replicas=3, seed=5)


def run(**changes):
    return msgspec.structs.replace(QUICK, **changes)


class Single:
    """A script of one request whose blocks are its own."""

    def __init__(self, number, at, prompt_tokens, output_tokens, blocks=None):
        self.at_seconds = at
        first = (number + 1) << 32
        fine = blocks if blocks is not None else range(first, first + (prompt_tokens + output_tokens) // 16)
        self._request = {
            "session": number,
            "model": "m",
            "prompt_tokens": prompt_tokens,
            "output_tokens": output_tokens,
            "ids": array("Q", fine),
            "block_hashes": array("Q", list(fine)[15::16][: prompt_tokens // 256]),
            "streaming": True,
        }

    def request(self, number):
        return SimRequest(number=number, **self._request)

    def pause_seconds(self):
        return None


class Fixed(msgspec.Struct, frozen=True):
    """A source of given scripts."""

    scripts_given: tuple
    name: str = "fixed"
    unit: str = "/s"

    def scripts(self, seed, requests, rate, warm_up):
        return iter(self.scripts_given)


@pytest.mark.parametrize("policy", POLICIES)
def test_the_same_run_gives_the_same_records_and_another_seed_others(policy):
    one, again, other = (play(run(policy=policy, requests=200, seed=seed)) for seed in (1, 1, 2))
    assert one.ttft_seconds == again.ttft_seconds
    assert one.replica == again.replica
    assert one.ttft_seconds != other.ttft_seconds


@pytest.mark.parametrize("policy", POLICIES)
def test_every_request_ends_exactly_once_and_the_books_hold_through_failure_and_join(policy):
    fleet = fleet_of(
        run(
            policy=policy,
            pickers=2,
            speeds=(1.0, 1.0, 0.3),
            failures=(Failure(1, 8.0),),
            joins=(12.0,),
            check_every=100,
            warm_up=0.0,
        )
    )
    records = fleet.run()
    fleet.check()
    answered = len(records.ttft_seconds)
    assert records.failed > 0
    assert answered + records.failed == records.ended
    # A failed answer ends its session, so fewer than planned arrive, but whatever arrived has ended.
    assert records.ended <= 400
    assert not any(replica.flights for replica in fleet.replicas)
    for router in fleet.policies:
        if isinstance(router, PickerPolicy):
            assert router.director.ledger.open_charges == 0


@pytest.mark.parametrize("workload", WORKLOADS)
def test_all_that_was_planned_is_played(workload):
    records = play(run(source=Workload(workload), rate=2.0, requests=150, warm_up=0.2))
    assert records.ended == 150
    assert len(records.ttft_seconds) == 120
    assert records.failed == 0


def test_one_replica_hits_what_a_naive_lru_hits():
    capacity = 20_000  # tokens: some documents fit, not all
    source = Workload("tools")
    slow = run(
        source=source, policy="round_robin", replicas=1, kv_tokens=capacity, rate=0.05, requests=600, warm_up=0.0
    )
    records = play(slow)

    cached: OrderedDict[int, None] = OrderedDict()
    hits = prompts = 0
    for script in source.scripts(slow.seed, slow.requests, slow.rate, 0.0):
        request = script.request(0)
        ids = list(request.ids)
        full = request.ids[: (request.prompt_tokens - 1) // 16]
        matched = 0
        while matched < len(full) and full[matched] in cached:
            matched += 1
        hits += matched * 16
        prompts += request.prompt_tokens
        computed = ids[: (request.prompt_tokens + request.output_tokens - 1) // 16]
        for block in reversed(computed):  # the deepest goes first
            cached[block] = None
            cached.move_to_end(block)
        while len(cached) > capacity // 16:
            cached.popitem(last=False)
    rate = sum(records.cached_tokens) / sum(records.prompt_tokens)
    assert rate == pytest.approx(hits / prompts, abs=0.01)
    assert records.ceiling_hit_rate == pytest.approx(hits / prompts, abs=0.01)


TRACES = Path(__file__).parents[3] / "shared" / "traces"


@pytest.mark.parametrize(
    ("trace", "capacity", "expected"),
    [("conversation", 2_560_000, 0.114), ("conversation", 10_200_000, 0.294), ("synthetic", 5_100_000, 0.432)],
)
def test_the_ceiling_is_the_pooled_lru_of_the_public_traces(trace, capacity, expected):
    """The expected shares were computed apart from this code (see the README beside the traces)."""
    path = TRACES / f"{trace}_trace.jsonl"
    if not path.exists():
        pytest.skip(f"no {path.name} beside the repository")
    pooled = PooledLru(capacity)
    for script in Trace(path).scripts(1, 20_000, 1.0, 0.0):
        request = script.request(0)
        pooled.prompt(request.ids, request.prompt_tokens)
    assert pooled.hit_rate == pytest.approx(expected, abs=0.01)


def test_saturated_prefill_runs_at_the_profile_s_peak():
    profile = PROFILES["8b-h100"]
    tokens = 64  # short: no attention to speak of
    flood = tuple(Single(number, 0.0, tokens, 1) for number in range(4096))
    records = play(run(source=Fixed(flood), policy="round_robin", replicas=1, requests=4096, warm_up=0.0))
    rate = 4096 * tokens / records.ended_at
    assert rate == pytest.approx(profile.prefill_tokens_per_second, rel=0.01)


def test_a_lonely_request_takes_what_the_formula_says():
    profile = PROFILES["8b-h100"]
    prompt, output = 5000, 100
    records = play(run(source=Fixed((Single(0, 3.0, prompt, output),)), requests=1, warm_up=0.0))
    prefill = (
        profile.step_seconds + profile.prefill_token_seconds * prompt + profile.token_pair_seconds * prompt * prompt / 2
    )
    decode = sum(
        profile.step_seconds + profile.sequence_seconds + profile.context_token_seconds * (prompt + step)
        for step in range(output - 1)
    )
    assert records.ttft_seconds[0] == pytest.approx(prefill, rel=1e-9)
    assert records.e2e_seconds[0] == pytest.approx(prefill + decode, rel=1e-6)


def test_long_prompts_are_told_apart_from_the_many_that_would_hide_them():
    profile = PROFILES["8b-h100"]
    few = tuple(Single(number, 100.0 * number, tokens, 1) for number, tokens in enumerate((16_384, 16_383, 32_768)))
    result, _ = simulate(run(source=Fixed(few), requests=3, warm_up=0.0))

    def alone(tokens):
        steps = -(-tokens // 8192)
        return (
            steps * profile.step_seconds
            + profile.prefill_token_seconds * tokens
            + profile.token_pair_seconds * tokens * tokens / 2
        )

    assert result.long_ttft.mean == pytest.approx((alone(16_384) + alone(32_768)) / 2, rel=1e-9)
    short, _ = simulate(run(source=Fixed((Single(0, 0.0, 16_383, 1),)), requests=1, warm_up=0.0))
    assert short.long_ttft is None


def test_prefix_awareness_beats_round_robin_where_contexts_are_long():
    long = run(source=Workload("long"), rate=1.5, requests=500)
    ours, theirs = (simulate(msgspec.structs.replace(long, policy=policy))[0] for policy in ("picker", "round_robin"))
    assert ours.hit_rate > 1.5 * theirs.hit_rate
    assert ours.ttft.mean < 0.65 * theirs.ttft.mean
    assert ours.hit_rate <= ours.ceiling_hit_rate + 0.02


@pytest.mark.parametrize("policy", ["picker", "least_request", "lmetric", "dynamo_cost"])
def test_a_replica_that_joins_gets_work(policy):
    fleet = fleet_of(run(policy=policy, replicas=2, rate=10.0, joins=(20.0,), requests=600))
    records = fleet.run()
    late = [
        replica
        for at, replica in zip(records.arrived_at, records.replica, strict=True)
        if at > 30.0  # ten seconds after it joined
    ]
    assert late.count(2) > 0.1 * len(late)


@pytest.mark.parametrize("seed", [5, 6, 7])
def test_a_replica_beside_a_crowded_preamble_gets_work_within_seconds(seed):
    """Agents all begin with what the others hold; half a session a second begins."""
    agents = run(replicas=2, rate=8.0, requests=500, warm_up=0.0, seed=seed, joins=(20.0,))
    records = play(agents)
    times = [at - 20.0 for at, replica in zip(records.arrived_at, records.replica, strict=True) if replica == 2]
    assert min(times) < 10.0
    later = [replica for at, replica in zip(records.arrived_at, records.replica, strict=True) if at > 30.0]
    assert later.count(2) > 0.2 * len(later)


def test_no_replica_idles_while_the_others_share_a_preamble():
    records = play(run(replicas=4, rate=3.0, requests=500, warm_up=0.0))
    assert (records.by_replica() > 0.1 * len(records.replica)).all()


def test_a_dead_replica_gets_nothing_once_it_was_noticed():
    records = play(run(policy="least_request", failures=(Failure(0, 5.0),), warm_up=0.0))
    after = [at for at, replica in zip(records.arrived_at, records.replica, strict=True) if replica == 0 and at > 10.0]
    assert not after
    assert records.failed


def test_the_picker_learns_which_replica_is_slow():
    speeds = (1.0, 1.0, 0.3)
    slow = run(source=Workload("long"), rate=1.2, requests=400, speeds=speeds, policy="picker")
    records = play(slow)
    shares = records.by_replica() / len(records.replica)
    assert shares[2] < 0.25


def test_learning_pays_where_one_replica_is_slow_and_costs_nothing_where_none_is():
    blind = Config(routing=Routing(learn=False))
    ratios = {}
    for speeds in ((1.0, 1.0, 1.0, 0.3), ()):
        for seed in (1, 2):
            tools = run(
                source=Workload("tools"), rate=50.0, requests=800, replicas=4, speeds=speeds, policy="picker", seed=seed
            )
            learned, unlearned = (simulate(each)[0] for each in (tools, msgspec.structs.replace(tools, config=blind)))
            ratios[bool(speeds), seed] = (
                learned.ttft.mean / unlearned.ttft.mean,
                learned.e2e.p95 / unlearned.e2e.p95,
            )
    assert all(max(ratios[True, seed]) < 0.9 for seed in (1, 2))
    assert all(max(ratios[False, seed]) < 1.1 for seed in (1, 2))


def test_a_run_below_the_knee_holds_two_seconds_and_one_above_does_not():
    base = run(policy="least_request", requests=600, replicas=2)
    knee = Knees().rate(base)
    below, above = (
        simulate(msgspec.structs.replace(base, rate=share * knee, seed=0))[0].ttft.p95 for share in (1.0, 1.3)
    )
    assert below <= 2.0 < above


def test_gauges_that_never_arrive_leave_the_picker_its_own_books():
    blind = play(run(scrape_seconds=float("inf")))
    assert blind.failed == 0
    late = play(run(metrics_age_seconds=30.0))
    assert late.failed == 0
    assert play(run(first_chunk_visible=False)).failed == 0


def test_idle_replicas_are_read_less_often_and_busy_ones_as_often():
    """By a picker's own requests, and by what its last reading said of others'."""
    base = run(rate=1.0, requests=120, replicas=4, pickers=2)
    readings: dict[float | None, list[tuple[int, int, float, bool]]] = {}
    for seconds in (None, 3.0):
        fleet = fleet_of(msgspec.structs.replace(base, idle_scrape_seconds=seconds))
        readings[seconds] = told = []
        for router, policy in enumerate(fleet.policies):

            def scraped(replica, gauges, router=router, policy=policy, fleet=fleet, told=told, told_to=policy.scraped):
                flights = fleet.replicas[replica].flights.values()
                ours = any(flight.policy is policy for flight in flights)
                told.append((router, replica, fleet.now, ours or gauges.running_requests + gauges.waiting_requests > 0))
                told_to(replica, gauges)

            policy.scraped = scraped  # type: ignore[method-assign]
        assert fleet.run().failed == 0
        assert len(told) == fleet.readings
    assert len(readings[3.0]) < 0.8 * len(readings[None])
    last: dict[tuple[int, int], tuple[float, bool]] = {}
    for router, replica, at, busy in readings[3.0]:
        before, was_busy = last.get((router, replica), (at, True))
        assert at - before <= (1.0 if was_busy else 3.0) + 1e-6
        last[router, replica] = (at, busy)


def test_unknown_names_are_told():
    with pytest.raises(ValueError, match="no policy 'best': choose one of picker"):
        play(run(policy="best"))
    with pytest.raises(ValueError, match="no profile 'tpu': choose one of 8b-h100"):
        play(run(profile="tpu"))
