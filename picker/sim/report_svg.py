"""Plots as SVG text, drawn by hand: no library, no script, no request to anywhere.

Colours come from the page's style sheet (`--c0`..), so that a plot follows its light or dark theme.
"""

from collections.abc import Callable, Sequence
from html import escape
from math import ceil, floor, log10
from typing import NamedTuple

WIDTH, HEIGHT = 560, 300
LEFT, RIGHT, TOP, BOTTOM = 52, 20, 28, 40
COLOURS = 10


class Line(NamedTuple):
    """A named curve. `colour`: its number; from `COLOURS` on the same colours come dashed."""

    name: str
    xs: Sequence[float]
    ys: Sequence[float]
    colour: int


class Bar(NamedTuple):
    """A named bar, and a mark to compare it with."""

    name: str
    value: float
    mark: float | None
    colour: int


class _Axis(NamedTuple):
    low: float
    high: float
    ticks: list[float]
    at: Callable[[float], float]
    """Value -> share of the axis, 0..1."""


def lines(title: str, x_label: str, curves: Sequence[Line], *, log_x: bool = False) -> str:
    """Curves over a common x, y from 0 to 1 or to the largest value."""
    xs = [x for curve in curves for x in curve.xs]
    ys = [y for curve in curves for y in curve.ys]
    if not xs:
        return _nothing(title)
    x_axis = _logarithmic(min(xs), max(xs)) if log_x else _linear(min(xs), max(xs))
    y_axis = _linear(0.0, max(ys))
    parts = [_grid(x_axis, y_axis, x_label)]
    for curve in curves:
        points = " ".join(f"{_x(x_axis, x):.1f},{_y(y_axis, y):.1f}" for x, y in zip(curve.xs, curve.ys, strict=True))
        parts.append(
            f'<polyline class="curve" style="{_stroke(curve.colour)}" points="{points}">'
            f"<title>{escape(curve.name)}</title></polyline>"
        )
    return _frame(title, "".join(parts))


class Band(NamedTuple):
    """A plot of its own: the range between two curves, and one within it."""

    title: str
    low: Line
    middle: Line
    high: Line


def bands(x_label: str, row: Sequence[Band]) -> list[str]:
    """A plot for each band. All have the same axes, so that the eye may compare heights."""
    xs = [x for band in row for x in band.low.xs]
    tops = [y for band in row for y in band.high.ys]
    if not xs:
        return [_nothing(band.title) for band in row]
    x_axis, y_axis = _linear(min(xs), max(xs)), _linear(0.0, max(tops))
    return [_band(band, x_label, x_axis, y_axis) for band in row]


def _band(band: Band, x_label: str, x_axis: _Axis, y_axis: _Axis) -> str:
    title, low, middle, high = band
    if not low.xs:
        return _nothing(title)
    outline = [*zip(high.xs, high.ys, strict=True), *reversed(list(zip(low.xs, low.ys, strict=True)))]
    points = " ".join(f"{_x(x_axis, x):.1f},{_y(y_axis, y):.1f}" for x, y in outline)
    curve = " ".join(f"{_x(x_axis, x):.1f},{_y(y_axis, y):.1f}" for x, y in zip(middle.xs, middle.ys, strict=True))
    return _frame(
        title,
        _grid(x_axis, y_axis, x_label)
        + f'<polygon class="band" style="fill:var(--c{middle.colour % COLOURS})" points="{points}"/>'
        + f'<polyline class="curve" style="{_stroke(middle.colour)}" points="{curve}"/>',
    )


def bars(title: str, rows: Sequence[Bar], *, unit: str = "%") -> str:
    """Horizontal bars; marks as ticks across them."""
    height = TOP + 22 * len(rows) + BOTTOM
    left = 170
    top_value = max([row.value for row in rows] + [row.mark or 0.0 for row in rows] + [1e-9])
    axis = _linear(0.0, top_value)
    scale = WIDTH - left - RIGHT - 40
    parts = []
    for tick in axis.ticks:
        x = left + scale * axis.at(tick)
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{height - BOTTOM}"/>')
        parts.append(_text(x, height - BOTTOM + 16, _number(tick), "middle"))
    for index, row in enumerate(rows):
        y = TOP + 22 * index
        width = scale * axis.at(row.value)
        parts.append(_text(left - 8, y + 14, row.name, "end"))
        fill = f"fill:var(--c{row.colour % COLOURS})"
        parts.append(f'<rect style="{fill}" x="{left}" y="{y + 3}" width="{width:.1f}" height="15"/>')
        beyond = left + scale * axis.at(max(row.value, row.mark or 0.0))
        parts.append(_text(beyond + 6, y + 14, f"{row.value:.1f}", "start"))
        if row.mark is not None:
            x = left + scale * axis.at(row.mark)
            parts.append(f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{y}" y2="{y + 21}"/>')
    parts.append(_text(left + scale / 2, height - 6, unit, "middle"))
    return _frame(title, "".join(parts), height)


def legend(curves: Sequence[tuple[str, int]]) -> str:
    """Names and colours, as HTML."""
    entries = "".join(
        f'<li><svg width="26" height="10"><line x1="1" x2="25" y1="5" y2="5" class="curve" style="{_stroke(colour)}"/>'
        f"</svg> {escape(name)}</li>"
        for name, colour in curves
    )
    return f'<ul class="legend">{entries}</ul>'


def _nothing(title: str) -> str:
    return _frame(title, _text(WIDTH / 2, HEIGHT / 2, "nothing was measured", "middle"))


def _frame(title: str, content: str, height: float = HEIGHT) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:g}" role="img" aria-label="{escape(title, quote=True)}">'
        f'<text class="title" x="{LEFT}" y="16">{escape(title)}</text>{content}</svg>'
    )


def _grid(x_axis: _Axis, y_axis: _Axis, x_label: str) -> str:
    parts = []
    for tick in y_axis.ticks:
        y = _y(y_axis, tick)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(_text(LEFT - 6, y + 4, _number(tick), "end"))
    for tick in x_axis.ticks:
        x = _x(x_axis, tick)
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>')
        parts.append(_text(x, HEIGHT - BOTTOM + 16, _number(tick), "middle"))
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 6, x_label, "middle"))
    return "".join(parts)


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _stroke(colour: int) -> str:
    dash = ";stroke-dasharray:5 3" if colour >= COLOURS else ""
    return f"stroke:var(--c{colour % COLOURS}){dash}"


def _x(axis: _Axis, value: float) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * axis.at(value)


def _y(axis: _Axis, value: float) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * axis.at(value)


def _linear(low: float, high: float) -> _Axis:
    """With 4 to 8 round ticks."""
    span = max(high - low, 1e-9)
    step = 10.0 ** floor(log10(span / 4))
    step *= next(factor for factor in (1, 2, 5, 10) if span / (step * factor) <= 8)
    first, last = floor(low / step), ceil(high / step - 1e-9)
    ticks = [number * step for number in range(first, last + 1)]
    bottom, top = ticks[0], max(ticks[-1], ticks[0] + step)
    return _Axis(bottom, top, ticks, lambda value: (value - bottom) / (top - bottom))


def _logarithmic(low: float, high: float) -> _Axis:
    """By decades."""
    low = max(low, 1e-4)
    first, last = floor(log10(low)), max(ceil(log10(max(high, low))), floor(log10(low)) + 1)
    ticks = [10.0**number for number in range(first, last + 1)]
    return _Axis(ticks[0], ticks[-1], ticks, lambda value: (log10(max(value, ticks[0])) - first) / (last - first))


def _number(value: float) -> str:
    return f"{value:.10g}" if abs(value) >= 1e-3 or value == 0 else f"{value:.0e}"
