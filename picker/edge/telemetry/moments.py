"""Moments of the wall clock as people write them: RFC 3339, or an age such as `5m ago`.

An age counts from the reader's clock. So whoever holds the decisions reads it, and the clock of who asks
need not be right.
"""

import re
from datetime import UTC, datetime
from typing import Final

AGE_SECONDS_MAX: Final = 366 * 86_400.0
_TEXT_CHARS_MAX = 64
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_AGE = re.compile(r"((?:[0-9]{1,9}(?:\.[0-9]{1,6})?[smhd])+)(?: ?ago)?", re.ASCII)
_PART = re.compile(r"([0-9.]+)([smhd])")
_RFC_3339 = re.compile(
    r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:[Zz]|[+-]\d\d:\d\d)",
    re.ASCII,
)


class MomentError(ValueError):
    """It is no moment; the text says how to write one."""


def moment(text: str, now: float) -> float:
    """Seconds since the epoch of `2026-01-31T14:05:00Z`, `now`, `5m`, `1h30m ago`. Raises `MomentError`."""
    text = text.strip()
    if text == "now":
        return now
    if len(text) <= _TEXT_CHARS_MAX:
        age = _AGE.fullmatch(text)
        if age is not None:
            seconds = sum(float(count) * _UNITS[unit] for count, unit in _PART.findall(age[1]))
            if seconds <= AGE_SECONDS_MAX:
                return now - seconds
        elif _RFC_3339.fullmatch(text):
            try:
                return datetime.fromisoformat(text.upper()).timestamp()
            except (ValueError, OverflowError):
                pass  # the 31st of February
    raise MomentError(
        f"{text[:_TEXT_CHARS_MAX]!r} is no time: write 2026-01-31T14:05:00Z (RFC 3339, with Z or an offset) "
        "or an age (90s, 5m ago, 1h30m)"
    )


def moment_text(seconds: float) -> str:
    """RFC 3339 in UTC, to the millisecond."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
