"""Documents: lines that fit, commands and figures that exist. What they say of paths, test_tree.py holds."""

import re
from pathlib import Path

import pytest

from picker import cli
from tests.tidy.prose import long_lines, paragraphs, rewrapped
from tests.tidy.test_tree import ROOT, documents, texts

EACH = pytest.mark.parametrize("document", documents(), ids=lambda path: path.relative_to(ROOT).as_posix())
MAKE = re.compile(r"^\s*make ([a-z][a-z-]*)", re.MULTILINE)
COMMAND = re.compile(r"^\s*(?:\.venv/bin/)?picker ([a-z][a-z-]*)", re.MULTILINE)


def text_of(document: Path) -> str:
    return document.read_text("utf-8")


def code_of(document: Path) -> str:
    """Blocks and spans of code, each on a line of its own."""
    text = text_of(document)
    blocks = [line for each in paragraphs(text) if not each.prose for line in each.lines]
    return "\n".join([*blocks, *re.findall(r"`([^`\n]+)`", text)])


@EACH
def test_prose_has_lines_of_at_most_100_columns(document):
    assert long_lines(text_of(document)) == [], f"run: python -m tests.tidy.prose {document.relative_to(ROOT)}"


@EACH
def test_make_targets_that_documents_name_exist(document):
    targets = set(re.findall(r"^([a-z][a-z-]*):", text_of(ROOT / "Makefile"), re.MULTILINE))
    assert set(MAKE.findall(code_of(document))) - targets == set()


@EACH
def test_commands_that_documents_name_exist(document, capsys):
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    known = set(re.findall(r"^    ([a-z-]+)\b", capsys.readouterr().out, re.MULTILINE))
    assert {"serve", "check", "explain"} <= known
    assert set(COMMAND.findall(code_of(document))) - known == set()


def anchors(document: Path) -> set[str]:
    """Of its headings, as GitHub makes them."""
    found: list[str] = []
    for each in paragraphs(text_of(document)):
        heading = re.match(r"^#+ (.*)$", each.lines[0]) if not each.prose else None
        if heading:
            slug = re.sub(r"[^\w\- ]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading.group(1)).lower())
            slug = slug.strip().replace(" ", "-")
            count = sum(1 for other in found if re.fullmatch(rf"{re.escape(slug)}(-\d+)?", other))
            found.append(f"{slug}-{count}" if count else slug)
    return set(found)


@EACH
def test_links_into_documents_meet_a_heading(document):
    broken = []
    for target, anchor in re.findall(r"\]\(([^)#\s:]*\.md|)#([^)\s]+)\)", text_of(document)):
        if anchor not in anchors(document.parent / target if target else document):
            broken.append(f"{target}#{anchor}")
    assert broken == []


@pytest.mark.parametrize(
    "name",
    [
        *("install", "migrate", "usage", "chart", "high-availability", "security", "runbook", "telemetry"),
        *("clients", "transport", "real-vllm", "testing"),
    ],
)
def test_a_page_begins_with_what_its_reader_has_at_the_end(name):
    """And how long that takes; a page that nobody reads from end to end says that it is there to look up."""
    text = text_of(ROOT / "docs" / f"{name}.md")
    words = " ".join(next(each.lines for each in paragraphs(text) if each.prose))
    if not words.startswith("A page to look up"):
        assert words.startswith("At the end of "), words
        assert re.search(r"minute|hour", text.partition("\n## ")[0]), "how long it takes"


def table(document: Path, heading: str) -> list[list[str]]:
    """The rows of the first table under a heading."""
    part = text_of(document).partition(f"\n## {heading}\n")[2]
    lines = re.findall(r"^\|.*\|$", part.partition("\n## ")[0], re.MULTILINE)
    assert lines, f"no table under {heading}"
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_the_readmes_figures_are_those_of_the_benchmarks():
    benchmarks = text_of(ROOT / "docs" / "benchmarks.md")
    for what, ours, beside in table(ROOT / "README.md", "Figures"):
        for figure in re.findall(r"\d[\d.,]* (?:%|s|ms|us)(?!\w)", f"{ours.strip('*')} {beside}".replace("*", "")):
            assert figure in benchmarks or figure.removesuffix(" us") in benchmarks, (what, figure)


def test_the_ten_figures_stand_in_the_tables_behind_them():
    document = ROOT / "docs" / "benchmarks.md"
    rows = table(document, "The ten figures that matter")
    assert len(rows) == 10
    rest = text_of(document).partition("\n## How to repeat it\n")[2]
    for what, ours, beside, *_ in rows:
        for figure in re.findall(r"\d[\d,]*\.?\d*", f"{ours} {beside}".replace("**", "")):
            assert re.search(rf"(?<![\d.]){re.escape(figure)}(?![\d])", rest), (what, figure)


def test_the_style_pages_bad_examples_stand_nowhere_else():
    pairs = table(ROOT / "docs" / "style.md", "Ten pairs")
    assert len(pairs) == 10
    everything = {
        name: " ".join(text.split()) for name, text in texts(".md", ".py", ".yaml", ".txt") if name != "docs/style.md"
    }
    found = {before: [name for name, text in everything.items() if before in text] for before, _ in pairs}
    assert {before: names for before, names in found.items() if names} == {}


def test_wrapping_keeps_words_code_and_lists():
    words = " ".join(["word"] * 40)
    kept = [f"# A heading {words}", f"    code {words}", f"| {words} |"]
    text = "\n\n".join([*kept, f"{words} `code that is not broken`\n- {words}\n  1. {words}", "end", *kept, ""])
    done = rewrapped(text)
    assert done.split() == text.split()
    assert long_lines(done) == []
    assert "`code that is not broken`" in done
    assert [done.count(f"\n{each}\n") + done.startswith(each) for each in kept] == [2, 2, 2]
    assert rewrapped(done) == done


def test_no_line_begins_with_what_would_make_it_a_list():
    done = rewrapped(" ".join(["x" * 97, "-", "y" * 97, "3.", "z" * 97, "#", "end"]))
    assert not any(re.match(r"(-|3\.|#)", line) for line in done.split("\n"))
