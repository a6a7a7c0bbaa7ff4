"""Logs on stderr, one line each, as JSON or as text. Never a prompt.

What repeats is told a few times a minute and then counted: the next line that passes says how
many did not. Invariants: one record is one line whatever it holds; a line is bounded; the
limiter remembers at most `TEMPLATES_MAX` messages; a record that cannot be formatted is still
a line and never an exception.
"""

import logging
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, TextIO

import msgspec

from picker.decision import Finished
from picker.edge.telemetry.printable import field, json_line, printable
from picker.kernels import build
from picker.version import __version__

LEVELS = ("debug", "info", "warning", "error")
LINE_CHARS_MAX = 8192
TEMPLATES_MAX = 1000
BURST = 10
WINDOW_SECONDS = 60.0

INTERPRETED = (
    "this is the interpreted build: it takes some 3.5 times the CPU of the compiled one. Use the image or a wheel, "
    "or install a C compiler and Python's headers (Debian: gcc libc6-dev python3-dev) and install the picker again"
)

Format = Literal["json", "text"]


def configure(
    level: str = "info",
    style: Format = "json",
    *,
    stream: TextIO | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Send every logger's records to `stream` (stderr). Replaces what was configured before."""
    if level not in LEVELS:
        raise ValueError(f"unknown log level {level!r}: one of {', '.join(LEVELS)}")
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if style == "json" else TextFormatter())
    handler.addFilter(RepeatLimiter(clock))
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())
    # Their records at info and debug are about connections, and a debug line may carry a body.
    for noisy in ("aiohttp", "asyncio", "grpc", "kubernetes", "urllib3", "h2", "hpack"):
        logging.getLogger(noisy).setLevel(max(logging.WARNING, root.level))


class Log:
    """Structured words for the standard `logging`: `log(level, message, **fields)`."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger

    def __call__(self, level: str, message: str, /, **fields: object) -> None:
        """One line. Fields are never a prompt."""
        self._logger.log(logging.getLevelName(level.upper()), message, extra={"fields": fields})

    def enabled(self, level: str) -> bool:
        """Whether a line of this level would be written."""
        return self._logger.isEnabledFor(logging.getLevelName(level.upper()))

    def fault(self, message: str, error: BaseException, **fields: object) -> None:
        """A fault of ours: its type and where, without the values in its text, which a client may have sent."""
        frames = traceback.extract_tb(error.__traceback__)
        where = [f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in frames]
        self("error", message, error=type(error).__name__, where=where, **fields)


def say_build(log: Log) -> None:
    """The first line of a picker: what runs; and, where that is the slow build, a second one."""
    running = build()
    log("info", "starting", version=__version__, build=running.kind, kernels=",".join(running.kernels))
    if not running.compiled:
        log("warning", INTERPRETED)


def request_fields(finished: Finished) -> dict[str, Any]:
    """The fields of the debug line of one request; unknown ones are left out. Nothing a client wrote but names."""
    fields: dict[str, Any] = {
        "outcome": finished.outcome.value,
        "path": finished.path,
        "duration_seconds": round(finished.duration_seconds, 6),
        "request_bytes": finished.request_bytes,
        "response_bytes": finished.response_bytes,
    }
    for name in ("request_id", "model", "objective", "tenant"):
        value = getattr(finished, name)
        if value is not None:
            fields[name] = value[:200]
    for name in (
        "status",
        "reject_word",
        "reason",
        "address",
        "endpoint_name",
        "matched_share",
        "prompt_tokens_estimate",
        "predicted_ttft_seconds",
        "decision_seconds",
        "ttft_seconds",
    ):
        value = getattr(finished, name)
        if value is not None:
            fields[name] = round(value, 6) if isinstance(value, float) else value
    return fields


class RepeatLimiter(logging.Filter):
    """At most `BURST` records of one message template a `WINDOW_SECONDS`; request lines are exempt."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__()
        self._clock = clock
        self._windows: dict[tuple[str, str], list[float]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno <= logging.DEBUG:
            return True
        now = self._clock()
        key = (record.name, str(record.msg)[:200])
        window = self._windows.get(key)
        if window is None or now - window[0] >= WINDOW_SECONDS:
            if window is None and len(self._windows) >= TEMPLATES_MAX:
                self._windows.clear()
            suppressed = max(0, int(window[1]) - BURST) if window is not None else 0
            if suppressed:
                record.suppressed = suppressed
            self._windows[key] = [now, 1]
            return True
        window[1] += 1
        return window[1] <= BURST


class JsonFormatter(logging.Formatter):
    """`{"time", "level", "logger", "message", ...fields}`."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _message(record)[:LINE_CHARS_MAX],
        }
        for name, value in _fields(record).items():
            line.setdefault(name, _writable(value) if isinstance(value, str) else value)
        return json_line(msgspec.json.encode(line, enc_hook=str).decode())


class TextFormatter(logging.Formatter):
    """`time level logger: message name=value ...`."""

    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {name}={field(value)}" for name, value in _fields(record).items())
        text = f"{_time(record)} {record.levelname.lower()} {record.name}: {printable(_message(record))}{fields}"
        return text[:LINE_CHARS_MAX]


def _time(record: logging.LogRecord) -> str:
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{seconds}.{int(record.msecs):03d}Z"


def _message(record: logging.LogRecord) -> str:
    try:
        text = record.getMessage()
    except Exception:
        text = f"{record.msg} (its arguments do not fit)"
    return _writable(text)


def _writable(text: str) -> str:
    """Without lone surrogates: no encoder takes them."""
    return text.encode("utf-8", "replace").decode()


def _fields(record: logging.LogRecord) -> Mapping[str, Any]:
    fields: dict[str, Any] = dict(getattr(record, "fields", None) or {})
    suppressed = getattr(record, "suppressed", None)
    if suppressed:
        fields["suppressed"] = suppressed
    if record.exc_info and record.exc_info[1] is not None:
        fields["exception"] = _traceback(record)
    return fields


def _traceback(record: logging.LogRecord) -> str:
    """Type and places, not the message: an exception's text may quote what a client sent."""
    assert record.exc_info is not None
    kind, _, trace = record.exc_info
    places = []
    while trace is not None:
        code = trace.tb_frame.f_code
        places.append(f"{code.co_filename.rpartition('/')[2]}:{trace.tb_lineno} in {code.co_name}")
        trace = trace.tb_next
    return f"{kind.__name__ if kind else 'exception'} at {' > '.join(places[-12:])}"
