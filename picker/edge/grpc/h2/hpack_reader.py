"""HPACK decoding (RFC 7541), for the blocks that are not the same every time.

A proxy that traces sends a new `traceparent` with each call, so no block repeats and each has to
be decoded. hpack's decoder costs 70 us for such a block, more than the rest of the request; this one
a few. hpack is its witness in the tests, and gives it the tables of the specification.

Each field is checked once, when its literal comes: the table holds `Field`s, and an indexed field
is only looked up. Invariants: `_size` is the sum of the entries' sizes and never above `_size_max`;
after an exception the reader is of no more use, like the connection.
"""

from collections.abc import Callable
from typing import Final

from hpack.table import HeaderTable

from picker.edge.grpc.h2 import huffman
from picker.edge.grpc.h2.frames import HEADER_TABLE_DEFAULT_BYTES

Field = tuple[bytes, bytes, bool, int]
"""Name, value, whether both are well-formed, size (RFC 7541 section 4.1: name + value + 32)."""

_INTEGER_MAX: Final = 1 << 31
_STATIC_LENGTH: Final = len(HeaderTable.STATIC_TABLE)


class HpackError(ValueError):
    """The block cannot be decoded."""


class ListTooLong(HpackError):
    """The decoded list is above the limit."""


class HpackReader:
    """One connection's decoder. `changes` counts what has changed its table."""

    __slots__ = ("_entries", "_list_bytes_max", "_size", "_size_max", "_valid", "changes")

    def __init__(self, list_bytes_max: int, valid: Callable[[bytes, bytes], bool]) -> None:
        """`valid(name, value)` is asked once for each literal."""
        self._list_bytes_max = list_bytes_max
        self._valid = valid
        self._entries: list[Field] = []  # the newest first
        self._size = 0
        self._size_max = HEADER_TABLE_DEFAULT_BYTES
        self.changes = 0

    def decode(self, block: bytes) -> list[Field]:
        """The fields in order. Raises `HpackError`."""
        fields: list[Field] = []
        entries, room = self._entries, self._list_bytes_max
        position, end = 0, len(block)
        try:
            while position < end:
                first = block[position]
                if first & 0x80:  # indexed, section 6.1
                    index = first & 0x7F
                    position += 1
                    if index == 0x7F:
                        index, position = _integer(block, position, 0x7F)
                    if not index:
                        raise HpackError("index 0")
                    field = entries[index - _STATIC_LENGTH - 1] if index > _STATIC_LENGTH else _STATIC[index]
                elif first & 0xE0 == 0x20:  # table size update, section 6.3
                    if fields:
                        raise HpackError("table size update after a field")
                    position = self._resize(block, position)
                    continue
                else:  # literal, section 6.2
                    field, position = self._literal(block, position, first)
                    if first & 0x40:
                        self._insert(field)
                room -= field[3]
                if room < 0:
                    raise ListTooLong
                fields.append(field)
        except (IndexError, huffman.HuffmanError) as error:
            raise HpackError(str(error)) from None
        return fields

    def _literal(self, block: bytes, position: int, first: int) -> tuple[Field, int]:
        """Raises `IndexError` for a string that the block breaks off, or an index beyond the table."""
        mask = 0x3F if first & 0x40 else 0x0F
        index = first & mask
        position += 1
        if index == mask:
            index, position = _integer(block, position, mask)
        if index > _STATIC_LENGTH:
            name = self._entries[index - _STATIC_LENGTH - 1][0]
        elif index:
            name = _STATIC[index][0]
        else:
            name, position = _string(block, position)
        value, position = _string(block, position)
        return (name, value, self._valid(name, value), len(name) + len(value) + 32), position

    def _insert(self, field: Field) -> None:
        self.changes += 1
        self._size += field[3]
        self._entries.insert(0, field)
        if self._size > self._size_max:
            self._evict()

    def _evict(self) -> None:
        entries, size = self._entries, self._size
        while size > self._size_max:
            size -= entries.pop()[3]
        self._size = size

    def _resize(self, block: bytes, position: int) -> int:
        size, position = block[position] & 0x1F, position + 1
        if size == 0x1F:
            size, position = _integer(block, position, 0x1F)
        if size > HEADER_TABLE_DEFAULT_BYTES:
            raise HpackError("table larger than SETTINGS_HEADER_TABLE_SIZE")
        self.changes += 1
        self._size_max = size
        self._evict()
        return position


def _integer(block: bytes, position: int, prefix: int) -> tuple[int, int]:
    """The rest of an integer whose prefix is all ones (section 5.1)."""
    value, shift = prefix, 0
    while True:
        byte = block[position]
        position += 1
        value += (byte & 0x7F) << shift
        if value > _INTEGER_MAX or shift > 28:
            raise HpackError("integer too large")
        if byte < 0x80:
            return value, position
        shift += 7


def _string(block: bytes, position: int) -> tuple[bytes, int]:
    first = block[position]
    length = first & 0x7F
    position += 1
    if length == 0x7F:
        length, position = _integer(block, position, 0x7F)
    end = position + length
    if end > len(block):
        raise HpackError("string beyond the block")
    content = block[position:end]
    return (huffman.decode(content) if first & 0x80 else content), end


_STATIC: Final[list[Field]] = [
    (b"", b"", False, 0),
    *((name, value, True, len(name) + len(value) + 32) for name, value in HeaderTable.STATIC_TABLE),
]
"""Appendix A, from 1."""
