"""Response header blocks, encoded ahead of time (RFC 7541 literals that never touch a table).

Without dynamic table entries a block is the same bytes on every connection. The one thing HPACK
then still asks of us is to say so to a peer that shrinks its table: `TABLE_EMPTIED` goes before
the next block.
"""

from typing import Final
from urllib.parse import quote

from picker.edge.grpc.transport import GrpcStatus

TABLE_EMPTIED: Final = b"\x20"
"""Dynamic table size update to 0 (RFC 7541 section 6.3)."""

_TEXT_CHARS_MAX: Final = 500
_HTTP_TEXTS: Final = {
    405: b"gRPC calls are POST requests\n",
    415: b"this port speaks gRPC: content-type application/grpc\n",
}
HTTP1_ANSWER: Final = (
    b"HTTP/1.1 505 HTTP Version Not Supported\r\nConnection: close\r\nContent-Type: text/plain\r\n"
    b"Content-Length: 51\r\n\r\nthis port speaks gRPC: HTTP/2 with prior knowledge\n"
)
"""For a client that speaks HTTP/1 to this port."""

_STATUS_200: Final = b"\x88"  # static table index 8
_PLAIN: Final = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")


def literal(name: bytes, value: bytes) -> bytes:
    """A literal field without indexing, new name, no Huffman (RFC 7541 section 6.2.2)."""
    return b"\x00" + _string(name) + _string(value)


def trailers(status: GrpcStatus, text: str = "") -> bytes:
    """grpc-status, and grpc-message percent-encoded where there is a text."""
    if not text:
        return _TRAILERS[status]
    message = quote(text[:_TEXT_CHARS_MAX], safe=_PLAIN).encode()
    return _TRAILERS[status] + literal(b"grpc-message", message)


def trailers_only(status: GrpcStatus, text: str = "") -> bytes:
    """A response that is nothing but an error: headers and trailers in one block."""
    return RESPONSE_HEADERS + trailers(status, text)


def http_error(status: int) -> tuple[bytes, bytes]:
    """A plain HTTP answer for what is not a gRPC call, as header block and body: a person may read it."""
    text = _HTTP_TEXTS[status]
    # :status by name (static table index 8): neither value is in the static table.
    block = b"\x08" + _string(str(status).encode()) + literal(b"content-type", b"text/plain")
    block += literal(b"content-length", str(len(text)).encode())
    return (block + literal(b"allow", b"POST") if status == 405 else block), text


def _string(value: bytes) -> bytes:
    length = len(value)
    if length < 127:
        return bytes((length,)) + value
    prefix, length = bytearray((127,)), length - 127
    while length >= 128:
        prefix.append(length & 127 | 128)
        length >>= 7
    prefix.append(length)
    return bytes(prefix) + value


_TRAILERS = {status: literal(b"grpc-status", str(int(status)).encode()) for status in GrpcStatus}

RESPONSE_HEADERS: Final = (
    _STATUS_200
    + literal(b"content-type", b"application/grpc")
    # gRPC asks for it where a compressed message is refused, and allows it everywhere.
    + literal(b"grpc-accept-encoding", b"identity")
)
