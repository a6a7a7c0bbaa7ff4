"""A reading on a terminal: the pool in a line, endpoints as rows with bars, the last decisions below."""

from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from picker.edge.telemetry.printable import printable
from picker.edge.telemetry.top.reading import DecisionReading, EndpointReading, PoolReading, TopReading

DECISION_ROWS = 5
WIDE_COLUMNS = 140
"""From here on there is room for long bars and long names."""
NARROW_COLUMNS = 100
"""Below, there is none for bars. 80 columns hold everything else."""
_FRAME_ROWS = 6
"""Lines that are neither pool, endpoints nor decisions: title, two heads, a caption, a gap, and one to spare."""
_UNKNOWN = "-"
_EIGHTHS = " ▏▎▍▌▋▊▉█"

Order = Callable[[EndpointReading], Any]
ORDERS: dict[str, Order] = {
    "load": lambda each: (-(each.backlog_seconds or 0.0), -(each.in_flight or 0), each.name),
    "waiting": lambda each: (-(each.waiting or 0), each.name),
    "kv": lambda each: (-(each.kv_share or 0.0), each.name),
    "hits": lambda each: (each.hit_share if each.hit_share is not None else 2.0, each.name),
    "age": lambda each: (-(each.age_seconds or 0.0), each.name),
    "name": lambda each: each.name,
}
"""How rows can be sorted: the one to look at first is on top."""


def frame(
    reading: TopReading, *, address: str, width: int, height: int, order: str = "load", note: str = ""
) -> RenderableType:
    """`width`, `height`: of the terminal, in columns and lines. `note`: of what is wrong just now."""
    pool = _pool(reading.pool, len(reading.endpoints))
    taken = _FRAME_ROWS + 1 + len(pool) // max(1, width - 20)
    decisions = reading.decisions[: min(DECISION_ROWS, max(0, height - taken - 3))]
    rows = max(1, height - taken - len(decisions))
    title = Text(f"picker {printable(reading.version)} at {printable(address)}, from {reading.source}", style="bold")
    if note:
        title.append(f"  {printable(note)}", style="bold red")
    below: list[RenderableType] = [Text(), _decisions(decisions, width)] if decisions else []
    endpoints = _endpoints(reading.endpoints, order, rows, width)
    return Group(title, pool, endpoints, *below)


def bar(share: float, cells: int) -> str:
    """0..1 as blocks, to an eighth of a cell."""
    eighths = round(min(max(share, 0.0), 1.0) * cells * 8)
    whole, part = divmod(eighths, 8)
    return ("█" * whole + (_EIGHTHS[part] if part else "")).ljust(cells)


def _pool(pool: PoolReading, endpoints: int) -> Text:
    expected = f" (expected {_share(pool.expected_hit_share)})" if pool.expected_hit_share is not None else ""
    said = [
        f"{_number(pool.requests_per_second, 1)} requests/s",
        f"{_number(pool.in_flight)} in flight",
        f"hit rate {_share(pool.hit_share)}{expected}",
        f"TTFT p50 {_seconds(pool.ttft_p50_seconds)}, p95 {_seconds(pool.ttft_p95_seconds)}",
        f"shed {_number(pool.shed_per_second, 1)}/s",
        f"saturation {_number(pool.saturation, 2)}",
        f"{endpoints} endpoints, {_number(pool.ejected)} ejected",
    ]
    return Text("   ".join(said))


def _endpoints(endpoints: Sequence[EndpointReading], order: str, rows: int, width: int) -> Table:
    """Columns of which nothing is known are left out."""
    cells = 10 if width >= WIDE_COLUMNS else 4 if width >= NARROW_COLUMNS else 0
    most_in_flight = max((each.in_flight or 0 for each in endpoints), default=0)
    most_backlog = max((each.backlog_seconds or 0.0 for each in endpoints), default=0.0)
    columns: dict[str, tuple[Callable[[EndpointReading], object], Callable[[EndpointReading], str]]] = {
        "in flight": (
            lambda each: each.in_flight,
            lambda each: _barred(each.in_flight, most_in_flight, _number(each.in_flight), cells),
        ),
        "running": (lambda each: each.running, lambda each: _number(each.running)),
        "waiting": (lambda each: each.waiting, lambda each: _number(each.waiting)),
        "backlog": (
            lambda each: each.backlog_seconds,
            lambda each: _barred(each.backlog_seconds, most_backlog, _seconds(each.backlog_seconds), cells),
        ),
        "KV": (lambda each: each.kv_share, lambda each: _barred(each.kv_share, 1.0, _share(each.kv_share), cells)),
        "hits": (lambda each: each.hit_share, lambda each: _share(each.hit_share)),
        "slow": (lambda each: each.slowness, lambda each: _number(each.slowness, 2)),
        "age": (lambda each: each.age_seconds, lambda each: _seconds(each.age_seconds)),
    }
    shown = [name for name, (value, _) in columns.items() if any(value(each) is not None for each in endpoints)]
    left = len(endpoints) - rows
    table = Table(
        box=None,
        padding=(0, 1, 0, 0),
        caption=f"and {left:,} more" if left > 0 else None,
        caption_justify="left",
        header_style="bold",
    )
    top = sorted(endpoints, key=ORDERS[order])[:rows]
    table.add_column("endpoint", no_wrap=True, overflow="ellipsis", max_width=_name_width(width))
    for name in shown:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for each in top:
        state = "ejected" if each.is_ejected else "closed" if each.is_closed else ""
        table.add_row(
            Text(printable(each.name or each.address)),
            *(Text(columns[name][1](each)) for name in shown),
            Text(state, style="bold red"),
        )
    return table


def _decisions(decisions: Sequence[DecisionReading], width: int) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
    wide = width >= WIDE_COLUMNS
    table.add_column("decided at", no_wrap=True)
    for name, most in (
        ("request", 36 if wide else 12),
        ("model", 24 if wide else 10),
        ("endpoint", _name_width(width)),
        ("reason", 10),
    ):
        table.add_column(name, no_wrap=True, overflow="ellipsis", max_width=most)
    table.add_column("holds", justify="right")
    table.add_column("TTFT", justify="right")
    for each in decisions:
        words = (each.at[11:23], each.request_id or _UNKNOWN, each.model or _UNKNOWN, each.endpoint, each.reason)
        table.add_row(
            *(Text(printable(word)) for word in words),
            _share(each.matched_share),
            _seconds(each.predicted_ttft_seconds),
        )
    return table


def _name_width(width: int) -> int:
    return 36 if width >= WIDE_COLUMNS else 16


def _barred(value: float | None, most: float, said: str, cells: int) -> str:
    return said if value is None or not cells else f"{bar(value / most if most else 0.0, cells)} {said:>6}"


def _number(value: float | None, digits: int = 0) -> str:
    return _UNKNOWN if value is None else f"{value:,.{digits}f}"


def _share(value: float | None) -> str:
    return _UNKNOWN if value is None else f"{value:.0%}"


def _seconds(value: float | None) -> str:
    if value is None:
        return _UNKNOWN
    return f"{1000 * value:.0f}ms" if value < 1 else f"{value:.1f}s" if value < 100 else f"{value:.0f}s"
