"""Request header blocks: decoded by `hpack`, checked once, remembered by their bytes.

A proxy's block is the same bytes from its second call on, because every field is in the HPACK
dynamic table by then. While a block changes nothing in that table, its bytes alone say what it
means, so a dictionary answers for the decoder.

Invariants: an answer is remembered only for a block that left the table as it was, and every
answer is forgotten when the table changes; at most `_REMEMBERED_MAX` blocks, none of them long.
"""

import re
from typing import Any, Final

import hpack
import msgspec

from picker.edge.h2 import frames
from picker.edge.h2.frames import ConnectionFault

_REMEMBERED_MAX: Final = 64
_REMEMBERED_BYTES_MAX: Final = 1024

_TIMEOUT = re.compile(rb"([0-9]{1,8})([HMSmun])")
_TIMEOUT_UNIT_SECONDS = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_NAME = re.compile(rb":?[!#$%&'*+\-.^_`|~0-9a-z]+")
_BAD_IN_VALUE = re.compile(rb"[\x00\r\n]")
_CONNECTION_FIELDS = frozenset(
    (b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade"),
)
_PSEUDO_FIELDS = frozenset((b":method", b":scheme", b":path", b":authority"))


class Head(msgspec.Struct, frozen=True, gc=False):
    """What one header block asks for."""

    path: str
    malformed: bool = False
    """RFC 9113 section 8.1.1: the stream is reset with PROTOCOL_ERROR."""
    http_status: int = 200
    """What a request that is not gRPC is answered with: 405 or 415."""
    timeout_seconds: float | None = None
    bad_timeout: bool = False
    encoding: str = "identity"
    content_length: int | None = None


class HeadReader:
    """One connection's HPACK decoder and what it remembers."""

    __slots__ = ("_decoder", "_newest", "_size", "remembered")

    def __init__(self, header_list_bytes_max: int) -> None:
        self._decoder: Any = hpack.Decoder(max_header_list_size=header_list_bytes_max)
        self.remembered: dict[bytes, Head] = {}
        self._newest: object = None
        self._size = 0

    def read(self, block: bytes) -> Head:
        """Decode one whole block. Raises `ConnectionFault`: the table is of no use after an error."""
        fields = self._decode(block)
        head = read_head(fields)
        if self._table_unchanged() and len(block) <= _REMEMBERED_BYTES_MAX:
            if len(self.remembered) >= _REMEMBERED_MAX:
                self.remembered.clear()
            self.remembered[block] = head
        return head

    def read_trailers(self, block: bytes) -> bool:
        """Decode a block that follows the request's messages. False when it is malformed."""
        fields = self._decode(block)
        self._table_unchanged()
        return not any(name[:1] == b":" or not _valid(name, value) for name, value in fields)

    def _decode(self, block: bytes) -> list[tuple[bytes, bytes]]:
        try:
            fields: list[tuple[bytes, bytes]] = self._decoder.decode(block, raw=True)
        except hpack.OversizedHeaderListError:
            raise ConnectionFault(frames.ENHANCE_YOUR_CALM, "header list above SETTINGS_MAX_HEADER_LIST_SIZE") from None
        except Exception:  # hpack lets IndexError and its kin through for some inputs
            raise ConnectionFault(frames.COMPRESSION_ERROR, "header block cannot be decoded") from None
        return fields

    def _table_unchanged(self) -> bool:
        """Every insertion is a new tuple at the front; evictions alone (a smaller table) change the length."""
        entries = self._decoder.header_table.dynamic_entries
        newest = entries[0] if entries else None
        if newest is self._newest and len(entries) == self._size:
            return True
        self._newest, self._size = newest, len(entries)
        self.remembered.clear()
        return False


def read_head(fields: list[tuple[bytes, bytes]]) -> Head:
    """Check a request's fields (RFC 9113 section 8, gRPC over HTTP/2) and keep what matters."""
    pseudo: dict[bytes, bytes] = {}
    regular: dict[bytes, bytes] = {}
    for name, value in fields:
        if not _valid(name, value):
            return Head("", malformed=True)
        if name[:1] == b":":
            if regular or name in pseudo or name not in _PSEUDO_FIELDS:
                return Head("", malformed=True)
            pseudo[name] = value
        else:
            if name == b"content-length" and regular.get(name, value) != value:
                return Head("", malformed=True)
            regular[name] = value
    method, path = pseudo.get(b":method"), pseudo.get(b":path")
    length = regular.get(b"content-length")
    if not method or not path or not pseudo.get(b":scheme") or not (length is None or length.isdigit()):
        return Head("", malformed=True)
    timeout = regular.get(b"grpc-timeout")
    timeout_seconds = None if timeout is None else _read_timeout(timeout)
    return Head(
        path.decode("latin-1"),
        http_status=_http_status(method, regular.get(b"content-type", b"")),
        timeout_seconds=timeout_seconds,
        bad_timeout=timeout is not None and timeout_seconds is None,
        encoding=regular.get(b"grpc-encoding", b"identity").decode("latin-1")[:40],
        content_length=None if length is None else int(length[:18]),
    )


def _http_status(method: bytes, content_type: bytes) -> int:
    """gRPC over HTTP/2: 415 when the content-type does not begin with application/grpc. Only POST is a call."""
    kind = content_type.lower()
    if not kind.startswith(b"application/grpc") or kind[16:17] not in (b"", b"+", b";"):
        return 415
    return 200 if method == b"POST" else 405


def _read_timeout(value: bytes) -> float | None:
    found = _TIMEOUT.fullmatch(value)
    return None if found is None else int(found[1]) * _TIMEOUT_UNIT_SECONDS[found[2]]


def _valid(name: bytes, value: bytes) -> bool:
    """Section 8.2: lower-case token names, no connection fields, no CR, LF, NUL or outer space in values."""
    if name in _CONNECTION_FIELDS or _NAME.fullmatch(name) is None or _BAD_IN_VALUE.search(value) is not None:
        return False
    if name == b"te":
        return value == b"trailers"
    return value[:1] not in (b" ", b"\t") and value[-1:] not in (b" ", b"\t")
