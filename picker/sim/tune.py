"""Search for better knobs on a given workload, and the proof on a part that the search never saw.

A candidate is judged against the configuration that is in force, run by run on the same requests: the
score is the mean of the logarithms of three ratios, mean TTFT, p95 TTFT and p95 E2E, so 0 is
"the same" and -0.1 about 10 % less. The search is successive halving over a seeded random sample, then
steps along each knob from the best. The gain is reported on held-out runs, with a
bootstrap confidence interval over stretches of time (neighbouring requests share their queues,
so requests are no independent samples).
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from math import exp, log
from random import Random
from statistics import fmean
from typing import Any, NamedTuple

import msgspec
import numpy as np

from picker.config import Config
from picker.sim.records import Records, Values
from picker.sim.simulate import Run, play

STRETCHES = 12
"""A run is cut into so many: the units of the bootstrap."""
RESAMPLES = 2000
CONFIDENCE = 0.95
KEEP_SHARE = 1 / 3
"""This share of the candidates stays after each round of halving."""
STEP_FACTORS = (0.6, 1.6)
"""What a knob is multiplied by in the steps from the best."""


class Knob(NamedTuple):
    """A number of the configuration that the search may change."""

    path: str
    low: float
    high: float


KNOBS = (
    Knob("weights.queue", 0.5, 12.0),
    Knob("weights.kv", 0.3, 8.0),
    Knob("epsilon", 0.001, 0.1),
    Knob("threshold", 0.3, 1.0),
    Knob("routing.affinity_break", 0.5, 32.0),
)
"""`weights.prefix` stays: only ratios of weights matter. All are searched on a logarithmic scale."""


class Measured(NamedTuple):
    """What a run is judged by: columns by request, in the order of their arrival."""

    arrived_at: Values
    ttft: Values
    e2e: Values

    @classmethod
    def of(cls, records: Records) -> "Measured":
        """The measured part of a run's records."""
        arrived_at = records.column("arrived_at")
        order = np.argsort(arrived_at, kind="stable")
        return cls(arrived_at[order], records.column("ttft_seconds")[order], records.column("e2e_seconds")[order])


class Figures(NamedTuple):
    """The three values that count, in seconds."""

    ttft_mean: float
    ttft_p95: float
    e2e_p95: float


class Gain(NamedTuple):
    """Change of a value, as a share (-0.1: 10 % less), and its confidence interval."""

    change: float
    low: float
    high: float


class Proof(NamedTuple):
    """What tuning is worth on held-out runs."""

    before: Figures
    after: Figures
    ttft_mean: Gain
    ttft_p95: Gain
    e2e_p95: Gain
    overall: Gain
    """The score, as a change of the geometric mean."""


class Tuned(NamedTuple):
    """The best configuration found, by what it differs, and its proof."""

    config: Config
    changes: dict[str, float]
    proof: Proof
    tried: int


Play = Callable[[Sequence[Run]], list[Records]]
"""Plays runs, here or in other processes; same order."""


def play_here(runs: Sequence[Run]) -> list[Records]:
    """One after the other."""
    return [play(run) for run in runs]


def tune(
    runs: Sequence[Run],
    held_out: Sequence[Run],
    *,
    trials: int,
    seed: int,
    play_all: Play = play_here,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Tuned:
    """Search on `runs`, prove on `held_out`; all of them with the configuration to improve on."""
    search = _Search(runs, play_all, progress, trials)
    best = search.run(trials, seed)
    config = with_values(runs[0].config, best)
    before = [Measured.of(records) for records in play_all(held_out)]
    after = [Measured.of(records) for records in play_all(_with_config(held_out, config))]
    changes = {path: value for path, value in best.items() if value != value_at(runs[0].config, path)}
    return Tuned(config, changes, prove(before, after, seed), search.tried)


class _Search:
    """Scores of candidates; a candidate is a dict of values by knob."""

    def __init__(self, runs: Sequence[Run], play_all: Play, progress: Callable[[int, int], None], trials: int) -> None:
        self._runs = runs
        self._play = play_all
        self._progress = progress
        self._total = trials * 2
        self._baselines = [figures(Measured.of(records)) for records in play_all(runs)]
        self._scores: dict[tuple[tuple[str, float], ...], list[float]] = {}
        self.tried = 0

    def run(self, trials: int, seed: int) -> dict[str, float]:
        """The best candidate; the configuration in force is one."""
        now = {knob.path: value_at(self._runs[0].config, knob.path) for knob in KNOBS}
        standing = [now, *_sample(Random(f"{seed}/tune"), trials)]
        depth = 1
        while len(standing) > 1:
            self._score(standing, depth)
            if depth >= len(self._runs) and len(standing) <= 2:
                break
            standing.sort(key=self._mean)
            standing = standing[: max(1, int(len(standing) * KEEP_SHARE))]
            depth = min(len(self._runs), depth * 2)
        best = min(standing, key=self._mean)
        self._score([best, now], len(self._runs))
        if self._mean(best) > self._mean(now):
            best = now
        return self._steps(best)

    def _steps(self, best: dict[str, float]) -> dict[str, float]:
        """One pass along each knob."""
        for knob in KNOBS:
            near = [
                best | {knob.path: _rounded(min(max(best[knob.path] * factor, knob.low), knob.high))}
                for factor in STEP_FACTORS
            ]
            self._score([best, *near], len(self._runs))
            best = min((best, *near), key=self._mean)
        return best

    def _score(self, candidates: Sequence[dict[str, float]], depth: int) -> None:
        """Have each candidate played on the first `depth` runs."""
        wanted: list[tuple[tuple[tuple[str, float], ...], int]] = []
        runs: list[Run] = []
        for candidate in candidates:
            key = tuple(candidate.items())
            known = self._scores.setdefault(key, [])
            for index in range(len(known), depth):
                wanted.append((key, index))
                config = with_values(self._runs[index].config, candidate)
                runs.append(msgspec.structs.replace(self._runs[index], config=config))
        for (key, index), records in zip(wanted, self._play(runs), strict=True):
            self._scores[key].append(score(self._baselines[index], figures(Measured.of(records))))
            self.tried += 1
            self._progress(self.tried, self._total)

    def _mean(self, candidate: dict[str, float]) -> float:
        return fmean(self._scores[tuple(candidate.items())])


def _sample(rng: Random, count: int) -> Iterator[dict[str, float]]:
    """Candidates, each knob stratified (a Latin hypercube): every part of its range is tried."""
    columns = []
    for knob in KNOBS:
        cells = list(range(count))
        rng.shuffle(cells)
        span = log(knob.high / knob.low)
        columns.append([_rounded(knob.low * exp(span * (cell + rng.random()) / count)) for cell in cells])
    for values in zip(*columns, strict=True):
        yield {knob.path: value for knob, value in zip(KNOBS, values, strict=True)}


def _rounded(value: float) -> float:
    """Rounded to two digits, for pasting."""
    return float(f"{value:.2g}")


def _with_config(runs: Sequence[Run], config: Config) -> list[Run]:
    return [msgspec.structs.replace(run, config=config) for run in runs]


def value_at(config: Config, path: str) -> float:
    """The value of a knob."""
    found: Any = config
    for name in path.split("."):
        found = getattr(found, name)
    return float(found)


def with_values(config: Config, values: dict[str, float]) -> Config:
    """The configuration with other values."""
    for path, value in values.items():
        section, _, name = path.rpartition(".")
        if section:
            inner = msgspec.structs.replace(getattr(config, section), **{name: value})
            config = msgspec.structs.replace(config, **{section: inner})
        else:
            config = msgspec.structs.replace(config, **{name: value})
    return config


def figures(measured: Measured) -> Figures:
    """The figures of one run, or of stretches of several. There must be at least one request."""
    return Figures(
        float(measured.ttft.mean()),
        float(np.percentile(measured.ttft, 95)),
        float(np.percentile(measured.e2e, 95)),
    )


def score(before: Figures, after: Figures) -> float:
    """Mean logarithm of the ratios; negative is better."""
    return fmean(log(new / old) for new, old in zip(after, before, strict=True))


def prove(before: Sequence[Measured], after: Sequence[Measured], seed: int) -> Proof:
    """Compare the same runs under two configurations; stretches of time are resampled together in both."""
    olds, news = _stretches(before, before), _stretches(after, before)
    rng = np.random.default_rng(seed)
    changes = []
    for _ in range(RESAMPLES):
        drawn = rng.integers(0, len(olds), len(olds))
        old, new = figures(_joined([olds[at] for at in drawn])), figures(_joined([news[at] for at in drawn]))
        changes.append([*(log(b / a) for a, b in zip(old, new, strict=True)), score(old, new)])
    tail = (1.0 - CONFIDENCE) / 2
    low, high = np.quantile(np.asarray(changes), (tail, 1.0 - tail), axis=0).tolist()
    old, new = figures(_joined(olds)), figures(_joined(news))
    middle = [*(log(b / a) for a, b in zip(old, new, strict=True)), score(old, new)]
    gains = [Gain(exp(each) - 1, exp(low[at]) - 1, exp(high[at]) - 1) for at, each in enumerate(middle)]
    return Proof(old, new, *gains)


def _stretches(runs: Sequence[Measured], reference: Sequence[Measured]) -> list[Measured]:
    """Runs cut by time of arrival, at the same times in both configurations; empty stretches hold one neighbour."""
    parts = []
    for run, other in zip(runs, reference, strict=True):
        edges = np.quantile(other.arrived_at, np.linspace(0.0, 1.0, STRETCHES + 1)[1:-1])
        cuts = [0, *np.searchsorted(run.arrived_at, edges).tolist(), len(run.arrived_at)]
        for start, stop in pairwise(cuts):
            first = min(start, len(run.arrived_at) - 1)
            last = max(stop, first + 1)
            parts.append(Measured(*(column[first:last] for column in run)))
    return parts


def _joined(parts: Sequence[Measured]) -> Measured:
    return Measured(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
