"""The dice of the workloads: lengths, arrivals, segment numbers."""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from math import log
from random import Random
from typing import Protocol

import msgspec

from picker.sim.prompts import Role, Segment, Session, Turn

_SEED_BITS = 40


class Lengths(msgspec.Struct, frozen=True):
    """A lognormal length in tokens (or seconds), clipped to `least..most`."""

    median: float
    sigma: float
    least: float
    most: float

    def draw(self, rng: Random) -> float:
        """One value."""
        return min(max(rng.lognormvariate(log(self.median), self.sigma), self.least), self.most)

    def tokens(self, rng: Random) -> int:
        """One whole value, at least 1."""
        return max(1, round(self.draw(rng)))


class Draws:
    """A workload's dice and its segment numbers. Texts of different seeds have nothing in common."""

    def __init__(self, seed: int, stream: int = 0) -> None:
        self.rng = Random(f"{seed}/{stream}")
        self._next_id = ((seed & 0x7FFF) << 8 | stream) << _SEED_BITS

    def segment(self, tokens: int, role: Role = Role.USER) -> Segment:
        """A text that was never said before."""
        self._next_id += 1
        return Segment(self._next_id, tokens, role)

    def answer(self, lengths: Lengths) -> Segment:
        return self.segment(lengths.tokens(self.rng), Role.ASSISTANT)

    def count(self, mean: float, most: int) -> int:
        """Geometric, at least 1."""
        count = 1
        while count < most and self.rng.random() < 1 - 1 / mean:
            count += 1
        return count

    def arrivals(self, per_second: float, burstiness: float = 1.0) -> Iterator[float]:
        """Times with gamma gaps, the mean rate `per_second`."""
        shape = 1 / burstiness**2
        at = 0.0
        while True:
            at += self.rng.gammavariate(shape, 1 / (shape * per_second))
            yield at

    def streams(self, share: float) -> bool:
        return self.rng.random() < share


def popularity(count: int, exponent: float) -> list[float]:
    """Cumulative Zipf weights for `Random.choices`."""
    return list(accumulate(1 / (rank + 1) ** exponent for rank in range(count)))


def mean_turns(mean: float, most: int) -> float:
    """Mean of a geometric count that stops at `most`."""
    again = 1 - 1 / mean
    return (1 - again**most) / (1 - again)


class Conversing(Protocol):
    """What parameters say of conversations."""

    @property
    def question_tokens(self) -> Lengths: ...
    @property
    def answer_tokens(self) -> Lengths: ...
    @property
    def turns_mean(self) -> float: ...
    @property
    def turns_max(self) -> int: ...
    @property
    def pause_seconds(self) -> Lengths: ...
    @property
    def burstiness(self) -> float: ...


def conversations(
    parameters: Conversing,
    draws: Draws,
    heads: Sequence[Segment],
    weights: Sequence[float],
    per_second: float,
    streaming_share: float | None = None,
) -> Iterator[Session]:
    """Sessions of several turns, each under one of the heads. `streaming_share`: `None` streams all, without dice."""
    rng = draws.rng
    rate = per_second / mean_turns(parameters.turns_mean, parameters.turns_max)
    for number, at in enumerate(draws.arrivals(rate, parameters.burstiness), 1):
        head: tuple[Segment, ...] = tuple(rng.choices(heads, cum_weights=weights))
        turns = []
        for index in range(draws.count(parameters.turns_mean, parameters.turns_max)):
            turns.append(
                Turn(
                    segments=(*head, draws.segment(parameters.question_tokens.tokens(rng))),
                    answer=draws.answer(parameters.answer_tokens),
                    pause_seconds=parameters.pause_seconds.draw(rng) if index else 0.0,
                    streaming=streaming_share is None or draws.streams(streaming_share),
                )
            )
            head = ()
        yield Session(id=number, at_seconds=at, turns=tuple(turns))
