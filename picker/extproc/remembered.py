"""A small memory for values that come again and again. When it is full it is emptied, as that is rare and cheap."""

from typing import TypeVar

Key = TypeVar("Key")
Kept = TypeVar("Kept")


def remember(known: dict[Key, Kept], key: Key, kept: Kept, count_max: int) -> Kept:
    """Put `kept` into `known`, which holds `count_max` at most, and return it."""
    if len(known) >= count_max:
        known.clear()
    known[key] = kept
    return kept
