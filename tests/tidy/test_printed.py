"""Each command that documents and notes print is run by a test, or carries the mark of those that are not."""

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.printed import MARK, NOTES, Command, commands, fenced, pages
from tests.tidy.test_tree import ROOT, texts

EACH = pytest.mark.parametrize("page", [*pages(), NOTES])


class Claim(NamedTuple):
    """A call of `to_run` in a test: it runs what of the page begins with the pattern."""

    where: str
    page: str
    pattern: str = ""

    def holds(self, command: Command) -> bool:
        return command.page == self.page and not command.marked and re.match(self.pattern, command.text) is not None


def claims() -> Iterator[Claim]:
    """Of all files of tests, as they are written: nothing is imported."""
    for name, text in texts(".py"):
        if not re.fullmatch(r"tests/.*/test_\w+\.py", name) or "to_run(" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "to_run":
                words = [NOTES if ast.unparse(each) == "NOTES" else ast.literal_eval(each) for each in node.args]
                yield Claim(f"{name}:{node.lineno}", *words)


CLAIMS = list(claims())


def made_by_the_one_command() -> set[str]:
    """The targets of make that `.ci/run` makes: the one that it names, what that needs, and what its steps call."""
    first = re.findall(r"^make ([\w-]+)$", (ROOT / ".ci" / "run").read_text("utf-8"), re.MULTILINE)
    recipe = re.search(rf"^{first[0]}: (.*)$", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    assert len(first) == 1 and recipe
    steps = re.findall(r'"make", "--no-print-directory", "([\w-]+)"', (ROOT / "tests" / "run.py").read_text("utf-8"))
    return {*first, *recipe[1].split(), *steps}


@EACH
def test_each_printed_command_is_run_or_says_that_it_is_not(page: str) -> None:
    made = {f"make {target}" for target in made_by_the_one_command()}
    neither = [
        str(each)
        for each in commands(page)
        if not each.marked and each.text not in made and not any(claim.holds(each) for claim in CLAIMS)
    ]
    assert neither == [], f"give a test that runs it `to_run(...)` (tests/printed.py), or mark it {MARK}"


def test_each_claim_has_a_command() -> None:
    idle = [claim for claim in CLAIMS if not any(claim.holds(each) for each in commands(claim.page))]
    assert idle == [] and len(CLAIMS) >= 10


@EACH
def test_a_page_with_a_mark_says_what_it_means(page: str) -> None:
    if any(each.marked for each in commands(page)):
        assert re.search(rf"(the mark|marked) {MARK}", " ".join((ROOT / page).read_text("utf-8").split()))


@pytest.mark.parametrize("page", pages())
def test_commands_stand_in_shell_blocks(page: str) -> None:
    """One that is indented after a blank line, or in a block that names no language, would be seen by no test."""
    program = r"(?:\$ )?(?:make|kubectl|helm|curl|docker|kind|(?:\.venv/bin/)?(?:picker|python)|redis-cli|envoy) "
    lines = [line for block in fenced(page) if block.language == "" for line in block.text.splitlines()]
    text = (ROOT / page).read_text("utf-8")
    lines += re.findall(
        r"(?<=\n\n) {4}(?=\S)(.*)", re.sub(r"^( *)```.*?^ *```$", "", text, flags=re.DOTALL | re.MULTILINE)
    )
    assert [line for line in lines if re.match(program, line)] == []


def test_every_command_of_the_notes_is_on_a_line_of_its_own() -> None:
    """Where it can be copied, and where these tests see it: none hides in a sentence."""
    own = {each.line for each in commands(NOTES)}
    lines = enumerate((ROOT / NOTES).read_text("utf-8").splitlines(), start=1)
    hidden = [
        line for number, line in lines if number not in own and re.search(r"(kubectl|helm test|curl) .*\{\{", line)
    ]
    assert len(own) >= 8 and hidden == []
