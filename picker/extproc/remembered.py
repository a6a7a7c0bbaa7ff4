"""What comes again and again, remembered by its key. It is few things, so one too many forgets them all."""

from typing import TypeVar

Key = TypeVar("Key")
Kept = TypeVar("Kept")


def remember(known: dict[Key, Kept], key: Key, kept: Kept, count_max: int) -> Kept:
    """Put `kept` into `known`, which holds `count_max` at most, and return it."""
    if len(known) >= count_max:
        known.clear()
    known[key] = kept
    return kept
