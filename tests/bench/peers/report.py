"""What a run says: a line a cell, then tables, where others win, who is absent, how busy the machine was."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console

from tests.bench.peers.cell import Cell
from tests.bench.peers.run import Line, Results
from tests.bench.peers.verdict import FIGURES, Figure, Median, Win, failed, over_rounds, summary, wins
from tests.bench.peers.workload import WORKLOADS
from tests.bench.report import Row, console_table, part

IDLE_SHARE_MIN = 0.1
LATE_SECONDS_MAX = 0.1
"""A client that sends later than that distorts what it measures."""


def show_value(unit: str, value: float | None) -> str:
    """A figure with its unit."""
    if value is None:
        return "-"
    match unit:
        case "share":
            return f"{100 * value:.1f} %"
        case "seconds":
            return f"{1000 * value:.0f} ms" if value < 1 else f"{value:.2f} s"
        case "times":
            return f"{value:.2f}"
        case _:
            return f"{value:,.0f}"


def show_median(unit: str, found: Median | None) -> str:
    """The median, and the range where there is one."""
    if found is None:
        return "-"
    if found.rounds == 1:
        return show_value(unit, found.middle)
    least, most = show_value(unit, found.least), show_value(unit, found.most)
    if least.rpartition(" ")[2] == most.rpartition(" ")[2]:
        least = least.rpartition(" ")[0] or least
    return f"{show_value(unit, found.middle)} ({least} to {most})"


def progress(cell: Cell) -> str:
    """One cell, as it ends."""
    ttft = show_value("seconds", None if cell.ttft is None else cell.ttft.p95)
    words = (
        f"round {cell.round + 1} {cell.workload}, {cell.contestant}: {cell.requests} requests in {cell.seconds:.1f} s, "
        f"hit rate {show_value('share', cell.hit_rate)}, TTFT p95 {ttft}, idle {show_value('share', cell.idle_share)} "
        f"(client and model servers take {show_value('times', cell.harness_cores)} cores)"
    )
    if cell.errors:
        words += f", {cell.errors} errors, the first: {cell.first_error}"
    if busy(cell):
        words += "; MACHINE BUSY: do not trust its times"
    return words


def busy(cell: Cell) -> bool:
    """The machine, not the router, may be what was measured."""
    idle, late = cell.idle_share, cell.late_p99_seconds
    return (idle is not None and idle < IDLE_SHARE_MIN) or (late is not None and late > LATE_SECONDS_MAX)


def tables(results: Results) -> list[dict[str, Any]]:
    """Two for each workload: what clients see, and what it costs."""
    found = []
    for name in results.plan.workloads:
        chosen = [cell for cell in results.cells if cell.workload == name]
        if not chosen:
            continue
        requests = over_rounds(float(cell.requests) for cell in chosen)
        assert requests is not None
        title = f"{WORKLOADS[name].title} (`{name}`)"
        count = show_median("us", requests)
        note = f"Medians over {results.plan.rounds} rounds (range); requests a cell: {count}."
        found.append(part(title, [_seen(results, name, line) for line in results.lines], note))
        note = "CPU of the router's processes, in microseconds a request; how much of the machine was idle."
        found.append(part(f"{title}: cost", [_cost(results, name, line) for line in results.lines], note))
    return found


def _seen(results: Results, workload: str, line: Line) -> Row:
    row: Row = {"": line.name}
    chosen = _cells(results, workload, line)
    medians = summary(results.cells, workload, line.name)
    for figure in FIGURES:
        if figure.unit != "us":
            shown = show_median(figure.unit, medians[figure.title])
            row[figure.title] = "absent" if not chosen else shown
    row["errors"] = f"{sum(cell.errors for cell in chosen)}/{sum(cell.requests for cell in chosen)}"
    return row


def _cost(results: Results, workload: str, line: Line) -> Row:
    chosen = _cells(results, workload, line)
    whole = summary(results.cells, workload, line.name)["CPU us a request"]
    parts = [
        f"{name} {show_median('us', over_rounds(cell.cpu_us.get(name) for cell in chosen if not failed(cell)))}"
        for name in dict.fromkeys(name for cell in chosen for name in cell.cpu_us)
    ]
    return {
        "": line.name,
        "CPU us a request": "absent" if not chosen else show_median("us", whole),
        "of which": ", ".join(parts) if len(parts) > 1 else "-",
        "idle": show_median("share", over_rounds(cell.idle_share for cell in chosen)),
        "cores of the harness": show_median("times", over_rounds(cell.harness_cores for cell in chosen)),
        "sent late, p99": show_median("seconds", over_rounds(cell.late_p99_seconds for cell in chosen)),
        "seconds a cell": show_median("times", over_rounds(cell.seconds for cell in chosen)),
    }


def _cells(results: Results, workload: str, line: Line) -> list[Cell]:
    return [cell for cell in results.cells if cell.workload == workload and cell.contestant == line.name]


def verdict(results: Results) -> list[str]:
    """Who beats us where: a sentence for each figure of each workload, or that nobody does; none without us."""
    ours = next((line.name for line in results.lines if line.ours), None)
    if ours is None or not any(cell.contestant == ours for cell in results.cells):
        return []
    found = wins(results.cells, ours)
    compared = ", ".join(figure.title for figure in FIGURES if figure.compared)
    if not found:
        return [f"In none of these figures does any other beat the picker: {compared}."]
    groups: dict[tuple[str, str], list[Win]] = {}
    for win in found:
        groups.setdefault((win.workload, win.figure.title), []).append(win)
    return [sentence(group) for group in groups.values()]


def sentence(group: Sequence[Win]) -> str:
    """Who beats us in one figure of one workload, by how much, and how sure that is."""
    first = group[0]
    unit = first.figure.unit
    better = ", ".join(_better(win) for win in group)
    return f"`{first.workload}`, {first.figure.title}, the picker {show_value(unit, first.ours.middle)}: {better}."


def _better(win: Win) -> str:
    apart = "" if _apart(win.figure, win.theirs, win.ours) else ", ranges overlap"
    share = 100 * abs(win.theirs.middle / win.ours.middle - 1) if win.ours.middle else 0.0
    by = f"{share:.0f} %" if share >= 1 else "under 1 %"
    more = "more" if win.figure.more_is_better else "less"
    theirs = show_value(win.figure.unit, win.theirs.middle)
    return f"{win.contestant} {theirs} ({by} {more}, better in {win.rounds_better} of {win.rounds} rounds{apart})"


def _apart(figure: Figure, theirs: Median, ours: Median) -> bool:
    return theirs.least > ours.most if figure.more_is_better else theirs.most < ours.least


def machine_words(results: Results) -> str:
    """How busy the machine was."""
    idle = over_rounds(cell.idle_share for cell in results.cells)
    count = sum(busy(cell) for cell in results.cells)
    words = f"{show_median('share', idle)} of the machine was idle during a cell"
    if count:
        words += f"; in {count} of {len(results.cells)} cells it was too busy to trust their times"
    return words + "."


def absences(lines: Sequence[Line]) -> list[str]:
    """Who did not run, and why."""
    return [f"{line.name} is absent: {line.absent}" for line in lines if line.absent is not None]


def show(results: Results, console: Console) -> None:
    """On a terminal."""
    for found in tables(results):
        console.print(console_table(found))
    for words in (*verdict(results), *absences(results.lines), machine_words(results), f"{results.seconds:.0f} s"):
        console.print(words, markup=False, highlight=False)
