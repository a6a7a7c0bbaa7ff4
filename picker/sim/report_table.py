"""Results as a table for the terminal: one row a policy and load, seeds averaged."""

from collections.abc import Iterable
from statistics import fmean

from rich.box import SIMPLE_HEAD
from rich.table import Table

from picker.sim.results import LONG_PROMPT_TOKENS, Result

COLUMNS = (
    "hit %",
    "ceiling %",
    "TTFT mean",
    "p50",
    "p95",
    "long",
    "E2E mean",
    "p50",
    "p95",
    "ms/token",
    "spread",
    "work",
    "failed",
)
"""TTFT and E2E in seconds; `long`: mean TTFT of long prompts. `spread` of requests and of `work` (tokens computed):
standard deviation over mean."""


def cells(results: Iterable[Result]) -> list[list[Result]]:
    """Results that differ in nothing but their seed, in the order given."""
    found: dict[tuple[str, float, str], list[Result]] = {}
    for result in results:
        found.setdefault((result.workload, result.rate, result.label), []).append(result)
    return list(found.values())


def columns(results: Iterable[Result]) -> tuple[str, ...]:
    """Where something scaled, how many replicas there were on average stands behind."""
    return (*COLUMNS, "replicas") if any(result.autoscale for result in results) else COLUMNS


def row(cell: list[Result]) -> list[str]:
    """One text a column, and the mean number of replicas."""
    failed = sum(each.failed for each in cell)
    return [
        _mean("{:.1f}", (100 * each.hit_rate for each in cell)),
        _mean("{:.1f}", (100 * each.ceiling_hit_rate for each in cell)),
        _mean("{:.3f}", (each.ttft.mean for each in cell if each.ttft)),
        _mean("{:.3f}", (each.ttft.p50 for each in cell if each.ttft)),
        _mean("{:.3f}", (each.ttft.p95 for each in cell if each.ttft)),
        _mean("{:.2f}", (each.long_ttft.mean for each in cell if each.long_ttft)),
        _mean("{:.2f}", (each.e2e.mean for each in cell if each.e2e)),
        _mean("{:.2f}", (each.e2e.p50 for each in cell if each.e2e)),
        _mean("{:.2f}", (each.e2e.p95 for each in cell if each.e2e)),
        _mean("{:.1f}", (1000 * each.token_seconds for each in cell)),
        _mean("{:.2f}", (each.request_spread.variation for each in cell if each.request_spread)),
        _mean("{:.2f}", (each.token_spread.variation for each in cell if each.token_spread)),
        str(failed) if failed else "",
        _mean("{:.2f}", (each.replica_seconds / each.duration_seconds for each in cell if each.duration_seconds)),
    ]


def _mean(shape: str, values: Iterable[float]) -> str:
    known = list(values)
    return shape.format(fmean(known)) if known else "-"


def table(results: list[Result]) -> Table:
    """Rows by load, then policy, in the order given."""
    first = results[0]
    seeds = len({result.seed for result in results})
    shown = Table(
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        title=f"{first.workload}: {first.requests} measured requests, {first.replicas} x {first.profile}"
        + (f", means of {seeds} seeds" if seeds > 1 else ""),
        caption="hit rate in tokens; ceiling: one LRU cache as large as all; TTFT, E2E in seconds, "
        f"long: TTFT of prompts from {LONG_PROMPT_TOKENS:,} tokens on; "
        "spread: standard deviation over mean",
    )
    shown.add_column("load", no_wrap=True)
    shown.add_column("policy", no_wrap=True)
    names = columns(results)
    for name in names:
        shown.add_column(name, justify="right", no_wrap=True)
    previous: float | None = None
    for cell in cells(results):
        result = cell[0]
        if previous is not None and result.rate != previous:
            shown.add_section()
        rate = f"{result.rate:.3g}{result.rate_unit}"
        load = rate if result.share is None else f"{result.share:g} ({rate})"
        shown.add_row(load if result.rate != previous else "", result.label, *row(cell)[: len(names)])
        previous = result.rate
    return shown
