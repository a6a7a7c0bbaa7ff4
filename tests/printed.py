"""The commands that the documents and the chart's notes print, for the tests that run them.

A test takes the commands that it runs from the page: `to_run("docs/runbook.md", r"picker ")`. That call is its claim,
and `tests/tidy/test_printed.py` reads them all: each command of each page has one, or carries the mark ◇.

The mark says that no test runs a command, because it needs what is not here: a container engine, a cloud, the
controllers of a vendor, an hour. It stands in the prose right before a block and is then for all of its lines, or in
the comment at the end of one line.
"""

import re
import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
NOTES = "deploy/chart/templates/NOTES.txt"
MARK = "◇"
PROGRAM = re.compile(r"(?:kubectl|helm|curl|until|sed|[A-Z]+=\S*)(?: |$)")
"""How a command of the notes begins; their prose stands at the margin or begins with a capital."""


class Command(NamedTuple):
    """One command as it is printed: continued lines joined, a here-document with it, the comment gone."""

    page: str
    line: int
    text: str
    marked: bool

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: {self.text}"


class Block(NamedTuple):
    """A block between fences, its lines as a reader would paste them."""

    page: str
    line: int
    heading: str
    language: str
    word: str
    """Behind the language: ```sh back."""
    text: str
    commands: tuple[Command, ...]


def pages() -> list[str]:
    """Every document whose commands a user or a contributor types."""
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/*.md"), *ROOT.glob("deploy/**/README.md")]
    return sorted(path.relative_to(ROOT).as_posix() for path in found)


def blocks(page: str) -> tuple[Block, ...]:
    """The shell blocks of a page, in order."""
    return tuple(block for block in fenced(page) if block.language == "sh")


@cache
def fenced(page: str) -> tuple[Block, ...]:
    """All blocks between fences; those of other languages have no commands."""
    found: list[Block] = []
    heading = ""
    prose: list[str] = []
    """The paragraph before the block."""
    ended = False
    begun: tuple[int, str, str] | None = None
    body: list[str] = []
    for number, line in enumerate((ROOT / page).read_text("utf-8").splitlines(), start=1):
        fence = re.match(r" *```(\w*) ?(\w*)", line)
        if fence and begun is None:
            begun, body = (number, fence[1], fence[2]), []
        elif fence and begun is not None:
            first, language, word = begun
            text = textwrap.dedent("\n".join(body)) + "\n"
            marked = any(MARK in each for each in prose)
            typed = tuple(_commands(page, first + 1, text, marked)) if language == "sh" else ()
            found.append(Block(page, first, heading, language, word, text, typed))
            begun, prose = None, []
        elif begun is not None:
            body.append(line)
        elif not line.strip():
            ended = True
        else:
            if line.startswith("## "):
                heading = line[3:]
            prose = [line] if ended else [*prose, line]
            ended = False
    return tuple(found)


def _commands(page: str, first: int, text: str, marked: bool) -> Iterator[Command]:
    """The commands of a block whose first line has that number."""
    lines = iter(enumerate(text.splitlines(), start=first))
    for number, line in lines:
        while line.endswith("\\"):
            line = line.removesuffix("\\") + next(lines)[1].strip()
        code, said = re.match(r"(.*?)(?:(?:^| +)# (.*))?$", line).groups()  # type: ignore[union-attr]
        document = re.search(r"<<'?(\w+)'?$", code)
        while document and code.splitlines()[-1] != document[1]:
            code += "\n" + next(lines)[1]
        if code.strip():
            yield Command(page, number, code.strip(), marked or MARK in (said or ""))


@cache
def commands(page: str) -> tuple[Command, ...]:
    """Everything that the page prints, or the notes, whose commands stand by themselves on indented lines."""
    if page != NOTES:
        return tuple(command for block in blocks(page) for command in block.commands)
    lines = enumerate((ROOT / page).read_text("utf-8").splitlines(), start=1)
    return tuple(
        Command(page, number, line.strip(), marked=False)
        for number, line in lines
        if line.startswith("   ") and PROGRAM.match(line.strip())
    )


def to_run(page: str, pattern: str = "") -> list[Command]:
    """The commands of the page that no mark excuses and that begin with the pattern. Whoever calls it runs them."""
    found = [each for each in commands(page) if not each.marked and re.match(pattern, each.text)]
    assert found, f"{page} prints no command that begins with {pattern!r}"
    return found


def as_printed(command: Command, notes: str) -> str | None:
    """The line of these rendered notes that this line of their template became; None where it is not among them."""
    parts = re.split(r"(\{\{.*?\}\})", command.text)
    pattern = "".join(".*" if part.startswith("{{") else re.escape(part) for part in parts)
    found = [line.strip() for line in notes.splitlines() if re.fullmatch(rf" *{pattern}", line)]
    assert len(found) <= 1, f"{command} is printed more than once"
    return found[0] if found else None
