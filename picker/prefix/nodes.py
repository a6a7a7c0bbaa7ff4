"""What the prefix index is made of, and what it answers with.

Nodes and entries come by the million. They take part in no reference cycle that must be found (a
node's parent does not know it), so the collector does not track them: a pass over a million takes
half a second.

Structs have modules of their own, which stay interpreted in the compiled build: mypyc drops what a
struct's class line says (`frozen`, `gc`).
"""

from array import array
from typing import NamedTuple

import msgspec


class Node(msgspec.Struct, gc=False, eq=False):
    """A run of blocks that the same endpoints hold."""

    parent: "Node | None"
    run: "array[int]"
    end: int
    """Blocks from the root to the end of this run."""
    holders: int
    children: int

    def __lt__(self, other: "Node") -> bool:
        return False  # entries with equal keys need no order


class Entry(msgspec.Struct, gc=False, order=True):
    """In a slot's heap: smaller than a tuple."""

    key: int
    node: Node


class Match(msgspec.Struct, frozen=True):
    """How much of a prompt is held where.

    `steps`: `(slots as bitmask, matched blocks)`, every holder in exactly one step, in rising
    order of blocks. `shared`: where other prompts part from this one, in rising order.
    `blocks`: full blocks of the prompt.
    """

    steps: tuple[tuple[int, int], ...]
    shared: tuple["Shared", ...]
    blocks: int


class Shared(NamedTuple):
    """A place where prompts part: everything above it is a prefix that many share."""

    blocks: int
    """How deep it lies."""
    branches_per_second: float
    """How often a new continuation began here or below, lately."""
    holders: int
    """Endpoints that hold everything above it."""


class Recorded(msgspec.Struct, frozen=True):
    """What one `record` added, so that it can be withdrawn."""

    slot: int
    held_before: int
    tick: int


NO_MATCH = Match((), (), 0)
