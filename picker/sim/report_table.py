"""Results as a table for the terminal: one row a run, seeds of one cell averaged."""

from collections.abc import Iterable
from statistics import fmean

from rich.box import SIMPLE_HEAD
from rich.table import Table

from picker.sim.results import Result

_Key = tuple[str, float | None, float, str]


def table(results: Iterable[Result]) -> Table:
    """Rows by load, then policy, in the order given."""
    cells: dict[_Key, list[Result]] = {}
    for result in results:
        cells.setdefault((result.workload, result.share, result.rate, result.policy), []).append(result)
    first = next(iter(cells.values()))[0]
    seeds = max(len(each) for each in cells.values())
    shown = Table(
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        title=f"{first.workload}: {first.requests} requests, {first.replicas} x {first.profile}"
        + (f", means of {seeds} seeds" if seeds > 1 else ""),
        caption="hit rate in tokens; ceiling: one LRU cache as large as all; times in seconds; "
        "spread: standard deviation over mean",
    )
    for name in ("load", "policy"):
        shown.add_column(name, no_wrap=True)
    for name in ("hit %", "ceiling", "TTFT", "p50", "p95", "E2E", "p95 ", "ms/token", "spread", "work", "failed"):
        shown.add_column(name, justify="right", no_wrap=True)
    previous: float | None = None
    for (_, share, rate, policy), cell in cells.items():
        if previous is not None and rate != previous:
            shown.add_section()
        load = f"{rate:.3g}/s" if share is None else f"{share:g} ({rate:.3g}/s)"
        shown.add_row(load if rate != previous else "", policy, *_values(cell))
        previous = rate
    return shown


def _values(cell: list[Result]) -> list[str]:
    failed = sum(each.failed for each in cell)
    return [
        _mean("{:.1f}", (100 * each.hit_rate for each in cell)),
        _mean("{:.1f}", (100 * each.ceiling_hit_rate for each in cell)),
        _mean("{:.3f}", (each.ttft.mean for each in cell if each.ttft)),
        _mean("{:.3f}", (each.ttft.p50 for each in cell if each.ttft)),
        _mean("{:.3f}", (each.ttft.p95 for each in cell if each.ttft)),
        _mean("{:.2f}", (each.e2e.mean for each in cell if each.e2e)),
        _mean("{:.2f}", (each.e2e.p95 for each in cell if each.e2e)),
        _mean("{:.1f}", (1000 * each.token_seconds for each in cell)),
        _mean("{:.2f}", (each.request_spread.variation for each in cell if each.request_spread)),
        _mean("{:.2f}", (each.token_spread.variation for each in cell if each.token_spread)),
        str(failed) if failed else "",
    ]


def _mean(shape: str, values: Iterable[float]) -> str:
    known = list(values)
    return shape.format(fmean(known)) if known else "-"
