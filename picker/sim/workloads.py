"""Workloads: seeded generators of sessions, their parameters documented, one for each kind of traffic.

`sessions(NAME, seed, requests_per_second)` yields sessions by rising start, without an end, the same
ones for the same arguments. Sessions arrive open-loop: whatever the servers do, the next
one starts. Lengths are lognormal, clipped, as published traces of LLM services have them; where
a parameter follows a publication its docstring says so.

* `long`: documents of tens of thousands of tokens, each asked several times by different people;
* `chat`: conversations of several turns under one of a few system prompts, arriving in bursts;
* `agents`: coding agents with one common preamble, contexts that grow by tool output, short pauses;
* `mixed`: `chat` with a thin stream of long prompts that nobody asks again;
* `tools`: single requests from templates whose heads are shared in families.

`heavy_workloads` has those where routing is hardest.
"""

from collections.abc import Callable, Iterator
from heapq import heappop, heappush, merge
from itertools import islice

import msgspec

from picker.sim.draws import Draws, Lengths, conversations, mean_turns, popularity
from picker.sim.heavy_workloads import HEAVY_WORKLOADS, HeavyParameters
from picker.sim.prompts import Role, Segment, Session, Turn


class Long(msgspec.Struct, frozen=True, kw_only=True):
    """Long-context questions: a document is asked about for a while, then never again."""

    system_tokens: int = 400
    document_tokens: Lengths = Lengths(30_000, 0.4, 10_000, 80_000)
    question_tokens: Lengths = Lengths(60, 0.6, 10, 400)
    answer_tokens: Lengths = Lengths(120, 0.5, 16, 500)
    questions_mean: float = 6.0
    """Questions a document gets in all (geometric)."""
    gap_seconds: float = 10.0
    """Mean pause between two questions about one document (exponential)."""
    streaming_share: float = 1.0


class Chat(msgspec.Struct, frozen=True, kw_only=True):
    """Conversations. Shapes follow ShareGPT-like traffic: short questions, answers of a few hundred tokens."""

    system_prompts: int = 8
    system_popularity: float = 1.0
    """Zipf exponent over the system prompts."""
    system_tokens: Lengths = Lengths(800, 0.7, 200, 3000)
    question_tokens: Lengths = Lengths(60, 1.0, 4, 2000)
    answer_tokens: Lengths = Lengths(200, 0.7, 8, 1000)
    turns_mean: float = 5.0
    turns_max: int = 20
    pause_seconds: Lengths = Lengths(10.0, 0.8, 1.0, 120.0)
    """Reading and typing."""
    burstiness: float = 3.0
    """Coefficient of variation of the time between two arrivals (gamma; 1 is Poisson). BurstGPT
    (Wang et al. 2024) fits gamma arrivals as well; the Azure 2023 code trace has 13."""
    streaming_share: float = 0.9


class Agents(msgspec.Struct, frozen=True, kw_only=True):
    """Coding agents: every session begins with the same preamble, then grows by tool output."""

    preamble_tokens: int = 6000
    task_tokens: Lengths = Lengths(400, 0.6, 50, 2000)
    tool_tokens: Lengths = Lengths(600, 1.0, 30, 6000)
    answer_tokens: Lengths = Lengths(80, 0.7, 16, 600)
    turns_mean: float = 15.0
    turns_max: int = 40
    pause_seconds: Lengths = Lengths(1.0, 0.8, 0.1, 20.0)
    """The tool runs."""
    streaming_share: float = 1.0


class Mixed(msgspec.Struct, frozen=True, kw_only=True):
    """`chat`, and among it prompts of `long_tokens_least..most` that share nothing with anything."""

    chat: Chat = Chat()
    long_share: float = 0.02
    """The share of requests whose prompt is long."""
    long_tokens_least: int = 20_000
    long_tokens_most: int = 60_000
    long_answer_tokens: Lengths = Lengths(150, 0.5, 16, 500)


class Tools(msgspec.Struct, frozen=True, kw_only=True):
    """Templates: a family's head (instructions, tool definitions), a template's own part, then the request's."""

    families: int = 4
    templates: int = 24
    popularity: float = 1.0
    """Zipf exponent over the templates."""
    family_tokens: Lengths = Lengths(1500, 0.4, 500, 4000)
    template_tokens: Lengths = Lengths(2500, 0.6, 300, 8000)
    request_tokens: Lengths = Lengths(400, 0.8, 30, 3000)
    answer_tokens: Lengths = Lengths(60, 0.6, 8, 300)
    burstiness: float = 2.0
    streaming_share: float = 0.5


Parameters = Long | Chat | Agents | Mixed | Tools | HeavyParameters


def _long(parameters: Long, draws: Draws, per_second: float) -> Iterator[Session]:
    rng = draws.rng
    system = draws.segment(parameters.system_tokens, Role.SYSTEM)
    documents = draws.arrivals(per_second / parameters.questions_mean)
    due: list[tuple[float, int, Segment]] = []
    next_document = next(documents)
    number = 0
    while True:
        while not due or next_document <= due[0][0]:
            document = draws.segment(parameters.document_tokens.tokens(rng))
            at = next_document
            for _ in range(draws.count(parameters.questions_mean, 1000)):
                heappush(due, (at, document.id, document))
                at += rng.expovariate(1 / parameters.gap_seconds)
            next_document = next(documents)
        at, _, document = heappop(due)
        question = draws.segment(parameters.question_tokens.tokens(rng))
        number += 1
        turn = Turn(
            segments=(system, document, question),
            answer=draws.answer(parameters.answer_tokens),
            streaming=draws.streams(parameters.streaming_share),
        )
        yield Session(id=number, at_seconds=at, turns=(turn,))


def _chat(parameters: Chat, draws: Draws, per_second: float) -> Iterator[Session]:
    rng = draws.rng
    systems = [
        draws.segment(parameters.system_tokens.tokens(rng), Role.SYSTEM) for _ in range(parameters.system_prompts)
    ]
    weights = popularity(len(systems), parameters.system_popularity)
    yield from conversations(parameters, draws, systems, weights, per_second, parameters.streaming_share)


def _agents(parameters: Agents, draws: Draws, per_second: float) -> Iterator[Session]:
    rng = draws.rng
    preamble = draws.segment(parameters.preamble_tokens, Role.SYSTEM)
    rate = per_second / mean_turns(parameters.turns_mean, parameters.turns_max)
    for number, at in enumerate(draws.arrivals(rate), 1):
        said: tuple[Segment, ...] = (preamble, draws.segment(parameters.task_tokens.tokens(rng)))
        turns = []
        for index in range(draws.count(parameters.turns_mean, parameters.turns_max)):
            turns.append(
                Turn(
                    segments=said,
                    answer=draws.answer(parameters.answer_tokens),
                    pause_seconds=parameters.pause_seconds.draw(rng) if index else 0.0,
                    streaming=draws.streams(parameters.streaming_share),
                )
            )
            said = (draws.segment(parameters.tool_tokens.tokens(rng), Role.TOOL),)
        yield Session(id=number, at_seconds=at, turns=tuple(turns))


def _mixed(parameters: Mixed, draws: Draws, per_second: float) -> Iterator[Session]:
    chat = _chat(parameters.chat, draws, per_second * (1 - parameters.long_share))
    # Dice of their own: the same chat with and without the long prompts.
    long = _unique(parameters, Draws(draws.rng.getrandbits(15), 1), per_second * parameters.long_share)
    for number, session in enumerate(merge(chat, long, key=lambda session: session.at_seconds), 1):
        yield msgspec.structs.replace(session, id=number)


def _unique(parameters: Mixed, draws: Draws, per_second: float) -> Iterator[Session]:
    for at in draws.arrivals(per_second):
        prompt = draws.segment(draws.rng.randint(parameters.long_tokens_least, parameters.long_tokens_most))
        turn = Turn(segments=(prompt,), answer=draws.answer(parameters.long_answer_tokens))
        yield Session(id=0, at_seconds=at, turns=(turn,))


def _tools(parameters: Tools, draws: Draws, per_second: float) -> Iterator[Session]:
    rng = draws.rng
    families = [draws.segment(parameters.family_tokens.tokens(rng), Role.SYSTEM) for _ in range(parameters.families)]
    templates = [
        (families[index % len(families)], draws.segment(parameters.template_tokens.tokens(rng), Role.SYSTEM))
        for index in range(parameters.templates)
    ]
    weights = popularity(len(templates), parameters.popularity)
    for number, at in enumerate(draws.arrivals(per_second, parameters.burstiness), 1):
        (template,) = rng.choices(templates, cum_weights=weights)
        turn = Turn(
            segments=(*template, draws.segment(parameters.request_tokens.tokens(rng))),
            answer=draws.answer(parameters.answer_tokens),
            streaming=draws.streams(parameters.streaming_share),
        )
        yield Session(id=number, at_seconds=at, turns=(turn,))


WORKLOADS: dict[str, tuple[Parameters, Callable[..., Iterator[Session]]]] = {
    "long": (Long(), _long),
    "chat": (Chat(), _chat),
    "agents": (Agents(), _agents),
    "mixed": (Mixed(), _mixed),
    "tools": (Tools(), _tools),
    **HEAVY_WORKLOADS,
}
CLASSIC = ("long", "chat", "agents", "mixed", "tools")
"""Those that the contest's cells of the longest standing are of."""


def sessions(
    name: str, seed: int, requests_per_second: float, parameters: Parameters | None = None
) -> Iterator[Session]:
    """Sessions of the workload `name`, in the order of their start, without an end.

    `requests_per_second` is the mean rate of requests (turns), were answers instant and pauses nothing.
    `parameters` replace the defaults. Raises `ValueError` that names what is wrong.
    """
    if name not in WORKLOADS:
        raise ValueError(f"no workload {name!r}: choose one of {', '.join(WORKLOADS)}")
    if not requests_per_second > 0:
        raise ValueError(f"requests_per_second is {requests_per_second}: it must be above 0")
    defaults, generate = WORKLOADS[name]
    if parameters is None:
        parameters = defaults
    if type(parameters) is not type(defaults):
        raise ValueError(f"workload {name!r} takes {type(defaults).__name__} parameters")
    return generate(parameters, Draws(seed), requests_per_second)


def first_requests(stream: Iterator[Session], requests: int) -> Iterator[Session]:
    """Sessions that make up `requests` requests; the last one is cut short where it must be."""
    left = requests
    while left > 0:
        for session in islice(stream, 1):
            turns = session.turns[:left]
            left -= len(turns)
            yield session if turns is session.turns else msgspec.structs.replace(session, turns=turns)
            break
        else:
            return


def until(stream: Iterator[Session], seconds: float) -> Iterator[Session]:
    """Sessions that start before `seconds`."""
    for session in stream:
        if session.at_seconds >= seconds:
            return
        yield session
