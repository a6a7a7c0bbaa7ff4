"""Log lines: one each, bounded, without what clients wrote, and not for ever the same."""

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from picker.decision import Finished
from picker.edge.telemetry import logs
from picker.outcomes import Outcome, Reason


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    root = logging.getLogger()
    before = (root.handlers[:], root.level)
    yield
    root.handlers[:], root.level = before[0], before[1]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def configured(level: str = "info", style: logs.Format = "json") -> tuple[io.StringIO, Clock]:
    stream, clock = io.StringIO(), Clock()
    logs.configure(level, style, stream=stream, clock=clock)
    return stream, clock


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


LOG = logging.getLogger("picker.test")


def test_a_json_line() -> None:
    stream, _ = configured()
    LOG.warning("source %s lost", "file", extra={"fields": {"address": "10.0.0.1:80", "tries": 3}})
    (line,) = lines(stream)
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "warning",
        "logger": "picker.test",
        "message": "source file lost",
        "address": "10.0.0.1:80",
        "tries": 3,
    }


def test_a_text_line() -> None:
    stream, _ = configured(style="text")
    LOG.info("two\nlines", extra={"fields": {"a": 1}})
    assert stream.getvalue().endswith(" info picker.test: two\\nlines a=1\n")
    assert stream.getvalue().count("\n") == 1


@pytest.mark.parametrize("style", ["json", "text"])
def test_whatever_is_logged_is_one_bounded_line(style: logs.Format) -> None:
    stream, _ = configured(style=style)
    LOG.info("surrogate %s", "a\ud800b")
    LOG.info("does not fit %d", "x")
    LOG.info("odd", extra={"fields": {"thing": object()}})
    LOG.info("long " + "x" * 100_000)
    text = stream.getvalue()
    assert text.count("\n") == 4
    assert max(map(len, text.splitlines())) < 9_000


def test_the_level_is_respected_and_a_wrong_one_named() -> None:
    stream, _ = configured("warning")
    LOG.info("no")
    LOG.warning("yes")
    assert [line["message"] for line in lines(stream)] == ["yes"]
    with pytest.raises(ValueError, match=r"loud.*debug, info, warning, error"):
        logs.configure("loud")


def test_other_libraries_stay_quiet_at_debug() -> None:
    stream, _ = configured("debug")
    logging.getLogger("aiohttp.client").debug("body: secret")
    LOG.debug("ours")
    assert [line["message"] for line in lines(stream)] == ["ours"]


def test_repeats_are_limited_then_counted() -> None:
    stream, clock = configured()
    for number in range(50):
        LOG.warning("endpoint %s is slow", number)
    LOG.warning("another")
    told = lines(stream)
    assert len(told) == logs.BURST + 1
    clock.now = logs.WINDOW_SECONDS
    LOG.warning("endpoint %s is slow", 50)
    LOG.warning("endpoint %s is slow", 51)
    after = lines(stream)[len(told) :]
    assert [line.get("suppressed") for line in after] == [50 - logs.BURST, None]


def test_the_limiter_is_bounded() -> None:
    limiter = logs.RepeatLimiter(lambda: 0.0)
    for number in range(5000):
        limiter.filter(logging.LogRecord("n", logging.WARNING, "", 0, f"message {number}", None, None))
    assert len(limiter._windows) <= logs.TEMPLATES_MAX


def test_an_exception_tells_where_and_not_what_it_quotes() -> None:
    stream, _ = configured()
    try:
        raise ValueError("cannot parse 'my secret prompt'")
    except ValueError:
        LOG.exception("handler failed")
    (line,) = lines(stream)
    assert line["exception"].startswith("ValueError at test_logs.py:")
    assert "secret" not in stream.getvalue()


def test_a_request_line_at_debug_only() -> None:
    finished = Finished(
        outcome=Outcome.COMPLETED,
        path="chat_completions",
        model="m" * 500,
        reason=Reason.LOAD,
        ttft_seconds=0.1234567891,
    )
    stream, _ = configured("info")
    logs.Log(LOG)("debug", "request", **logs.request_fields(finished))
    assert stream.getvalue() == ""
    stream, _ = configured("debug")
    for _ in range(20):
        logs.Log(LOG)("debug", "request", **logs.request_fields(finished))
    told = lines(stream)
    assert len(told) == 20
    assert told[0]["outcome"] == "completed" and told[0]["reason"] == "load"
    assert told[0]["model"] == "m" * 200 and told[0]["ttft_seconds"] == 0.123457
    assert "status" not in told[0]
