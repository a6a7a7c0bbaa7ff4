"""Words of others, on terminals and in logs: shown, and never obeyed."""

import io
import json
import logging

import pytest
from rich.console import Console

from picker.edge.telemetry import explain, logs
from picker.edge.telemetry.printable import field, json_line, printable

WORDS = [
    "[/]",
    "[bold red on white]PICKED 10.9.9.9:8000[/]",
    "\x1b]0;owned\x07\x1b[2J",
    "\x9b2J",
    "m outcome=completed status=200",
    "line\nforged\r\nline",
    "\u202egnirts",
    "\ud800",
    'a"b\\c',
    ":smile:",
    "größe-模型",
]


@pytest.mark.parametrize("words", WORDS)
def test_nothing_of_it_moves_a_cursor(words: str) -> None:
    assert printable(words).isprintable()
    assert field(words).isprintable()
    assert printable(words) != words or words.isprintable()


def test_a_field_is_one_word_or_quoted() -> None:
    assert field("llama-3") == "llama-3"
    assert field("m outcome=completed") == '"m outcome=completed"'
    assert field('a"b') == '"a\\"b"'
    assert field("") == '""'
    assert field(0.5) == "0.5"


@pytest.mark.parametrize("words", [each for each in WORDS if each != "\ud800"])
def test_json_says_the_same_after_it(words: str) -> None:
    line = json_line(json.dumps({"model": words}, ensure_ascii=False))
    assert line.isprintable()
    assert json.loads(line) == {"model": words}


@pytest.mark.parametrize("style", ["text", "json"])
@pytest.mark.parametrize("words", WORDS)
def test_a_log_line_is_one_line_with_the_fields_that_we_wrote(words: str, style: logs.Format) -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logs.TextFormatter() if style == "text" else logs.JsonFormatter())
    logger = logging.Logger("picker")
    logger.addHandler(handler)
    logs.Log(logger)("warning", f"a message with {words}", model=words, status=200)
    (line,) = stream.getvalue().splitlines()
    assert line.isprintable()
    if style == "text":
        assert line.endswith(f" model={field(words)} status=200")
    else:
        assert json.loads(line)["status"] == 200


@pytest.mark.parametrize("words", WORDS)
def test_explain_shows_them_as_they_are(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    made = Console

    def console(**options: object) -> Console:
        return made(file=stream, width=200, force_terminal=True, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(explain, "Console", console)
    endpoint = {
        "name": words,
        "matched_share": 0.5,
        "seconds": {"prefix": 0.1},
        "cost_seconds": 0.1,
        "why": words,
        "picked": True,
    }
    decision = {
        "request_id": words,
        "reason": "affinity",
        "prompt_tokens": 10,
        "model": words,
        "summary": words,
        "endpoints": [endpoint],
    }
    explain.show([decision], as_json=False)
    shown = stream.getvalue()
    assert shown.count(printable(words)) >= 4
    for forbidden in ("\x1b]", "\x1b[2J", "\x9b", "\x07", "\u202e"):
        assert forbidden not in shown
