"""The README's reference is the code's own. `python -m tests.tidy.test_readme` writes it."""

from pathlib import Path

from picker import config

README = Path(__file__).parents[2] / "README.md"
BEGIN, END = "<!-- reference -->\n", "<!-- /reference -->"


def with_reference(text: str) -> str:
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}{config.reference_table()}\n{END}{tail}"


def test_the_reference_in_the_readme_is_the_codes_own():
    text = README.read_text("utf-8")
    assert text == with_reference(text), "run: python -m tests.tidy.test_readme"


def test_every_key_is_explained():
    assert [key for key, _, description in config.reference() if not description] == []


if __name__ == "__main__":
    README.write_text(with_reference(README.read_text("utf-8")), "utf-8")
