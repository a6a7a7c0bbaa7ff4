"""Request header blocks: decoded, checked once, remembered by their bytes.

A proxy's block is the same bytes from its second call on, because every field is in the HPACK
dynamic table by then. While a block changes nothing in that table, its bytes alone say what it
means, so a dictionary answers for the decoder.

Invariants: an answer is remembered only for a block that left the table as it was, and every
answer is forgotten when the table changes; at most `_REMEMBERED_MAX` blocks, none of them long.
"""

import re
from typing import Final

from picker.edge.grpc.h2 import frames
from picker.edge.grpc.h2.frames import ConnectionFault
from picker.edge.grpc.h2.hpack_reader import Field, HpackError, HpackReader, ListTooLong

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
_FIELDS_READ = frozenset((b"content-type", b"content-length", b"grpc-timeout", b"grpc-encoding"))


class Head:
    """What one header block asks for. Immutable by convention."""

    __slots__ = (
        "bad_timeout",
        "content_length",
        "encoding",
        "http_status",
        "malformed",
        "path",
        "timeout_seconds",
    )

    malformed: bool
    """RFC 9113 section 8.1.1: the stream is reset with PROTOCOL_ERROR."""
    http_status: int
    """What a request that is not gRPC is answered with: 405 or 415."""

    def __init__(
        self,
        path: str,
        *,
        malformed: bool = False,
        http_status: int = 200,
        timeout_seconds: float | None = None,
        bad_timeout: bool = False,
        encoding: str = "identity",
        content_length: int | None = None,
    ) -> None:
        self.path = path
        self.malformed = malformed
        self.http_status = http_status
        self.timeout_seconds = timeout_seconds
        self.bad_timeout = bad_timeout
        self.encoding = encoding
        self.content_length = content_length


_MALFORMED: Final = Head("", malformed=True)


class HeadReader:
    """One connection's HPACK decoder and what it remembers."""

    __slots__ = ("_changes", "_decoder", "remembered")

    def __init__(self, header_list_bytes_max: int) -> None:
        self._decoder = HpackReader(header_list_bytes_max, _valid)
        self._changes = 0
        self.remembered: dict[bytes, Head] = {}

    def read(self, block: bytes) -> Head:
        """Decode one whole block. Raises `ConnectionFault`: the table is of no use after an error."""
        head = read_head(self._decode(block))
        if self._table_unchanged() and len(block) <= _REMEMBERED_BYTES_MAX:
            if len(self.remembered) >= _REMEMBERED_MAX:
                self.remembered.clear()
            self.remembered[block] = head
        return head

    def read_trailers(self, block: bytes) -> bool:
        """Decode a block that follows the request's messages. False when it is malformed."""
        fields = self._decode(block)
        self._table_unchanged()
        return all(valid and name[:1] != b":" for name, _, valid, _ in fields)

    def _decode(self, block: bytes) -> list[Field]:
        try:
            return self._decoder.decode(block)
        except ListTooLong:
            raise ConnectionFault(frames.ENHANCE_YOUR_CALM, "header list above SETTINGS_MAX_HEADER_LIST_SIZE") from None
        except HpackError as error:
            raise ConnectionFault(frames.COMPRESSION_ERROR, f"header block cannot be decoded: {error}") from None

    def _table_unchanged(self) -> bool:
        if self._changes == self._decoder.changes:
            return True
        self._changes = self._decoder.changes
        self.remembered.clear()
        return False


def read_head(fields: list[Field]) -> Head:
    """Check a request's fields (RFC 9113 section 8, gRPC over HTTP/2) and keep what matters."""
    found: dict[bytes, bytes] = {}
    regular = False
    for name, value, valid, _ in fields:
        if not valid:
            return _MALFORMED
        if name[:1] == b":":
            if regular or name in found or name not in _PSEUDO_FIELDS:
                return _MALFORMED
            found[name] = value
        else:
            regular = True
            if name in _FIELDS_READ:
                if name == b"content-length" and found.get(name, value) != value:
                    return _MALFORMED
                found[name] = value
    method, path, length = found.get(b":method"), found.get(b":path"), found.get(b"content-length")
    if not method or not path or not found.get(b":scheme") or not (length is None or length.isdigit()):
        return _MALFORMED
    timeout = found.get(b"grpc-timeout")
    timeout_seconds = None if timeout is None else _read_timeout(timeout)
    return Head(
        path.decode("latin-1"),
        http_status=_http_status(method, found.get(b"content-type", b"")),
        timeout_seconds=timeout_seconds,
        bad_timeout=timeout is not None and timeout_seconds is None,
        encoding=found.get(b"grpc-encoding", b"identity").decode("latin-1")[:40],
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
