"""From runs to docs/benchmarks.md: `python -m tests.bench.peers.publish results.json [more.json] docs/benchmarks/`.

Draws the first run's plots into the folder and rewrites the page beside it between the section's own two markers,
and nothing else: what stands around them is written by hand or by the other benchmarks.
"""

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import msgspec
from matplotlib import pyplot as plt

from tests.bench.peers.report import absences, machine_words, show_median, tables, verdict
from tests.bench.peers.run import Results
from tests.bench.peers.verdict import FIGURES, Median, summary
from tests.bench.peers.workload import KV_CAPACITY_TOKENS, WORKLOADS
from tests.bench.report import markdown, wrapped

BEGIN, END = "<!-- peers: begin -->", "<!-- peers: end -->"
OURS, THEIRS, BASELINE = "#1b6ca8", "#c8553d", "#8a8a8a"
PLOTS = (
    ("hit rate", "hit-rate", 100.0, "%"),
    ("TTFT p95", "ttft-p95", 1.0, "seconds"),
    ("E2E p95", "e2e-p95", 1.0, "seconds"),
)
"""Which figures are drawn: title, part of the file's name, factor, unit."""

mpl.use("svg")
mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "peers", "font.size": 9, "axes.axisbelow": True})


def draw(results: Results, folder: Path) -> list[tuple[str, str]]:
    """`(file name, what it shows)`: a plot for each figure, the workloads side by side."""
    made = []
    for title, slug, factor, unit in PLOTS:
        name = f"peers-{slug}.svg"
        _bars(results, folder / name, title, factor, unit)
        made.append((name, f"{title} by router and workload"))
    return made


def _bars(results: Results, path: Path, title: str, factor: float, unit: str) -> None:
    names = [line.name for line in results.lines]
    shades = [shade(line.name, line.ours) for line in results.lines]
    figure, columns = plt.subplots(
        1, len(results.plan.workloads), figsize=(9, 1.1 + 0.27 * len(names)), sharey=True, squeeze=False
    )
    for axes, workload in zip(columns[0], results.plan.workloads, strict=True):
        found = [summary(results.cells, workload, name)[title] for name in names]
        middles = [0.0 if one is None else factor * one.middle for one in found]
        drawn = axes.barh(
            names, middles, color=shades, xerr=ranges(found, factor), ecolor="#333333", error_kw={"lw": 0.8}
        )
        figure_unit = next(figure.unit for figure in FIGURES if figure.title == title)
        words = [" -" if one is None else f" {show_median(figure_unit, middle_only(one))}" for one in found]
        axes.bar_label(drawn, labels=words, fontsize=7, padding=2)
        axes.set_title(WORKLOADS[workload].title, loc="left", fontsize=9)
        axes.set_xlabel(unit)
        axes.margins(x=0.32)
        axes.spines[["top", "right"]].set_visible(False)
    columns[0][0].invert_yaxis()
    figure.suptitle(f"{title}: median over {results.plan.rounds} rounds, with range", x=0.01, ha="left", fontsize=10)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def shade(name: str, ours: bool) -> str:
    """Ours, a peer's or a baseline's colour."""
    return OURS if ours else BASELINE if name.startswith("Envoy ") else THEIRS


def ranges(found: Sequence[Median | None], factor: float) -> list[list[float]]:
    """How far the range goes below and above each median, as matplotlib takes it."""
    low = [0.0 if one is None else factor * (one.middle - one.least) for one in found]
    high = [0.0 if one is None else factor * (one.most - one.middle) for one in found]
    return [low, high]


def middle_only(found: Median) -> Median:
    """The median without its range."""
    return Median(found.middle, found.middle, found.middle, 1)


def page(runs: Sequence[Results], folder: Path) -> str:
    """All between the markers."""
    first, *others = runs
    out = [_run(first, [f"![{words}]({folder.name}/{name})" for name, words in draw(first, folder)])]
    out += [f"### Another run: `{command(results.arguments)}`\n\n{_run(results, [])}" for results in others]
    return "\n\n".join(out)


def _run(results: Results, plots: list[str]) -> str:
    machine = results.machine
    out = [
        wrapped(
            f"Measured on {results.date} on {machine['cores']} cores ({machine['cpu']}), {machine['memory_gib']} GiB, "
            f"Linux {machine['kernel']}, in {results.seconds:.0f} s, by `{command(results.arguments)}`. "
            f"{machine_words(results)} {len(results.plan.server_ports)} simulated replicas, "
            f"{KV_CAPACITY_TOKENS:,} tokens of KV cache each."
        ),
        "",
    ]
    out += [*plots, "", *(markdown(found) for found in tables(results)), "### Where others win", ""]
    out += [wrapped(words, "* ", "  ") for words in (*verdict(results), *absences(results.lines))]
    out += ["", "### What ran", "", "| | version | as |", "|---|---|---|"]
    out += [f"| {line.name} | {line.version or 'unknown'} | `{line.flags}` |" for line in results.lines]
    return "\n".join(out)


def command(arguments: Sequence[str]) -> str:
    """What to type to run it again. Where the figures were kept is nobody's business."""
    words, rest = [], iter(arguments)
    for word in rest:
        if word == "--json":
            next(rest, None)
        elif not word.startswith("--json="):
            words.append(word)
    return (
        " ".join(("python -m tests.bench.peers", *(shlex.quote(word) for word in words)))
        if words
        else "make bench-peers"
    )


def rewritten(text: str, body: str) -> str:
    """`text` with `body` between the markers. Raises `ValueError` where they are not there, once and in order."""
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise ValueError(f"the page needs {BEGIN} and then {END}, once each")
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n{body.rstrip()}\n{END}{rest.partition(END)[2]}"


def main(given: Sequence[str] | None = None) -> None:
    """Rewrite the section. Wrong arguments end with a line that names what is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.peers.publish", description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path, nargs="+", help="of a run each, the first with plots")
    parser.add_argument("folder", type=Path, help="for the plots; the page is FOLDER.md")
    options = parser.parse_args(given)
    target = options.folder.with_name(options.folder.name + ".md")
    try:
        runs = [msgspec.json.decode(path.read_bytes(), type=Results) for path in options.results]
        text = target.read_text()
        rewritten(text, "")
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        parser.error(f"{', '.join(map(str, options.results))} and {target}: {error}")
    options.folder.mkdir(parents=True, exist_ok=True)
    target.write_text(rewritten(text, page(runs, options.folder)))
    print(f"{target}: rewritten between {BEGIN} and {END}")


if __name__ == "__main__":
    main()
