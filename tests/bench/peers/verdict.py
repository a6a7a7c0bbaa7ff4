"""From cells to a verdict: medians over the rounds with their range, and every figure in which somebody beats us.

A cell with too many errors has no figures: the requests that failed, often the slowest, would not be
among them. It counts in `errors` and in nothing else.
"""

from collections.abc import Callable, Iterable, Sequence
from statistics import median

import msgspec

from tests.bench.peers.cell import Cell

ERRORS_SHARE_MAX = 0.01


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """Something that is compared."""

    title: str
    value: Callable[[Cell], float | None]
    unit: str
    """seconds, share, times or us."""
    more_is_better: bool = False
    compared: bool = True


class Median(msgspec.Struct, frozen=True):
    """Over the rounds that have it."""

    middle: float
    least: float
    most: float
    rounds: int


class Win(msgspec.Struct, frozen=True, kw_only=True):
    """A figure in which `contestant` beats us."""

    workload: str
    contestant: str
    figure: Figure
    theirs: Median
    ours: Median
    rounds_better: int
    """Of the rounds that both have."""
    rounds: int


def router_cpu(cell: Cell) -> float | None:
    """Of all the processes between client and model server; `None` where one of them is not known."""
    values = list(cell.cpu_us.values())
    return None if not values or None in values else sum(value for value in values if value is not None)


def _time(kind: str, which: str) -> Callable[[Cell], float | None]:
    """One of a cell's times: `ttft` or `e2e`, its mean or a percentile."""

    def value(cell: Cell) -> float | None:
        times = getattr(cell, kind)
        return None if times is None else float(getattr(times, which))

    return value


FIGURES = (
    Figure(title="hit rate", value=lambda cell: cell.hit_rate, unit="share", more_is_better=True),
    Figure(title="TTFT mean", value=_time("ttft", "mean"), unit="seconds"),
    Figure(title="TTFT p50", value=_time("ttft", "p50"), unit="seconds"),
    Figure(title="TTFT p95", value=_time("ttft", "p95"), unit="seconds"),
    Figure(title="E2E p50", value=_time("e2e", "p50"), unit="seconds"),
    Figure(title="E2E p95", value=_time("e2e", "p95"), unit="seconds"),
    Figure(title="busiest / mean", value=lambda cell: cell.busiest_over_mean, unit="times", compared=False),
    Figure(title="CPU us a request", value=router_cpu, unit="us"),
)
"""Spread is shown and not compared: even is no end in itself."""


def failed(cell: Cell) -> bool:
    """More errors than a figure can stand."""
    return cell.errors > ERRORS_SHARE_MAX * cell.requests


def value_of(figure: Figure, cell: Cell) -> float | None:
    """Of a cell that is worth it."""
    return None if failed(cell) else figure.value(cell)


def over_rounds(values: Iterable[float | None]) -> Median | None:
    """`None` where no round has it."""
    known = [value for value in values if value is not None]
    return Median(median(known), min(known), max(known), len(known)) if known else None


def summary(cells: Sequence[Cell], workload: str, contestant: str) -> dict[str, Median | None]:
    """Each figure of one line."""
    chosen = [cell for cell in cells if cell.workload == workload and cell.contestant == contestant]
    return {figure.title: over_rounds(value_of(figure, cell) for cell in chosen) for figure in FIGURES}


def wins(cells: Sequence[Cell], ours: str) -> list[Win]:
    """Where the median over the rounds is better than ours, in the order of workloads and figures."""
    found = []
    for workload in dict.fromkeys(cell.workload for cell in cells):
        us = _by_round(cells, workload, ours)
        for figure in FIGURES:
            if not figure.compared:
                continue
            for contestant in dict.fromkeys(cell.contestant for cell in cells if cell.contestant != ours):
                win = _win(figure, workload, contestant, _by_round(cells, workload, contestant), us)
                if win is not None:
                    found.append(win)
    return found


def _by_round(cells: Sequence[Cell], workload: str, contestant: str) -> dict[int, Cell]:
    return {cell.round: cell for cell in cells if cell.workload == workload and cell.contestant == contestant}


def _win(figure: Figure, workload: str, contestant: str, them: dict[int, Cell], us: dict[int, Cell]) -> Win | None:
    theirs = over_rounds(value_of(figure, cell) for cell in them.values())
    ours = over_rounds(value_of(figure, cell) for cell in us.values())
    if theirs is None or ours is None or not _better(figure, theirs.middle, ours.middle):
        return None
    pairs = [(value_of(figure, them[key]), value_of(figure, us[key])) for key in them.keys() & us.keys()]
    known = [(a, b) for a, b in pairs if a is not None and b is not None]
    return Win(
        workload=workload,
        contestant=contestant,
        figure=figure,
        theirs=theirs,
        ours=ours,
        rounds_better=sum(_better(figure, a, b) for a, b in known),
        rounds=len(known),
    )


def _better(figure: Figure, one: float, other: float) -> bool:
    return one > other if figure.more_is_better else one < other
