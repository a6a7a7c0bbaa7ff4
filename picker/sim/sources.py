"""Where a run's requests come from: a seeded workload or a file, at a chosen rate.

Which requests a run has must not depend on the policy, or means would not compare: so a run has
the first N requests by *planned* time, when each answer takes no time. (The first N to arrive would
favour slow policies with many young sessions; the first N by session would end in a long tail of
the last sessions' turns, under no load.)

A workload is met in the middle of its life: sessions that began in the `settle_seconds` before the
run go on in it, so that as many are open at the start as at the end. Caches are cold at first, as
after a roll-out: the first `warm_up` share of the requests is played but not measured.
"""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from heapq import heappop, heappush, merge
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from picker import recording
from picker.sim import recorded, traces, workloads
from picker.sim.prompts import Segment, Session
from picker.sim.scripts import Script, SessionScript

SETTLE_SECONDS: Mapping[str, float] = {
    "long": 120.0,
    "chat": 180.0,
    "agents": 60.0,
    "mixed": 180.0,
    "tools": 0.0,
    "deep": 900.0,
    "tenants": 90.0,
    "reasoning": 60.0,
    "retrieval": 0.0,
    "batch": 180.0,
}
"""By workload: about three times a session's mean span, pauses only."""


class Source(Protocol):
    """Scripts by seed and rate."""

    @property
    def name(self) -> str:
        """For tables."""

    @property
    def unit(self) -> str:
        """The unit of its rate."""

    def scripts(self, seed: int, requests: int, rate: float, warm_up: float) -> Iterator[Script]:
        """Scripts of at most `requests` requests, the first `warm_up` share of them not measured."""


class Workload(msgspec.Struct, frozen=True):
    """A generator of `workloads.WORKLOADS`. Its rate is in requests a second."""

    name: str
    parameters: workloads.Parameters | None = None

    @property
    def unit(self) -> str:
        """Requests a second."""
        return "/s"

    def scripts(self, seed: int, requests: int, rate: float, warm_up: float) -> Iterator[Script]:
        """Its first `requests` requests by planned time."""
        return _scripts(_generated(self, seed, requests, rate, warm_up))


class Trace(msgspec.Struct, frozen=True):
    """A Mooncake or Azure file. Its rate is a speed: 2 replays twice as fast; the seed moves arrivals."""

    path: Path
    skip: int = 0
    """Requests to leave out first."""

    @property
    def name(self) -> str:
        """The file's, without its kind."""
        return self.path.stem.removesuffix("_trace")

    @property
    def unit(self) -> str:
        """Times as fast."""
        return "x"

    def scripts(self, seed: int, requests: int, rate: float, warm_up: float) -> Iterator[Script]:
        """Its first `requests` requests."""
        return _scripts(_traced(self, seed, requests, rate, warm_up))


class Recording(msgspec.Struct, frozen=True):
    """What `picker serve --record` wrote. Its rate is a speed; it has one run, whatever the seed."""

    path: Path
    skip: int = 0
    """Requests to leave out first."""

    @property
    def name(self) -> str:
        """The file's, without its kind."""
        return self.path.stem

    @property
    def unit(self) -> str:
        """Times as fast."""
        return "x"

    def scripts(self, seed: int, requests: int, rate: float, warm_up: float) -> Iterator[Script]:
        """Its first `requests` requests."""
        return iter(_recorded(self, requests, rate, warm_up))


def open_file(path: Path) -> Source:
    """A recording or a trace, as the file itself says."""
    return Trace(path) if recording.header(path) is None else Recording(path)


class Planned(NamedTuple):
    """A session and how many of its first turns belong to the warm-up."""

    session: Session
    warm_turns: int


def _scripts(planned: list[Planned]) -> Iterator[Script]:
    return (SessionScript(session, warm_turns) for session, warm_turns in planned)


@lru_cache(maxsize=2)  # the next policy wants the same ones; they are read only
def _generated(workload: Workload, seed: int, requests: int, rate: float, warm_up: float) -> list[Planned]:
    stream = workloads.sessions(workload.name, seed, rate, workload.parameters)
    return first_planned(settled(stream, SETTLE_SECONDS[workload.name]), requests, warm_up)


@lru_cache(maxsize=2)
def _traced(trace: Trace, seed: int, requests: int, rate: float, warm_up: float) -> list[Planned]:
    stream = islice(traces.open_trace(trace.path, seed, rate), trace.skip, None)
    return first_planned(_from_zero(stream), requests, warm_up)


@lru_cache(maxsize=2)
def _recorded(recording: Recording, requests: int, rate: float, warm_up: float) -> list[Script]:
    return recorded.scripts(recording.path, requests, speed=rate, warm_up=warm_up, skip=recording.skip)


def _from_zero(stream: Iterator[Session]) -> Iterator[Session]:
    """The first session starts the clock."""
    first = next(stream, None)
    if first is not None:
        yield msgspec.structs.replace(first, at_seconds=0.0)
        for session in stream:
            yield msgspec.structs.replace(session, at_seconds=session.at_seconds - first.at_seconds)


def settled(stream: Iterator[Session], seconds: float) -> Iterator[Session]:
    """The same traffic met `seconds` after its start: who is on the way by then goes on with its next turn."""
    if seconds <= 0.0:
        yield from stream
        return
    begun: list[Session] = []
    later: list[Session] = []
    for session in stream:
        if session.at_seconds >= seconds:
            later.append(session)
            break
        rest = _rest(session, seconds)
        if rest is not None:
            begun.append(rest)
    begun.sort(key=_start)
    moved = (
        msgspec.structs.replace(session, at_seconds=session.at_seconds - seconds) for session in chain(later, stream)
    )
    yield from merge(begun, moved, key=_start)


def _start(session: Session) -> float:
    return session.at_seconds


def _rest(session: Session, seconds: float) -> Session | None:
    """What of a session is planned at `seconds` or later; what was said before stands before its first turn."""
    at = session.at_seconds
    said: list[Segment] = []
    for index, turn in enumerate(session.turns):
        at += turn.pause_seconds
        if at >= seconds:
            first = msgspec.structs.replace(turn, segments=(*said, *turn.segments), pause_seconds=0.0)
            turns = (first, *session.turns[index + 1 :])
            return msgspec.structs.replace(session, at_seconds=at - seconds, turns=turns)
        said += (*turn.segments, turn.answer)
    return None


def first_planned(stream: Iterator[Session], requests: int, warm_up: float = 0.0) -> list[Planned]:
    """The sessions that hold the first `requests` turns by planned time, cut to those turns."""
    sessions: list[Session] = []
    due: list[tuple[float, int]] = []  # (planned time, session index) of turns still to be counted
    taken: list[int] = []  # turns of each session that are in
    warm: list[int] = []
    count = 0
    warm_requests = int(warm_up * requests)

    def take(until: float) -> None:
        nonlocal count
        while due and due[0][0] <= until and count < requests:
            index = heappop(due)[1]
            taken[index] += 1
            warm[index] += count < warm_requests
            count += 1

    for session in stream:
        take(session.at_seconds)
        if count >= requests:
            break
        at = session.at_seconds
        for turn in session.turns:
            at += turn.pause_seconds
            heappush(due, (at, len(sessions)))
        sessions.append(session)
        taken.append(0)
        warm.append(0)
    take(float("inf"))
    return [
        Planned(msgspec.structs.replace(session, turns=session.turns[:turns]), warm_turns)
        for session, turns, warm_turns in zip(sessions, taken, warm, strict=True)
        if turns
    ]
