"""What the prefix index is made of.

Nodes and entries come by the million. They take part in no reference cycle that must be found (a
node's parent does not know it), so the collector does not track them: a pass over a million takes
half a second.

Structs have modules of their own, which stay interpreted in the compiled build: mypyc drops what a
struct's class line says (`gc`).
"""

from array import array

import msgspec


class Node(msgspec.Struct, gc=False, eq=False):
    """A run of blocks that the same endpoints hold."""

    parent: "Node | None"
    run: "array[int]"
    end: int
    """Blocks from the root to the end of this run."""
    holders: int
    children: int
    seen: int = 0
    """The last reading of the whole tree that came by."""

    def __lt__(self, other: "Node") -> bool:
        return False  # entries with equal keys need no order


class HeapEntry(msgspec.Struct, gc=False, order=True):
    """An entry of a slot's heap. It is smaller than a tuple."""

    key: int
    node: Node
