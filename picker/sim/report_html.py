"""Results as one self-contained page: tables, hit rates beside their ceiling, distributions, load over time.

Nothing is loaded from anywhere and nothing runs: it can be mailed, or attached to a ticket.
"""

from collections.abc import Sequence
from html import escape
from statistics import fmean

import numpy as np

from picker.sim import report_svg
from picker.sim.records import Records, Values
from picker.sim.report_svg import Band, Bar, Line
from picker.sim.report_table import cells, columns, row
from picker.sim.results import Result
from picker.version import __version__

_QUANTILES = np.concatenate([np.linspace(0.0, 0.9, 91), np.linspace(0.905, 1.0, 39)])

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #fff; --faint: #d8dee4; --quiet: #57606a;
  --c0: #0550ae; --c1: #cf222e; --c2: #1a7f37; --c3: #9a6700; --c4: #8250df; --c5: #0a7f8c; --c6: #bc4c00;
  --c7: #bf3989; --c8: #57606a; --c9: #4d7c0f; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --paper: #0d1117; --faint: #30363d; --quiet: #9198a1;
  --c0: #58a6ff; --c1: #ff7b72; --c2: #56d364; --c3: #e3b341; --c4: #bc8cff; --c5: #39c5cf; --c6: #ffa657;
  --c7: #ff9bce; --c8: #9198a1; --c9: #a5d644; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 2rem auto;
  max-width: 76rem; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; }
p, footer { color: var(--quiet); }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .7rem; text-align: right; border-bottom: 1px solid var(--faint); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(26rem, 100%), 1fr)); gap: 1rem; }
svg { width: 100%; height: auto; } svg text { font: 11px system-ui, sans-serif; fill: var(--quiet); }
svg .title { font-weight: 600; font-size: 13px; fill: var(--ink); }
.grid { stroke: var(--faint); } .curve { fill: none; stroke-width: 1.8; } .band { opacity: .25; }
.mark { stroke: var(--ink); stroke-width: 2; }
.legend { list-style: none; padding: 0; display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; }
.legend svg { width: 26px; height: 10px; }
"""


def page(runs: Sequence[tuple[Result, Records]], *, command: str) -> str:
    """The whole document. Runs of one workload; seeds of one cell are pooled."""
    first = runs[0][0]
    policies = list(dict.fromkeys(result.label for result, _ in runs))
    colours = {policy: number for number, policy in enumerate(policies)}
    rates = list(dict.fromkeys((result.share, result.rate) for result, _ in runs))
    sections = [_section([pair for pair in runs if (pair[0].share, pair[0].rate) == rate], colours) for rate in rates]
    title = f"{first.workload}: {first.replicas} x {first.profile}"
    seeds = len({result.seed for result, _ in runs})
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>picker simulate: {escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body>'
        f"<h1>{escape(title)}</h1><p>{first.requests} measured requests a run, "
        f"{seeds} seed{'s' if seeds > 1 else ''}. The hit rate counts tokens; its "
        "ceiling is one LRU cache as large as all replicas' together. A high hit rate is a means: judge by TTFT and "
        "E2E, and by how evenly the work lies.</p>"
        + "".join(sections)
        + f"<footer><p>picker {escape(__version__)} · <code>{escape(command)}</code></p></footer></body></html>\n"
    )


def _section(runs: Sequence[tuple[Result, Records]], colours: dict[str, int]) -> str:
    first = runs[0][0]
    rate = f"{first.rate:.3g}{first.rate_unit}"
    heading = rate if first.share is None else f"{first.share:g} of the knee ({rate})"
    by_policy: dict[str, list[tuple[Result, Records]]] = {}
    for pair in runs:
        by_policy.setdefault(pair[0].label, []).append(pair)
    names = columns(result for result, _ in runs)
    head = "".join(f"<th>{escape(name)}</th>" for name in ("policy", *names))
    rows = "".join(
        "<tr>" + "".join(f"<td>{escape(value)}</td>" for value in (cell[0].label, *row(cell)[: len(names)])) + "</tr>"
        for cell in cells(result for result, _ in runs)
    )
    bars = [
        Bar(
            policy,
            100 * fmean(result.hit_rate for result, _ in pairs),
            100 * fmean(result.ceiling_hit_rate for result, _ in pairs),
            colours[policy],
        )
        for policy, pairs in by_policy.items()
    ]
    plots = [
        report_svg.bars("Hit rate, and its ceiling", bars),
        _distribution("Time to first token", "ttft_seconds", by_policy, colours),
        _distribution("End to end", "e2e_seconds", by_policy, colours),
    ]
    loads = report_svg.bands(
        "seconds", [_load(policy, pairs[0][1], colours[policy]) for policy, pairs in by_policy.items()]
    )
    return (
        f"<h2>Load {escape(heading)}</h2>"
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
        + report_svg.legend([(policy, colours[policy]) for policy in by_policy])
        + f'<div class="plots">{"".join(plots)}</div>'
        + "<h3>Requests in flight by replica: least, mean, most (one scale for all policies)</h3>"
        + f'<div class="plots">{"".join(loads)}</div>'
    )


def _distribution(
    title: str, column: str, by_policy: dict[str, list[tuple[Result, Records]]], colours: dict[str, int]
) -> str:
    curves = []
    for policy, pairs in by_policy.items():
        values: Values = np.concatenate([records.column(column) for _, records in pairs])
        if values.size:
            curves.append(Line(policy, np.quantile(values, _QUANTILES).tolist(), _QUANTILES.tolist(), colours[policy]))
    return report_svg.lines(f"{title}: share of requests within", "seconds", curves, log_x=True)


def _load(policy: str, records: Records, colour: int) -> Band:
    at = records.load_at
    counts = records.load_counts
    return Band(
        policy,
        Line(policy, at, [float(min(each)) for each in counts], colour),
        Line(policy, at, [fmean(each) for each in counts], colour),
        Line(policy, at, [float(max(each)) for each in counts], colour),
    )
