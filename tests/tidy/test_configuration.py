"""The tables of docs/configuration.md are the code's own. `make docs` writes them."""

import re
from pathlib import Path

import yaml

from picker import config
from picker.config.schema import reference, reference_markdown

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"
BEGIN, END = "<!-- reference: begin -->\n", "<!-- reference: end -->"


def with_reference(text: str) -> str:
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}{reference_markdown()}\n\n{END}{tail}"


def test_the_reference_is_the_codes_own():
    text = PAGE.read_text("utf-8")
    assert text == with_reference(text), "run: make docs"


def test_every_section_says_in_two_sentences_when_to_touch_it():
    found = {}
    for part in reference_markdown().split("\n### ")[1:]:
        name, _, rest = part.partition("\n\n")
        what, when = rest.partition("\n| key")[0].strip().split("\n\n")[:2]
        found[name] = (what, len(re.findall(r"[.](?= |$)", " ".join(when.split()))))
    assert [name for name, (what, sentences) in found.items() if not what or sentences != 2] == []


def test_the_page_names_what_waits_for_the_next_start():
    assert {key.name for key in reference() if key.restart} >= set(config.RESTART_ONLY) - {"transport", "shared_state"}
    assert all(key.restart for key in reference() if key.name.startswith(("transport.", "shared_state.")))


def test_its_examples_load_without_a_warning():
    examples = re.findall(r"```yaml\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert examples
    for example in examples:
        assert config.warnings(config.load(example)) == ()
        assert yaml.safe_load(example)


if __name__ == "__main__":
    PAGE.write_text(with_reference(PAGE.read_text("utf-8")), "utf-8")
