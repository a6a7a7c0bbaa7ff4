"""The engine model: against a step-by-step oracle, against its own formula, against plain LRU."""

import importlib.util
from array import array
from collections import OrderedDict
from pathlib import Path
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from picker.sim.engine import EngineRequest, Kind, ModelServer
from picker.sim.profiles import PROFILES, Profile

_SPEC = importlib.util.spec_from_file_location("naive_server", Path(__file__).with_name("naive_server.py"))
naive_server = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(naive_server)

SMALL = Profile(
    name="small",
    step_seconds=0.01,
    prefill_token_seconds=1e-4,
    token_pair_seconds=1e-7,
    sequence_seconds=1e-3,
    context_token_seconds=1e-5,
    kv_capacity_tokens=640,
    batch_tokens_max=100,
    sequences_max=6,
)
H100 = PROFILES["8b-h100"]


def chain(stream, tokens):
    """Ids of one stream of text: block i of a stream is unlike every block of another stream."""
    return array("Q", range(stream * 1_000_000, stream * 1_000_000 + tokens // 16))


def drive(server, arrivals, aborts=(), check=False):
    """Feed arrivals and aborts in time order, as an event loop does."""
    steps = [(at, 0, rest) for at, *rest in arrivals] + [(at, 1, (name,)) for at, name in aborts]
    events = []
    for at, kind, rest in sorted(steps, key=lambda step: (step[0], step[1])):
        events += server.advance(at)
        if kind:
            server.abort(at, *rest)
        else:
            server.submit(at, EngineRequest(*rest))
        if check:
            server.check()
    while (at := server.next_event_at()) is not None:
        events += server.advance(at)
        if check:
            server.check()
    return events


arrivals_strategy = st.lists(
    st.tuples(
        st.floats(0.0, 0.4),  # pause before it arrives
        st.integers(0, 5),  # its stream of text
        st.integers(1, 300),  # prompt
        st.integers(1, 120),  # output
        st.one_of(st.none(), st.floats(0.001, 3.0)),  # aborted so long after its arrival
    ),
    min_size=1,
    max_size=25,
)


A_REUSED_TAIL = [
    *[(0.0, 0, 1, 1, None)] * 5,
    *[(0.0, 0, 1, 89, None), (0.0, 0, 245, 112, None), (0.0, 0, 1, 76, None), (0.0, 1, 159, 61, None)],
    *[(0.0, 3, 190, 20, None), (0.0, 0, 15, 10, None), (0.0, 0, 1, 1, None), (0.0, 0, 1, 1, None)],
    *[(0.0, 1, 39, 19, None), (0.0, 0, 1, 6, None), (0.0, 2, 142, 3, None), (0.0, 1, 175, 7, None)],
    *[(0.0, 0, 32, 1, None), (0.0, 0, 1, 1, None), (0.0, 0, 33, 1, None)],
]
"""Several end in one step: in which order decides what is evicted later."""


@settings(max_examples=100, deadline=None)
@example(A_REUSED_TAIL)
@given(arrivals_strategy)
def test_what_is_told_of_the_cache_is_the_cache(drawn):
    """Blocks that were stored, less those that were removed: at any time those that a prompt could hit."""
    server = ModelServer(SMALL)
    told: set[int] = set()
    server.on_stored = lambda name, ids, start, stop: told.update(ids[start:stop])
    server.cache.on_removed = told.difference_update
    arrivals, at = [], 0.0
    for name, (pause, stream, prompt, output, _) in enumerate(drawn):
        at += pause + 1e-6
        arrivals.append((at, name, prompt, output, chain(stream, 640)))
    for at, *rest in arrivals:
        server.advance(at)
        server.submit(at, EngineRequest(*rest))
        assert server.cache.match(rest[-1], 40).blocks == _agreed(rest[-1], told)
    while (next_at := server.next_event_at()) is not None:
        server.advance(next_at)
        for stream in range(6):
            assert server.cache.match(chain(stream, 640), 40).blocks == _agreed(chain(stream, 640), told)
    assert len(told) == server.cache.cached


def _agreed(ids, told):
    count = 0
    while count < len(ids) and ids[count] in told:
        count += 1
    return count


@settings(max_examples=100, deadline=None)
@example(A_REUSED_TAIL)
@given(arrivals_strategy)
def test_every_event_is_where_a_step_by_step_simulation_has_it(drawn):
    arrivals, aborts, at = [], [], 0.0
    for name, (pause, stream, prompt, output, gone) in enumerate(drawn):
        at += pause + 1e-6
        arrivals.append((at, name, prompt, output, chain(stream, 640)))
        if gone is not None:
            aborts.append((at + gone, name))
    server = ModelServer(SMALL)
    got = [(event.at, event.kind.value, event.name) for event in drive(server, arrivals, aborts, check=True)]
    oracle = naive_server.NaiveServer(SMALL)
    expected = oracle.run(arrivals, aborts)

    def by_request(events):
        return sorted(events, key=lambda event: (event[2], event[1], event[0]))

    assert [event[1:] for event in by_request(got)] == [event[1:] for event in by_request(expected)]
    assert [event[0] for event in by_request(got)] == pytest.approx([event[0] for event in by_request(expected)])
    assert (server.prefix_hits_tokens, server.prefix_queries_tokens) == (oracle.hits, oracle.queries)
    assert server.preemptions_total == oracle.preemptions
    assert server.cache.free == server.cache.total


def test_a_full_cache_preempts_and_everybody_still_gets_every_token():
    arrivals = [(0.001 * i, i, 60, 100, chain(i, 160)) for i in range(6)]  # 6 x 160 tokens into 640
    server = ModelServer(SMALL)
    events = drive(server, arrivals, check=True)
    assert server.preemptions_total > 0
    assert [sum(e.kind is kind for e in events) for kind in (Kind.FIRST_TOKEN, Kind.FINISHED)] == [6, 6]
    assert server.generation_tokens_total(1e9) == 600


@pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda profile: profile.name)
def test_a_single_request_takes_what_the_formula_says(profile):
    prompt, output = 20_000, 300
    first = 0.0
    for start in range(0, prompt, profile.batch_tokens_max):
        size = min(profile.batch_tokens_max, prompt - start)
        first += (
            profile.step_seconds
            + size * profile.prefill_token_seconds
            + size * (start + size / 2) * profile.token_pair_seconds
        )
    decode = sum(
        profile.step_seconds + profile.sequence_seconds + (prompt + i) * profile.context_token_seconds
        for i in range(output - 1)
    )
    events = drive(ModelServer(profile), [(0.0, "one", prompt, output)])
    assert [event.kind for event in events] == [Kind.FIRST_TOKEN, Kind.FINISHED]
    assert events[0].at == pytest.approx(first)
    assert events[1].at == pytest.approx(first + decode)


@pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda profile: profile.name)
def test_saturated_prefill_runs_at_the_profiles_peak(profile):
    count, prompt = 400, 512
    events = drive(ModelServer(profile), [(0.0, i, prompt, 1) for i in range(count)])
    # Attention within a 512-token prompt costs about 1 % beyond the peak's bare formula.
    assert count * prompt / events[-1].at == pytest.approx(profile.prefill_tokens_per_second, rel=0.03)


@pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda profile: profile.name)
def test_saturated_decode_runs_at_the_profiles_peak(profile):
    count, prompt, output = 100, 16, 600
    events = drive(ModelServer(profile), [(0.0, i, prompt, output) for i in range(count)])
    first = max(event.at for event in events if event.kind is Kind.FIRST_TOKEN)
    rate = count * (output - 1) / (events[-1].at - first)
    assert rate == pytest.approx(profile.decode_tokens_per_second(count, prompt + output / 2), rel=0.01)


def plain_lru_hits(requests, capacity_blocks):
    """Blocks hit when requests run one after another: one entry a block, the tail goes first."""
    cache, hits = OrderedDict(), 0
    for ids, prompt, output in requests:
        hit = 0
        while hit < (prompt - 1) // 16 and ids[hit] in cache:
            hit += 1
        hits += hit
        for block in reversed(ids[: (prompt + output - 1) // 16]):
            cache.pop(block, None)
            cache[block] = None
        while len(cache) > capacity_blocks:
            cache.popitem(last=False)
    return hits


def test_one_replicas_hit_rate_is_a_plain_lrus():
    rng = Random(7)
    profile = H100.with_capacity(40_000)
    texts = [chain(stream, 8000) for stream in range(40)]
    requests = []
    for _ in range(3000):
        stream = min(int(rng.expovariate(0.15)), 39)
        requests.append((texts[stream], rng.randint(50, 7000), rng.randint(1, 200)))
    arrivals = [(i * 60.0, i, prompt, output, ids) for i, (ids, prompt, output) in enumerate(requests)]
    server = ModelServer(profile)
    drive(server, arrivals)
    expected = 16 * plain_lru_hits(requests, profile.blocks)
    queries = sum(prompt for _, prompt, _ in requests)
    assert server.prefix_queries_tokens == queries
    assert 0.3 < expected / queries < 0.9
    # A running request holds a block that is not full; the plain LRU knows only full ones.
    assert server.prefix_hits_tokens / queries == pytest.approx(expected / queries, abs=0.01)


def test_aborting_frees_blocks_and_queue_at_the_next_step():
    server = ModelServer(SMALL)
    server.submit(0.0, EngineRequest("a", 500, 100))
    server.submit(0.0, EngineRequest("b", 500, 100))
    server.advance(0.1)
    assert (server.running, server.waiting) == (1, 1)
    server.abort(0.1, "a")
    server.abort(0.1, "b")
    server.abort(0.1, "never seen")
    server.advance(server.next_event_at())
    assert (server.running, server.waiting, server.next_event_at()) == (0, 0, None)
    assert server.utilization(1.0) == 0.0


def test_gauges_between_two_events_count_the_steps_so_far():
    server = ModelServer(H100)
    server.submit(0.0, EngineRequest("a", 160, 1000))
    first = server.next_event_at()
    server.advance(first)
    step = H100.duration(sequences=1, context_tokens=160)
    later = first + 15.9 * step  # context grows a little each step: 15 whole ones
    assert server.generated_tokens("a", later) == 16
    assert server.generation_tokens_total(later) == 16
    # The step in progress has its block: tokens 161..176 lie in the eleventh.
    assert server.utilization(first) == pytest.approx(11 / H100.blocks)
    assert server.utilization(later) == pytest.approx(11 / H100.blocks)
    assert server.utilization(later + step) == pytest.approx(12 / H100.blocks)


@pytest.mark.parametrize(
    ("prompt", "output", "words"),
    [(0, 1, "at least one"), (1, 0, "at least one"), (600, 41, "exceed the KV cache of 640")],
)
def test_a_request_that_can_never_run_is_refused(prompt, output, words):
    with pytest.raises(ValueError, match=words):
        ModelServer(SMALL).submit(0.0, EngineRequest("x", prompt, output))


def test_a_slower_profile_takes_longer_by_its_factor():
    events = [drive(ModelServer(profile), [(0.0, "a", 5000, 50)])[-1].at for profile in (H100, H100.faster(0.3))]
    assert events[1] == pytest.approx(events[0] / 0.3)
