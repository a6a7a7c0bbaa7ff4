"""What Python's reader takes and msgspec refuses, put so that msgspec takes it: NaN, infinities, halves of emojis.

`json.dumps` writes NaN. Languages with UTF-16 strings cut texts inside emojis, and write the half that is left as an
escape of its own; agents cut the result of every tool. Each is mended where it stands and keeps its length. So what is
refused afterwards is refused by everybody, at the place that msgspec names.

Any body takes numpy some 1.5 ns a byte. What takes longer (a surrogate, a quote) is counted, up to a limit.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

MEND_BYTES_MAX: Final = 4 * 1024 * 1024
"""Longer bodies would hold up others for more than some 20 ms."""
SURROGATES_MAX: Final = 100_000
"""Escapes of them, in pairs or alone; each takes some 100 ns."""
QUOTES_MAX: Final = 400_000
"""Of a body with NaN or infinities; each takes some 30 ns."""
NUMBERS_MAX: Final = 100_000
"""NaN and infinities, in texts or not; each takes some 50 ns."""
STEPS_MAX: Final = 500_000
"""Backslashes in runs, stepped over to tell what the last one escapes. A round of numpy's is worth a thousand."""
_ROUND_STEPS: Final = 1_000
_PART_BYTES: Final = 256 * 1024
"""Looked through at a time, so that what a pass makes stays in the processor's cache."""

Codes = npt.NDArray[np.uint8]
Places = npt.NDArray[np.intp]

_ESCAPE_BYTES: Final = 6
_HALF: Final = rb"\ufffd"
_NO_VALUE: Final = b"[]"
"""Short enough for NaN, and a value to no field: neither text, number nor boolean."""
_LETTER_CASE: Final = 0x20
_NO_DIGIT: Final = 255
_DIGITS: Final = np.full(256, _NO_DIGIT, dtype=np.uint8)
_DIGITS[np.frombuffer(b"0123456789abcdef", dtype=np.uint8)] = np.arange(16)
_DIGITS[np.frombuffer(b"ABCDEF", dtype=np.uint8)] = np.arange(10, 16)


class _TooMany(Exception):
    """Of something, to look at each."""


def mend(body: bytes) -> bytes | None:
    """The body with U+FFFD for each half of an emoji and an empty list for each NaN and infinity.

    The body itself, where there are none; `None` where it would take long.
    """
    if len(body) > MEND_BYTES_MAX:
        return None
    codes = np.frombuffer(body, dtype=np.uint8)
    try:
        halves, numbers = _halves(codes), _numbers(codes)
    except _TooMany:
        return None
    if not len(halves) and not any(len(places) for _, places in numbers):
        return body
    mended = codes.copy()
    _put(mended, halves, _HALF)
    for size, places in numbers:
        _put(mended, places, _NO_VALUE.ljust(size))
    return mended.tobytes()


def _halves(codes: Codes) -> Places:
    """Where the escape of a surrogate begins that has no other half beside it."""
    found = _where(codes, b"\\", b"d", 2, most=SURROGATES_MAX)
    found = found[found <= len(codes) - _ESCAPE_BYTES]
    second, third, fourth = (_DIGITS[codes[found + place]] for place in (3, 4, 5))
    surrogate = (codes[found + 1] == ord("u")) & (second >= 8) & (np.maximum(np.maximum(second, third), fourth) < 16)
    found, high = found[surrogate], second[surrogate] < 12
    begins = ~_escaped(codes, found)
    found, high = found[begins], high[begins]
    paired = high[:-1] & ~high[1:] & (np.diff(found) == _ESCAPE_BYTES)
    lone = np.ones(len(found), dtype=bool)
    lone[:-1] &= ~paired
    lone[1:] &= ~paired
    halves: Places = found[lone]
    return halves


def _numbers(codes: Codes) -> list[tuple[int, Places]]:
    """Where NaN and infinities stand outside strings, by their length."""
    not_numbers, infinities = _words(codes, b"NaN"), _words(codes, b"Infinity")
    if not len(not_numbers) and not len(infinities):
        return []
    quotes = _where(codes, b'"', b'"', 0, most=QUOTES_MAX)
    quotes = quotes[~_escaped(codes, quotes)]
    not_numbers, infinities = (found[np.searchsorted(quotes, found) % 2 == 0] for found in (not_numbers, infinities))
    negative = (infinities > 0) & (codes[infinities - 1] == ord("-"))
    return [(3, not_numbers), (8, infinities[~negative]), (9, infinities[negative] - 1)]


def _words(codes: Codes, word: bytes) -> Places:
    found = _where(codes, word[:1], word[-1:], len(word) - 1, most=NUMBERS_MAX)
    is_word = np.ones(len(found), dtype=bool)
    for place, letter in enumerate(word):
        is_word &= codes[found + place] == letter
    return found[is_word]


def _where(codes: Codes, first: bytes, last: bytes, apart: int, *, most: int) -> Places:
    """Where one letter stands, and so much further another one, in either case. Raises `_TooMany`."""
    parts, count = [np.empty(0, dtype=np.intp)], 0
    for at in range(0, len(codes) - apart, _PART_BYTES):
        part = codes[at : at + _PART_BYTES + apart]
        fits = part[: len(part) - apart] == first[0]
        fits &= (part[apart:] | _LETTER_CASE) == last[0] | _LETTER_CASE
        found = np.flatnonzero(fits)
        count += len(found)
        if count > most:
            raise _TooMany
        parts.append(found + at)
    return np.concatenate(parts)


def _escaped(codes: Codes, places: Places) -> npt.NDArray[np.bool_]:
    """Whether an odd number of backslashes stands before a place. Raises `_TooMany`."""
    odd = np.zeros(len(places), dtype=bool)
    which, before, steps = np.arange(len(places)), places - 1, 0
    while len(which):
        is_one = (before >= 0) & (codes[before] == ord("\\"))
        which, before = which[is_one], before[is_one] - 1
        odd[which] ^= True
        steps += len(which) + _ROUND_STEPS
        if steps > STEPS_MAX:
            raise _TooMany
    return odd


def _put(codes: Codes, places: Places, word: bytes) -> None:
    for place, letter in enumerate(word):
        codes[places + place] = letter
