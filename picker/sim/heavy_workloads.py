"""Workloads where routing is hardest: contexts that fill a cache, many owners, long answers, jobs that come at once.

* `deep`: coding agents of tens of turns and up to 100,000 tokens, half of them with sub-agents;
* `tenants`: many tenants, each with a template of its own, most of them seldom seen;
* `reasoning`: short questions, thousands of tokens of answer;
* `retrieval`: a few documents of a large collection before each question, in any order;
* `batch`: steady conversations, and a job of hundreds of requests that comes all at once.
"""

from collections.abc import Callable, Iterator
from functools import lru_cache
from heapq import heappop, heappush, merge

import msgspec

from picker.sim.draws import Draws, Lengths, conversations, mean_turns, popularity
from picker.sim.prompts import Role, Segment, Session, Turn

_SAMPLE_SESSIONS = 400


class Deep(msgspec.Struct, frozen=True, kw_only=True):
    """Coding agents as TraceLab found them in 357,161 steps of Claude Code and Codex (arXiv:2606.30560, 2026).

    There a step appends 800 tokens in the median (90th percentile 3,700 to 6,100) to a context of 154,000 in the
    mean, and answers with 523; a session has 82 steps in the mean and 16 in the median. Contexts are cut here at what
    agents keep of a window of 131,072. Pauses are of another trace, of 783,000 gaps between an agent's steps: median
    1.6 s, 90th percentile 44 s.
    """

    preamble_tokens: int = 18_000
    """Instructions and definitions of tools."""
    task_tokens: Lengths = Lengths(300, 0.8, 30, 4000)
    append_tokens: Lengths = Lengths(800, 1.2, 30, 20_000)
    answer_tokens: Lengths = Lengths(300, 1.0, 16, 4000)
    turns_mean: float = 40.0
    turns_max: int = 150
    context_tokens_max: int = 100_000
    """A session ends where its context would be longer."""
    pause_seconds: Lengths = Lengths(1.6, 2.2, 0.1, 600.0)
    helpers_share: float = 0.5
    """Sessions that call sub-agents, once."""
    helpers_least: int = 2
    helpers_most: int = 4
    helper_preamble_tokens: int = 10_000
    """The same for all sub-agents."""
    brief_tokens: Lengths = Lengths(4000, 0.6, 500, 16_000)
    """What the sub-agents of one call are all told."""
    helper_turns_mean: float = 8.0
    helper_turns_max: int = 30


class ManyTenants(msgspec.Struct, frozen=True, kw_only=True):
    """Conversations under the template of a tenant. Popularity by Zipf, as of models in shared services."""

    tenants: int = 300
    popularity: float = 0.9
    template_tokens: Lengths = Lengths(3000, 0.8, 300, 20_000)
    question_tokens: Lengths = Lengths(120, 1.0, 8, 3000)
    answer_tokens: Lengths = Lengths(200, 0.7, 8, 1000)
    turns_mean: float = 3.0
    turns_max: int = 12
    pause_seconds: Lengths = Lengths(10.0, 0.8, 1.0, 120.0)
    burstiness: float = 2.0


class Reasoning(msgspec.Struct, frozen=True, kw_only=True):
    """Questions of a few hundred tokens that are answered with thousands; a third of them is asked on.

    What was thought is not said again: a second question finds the first one's prompt alone.
    """

    system_tokens: int = 300
    question_tokens: Lengths = Lengths(200, 0.8, 20, 3000)
    answer_tokens: Lengths = Lengths(4200, 0.6, 300, 20_000)
    turns_mean: float = 1.5
    turns_max: int = 4
    pause_seconds: Lengths = Lengths(20.0, 0.8, 2.0, 180.0)


class Retrieval(msgspec.Struct, frozen=True, kw_only=True):
    """Questions behind documents that a search found, best first: the same ones in another order share nothing."""

    system_tokens: int = 500
    documents: int = 2000
    popularity: float = 1.0
    document_tokens: Lengths = Lengths(700, 0.4, 200, 2000)
    documents_each: int = 6
    question_tokens: Lengths = Lengths(40, 0.7, 6, 400)
    answer_tokens: Lengths = Lengths(180, 0.6, 16, 800)


class BatchJobs(msgspec.Struct, frozen=True, kw_only=True):
    """Conversations, and jobs of many items that are all sent within seconds."""

    chat: ManyTenants = ManyTenants(
        tenants=8, popularity=1.0, template_tokens=Lengths(800, 0.7, 200, 3000), turns_mean=5.0
    )
    job_share: float = 0.3
    """The share of requests that belong to jobs."""
    job_items: int = 200
    job_seconds: float = 4.0
    """From a job's first item to its last."""
    template_tokens: Lengths = Lengths(1500, 0.5, 300, 5000)
    item_tokens: Lengths = Lengths(1200, 0.6, 100, 6000)
    answer_tokens: Lengths = Lengths(150, 0.6, 16, 600)


HeavyParameters = Deep | ManyTenants | Reasoning | Retrieval | BatchJobs


def _deep(parameters: Deep, draws: Draws, per_second: float) -> Iterator[Session]:
    preamble = draws.segment(parameters.preamble_tokens, Role.SYSTEM)
    helper = draws.segment(parameters.helper_preamble_tokens, Role.SYSTEM)
    later: list[tuple[float, int, Session]] = []
    number = 0
    for at in draws.arrivals(per_second / _mean_requests(parameters)):
        while later and later[0][0] <= at:
            yield heappop(later)[2]
        for session in _deep_sessions(parameters, draws, at, preamble, helper):
            number += 1
            heappush(later, (session.at_seconds, number, msgspec.structs.replace(session, id=number)))


@lru_cache(maxsize=8)
def _mean_requests(parameters: Deep) -> float:
    """Requests of a session and its sub-agents: contexts end sessions early, which no formula says."""
    draws = Draws(0, 2)
    segment = draws.segment(parameters.preamble_tokens)
    helper = draws.segment(parameters.helper_preamble_tokens)
    started = (_deep_sessions(parameters, draws, 0.0, segment, helper) for _ in range(_SAMPLE_SESSIONS))
    return sum(len(session.turns) for sessions in started for session in sessions) / _SAMPLE_SESSIONS


def _deep_sessions(parameters: Deep, draws: Draws, at: float, preamble: Segment, helper: Segment) -> Iterator[Session]:
    """A session, and those of its sub-agents. It waits for them where it calls them."""
    rng = draws.rng
    task = draws.segment(parameters.task_tokens.tokens(rng))
    turns = _agent_turns(parameters, draws, (preamble, task), draws.count(parameters.turns_mean, parameters.turns_max))
    if rng.random() < parameters.helpers_share and len(turns) > 2:
        called = rng.randrange(1, len(turns) - 1)
        start = at + sum(turn.pause_seconds for turn in turns[:called])
        brief = draws.segment(parameters.brief_tokens.tokens(rng))
        waited = 0.0
        for _ in range(rng.randint(parameters.helpers_least, parameters.helpers_most)):
            own = draws.segment(parameters.task_tokens.tokens(rng))
            count = draws.count(parameters.helper_turns_mean, parameters.helper_turns_max)
            work = _agent_turns(parameters, draws, (helper, brief, own), count)
            waited = max(waited, sum(turn.pause_seconds for turn in work))
            yield Session(id=0, at_seconds=start, turns=tuple(work))
        turns[called] = msgspec.structs.replace(turns[called], pause_seconds=max(waited, turns[called].pause_seconds))
    yield Session(id=0, at_seconds=at, turns=tuple(turns))


def _agent_turns(parameters: Deep, draws: Draws, said: tuple[Segment, ...], count: int) -> list[Turn]:
    """At most `count`, fewer where the context is full; one at least."""
    rng = draws.rng
    turns: list[Turn] = []
    tokens = 0
    while len(turns) < count:
        answer = draws.answer(parameters.answer_tokens)
        tokens += sum(segment.tokens for segment in said) + answer.tokens
        if turns and tokens > parameters.context_tokens_max:
            break
        pause = parameters.pause_seconds.draw(rng) if turns else 0.0
        turns.append(Turn(segments=said, answer=answer, pause_seconds=pause))
        said = (draws.segment(parameters.append_tokens.tokens(rng), Role.TOOL),)
    return turns


def _tenants(parameters: ManyTenants, draws: Draws, per_second: float) -> Iterator[Session]:
    rng = draws.rng
    templates = [draws.segment(parameters.template_tokens.tokens(rng), Role.SYSTEM) for _ in range(parameters.tenants)]
    weights = popularity(len(templates), parameters.popularity)
    yield from conversations(parameters, draws, templates, weights, per_second)


def _reasoning(parameters: Reasoning, draws: Draws, per_second: float) -> Iterator[Session]:
    rng = draws.rng
    system = draws.segment(parameters.system_tokens, Role.SYSTEM)
    later: list[tuple[float, int, Session]] = []
    number = 0
    for at in draws.arrivals(per_second / mean_turns(parameters.turns_mean, parameters.turns_max)):
        while later and later[0][0] <= at:
            yield heappop(later)[2]
        said: tuple[Segment, ...] = (system,)
        start = at
        for index in range(draws.count(parameters.turns_mean, parameters.turns_max)):
            # Each question is a session of its own: the answer before it is not in its prompt.
            start += parameters.pause_seconds.draw(rng) if index else 0.0
            said = (*said, draws.segment(parameters.question_tokens.tokens(rng)))
            number += 1
            turn = Turn(segments=said, answer=draws.answer(parameters.answer_tokens))
            heappush(later, (start, number, Session(id=number, at_seconds=start, turns=(turn,))))


def _retrieval(parameters: Retrieval, draws: Draws, per_second: float) -> Iterator[Session]:
    rng = draws.rng
    system = draws.segment(parameters.system_tokens, Role.SYSTEM)
    documents = [draws.segment(parameters.document_tokens.tokens(rng)) for _ in range(parameters.documents)]
    weights = popularity(len(documents), parameters.popularity)
    for number, at in enumerate(draws.arrivals(per_second), 1):
        found: dict[int, Segment] = {}
        while len(found) < parameters.documents_each:
            (document,) = rng.choices(documents, cum_weights=weights)
            found[document.id] = document
        turn = Turn(
            segments=(system, *found.values(), draws.segment(parameters.question_tokens.tokens(rng))),
            answer=draws.answer(parameters.answer_tokens),
        )
        yield Session(id=number, at_seconds=at, turns=(turn,))


def _batch(parameters: BatchJobs, draws: Draws, per_second: float) -> Iterator[Session]:
    chat = _tenants(parameters.chat, draws, per_second * (1 - parameters.job_share))
    # Dice of their own: the same conversations with and without the jobs.
    jobs = _jobs(parameters, Draws(draws.rng.getrandbits(15), 1), per_second * parameters.job_share)
    for number, session in enumerate(merge(chat, jobs, key=lambda session: session.at_seconds), 1):
        yield msgspec.structs.replace(session, id=number)


def _jobs(parameters: BatchJobs, draws: Draws, per_second: float) -> Iterator[Session]:
    rng = draws.rng
    later: list[tuple[float, int, Session]] = []
    number = 0
    for at in draws.arrivals(per_second / parameters.job_items):
        while later and later[0][0] <= at:
            yield heappop(later)[2]
        template = draws.segment(parameters.template_tokens.tokens(rng), Role.SYSTEM)
        for _ in range(parameters.job_items):
            turn = Turn(
                segments=(template, draws.segment(parameters.item_tokens.tokens(rng))),
                answer=draws.answer(parameters.answer_tokens),
                streaming=False,
            )
            start = at + rng.random() * parameters.job_seconds
            number += 1
            heappush(later, (start, number, Session(id=0, at_seconds=start, turns=(turn,))))


HEAVY_WORKLOADS: dict[str, tuple[HeavyParameters, Callable[..., Iterator[Session]]]] = {
    "deep": (Deep(), _deep),
    "tenants": (ManyTenants(), _tenants),
    "reasoning": (Reasoning(), _reasoning),
    "retrieval": (Retrieval(), _retrieval),
    "batch": (BatchJobs(), _batch),
}
