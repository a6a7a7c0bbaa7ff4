"""Markdown prose in lines of at most 100 columns: `python -m tests.tidy.prose FILE ...` wraps files.

Prose is paragraphs and list items. Tables, code, headings, pictures and HTML stay as they are. A
code span is never broken, and no line begins with what would make it a list or a heading.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.bench.report import COLUMNS, wrapped

FENCE = re.compile(r"^\s*(```|~~~)")
ITEM = re.compile(r"^(\s*)([-*+]|\d+[.)])(\s+)\S")
OTHER = re.compile(r"^\s*(\||#|<|!\[|\[[^\]]+\]:|>|---|\*\*\*|===)")


class Paragraph(NamedTuple):
    """A stretch of lines; prose, or something to be left alone."""

    lines: list[str]
    prose: bool


def paragraphs(text: str) -> Iterator[Paragraph]:
    """The document, in order. Joined by newlines the lines are the text again."""
    held: list[str] = []
    fenced = listed = False
    for line in text.split("\n"):
        if FENCE.match(line):
            fenced = not fenced
            plain = False
        else:
            indented = line.startswith("    ") and not held and not listed
            plain = not fenced and not indented and bool(line.strip()) and not OTHER.match(line)
        item = plain and ITEM.match(line) is not None
        if held and (not plain or item):
            yield Paragraph(held, True)
            held = []
        if plain:
            listed = item or (listed and (bool(held) or line.startswith(" ")))
            held.append(line)
        else:
            yield Paragraph([line], False)
            listed = listed and (not line.strip() or line.startswith(" "))
    if held:
        yield Paragraph(held, True)


def rewrapped(text: str) -> str:
    """The same document with its prose in lines of at most `COLUMNS`."""
    out: list[str] = []
    for each in paragraphs(text):
        if not each.prose:
            out += each.lines
            continue
        item = ITEM.match(each.lines[0])
        first = item.group(1) + item.group(2) + " " if item else re.match(r"\s*", each.lines[0]).group()  # type: ignore[union-attr]
        words = " ".join(line.strip() for line in each.lines)
        if item:
            words = words[len(item.group(2)) :].strip()
        out.append(wrapped(words, first, " " * len(first)))
    return "\n".join(out)


def long_lines(text: str) -> list[str]:
    """Lines of prose that are too long."""
    return [line for each in paragraphs(text) if each.prose for line in each.lines if len(line) > COLUMNS]


if __name__ == "__main__":
    for name in sys.argv[1:]:
        path = Path(name)
        path.write_text(rewrapped(path.read_text("utf-8")), "utf-8")
