"""Plots that documents show: every word is inside the picture, as wide as it is in the font that it was set in."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from matplotlib.textpath import TextPath

from tests.bench import plot

ROOT = Path(__file__).parents[2]
PLOTS = sorted((ROOT / "docs" / "benchmarks").glob("*.svg"))
TEXT = "{http://www.w3.org/2000/svg}text"


def cut_off(path: Path) -> list[str]:
    """The texts that reach over the left or right edge."""
    root = ElementTree.parse(path).getroot()
    width = float(root.attrib["viewBox"].split()[2])
    found = []
    for element in root.iter(TEXT):
        words = "".join(element.itertext())
        style = element.get("style", "")
        size = re.search(r"font-size: ([\d.]+)px", style)
        if size is None or "rotate(-9" in element.get("transform", ""):
            continue  # a power of ten at a tick; a label along the y axis
        length = TextPath((0, 0), words, size=float(size.group(1))).get_extents().width
        place = re.search(r"translate\((-?[\d.]+)", element.get("transform", ""))
        left = float(place.group(1) if place else element.attrib["x"])
        left -= length * (0.5 if "anchor: middle" in style else 1.0 if "anchor: end" in style else 0.0)
        if left < 0 or left + length > width:
            found.append(words)
    return found


@pytest.mark.parametrize("path", PLOTS, ids=lambda path: path.name)
def test_no_word_of_a_committed_plot_is_cut_off(path):
    assert cut_off(path) == []


def test_a_long_title_takes_lines_and_large_figures_stay_inside(tmp_path):
    rows = [("a line of a table with a long name, of the kind that there is", 1856.7), ("h2", 0.4)]
    plot.bars(tmp_path / "bars.svg", " ".join(["words"] * 30), "microseconds", rows)
    assert cut_off(tmp_path / "bars.svg") == []
    assert re.search(r">\s*1,857</text>", (tmp_path / "bars.svg").read_text())
