"""Block hashes as bytes: eight each, little-endian whatever the machine is."""

from array import array
from sys import byteorder
from typing import Final

_NONE: Final = array("Q")


def written(hashes: "array[int]") -> bytes:
    """For the wire."""
    if byteorder != "little":
        hashes = hashes[:]
        hashes.byteswap()
    return hashes.tobytes()


def read(raw: bytes) -> "array[int]":
    """From the wire."""
    hashes = _NONE[:]  # a third of what calling the type takes
    hashes.frombytes(raw)
    if byteorder != "little":
        hashes.byteswap()
    return hashes
