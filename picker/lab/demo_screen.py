"""What `picker demo` shows: progress while it runs, then a table, side by side. On a pipe, plain lines."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from picker.sim.statistics import Percentiles, Sample, Summary

LATE_SECONDS_MAX = 0.1
"""A client that sends later than that distorts what it measures."""


class RunOutcome(msgspec.Struct, kw_only=True):
    """One run of the demo."""

    title: str
    policy: str
    summary: Summary
    samples: list[Sample]


class DemoScreen:
    """A context manager around the runs."""

    def __init__(self, console: Console, introduction: str) -> None:
        self._console = console
        self._introduction = introduction
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("requests"),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )

    def __enter__(self) -> Self:
        self._console.print(self._introduction, highlight=False, soft_wrap=True)
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    @contextmanager
    def run(self, description: str, total: int) -> Iterator[Callable[[], None]]:
        """Progress of one run: call what it gives once a request."""
        if not self._console.is_terminal:
            self._console.print(f"{description}: {total} requests", highlight=False, soft_wrap=True)
        task = self._progress.add_task(description, total=total)
        yield lambda: self._progress.advance(task)

    def results(self, outcomes: list[RunOutcome]) -> None:
        """The table."""
        self._progress.stop()
        self._console.print(table(outcomes))
        late = [outcome.summary.late_p99_seconds or 0.0 for outcome in outcomes]
        if max(late) > LATE_SECONDS_MAX:
            self._console.print(
                f"This machine was busy: requests left up to {1000 * max(late):.0f} ms late. Do not trust the times.",
                style="yellow",
            )


def table(outcomes: list[RunOutcome]) -> Table:
    """A line a run, and below each workload's runs what the last one changes over the first."""
    shown = Table(title="The same requests at the same times, caches empty before each run", title_justify="left")
    shown.add_column("", no_wrap=True)
    for name in COLUMNS:
        shown.add_column(name.replace(" ", "\n", 1), justify="right")
    for title in dict.fromkeys(outcome.title for outcome in outcomes):
        runs = [outcome for outcome in outcomes if outcome.title == title]
        shown.add_row(title, style="bold")
        for outcome in runs:
            shown.add_row(f" {outcome.policy}", *(show(outcome.summary) for show, _ in COLUMNS.values()))
        first, last = runs[0].summary, runs[-1].summary
        changes = (_change(amount(first), amount(last)) if amount else "" for _, amount in COLUMNS.values())
        shown.add_row(" change", *changes, style="green", end_section=True)
    return shown


def _share(value: float | None) -> str:
    return "unknown" if value is None else f"{100 * value:.1f} %"


def _seconds(value: float | None) -> str:
    if value is None:
        return "unknown"
    return f"{1000 * value:.0f} ms" if value < 1 else f"{value:.2f} s"


def _change(before: float | None, after: float | None) -> str:
    if before is None or after is None or not before:
        return ""
    return f"{100 * (after / before - 1):+.0f} %"


Amount = Callable[[Summary], float | None]


def _of(times: Callable[[Summary], Percentiles | None], percentile: Callable[[Percentiles], float]) -> Amount:
    def amount(summary: Summary) -> float | None:
        found = times(summary)
        return None if found is None else percentile(found)

    return amount


def _time(amount: Amount) -> tuple[Callable[[Summary], str], Amount | None]:
    return lambda summary: _seconds(amount(summary)), amount


def _spread(summary: Summary) -> str:
    found = summary.spread_requests
    return "unknown" if found is None else f"{found.max_over_mean:.2f}"


COLUMNS: dict[str, tuple[Callable[[Summary], str], Amount | None]] = {
    "hit rate": (lambda summary: _share(summary.hit_rate), None),
    "TTFT p50": _time(_of(lambda summary: summary.ttft, lambda times: times.p50)),
    "TTFT p95": _time(_of(lambda summary: summary.ttft, lambda times: times.p95)),
    "E2E p50": _time(_of(lambda summary: summary.e2e, lambda times: times.p50)),
    "E2E p95": _time(_of(lambda summary: summary.e2e, lambda times: times.p95)),
    "spread max/avg": (_spread, None),
    "failed of all": (lambda summary: f"{summary.errors}/{summary.requests}", None),
}
"""Spread: requests of the busiest replica over the mean of all."""
