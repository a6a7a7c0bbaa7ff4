"""Every policy in every cell: workloads by loads, over seeds, and how ours stands against the best peer of each.

    python -m picker.sim.contest --trace conversation_trace.jsonl --jobs 2 --cache cells.json

A *cell* is one workload at one share of its knee. Of each policy its three figures (mean TTFT, p95 TTFT, p95
E2E) are geometric means over the seeds. Ours is divided by the best peer's of that very figure, which is
stricter than by any one peer: no peer is best in all. The ratio of a cell is the geometric mean of the three.
`--ours NAME=FILE` enters our policy under other configurations: for tuning, and for ablations; `--without PART`
enters it without a part that no configuration turns off. What differs from the defaults by less than the seeds do,
run by run on the same requests, is chance: the last table says how much that is.

Peers' runs depend on nothing of ours, so `--cache` keeps them (and the knees) between calls.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from math import exp, log, nan, sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import NamedTuple, cast

import msgspec
from rich.box import SIMPLE_HEAD
from rich.table import Table

from picker import config as configuration
from picker.config import Config
from picker.sim.cli_simulate import print_wide, progress_bar
from picker.sim.policies import POLICIES
from picker.sim.policies.ablations import PARTS
from picker.sim.profiles import DEFAULT_PROFILE, PROFILES
from picker.sim.simulate import Knees, Run, simulate
from picker.sim.sources import Source, Workload, open_file
from picker.sim.workloads import CLASSIC, WORKLOADS

OURS = "picker"
BOUND = "picker-true-residency"
PEERS = tuple(name for name in POLICIES if not name.startswith(OURS))
FIGURES = ("ttft_mean", "ttft_p95", "e2e_p95")
LOADS = (0.5, 0.8, 0.95, 1.1)
GOAL_MEAN, GOAL_WORST = 0.8, 1.1


class Score(msgspec.Struct, frozen=True):
    """What a run is judged by, and its hit rate beside its ceiling. Times in seconds."""

    ttft_mean: float
    ttft_p95: float
    e2e_p95: float
    hit_rate: float
    ceiling: float
    spread: float


class Entrant(NamedTuple):
    """A policy under a name; ours may enter several times."""

    name: str
    policy: str
    config: Config
    kv_events_delay_seconds: float | None = None


class Cell(NamedTuple):
    """One workload at one share of its knee."""

    source: Source
    share: float
    rate: float


class Standing(NamedTuple):
    """How one entrant of ours does in a cell. Ratios to the best peer; below 1 is better than all."""

    cell: Cell
    ratios: dict[str, float]
    best_peers: dict[str, str]
    scores: dict[str, float]
    hit_rate: float
    best_hit_rate: float
    ceiling: float

    @property
    def ratio(self) -> float:
        """The geometric mean of the three figures' ratios."""
        return _geometric(self.ratios.values())


class Scores:
    """Scores by run, kept in a file between calls where they depend on nothing that changes."""

    def __init__(self, path: Path | None, base: Run) -> None:
        self._path = path
        self._fleet = f"{base.replicas}x{base.profile}/{base.kv_tokens}/{base.requests}/{base.warm_up}"
        if base.knee_ttft_seconds is not None:
            self._fleet += f"/knee {base.knee_ttft_seconds:g}"
        if base.speeds:
            self._fleet += f"/{','.join(f'{speed:g}' for speed in base.speeds)}"
        self._kept: dict[str, list[float]] = {}
        if path is not None and path.exists():
            self._kept = json.loads(path.read_text("utf-8"))

    def key(self, run: Run) -> str | None:
        """`None` for ours: a new configuration, or code, is a new run."""
        if run.policy.startswith(OURS):
            return None
        return f"{self._fleet}/{run.source.name}/{run.rate:.6g}/{run.seed}/{run.policy}"

    def get(self, run: Run) -> Score | None:
        """If it is known."""
        key = self.key(run)
        return Score(*self._kept[key]) if key is not None and key in self._kept else None

    def put(self, run: Run, score: Score) -> None:
        """Keep it."""
        key = self.key(run)
        if key is not None:
            self._kept[key] = list(msgspec.structs.astuple(score))

    def knee(self, run: Run) -> float | None:
        """If it is known."""
        found = self._kept.get(self._knee_key(run))
        return found[0] if found else None

    def put_knee(self, run: Run, rate: float) -> None:
        """Keep it."""
        self._kept[self._knee_key(run)] = [rate]

    def _knee_key(self, run: Run) -> str:
        return f"{self._fleet}/{run.source.name}/knee"

    def save(self) -> None:
        """To the file, if there is one."""
        if self._path is not None:
            self._path.write_text(json.dumps(self._kept), "utf-8")


def score_of(run: Run) -> Score:
    """Play it."""
    result, _ = simulate(run)
    if result.ttft is None or result.e2e is None:
        raise ValueError(f"{run.policy} answered nothing of {run.source.name}")
    spread = result.request_spread.variation if result.request_spread else 0.0
    return Score(result.ttft.mean, result.ttft.p95, result.e2e.p95, result.hit_rate, result.ceiling_hit_rate, spread)


def contest(
    base: Run,
    sources: Sequence[Source],
    shares: Sequence[float],
    entrants: Sequence[Entrant],
    seeds: Sequence[int],
    *,
    scores: Scores,
    jobs: int,
    track: Callable[[str, int | None], Callable[[int], None]],
) -> dict[tuple[Cell, str], list[Score]]:
    """Scores by cell and entrant, one a seed."""
    with ProcessPoolExecutor(jobs) as pool:
        track("knees", None)
        starts = [msgspec.structs.replace(base, source=source) for source in sources]
        missing = [start for start in starts if scores.knee(start) is None]
        for start, rate in zip(missing, pool.map(_find_knee, missing), strict=True):
            scores.put_knee(start, rate)
        knees = [scores.knee(start) or 0.0 for start in starts]
        cells = [
            Cell(source, share, share * knee) for source, knee in zip(sources, knees, strict=True) for share in shares
        ]
        wanted = [
            (
                cell,
                entrant.name,
                msgspec.structs.replace(
                    base,
                    source=cell.source,
                    rate=cell.rate,
                    policy=entrant.policy,
                    config=entrant.config,
                    kv_events_delay_seconds=entrant.kv_events_delay_seconds,
                    seed=seed,
                ),
            )
            for cell in cells
            for seed in seeds
            for entrant in entrants
        ]
        unknown = [run for _, _, run in wanted if scores.get(run) is None]
        done = track("runs", len(unknown))
        fresh: dict[int, Score] = {}
        for number, (run, score) in enumerate(zip(unknown, pool.map(score_of, unknown), strict=True), 1):
            fresh[id(run)] = score
            scores.put(run, score)
            done(number)
            if number % 100 == 0:
                scores.save()
    scores.save()
    found: dict[tuple[Cell, str], list[Score]] = {}
    for cell, name, run in wanted:
        known = fresh.get(id(run)) or scores.get(run)
        assert known is not None
        found.setdefault((cell, name), []).append(known)
    return found


def _find_knee(run: Run) -> float:
    return Knees().rate(run)


def standings(found: dict[tuple[Cell, str], list[Score]], ours: str, peers: Iterable[str]) -> list[Standing]:
    """Ours against the best peer of each cell and figure."""
    listed = []
    for cell in dict.fromkeys(cell for cell, _ in found):
        means = {
            name: {figure: _geometric(getattr(score, figure) for score in found[cell, name]) for figure in FIGURES}
            for name in (ours, *peers)
        }
        best = {figure: min(peers, key=lambda name: means[name][figure]) for figure in FIGURES}
        listed.append(
            Standing(
                cell,
                {figure: means[ours][figure] / means[best[figure]][figure] for figure in FIGURES},
                best,
                means[ours],
                fmean(score.hit_rate for score in found[cell, ours]),
                max(fmean(score.hit_rate for score in found[cell, name]) for name in peers),
                fmean(score.ceiling for score in found[cell, ours]),
            )
        )
    return listed


def ranking(found: dict[tuple[Cell, str], list[Score]], peers: Sequence[str]) -> Table:
    """Every entrant over all cells, as a ratio to the best peer of each cell and figure: who is good everywhere."""
    names = list(dict.fromkeys(name for _, name in found))
    rows = []
    for name in names:
        listed = standings(found, name, peers)
        by_figure = [_geometric(each.ratios[figure] for each in listed) for figure in FIGURES]
        worst = max(listed, key=lambda each: each.ratio)
        rows.append((_geometric(by_figure), name, by_figure, worst))
    shown = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), title="All cells, as a ratio to the best peer of each figure")
    shown.add_column("policy", no_wrap=True)
    for column in ("mean", "TTFT mean", "TTFT p95", "E2E p95", "worst"):
        shown.add_column(column, justify="right", no_wrap=True)
    shown.add_column("cell", no_wrap=True)
    for mean, name, by_figure, worst in sorted(rows, key=lambda row: row[0]):
        values = (mean, *by_figure, worst.ratio)
        shown.add_row(name, *(f"{value:.3f}" for value in values), f"{worst.cell.source.name} {worst.cell.share:g}")
    return shown


def one_by_one(found: dict[tuple[Cell, str], list[Score]], peers: Sequence[str]) -> Table:
    """Ours against each peer by itself, who chose one rule for all cells, as an operator does."""
    shown = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), title=f"{OURS} against each peer by itself, as a ratio")
    shown.add_column("peer", no_wrap=True)
    for column in ("mean", "TTFT mean", "TTFT p95", "E2E p95", "worst"):
        shown.add_column(column, justify="right", no_wrap=True)
    shown.add_column("cell", no_wrap=True)
    rows = []
    for peer in peers:
        listed = standings(found, OURS, (peer,))
        by_figure = [_geometric(each.ratios[figure] for each in listed) for figure in FIGURES]
        rows.append((peer, by_figure, max(listed, key=lambda each: each.ratio)))
    for peer, by_figure, worst in sorted(rows, key=lambda row: _geometric(row[1]), reverse=True):
        values = (_geometric(by_figure), *by_figure, worst.ratio)
        shown.add_row(peer, *(f"{value:.3f}" for value in values), f"{worst.cell.source.name} {worst.cell.share:g}")
    return shown


def against_ours(found: dict[tuple[Cell, str], list[Score]], names: Sequence[str]) -> Table:
    """Each variant of ours over our defaults, over all cells: the mean, and two standard errors over the seeds."""
    shown = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), title=f"All cells, over {OURS} on the same requests (percent)")
    shown.add_column("policy", no_wrap=True)
    for column in ("mean", "+-", "TTFT mean", "+-", "TTFT p95", "+-", "E2E p95", "+-", "hit %", "worst"):
        shown.add_column(column, justify="right", no_wrap=True)
    shown.add_column("cell", no_wrap=True)
    for name in names:
        changes = [change(found, name, figures) for figures in (FIGURES, *((figure,) for figure in FIGURES))]
        texts = [text for mean, error in changes for text in (f"{mean:+.1%}"[:-1], f"{2 * error:.1%}"[:-1])]
        hit_rate = fmean(score.hit_rate for (_, other), scores in found.items() if other == name for score in scores)
        worst = max(standings(found, name, (OURS,)), key=lambda each: each.ratio)
        cell = f"{worst.cell.source.name} {worst.cell.share:g}"
        shown.add_row(name, *texts, f"{100 * hit_rate:.1f}", f"{worst.ratio - 1.0:+.1%}"[:-1], cell)
    return shown


def change(found: dict[tuple[Cell, str], list[Score]], name: str, figures: Sequence[str]) -> tuple[float, float]:
    """`(mean, standard error)` of an entrant's figures over ours, less 1. A seed, over all cells, is one sample."""
    by_seed: dict[int, list[float]] = {}
    for (cell, other), scores in found.items():
        if other == name:
            for seed, (ours, theirs) in enumerate(zip(found[cell, OURS], scores, strict=True)):
                by_seed.setdefault(seed, []).extend(
                    log(max(getattr(theirs, figure), 1e-9) / max(getattr(ours, figure), 1e-9)) for figure in figures
                )
    samples = [fmean(each) for each in by_seed.values()]
    error = stdev(samples) / sqrt(len(samples)) if len(samples) > 1 else nan
    mean = exp(fmean(samples))
    return mean - 1.0, mean * error


def _geometric(values: Iterable[float]) -> float:
    return exp(fmean(log(max(value, 1e-9)) for value in values))


def table(name: str, listed: Sequence[Standing]) -> Table:
    """One row a cell."""
    mean, worst = _geometric(each.ratio for each in listed), max(each.ratio for each in listed)
    shown = Table(
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        title=f"{name}: ratio to the best peer of each figure, mean {mean:.3f}, worst cell {worst:.2f} "
        f"(goals {GOAL_MEAN:g}, {GOAL_WORST:g})",
    )
    for column in ("workload", "load"):
        shown.add_column(column, no_wrap=True)
    for column in ("ratio", "TTFT mean", "s", "TTFT p95", "s", "E2E p95", "s", "hit %", "best", "ceiling"):
        shown.add_column(column, justify="right", no_wrap=True)
    shown.add_column("best peers", no_wrap=True)
    for each in listed:
        figures = [text for figure in FIGURES for text in (f"{each.ratios[figure]:.2f}", f"{each.scores[figure]:.2f}")]
        shown.add_row(
            each.cell.source.name,
            f"{each.cell.share:g}",
            f"{'! ' if each.ratio > 1.0 else ''}{each.ratio:.2f}",
            *figures,
            *(f"{100 * share:.1f}" for share in (each.hit_rate, each.best_hit_rate, each.ceiling)),
            ", ".join(dict.fromkeys(each.best_peers.values())),
        )
    return shown


def _entrants(options: argparse.Namespace) -> list[Entrant]:
    """Ours: the yardstick first. Raises `OSError`, or `ValueError` that says what is wrong with a configuration."""
    config = Config() if options.config is None else configuration.load(options.config.read_text("utf-8"))
    entrants = [Entrant(OURS, OURS, config)]
    for text in options.ours:
        name, _, path = text.partition("=")
        entrants.append(Entrant(name, OURS, configuration.load(Path(path).read_text("utf-8"))))
    for part in options.without.split(","):
        if part:
            entrants.append(Entrant(f"without {part}", f"{OURS}-without-{part}", config))
    if options.events is not None:
        entrants.append(Entrant("KV events", OURS, config, options.events))
    if options.bound:
        entrants.append(Entrant("true residency", BOUND, config))
    return entrants


def _kv_tokens(options: argparse.Namespace) -> int | None:
    """Of a replica; `None`: the profile's. Raises `ValueError` on a share that is none."""
    if options.kv_tokens is not None or options.kv_share == 1.0:
        return cast(int | None, options.kv_tokens)
    if not options.kv_share > 0.0:
        raise ValueError(f"--kv-share is {options.kv_share:g}: it must be above 0")
    profile = PROFILES[options.profile]
    return round(float(options.kv_share) * profile.kv_capacity_tokens)


def main() -> int:
    """Run it. 0: done; 1: it could not be done."""
    parser = argparse.ArgumentParser(prog="python -m picker.sim.contest", allow_abbrev=False, description=__doc__)
    parser.add_argument("--workloads", default=",".join(CLASSIC), help=f"of {','.join(WORKLOADS)}; default %(default)s")
    parser.add_argument("--trace", action="append", default=[], type=Path, metavar="FILE", help="repeatable")
    parser.add_argument("--loads", default=",".join(f"{load:g}" for load in LOADS), help="default %(default)s")
    parser.add_argument("--seeds", default="1,2,3,4,5", help="default %(default)s")
    parser.add_argument("--peers", default=",".join(PEERS), help="default: all")
    parser.add_argument("--ours", action="append", default=[], metavar="NAME=FILE", help="a configuration (repeatable)")
    parser.add_argument("--config", type=Path, metavar="FILE", help="of ours, where --ours names no other")
    parser.add_argument("--without", default="", metavar="PART,...", help=f"of ours: {', '.join(PARTS)}")
    parser.add_argument("--replicas", type=int, default=4)
    parser.add_argument("--profile", choices=tuple(PROFILES), default=DEFAULT_PROFILE)
    parser.add_argument("--kv-tokens", type=int, help="KV capacity of a replica, in place of the profile's")
    parser.add_argument("--kv-share", type=float, default=1.0, help="of the profile's KV capacity; default %(default)s")
    parser.add_argument(
        "--knee-ttft", type=float, metavar="SECONDS", help="p95 TTFT that least request keeps at a load of 1"
    )
    parser.add_argument("--events", type=float, metavar="SECONDS", help="enter ours with KV events, so late")
    parser.add_argument("--bound", action="store_true", help=f"enter {BOUND}: what an index can gain at most")
    parser.add_argument("--speeds", default="", metavar="X,...", help="speed factors of the replicas, in turn")
    parser.add_argument("--requests", type=int, default=4000)
    parser.add_argument("--warm-up", type=float, default=0.2)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--cache", type=Path, metavar="FILE", help="peers' scores and knees, kept between calls")
    parser.add_argument("--json", type=Path, metavar="FILE", help="all scores")
    parser.add_argument("--quiet", action="store_true")
    options = parser.parse_args()
    try:
        sources: list[Source] = [Workload(name) for name in options.workloads.split(",") if name]
        sources += [open_file(path) for path in options.trace]
        peers = [name for name in options.peers.split(",") if name]
        ours = _entrants(options)
        base = Run(
            source=sources[0],
            policy=OURS,
            rate=1.0,
            requests=options.requests,
            warm_up=options.warm_up,
            replicas=options.replicas,
            profile=options.profile,
            kv_tokens=_kv_tokens(options),
            knee_ttft_seconds=options.knee_ttft,
            speeds=tuple(float(speed) for speed in options.speeds.split(",") if speed),
        )
        with progress_bar(options.quiet) as track:
            found = contest(
                base,
                sources,
                [float(load) for load in options.loads.split(",")],
                [*ours, *(Entrant(name, name, Config()) for name in peers)],
                [int(seed) for seed in options.seeds.split(",")],
                scores=Scores(options.cache, base),
                jobs=options.jobs,
                track=track,
            )
    except (ValueError, OSError) as error:
        print(f"contest: {error}", file=sys.stderr)
        return 1
    for entrant in ours:
        print_wide(table(entrant.name, standings(found, entrant.name, peers)))
    print_wide(ranking(found, peers))
    print_wide(one_by_one(found, peers))
    if len(ours) > 1:
        print_wide(against_ours(found, [entrant.name for entrant in ours[1:]]))
    if options.json is not None:
        rows = [
            {
                "workload": cell.source.name,
                "load": cell.share,
                "rate": cell.rate,
                "entrant": name,
                "scores": [msgspec.structs.asdict(score) for score in scores],
            }
            for (cell, name), scores in found.items()
        ]
        options.json.write_text(json.dumps(rows, indent=1), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
