"""Finds single series in a Prometheus text page without parsing the rest of it.

A vLLM page is 50 KB and some 560 lines, of which a scrape needs a dozen. `find` looks for the
wanted names as bytes at the starts of lines, so the cost is that of a substring search, and
what stands between (HELP, TYPE, histograms, `_created` series) is never decoded. What a page can make
it do is bounded: lines, series and places looked at.

Invariants: a name is matched whole (never as the prefix of another), `find` never raises on
whatever bytes a server sends, and a value that cannot be a measurement (NaN, infinite,
negative, not a number) is `None`: unknown.

Format: https://prometheus.io/docs/instrumenting/exposition_formats/ (text format 0.0.4, and
OpenMetrics 1.0 as far as samples go: timestamps and exemplars after the value are skipped).
"""

import math
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

LABELS_CACHED_BYTES_MAX = 2048
"""Longer ones are parsed each time. vLLM's `cache_config_info` has 700."""
LINE_BYTES_MAX = 64 * 1024
"""A longer line is not read: with labels of megabytes a page takes a second."""
SERIES_MAX = 512
"""Of one name. An engine has one for each model and data-parallel rank; more of them are not believed."""
CANDIDATES_MAX = 4096
"""Places where the name is found and is none, or belongs to another; then the page is given up."""
BLANKS_MAX = 64
_LINE_ENDS = b"\n\r"
_BLANKS = b" \t"
_AFTER_NAME = (b"{", b" ", b"\t")

# From the end of the name to the value. Possessive throughout: a hostile line cannot make it backtrack.
_SAMPLE = re.compile(
    rb'[ \t]*+(?:\{((?:[^"}\n]++|"(?:[^"\\\n]++|\\[^\n])*+")*+)\}[ \t]*+)?([^ \t\r\n{"][^ \t\r\n]*+)',
)
_PLAIN = re.compile(rb"[0-9.eE+-]++")
_LABEL = re.compile(rb'([A-Za-z_][A-Za-z0-9_]*+)[ \t]*+=[ \t]*+"((?:[^"\\\n]++|\\[^\n])*+)"')
_SUFFIXES = (b"_bucket", b"_count", b"_sum", b"_total", b"_created")
_ESCAPE = re.compile(rb"\\(.)")
_ESCAPED = {b"n": b"\n", b"\\": b"\\", b'"': b'"'}


class Series(NamedTuple):
    """One line: its labels, and its value or `None` where the value is nonsense."""

    labels: Mapping[str, str]
    value: float | None


def find(page: bytes, name: bytes) -> list[Series]:
    """All series called exactly `name`, in the order of the page; empty where there is none.

    The search ends with the group that the first of them begins: the format promises that "all
    lines for a given metric must be provided as one single group". In a histogram's or a
    counter's group several names may take turns.
    """
    siblings = _siblings(name)
    found: list[Series] = []
    at = page.find(name)
    looked_at = 0
    while at >= 0 and looked_at < CANDIDATES_MAX:
        looked_at += 1
        end = at + len(name)
        if page[end : end + 1] in _AFTER_NAME and _starts_line(page, at):
            end = _read_group(page, at, name, siblings, found)
            if found:
                return found if len(found) <= SERIES_MAX else []
        at = page.find(name, end)
    return found


def _read_group(page: bytes, at: int, name: bytes, siblings: tuple[bytes, ...], found: list[Series]) -> int:
    """Collect the series from `at` on, over comments and blank lines; returns where the group ends."""
    lines = 0
    while True:
        lines += 1
        if len(found) > SERIES_MAX or lines > 4 * CANDIDATES_MAX:
            return len(page)
        line_end = page.find(b"\n", at)
        if line_end < 0:  # every line ends with a line feed: this one was cut, and its number may have been
            return len(page)
        following = line_end + 1
        start = at
        while page[start : start + 1] in (b" ", b"\t") and start - at < BLANKS_MAX:
            start += 1
        if page.startswith(name, start) and page[start + len(name) : start + len(name) + 1] in _AFTER_NAME:
            whole = following - start <= LINE_BYTES_MAX
            series = _series(page[start + len(name) : line_end]) if whole else None
            if series is not None:
                found.append(series)
        elif not page.startswith(siblings, start):
            return at
        if following >= len(page):
            return len(page)
        at = following


def stem(name: bytes) -> bytes:
    """What the names begin with that may stand in the group of `name`."""
    return next((name.removesuffix(suffix) for suffix in _SUFFIXES if name.endswith(suffix)), name)


@lru_cache(maxsize=1024)
def _siblings(name: bytes) -> tuple[bytes, ...]:
    """How the lines begin that may stand inside the group of `name` without being of that name."""
    family = stem(name)
    others = () if family == name else tuple(family + suffix for suffix in _SUFFIXES)
    return (b"#", b"\r", b"\n", *others)


def shows(page: bytes, prefix: bytes) -> bool:
    """Whether any series' name begins with `prefix`."""
    at = page.find(prefix)
    looked_at = 0
    while at >= 0 and looked_at < CANDIDATES_MAX:
        looked_at += 1
        if _starts_line(page, at):
            return True
        at = page.find(prefix, at + len(prefix))
    return False


def _starts_line(page: bytes, at: int) -> bool:
    furthest = at - BLANKS_MAX
    while at > 0 and at > furthest:
        before = page[at - 1]
        if before in _LINE_ENDS:
            return True
        if before not in _BLANKS:
            return False
        at -= 1
    return at <= 0


def _series(rest: bytes) -> Series | None:
    """What stands behind the name on its line; `None`: no value."""
    labels, blank, number = rest.rpartition(b" ")
    if blank and len(labels) <= LABELS_CACHED_BYTES_MAX and number and _PLAIN.fullmatch(number):
        known = _known_labels(labels)
        if known is not None:
            return Series(known, _number(number))
    sample = _SAMPLE.match(rest)
    if sample is None:
        return None
    text, number = sample.groups()
    return Series(_parsed_labels(text) if text else {}, _number(number))


@lru_cache(maxsize=1024)
def _known_labels(text: bytes) -> Mapping[str, str] | None:
    """Of a text that stands before the last blank of a line; `None`: it is not labels alone.

    A series' labels are the same at every scrape, and most endpoints' are the same as each other's.
    """
    sample = _SAMPLE.fullmatch(text + b" 0")
    if sample is None or sample.group(2) != b"0":
        return None
    labels = sample.group(1)
    return _parsed_labels(labels) if labels else {}


def _parsed_labels(text: bytes) -> Mapping[str, str]:
    return {
        label.decode(): (_unescape(value) if b"\\" in value else value).decode("utf-8", "replace")
        for label, value in _LABEL.findall(text)
    }


def _unescape(value: bytes) -> bytes:
    # An unknown escape stays as it is, backslash included, as the reference parser keeps it.
    return _ESCAPE.sub(lambda found: _ESCAPED.get(found.group(1), found.group(0)), value)


def _number(text: bytes) -> float | None:
    if b"_" in text:
        return None
    try:
        value = float(text)
    except ValueError:
        return None
    return value if value >= 0 and math.isfinite(value) else None
