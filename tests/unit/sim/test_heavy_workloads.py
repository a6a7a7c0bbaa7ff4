"""The heavy workloads have the shapes that their docstrings state."""

from itertools import islice
from statistics import mean, median, quantiles

import pytest

from picker.sim.draws import Lengths
from picker.sim.heavy_workloads import BatchJobs, Deep, ManyTenants, Reasoning, Retrieval
from picker.sim.prompts import Role, prompts
from picker.sim.workloads import sessions


def take(name, count, rate=4.0, parameters=None):
    return list(islice(sessions(name, 1, rate, parameters), count))


def test_deep_agents_append_as_the_trace_says_and_stop_at_the_window():
    drawn = take("deep", 1500)
    tools = [turn.segments[0].tokens for session in drawn for turn in session.turns[1:]]
    assert median(tools) == pytest.approx(800, rel=0.1)
    assert 3000 < quantiles(tools, n=10)[-1] < 6100
    contexts = [sum(segment.tokens for segment in said) for session in drawn for _, said in prompts(session)]
    assert 90_000 < max(contexts) <= Deep().context_tokens_max
    pauses = [turn.pause_seconds for session in drawn for turn in session.turns[1:]]
    assert 1.0 < median(pauses) < 2.5 and quantiles(pauses, n=10)[-1] > 20.0


def test_half_of_deep_sessions_call_agents_that_are_told_the_same():
    drawn = take("deep", 2500)
    heads = [session.turns[0].segments[0].id for session in drawn]
    main, helper = sorted(set(heads), key=heads.count)
    assert heads.count(helper) > heads.count(main)
    by_brief: dict[int, list] = {}
    for session in drawn:
        if session.turns[0].segments[0].id == helper:
            by_brief.setdefault(session.turns[0].segments[1].id, []).append(session)
    # The last calls of the stretch may be cut; a call needs three turns before it can be made.
    assert len(by_brief) / heads.count(main) == pytest.approx(0.5, abs=0.06)
    whole = list(by_brief.values())[:-1]
    assert {len(called) for called in whole} == {2, 3, 4}
    assert all(len({session.at_seconds for session in called}) == 1 for called in whole)
    assert all(len({session.turns[0].segments[2].id for session in called}) == len(called) for called in whole)


def test_a_deep_session_waits_for_the_agents_it_called():
    always = Deep(helpers_share=1.0, pause_seconds=Lengths(1.0, 0.0, 1.0, 1.0), helper_turns_mean=6)
    drawn = take("deep", 800, parameters=always)
    waits = [max((turn.pause_seconds for turn in session.turns), default=0.0) for session in drawn]
    assert max(waits) > 5.0  # as long as the longest of them: their own pauses are of a second


def test_most_tenants_are_seldom_seen():
    drawn = take("tenants", 4000)
    seen: dict[int, int] = {}
    for session in drawn:
        head = session.turns[0].segments[0]
        assert head.role is Role.SYSTEM
        seen[head.id] = seen.get(head.id, 0) + 1
    counts = sorted(seen.values(), reverse=True)
    assert len(counts) > 0.95 * ManyTenants().tenants
    assert counts[0] > 8 * median(counts)


def test_reasoning_says_no_thought_again():
    drawn = take("reasoning", 3000)
    assert all(len(session.turns) == 1 for session in drawn)
    answers = {session.turns[0].answer.id for session in drawn}
    assert not answers & {segment.id for session in drawn for segment in session.turns[0].segments}
    assert mean(session.turns[0].answer.tokens for session in drawn) == pytest.approx(5000, rel=0.1)
    followed = {segment.id for session in drawn for segment in session.turns[0].segments[1:-1]}
    asked = {session.turns[0].segments[-1].id for session in drawn}
    assert len(followed & asked) / len(asked) == pytest.approx(1 - 1 / Reasoning().turns_mean, abs=0.05)


def test_retrieved_documents_come_in_any_order():
    drawn = take("retrieval", 3000)
    found = [[segment.id for segment in session.turns[0].segments[1:-1]] for session in drawn]
    assert all(len(set(each)) == len(each) == Retrieval().documents_each for each in found)
    pairs = {(a, b) for each in found for i, a in enumerate(each) for b in each[i + 1 :]}
    assert sum((b, a) in pairs for a, b in pairs) > 0.1 * len(pairs)


def test_a_batch_job_comes_within_seconds_under_one_template():
    drawn = take("batch", 4000, rate=20.0)
    jobs: dict[int, list[float]] = {}
    for session in drawn:
        turn = session.turns[0]
        if not turn.streaming:
            jobs.setdefault(turn.segments[0].id, []).append(session.at_seconds)
    whole = [times for times in jobs.values() if len(times) == BatchJobs().job_items]
    assert len(whole) >= 3
    assert all(max(times) - min(times) <= BatchJobs().job_seconds for times in whole)
