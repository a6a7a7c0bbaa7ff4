"""Messages that are made of crumbs: to take one of 16 MB apart would hold everybody up for a tenth of a second.

What is long in an honest message is one body. So where much else stands beside it nothing is taken apart.
"""

from collections.abc import Iterator
from typing import Final

from picker.extproc.headers import length

BESIDE_BYTES_MAX: Final = 512 * 1024
"""Of a message, all but its body: headers, metadata, a list of 20,000 endpoints. They cost up to 25 ns a byte."""
_FIELDS_MAX: Final = 64
"""Fields that are stepped over in search of a body."""
_BODIES: Final = (0x22, 0x2A)
"""ProcessingRequest's request_body and response_body (protos/picker/ext_proc.proto)."""
_BODY: Final = 0x0A
"""HttpBody's body."""
_LENGTH_DELIMITED: Final = 2


def too_much_beside_a_body(message: bytes) -> bool:
    """Whether more than `BESIDE_BYTES_MAX` of a message are no body."""
    return len(message) > BESIDE_BYTES_MAX and len(message) - _body_bytes(message) > BESIDE_BYTES_MAX


def _body_bytes(message: bytes) -> int:
    """How long the longest body is, whatever else the message has; 0: none is found in its first fields."""
    found = 0
    for tag, begin, end in _fields(message, 0, len(message)):
        if tag in _BODIES:
            for inner, first, last in _fields(message, begin, end):
                if inner == _BODY:
                    found = max(found, last - first)
    return found


def _fields(message: bytes, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Tag, begin and end of the first fields of wire type 2; those of type 0 are stepped over."""
    try:
        for _ in range(_FIELDS_MAX):
            if at >= end:
                return
            tag = message[at]
            size, begin = length(message, at + 1)
            at = begin + size if tag & 7 == _LENGTH_DELIMITED else begin
            if tag & 7 == _LENGTH_DELIMITED:
                yield tag, begin, min(at, end)
    except IndexError:
        return
