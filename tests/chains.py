"""Block hashes for tests of the index, without bodies to hash."""

from array import array
from collections.abc import Iterable

from xxhash import xxh3_64_intdigest


def chain(path: Iterable[int]) -> "array[int]":
    """Truly chained hashes of a path of small symbols: equal heads of paths have equal heads of hashes."""
    link, hashes = 7, []
    for symbol in path:
        link = xxh3_64_intdigest(symbol.to_bytes(4, "little"), link)
        hashes.append(link)
    return array("Q", hashes)
