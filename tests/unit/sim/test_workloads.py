"""Workloads: repeatable, ordered, at the rate asked for, and each with the traits that its name promises."""

from itertools import islice, pairwise
from statistics import fmean as mean

import pytest

from picker.sim.prompts import Role, prompts
from picker.sim.workloads import WORKLOADS, Agents, Chat, Mixed, first_requests, sessions, until


def take(name, count, seed=1, rate=10.0, parameters=None):
    return list(islice(sessions(name, seed, rate, parameters), count))


def prompt_tokens(session):
    return [sum(segment.tokens for segment in said) for _, said in prompts(session)]


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_same_seed_gives_the_same_sessions_and_another_seed_other_texts(name):
    one, again, other = take(name, 50), take(name, 50), take(name, 50, seed=2)
    assert one == again

    def texts(drawn):
        return {segment.id for session in drawn for turn in session.turns for segment in (*turn.segments, turn.answer)}

    assert not texts(one) & texts(other)


@pytest.mark.parametrize("name", WORKLOADS)
def test_sessions_start_in_order_at_the_rate_asked_for(name):
    drawn = take(name, 5000, rate=2.0)
    starts = [session.at_seconds for session in drawn]
    assert starts == sorted(starts)
    assert len({session.id for session in drawn}) == len(drawn)
    requests = sum(len(session.turns) for session in drawn)
    # 1,000 gamma gaps of variation 3: a standard deviation of a tenth.
    assert requests / starts[-1] == pytest.approx(2.0, rel=0.2)


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_request_has_a_prompt_and_an_answer_of_its_own(name):
    answers = [turn.answer for session in take(name, 200) for turn in session.turns]
    assert len({answer.id for answer in answers}) == len(answers)
    assert all(answer.tokens >= 1 and answer.role is Role.ASSISTANT for answer in answers)
    assert all(tokens >= 1 for session in take(name, 200) for tokens in prompt_tokens(session))


def test_long_asks_documents_of_tens_of_thousands_of_tokens_several_times():
    drawn = take("long", 2000)
    documents = [session.turns[0].segments[1] for session in drawn]
    assert 20_000 < mean(document.tokens for document in documents) < 45_000
    # The last documents of the stretch have not had all of their questions yet.
    assert len(documents) / len({document.id for document in documents}) == pytest.approx(6.0, rel=0.3)


def test_chat_comes_in_bursts_and_turns_follow_reading_pauses():
    drawn = take("chat", 4000)
    gaps = [b.at_seconds - a.at_seconds for a, b in pairwise(drawn)]
    deviation = mean((gap - mean(gaps)) ** 2 for gap in gaps) ** 0.5
    assert deviation / mean(gaps) == pytest.approx(3.0, rel=0.25)
    assert mean(len(session.turns) for session in drawn) == pytest.approx(4.9, rel=0.1)
    pauses = [turn.pause_seconds for session in drawn for turn in session.turns[1:]]
    assert min(pauses) >= 1.0
    assert all(session.turns[0].pause_seconds == 0.0 for session in drawn)
    assert len({session.turns[0].segments[0].id for session in drawn}) == Chat().system_prompts


def test_agents_share_one_preamble_and_grow_by_tool_output():
    drawn = take("agents", 300)
    assert {session.turns[0].segments[0] for session in drawn} == {drawn[0].turns[0].segments[0]}
    assert drawn[0].turns[0].segments[0].tokens == Agents().preamble_tokens == 6000
    for session in drawn:
        tokens = prompt_tokens(session)
        assert tokens == sorted(tokens)
        assert all(turn.segments[0].role is Role.TOOL for turn in session.turns[1:])


def test_mixed_is_chat_with_a_thin_stream_of_unique_long_prompts():
    drawn = take("mixed", 3000)
    long = [session for session in drawn if prompt_tokens(session)[0] >= 20_000]
    requests = sum(len(session.turns) for session in drawn)
    assert len(long) / requests == pytest.approx(Mixed().long_share, rel=0.35)
    assert all(20_000 <= prompt_tokens(session)[0] <= 60_000 and len(session.turns) == 1 for session in long)
    assert len({session.turns[0].segments[0].id for session in long}) == len(long)


def test_tools_share_heads_in_families():
    drawn = take("tools", 3000)
    families = {session.turns[0].segments[0].id for session in drawn}
    templates = {session.turns[0].segments[1].id for session in drawn}
    assert (len(families), len(templates)) == (4, 24)


def test_first_requests_cuts_the_last_session_short():
    drawn = list(first_requests(sessions("chat", 1, 10.0), 123))
    assert sum(len(session.turns) for session in drawn) == 123
    assert list(first_requests(iter(drawn), 1000)) == drawn


def test_until_stops_at_the_time():
    drawn = list(until(sessions("tools", 1, 10.0), 5.0))
    assert drawn and all(session.at_seconds < 5.0 for session in drawn)


def test_wrong_arguments_are_named():
    with pytest.raises(ValueError, match="no workload 'chats': choose one of long, chat"):
        sessions("chats", 1, 1.0)
    with pytest.raises(ValueError, match="requests_per_second is 0"):
        sessions("chat", 1, 0)
    with pytest.raises(ValueError, match="'chat' takes Chat"):
        sessions("chat", 1, 1.0, Mixed())
