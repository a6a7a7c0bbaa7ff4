"""Prompt -> chained block hashes: what the index knows a prompt by.

A block is 1,024 bytes of the flattened prompt; only full blocks count. Block i's hash is
xxh3-64 of its bytes, seeded with the hash of block i - 1, so a hash stands for the whole prompt
up to and with its block: equal hash, equal prefix. The chain starts from the model (an adapter
is a model) and the request's `cache_salt`, each tagged and length-prefixed, so that an adapter
called like another tenant's salt, or `("ab", "c")` and `("a", "bc")`, never meet.

xxh3 is no cryptographic hash: a client who searches for collisions can misroute requests of its
own model and salt, nothing more; no content is ever served from the index.

The compiled build hashes a whole prompt in one call (`_blocks.c`), to the same values.
"""

from array import array
from collections.abc import Callable
from functools import lru_cache
from typing import Final

from xxhash import xxh3_64_intdigest

from picker.kernels import kernel

Text = bytes | memoryview

_links: Final[Callable[[int, list[Text]], bytes] | None] = getattr(kernel("picker.prefix._blocks"), "links", None)

BLOCK_BYTES: Final = 1024


REMEMBERED_CHARS_MAX: Final = 256
"""Of a model's name and a salt whose seed is remembered: longer ones are hashed each time, and kept nowhere."""


def chain_seed(model: str | None, cache_salt: str | None) -> int:
    """Where the chain starts. `None` and `""` differ."""
    long = (model is not None and len(model) > REMEMBERED_CHARS_MAX) or (
        cache_salt is not None and len(cache_salt) > REMEMBERED_CHARS_MAX
    )
    return _seed(model, cache_salt) if long else _remembered_seed(model, cache_salt)


@lru_cache(maxsize=1024)
def _remembered_seed(model: str | None, cache_salt: str | None) -> int:
    return _seed(model, cache_salt)


def _seed(model: str | None, cache_salt: str | None) -> int:
    parts = []
    for tag, value in ((b"m", model), (b"s", cache_salt)):
        if value is None:
            parts.append(tag + b"-")
        else:
            encoded = value.encode("utf-8", "surrogatepass")
            parts.append(b"%c%d:%b" % (tag, len(encoded), encoded))
    return xxh3_64_intdigest(b"".join(parts))


def block_hashes(seed: int, pieces: list[Text]) -> "array[int]":
    """One 64-bit hash for each full block of the prompt, which is the sum of its pieces.

    `array('Q')`, empty below 1,024 bytes.
    """
    if _links is not None:
        return array("Q", _links(seed, pieces))
    view = memoryview(pieces[0] if len(pieces) == 1 else b"".join(pieces))
    digest = xxh3_64_intdigest
    link = seed
    ends = range(BLOCK_BYTES, len(view) + 1, BLOCK_BYTES)
    return array("Q", [link := digest(view[end - BLOCK_BYTES : end], link) for end in ends])
