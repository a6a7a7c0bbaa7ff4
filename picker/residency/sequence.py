"""A publisher numbers its batches from 0; this tells what a number means for what was heard before.

Numbers of one connection only rise. One that is lower than expected is another life of the publisher:
its engine started again, with an empty cache. One that is higher means that batches were lost, as ZMQ
drops them where a subscriber is slow or away.
"""

from enum import Enum
from typing import NamedTuple

NUMBER_BYTES = 8
END = (1 << 64) - 1
"""-1, unsigned: what ends a replay."""


class Means(Enum):
    """What a number says."""

    NEXT = "next"
    JOINED = "joined"
    """The first that is heard, and not the publisher's first: what was before is of before our time."""
    GAP = "gap"
    RESTARTED = "restarted"


class Seen(NamedTuple):
    """`missing`: numbers between what was heard and this one, `[first, last)`."""

    means: Means
    missing: tuple[int, int]


class SequenceNumbers:
    """Of one publisher."""

    __slots__ = ("_next",)

    def __init__(self) -> None:
        self._next: int | None = None

    @property
    def expected(self) -> int:
        """The number that comes next."""
        return self._next or 0

    def see(self, number: int) -> Seen:
        """A batch of this number came."""
        expected, self._next = self._next, number + 1
        if expected is None:
            return Seen(Means.NEXT, (0, 0)) if number == 0 else Seen(Means.JOINED, (0, number))
        if number == expected:
            return Seen(Means.NEXT, (0, 0))
        if number > expected:
            return Seen(Means.GAP, (expected, number))
        return Seen(Means.RESTARTED, (0, number))


def number_of(frame: bytes) -> int | None:
    """Eight bytes, big-endian; `None` where it is something else."""
    return int.from_bytes(frame, "big") if len(frame) == NUMBER_BYTES else None
