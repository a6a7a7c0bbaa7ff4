"""The plan of the code, read from the code: `python -m tests.tidy.rooms` draws it into docs/.

A room is a module or package right under `picker/`, or right under `picker/edge/`. The rows of the
picture are import-linter's layers (pyproject.toml); neighbouring layers share a row where none of
the upper one imports the lower one. A line is an import that no longer way round already says;
values that anybody may import get none. What a room is for is the first sentence of its docstring.
"""

import ast
import textwrap
import tomllib
from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "architecture.md"
PICTURE = ROOT / "docs" / "architecture.svg"
BEGIN, END = "<!-- rooms: begin -->\n", "<!-- rooms: end -->"
UNSEEN = {"__main__", "generated", "version"}
"""No rooms of their own: the command's entry, what protoc wrote, one constant."""

VALUES = {"config", "decision", "outcomes", "kernels", "rng"}
FROM_THE_LEFT = (
    *("static_endpoints", "kubernetes", "scraping", "kvevents", "grpc", "telemetry", "process", "sim", "convert"),
    *("extproc", "director", "recording", "admission", "scheduling", "residency", "api", "prefix", "engines"),
    *("pool", "config", "decision"),
)
"""Within a row, so that lines are short; who is not named stands on the right."""

WIDTH, MARGIN, GAP = 1160, 16, 10
BOX_HEIGHT, ROW_HEIGHT, TITLE_HEIGHT = 86, 132, 44
LEGEND = (
    "A line is an import, and goes down. Values that anybody may import have no lines: the lowest two rows, but pool."
)
STYLE = """
text { font-family: Helvetica, Arial, sans-serif; fill: #1b1f24 }
.name { font-size: 13px; font-weight: bold }
.say { font-size: 10.5px; fill: #57606a }
rect { fill: #f6f8fa; stroke: #8c959f }
.edge rect { fill: #ddf4ff }
.frame { fill: #eef8ff; stroke: #54aeff; stroke-dasharray: 4 3 }
.under { fill: #eef8ff; stroke: none }
.page { fill: #ffffff; stroke: none }
path { fill: none; stroke: #8c959f }
"""
Graph = Mapping[str, frozenset[str]]


def rooms() -> dict[str, str]:
    """Name below `picker.` -> what it is for."""
    found = {}
    for folder, prefix in ((ROOT / "picker", ""), (ROOT / "picker" / "edge", "edge.")):
        for path in sorted(folder.iterdir()):
            source = path / "__init__.py" if path.is_dir() else path
            name = path.stem
            if source.suffix != ".py" or not source.is_file() or name in {*UNSEEN, "__init__", "edge"}:
                continue
            found[prefix + name] = purpose(source)
    return found


def purpose(source: Path) -> str:
    """The first sentence of a module's docstring, without its full stop."""
    text = ast.get_docstring(ast.parse(source.read_text("utf-8"))) or ""
    sentence = " ".join(text.split("\n\n")[0].split())
    return sentence.partition(". ")[0].rstrip(".:")


def imports(names: Iterable[str]) -> Graph:
    """Which rooms each room imports, those of its sub-modules included."""
    graph = grimp.build_graph("picker", cache_dir=None)
    known = sorted(names, key=len, reverse=True)

    def room(module: str) -> str | None:
        own = module.removeprefix("picker.")
        return next((name for name in known if own == name or own.startswith(f"{name}.")), None)

    found: dict[str, set[str]] = {name: set() for name in known}
    for module in graph.modules:
        here = room(module)
        for other in graph.find_modules_directly_imported_by(module):
            there = room(other)
            if here and there and here != there:
                found[here].add(there)
    return {name: frozenset(others) for name, others in found.items()}


def without_detours(graph: Graph) -> Graph:
    """Only the imports that no longer way round says too."""

    def reached(name: str) -> set[str]:
        return {name}.union(*(reached(other) for other in graph[name]))

    return {
        name: frozenset(
            other for other in others if not any(other in reached(between) for between in others if between != other)
        )
        for name, others in graph.items()
    }


def rows(graph: Graph) -> list[list[str]]:
    """From the top of the layers to the bottom."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = [each["layers"] for each in contracts if each["type"] == "layers"]
    found: list[list[str]] = []
    for layer in layers:
        members = [part.strip().removeprefix("picker.") for part in layer.split("|")]
        row = [name for member in members for name in graph if name == member or name.startswith(f"{member}.")]
        if found and not any(graph[upper] & set(row) for upper in found[-1]):
            found[-1] += row
        elif row:
            found.append(row)
    return found


def picture() -> str:
    """The plan as SVG."""
    names = rooms()
    graph = imports(names)
    plan = rows(graph)
    boxes: dict[str, tuple[float, float, float]] = {}
    widest = max(map(len, plan))
    width = (WIDTH - 2 * MARGIN - (widest - 1) * GAP) / widest
    for number, row in enumerate(plan):
        own = min(max(width, 180), (WIDTH - 2 * MARGIN - (len(row) - 1) * GAP) / len(row))
        left = (WIDTH - own * len(row) - GAP * (len(row) - 1)) / 2
        for place, name in enumerate(ordered(row)):
            boxes[name] = (left + place * (own + GAP), TITLE_HEIGHT + number * ROW_HEIGHT, own)
    height = TITLE_HEIGHT + len(plan) * ROW_HEIGHT - (ROW_HEIGHT - BOX_HEIGHT) + MARGIN
    lines = [
        line(boxes[name], boxes[other]) for name, others in without_detours(graph).items() for other in others - VALUES
    ]
    left, top, _ = min(at for name, at in boxes.items() if name.startswith("edge."))
    right = max(x + own for name, (x, _, own) in boxes.items() if name.startswith("edge."))
    frame = (
        f'<rect class="frame" x="{left - 5:.0f}" y="{top - 21:.0f}" width="{right - left + 10:.0f}" '
        f'height="{BOX_HEIGHT + 26}" rx="6"/>'
    )
    words = "edge: what picker serve has of sockets, files and clocks; these rooms do not know each other"
    label = (
        f'<rect class="under" x="{left:.0f}" y="{top - 18:.0f}" width="{5.2 * len(words):.0f}" height="13"/>'
        f'<text class="say" x="{left:.0f}" y="{top - 8:.0f}">{words}</text>'
    )
    size = f'width="{WIDTH}" height="{height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" {size} role="img" '
        'aria-label="The rooms of the code; imports go downward only">',
        f"<style>{STYLE}</style>",
        f'<rect class="page" {size}/>',
        f'<text class="say" x="{MARGIN}" y="22" style="font-size: 12px">{LEGEND}</text>',
        frame,
        *sorted(lines),
        label,
        *(box(name, names[name], *boxes[name]) for row in plan for name in ordered(row)),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def ordered(row: list[str]) -> list[str]:
    """From left to right, the rooms of the edge together."""

    def place(name: str) -> tuple[bool, int, str]:
        own = name.removeprefix("edge.")
        known = FROM_THE_LEFT.index(own) if own in FROM_THE_LEFT else len(FROM_THE_LEFT)
        return not name.startswith("edge."), known, name

    return sorted(row, key=place)


def box(name: str, text: str, x: float, y: float, width: float) -> str:
    """One room."""
    words = textwrap.wrap(text.replace("`", ""), int((width - 12) / 5.6), max_lines=5, placeholder=" ...")
    said = "".join(
        f'<text class="say" x="{x + 6:.0f}" y="{y + 30 + 12 * number:.0f}">{escape(each)}</text>'
        for number, each in enumerate(words)
    )
    shown = name.removeprefix("edge.")
    inside = ' class="edge"' if name.startswith("edge.") else ""
    return (
        f'<g{inside}><rect x="{x:.0f}" y="{y:.0f}" width="{width:.0f}" height="{BOX_HEIGHT}" rx="4"/>'
        f'<text class="name" x="{x + 6:.0f}" y="{y + 16:.0f}">{escape(shown)}</text>{said}</g>'
    )


def line(upper: tuple[float, float, float], lower: tuple[float, float, float]) -> str:
    """From the bottom of one box to the top of another."""
    x, y, width = upper
    to_x, to_y, to_width = lower
    x, y, to_x = x + width / 2, y + BOX_HEIGHT, to_x + to_width / 2
    bend = (to_y - y) / 2
    return f'<path d="M{x:.0f} {y:.0f} C{x:.0f} {y + bend:.0f} {to_x:.0f} {to_y - bend:.0f} {to_x:.0f} {to_y:.0f}"/>'


def table() -> str:
    """Every room in a row of its own, from top to bottom of the picture."""
    names = rooms()
    lines = ["| room | what it is for |", "|---|---|"]
    for row in rows(imports(names)):
        for name in ordered(row):
            path = f"picker/{name.replace('.', '/')}"
            shown = path if (ROOT / path).is_dir() else f"{path}.py"
            lines.append(f"| [`{shown}`](../{shown}) | {names[name]} |")
    return "\n".join(lines)


def with_table(text: str) -> str:
    """The page with its table as the code has it."""
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}{table()}\n{END}{tail}"


if __name__ == "__main__":
    PICTURE.write_text(picture(), "utf-8")
    PAGE.write_text(with_table(PAGE.read_text("utf-8")), "utf-8")
