"""From a node of the tree upwards: a chain is known by where it once ended.

Nodes split, grow and go, so a chain's last node and depth, kept aside, may be out of date: each
function finds what became of it, and says where nothing is left.
"""

from array import array

from picker.prefix.nodes import Node


def find(node: Node, depth: int, last: int) -> Node | None:
    """The node whose run now has block number `depth` of a chain that went through `node`; `None`: forgotten.

    `last`: the hash of that block.
    """
    at: Node | None = node
    while at is not None and at.end - len(at.run) >= depth:
        at = at.parent  # `node` was split since, or is gone
    if at is None:
        return None
    place = depth - at.end + len(at.run) - 1
    return at if 0 <= place < len(at.run) and at.run[place] == last else None


def chain(node: Node, depth: int, last: int) -> "array[int] | None":
    """The first `depth` hashes of a chain that went through `node` and whose last is `last`; `None`: forgotten."""
    at = find(node, depth, last)
    if at is None:
        return None
    runs = [at.run[: depth - at.end + len(at.run)]]
    while at.parent is not None:
        at = at.parent
        runs.append(at.run)
    hashes = array("Q")
    for run in reversed(runs):
        hashes.extend(run)
    return hashes if len(hashes) == depth else None


def at_depth(node: Node, depth: int) -> Node:
    """The node above `node`, or itself, whose run has block number `depth`."""
    while node.parent is not None and node.end - len(node.run) >= depth:
        node = node.parent
    return node
