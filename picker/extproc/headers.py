"""The headers that are read of a message, taken out of its bytes.

They are read in the one order in which proxies write them; any other shape is protobuf's to read (`wire.py`).
Headers that come again and again are remembered by their bytes. The compiled build reads all of a
message's in one call and remembers nothing (`_headers.c`), to the same values.
"""

from collections.abc import Callable
from typing import Final

from picker.extproc.remembered import remember
from picker.kernels import kernel

Found = tuple[dict[str, str], int]
"""The wanted headers, of several of a name the first; where they end, negative where the stream ends with them."""

SCAN: Final[Callable[[bytes, tuple[str, ...]], Found | None] | None] = getattr(
    kernel("picker.extproc._headers"), "headers", None
)

HEADERS_MAX: Final = 4096
"""Of one message, by both builds and by protobuf (also in `_headers.c`); Envoy's own default is 100."""
_PAIRS_MAX: Final = 1024
"""Headers remembered by their bytes, at most."""
_PAIR_BYTES_MAX: Final = 0x7F + 2
"""Bytes of the longest header that is remembered: its length is written in one byte."""
_REPEATED: Final = frozenset(
    name.encode()
    for name in (
        *(":authority", ":method", ":path", ":scheme", ":status", "accept", "accept-encoding", "accept-language"),
        *("connection", "content-type", "date", "host", "server", "transfer-encoding", "user-agent", "vary", "via"),
        *("x-envoy-expected-rq-timeout-ms", "x-envoy-internal", "x-envoy-upstream-service-time", "x-forwarded-proto"),
    )
)
"""Headers that come with the same value again and again, and are nobody's secret; but a path's query may be one."""


class HeaderNames:
    """Which headers are read, and whole headers that came before: `(name, value)`, no name where it is not read."""

    __slots__ = ("by_bytes", "seen", "wanted")

    def __init__(self, read: frozenset[str]) -> None:
        """`read`: lower-case names in ASCII."""
        self.wanted = tuple(sorted(read))
        self.by_bytes = {name.encode(): name for name in read}
        self.seen: dict[bytes, tuple[str, str]] = {}


def read_headers(message: bytes, names: HeaderNames) -> Found | None:
    """HttpHeaders, a message's first field. `None`: not in the usual shape."""
    return by_pair(message, names) if SCAN is None else SCAN(message, names.wanted)


def by_pair(message: bytes, names: HeaderNames) -> Found | None:
    """The same in Python: HttpHeaders{headers = 1{repeated 1{key = 1, raw_value = 3}}, end_of_stream = 3}."""
    found: dict[str, str] = {}
    try:
        end = _pairs(message, names, found)
    except (IndexError, UnicodeDecodeError):
        return None  # cut short, or a value that is not UTF-8
    return None if end is None else (found, end)


def length(message: bytes, at: int) -> tuple[int, int]:
    """A length of up to four bytes, and where what it measures begins. Raises `IndexError` for any other."""
    value, shift = 0, 0
    while shift < 28:
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise IndexError


def _pairs(message: bytes, names: HeaderNames, found: dict[str, str]) -> int | None:
    size, at = (message[1], 2) if message[1] < 0x80 else length(message, 1)
    end = at + size
    if message[at] != 0x0A or end > len(message):
        return None
    size, at = (message[at + 1], at + 2) if message[at + 1] < 0x80 else length(message, at + 1)
    stop = at + size
    if stop == end:
        signed_end = end
    elif stop + 2 == end and message[stop] == 0x18 and message[stop + 1] == 1:
        signed_end = -end
    else:
        return None
    seen = names.seen
    count = 0
    while at < stop:
        count += 1
        if count > HEADERS_MAX:
            return None
        following = at + 2 + message[at + 1]
        known = seen.get(message[at:following])
        if known is None:
            following = _pair(message, at, names, found)
            if following < 0:
                return None
        else:
            name, value = known
            if name and name not in found:
                found[name] = value
        at = following
    return signed_end if at == stop else None


def _pair(message: bytes, at: int, names: HeaderNames, found: dict[str, str]) -> int:
    """One header, read byte by byte. Returns where the next one begins, negative for an unusual shape."""
    begin = at
    if message[at] != 0x0A:
        return -1
    size, at = (message[at + 1], at + 2) if message[at + 1] < 0x80 else length(message, at + 1)
    following = at + size
    if message[at] != 0x0A or message[at + 1] > 0x7F:
        return -1
    value_at = at + 2 + message[at + 1]
    key = message[at + 2 : value_at]
    name = names.by_bytes.get(key, "")
    value = ""
    if name:
        if message[value_at] != 0x1A:
            return -1
        size, at = message[value_at + 1], value_at + 2
        if size > 0x7F:
            size, at = length(message, value_at + 1)
        if at + size != following:
            return -1
        value = message[at:following].decode()
        if name not in found:
            found[name] = value
    elif value_at > following or not key.islower():
        return -1
    if key in _REPEATED and following <= begin + _PAIR_BYTES_MAX and "?" not in value:
        remember(names.seen, message[begin:following], (name, value), _PAIRS_MAX)
    return following
