"""Where chains ended that other pickers know: a prompt is told as "after that block, these".

`ends` says where in our index a chain went that we told or heard: from its last node upwards lies
the whole of it, as long as somebody holds it. `usable` is what a next batch of ours may build on:
what we told or heard since another picker last asked for a snapshot, for who joined or lost something does
not have what came before. It is the smaller, so whoever keeps up has what is built on.
"""

from array import array
from collections import OrderedDict
from typing import Final

from picker.prefix.nodes import Node
from picker.prefix.walks import at_depth, chain, find

USABLE_MAX: Final = 32_768
ENDS_MAX: Final = 65_536


class Trails:
    """Both maps, bounded; the least recently used go."""

    def __init__(self, usable_max: int = USABLE_MAX, ends_max: int = ENDS_MAX) -> None:
        self._usable_max = usable_max
        self._ends_max = ends_max
        self._usable: OrderedDict[int, bool] = OrderedDict()
        self._ends: OrderedDict[int, tuple[Node, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._ends)

    def anchor(self, hashes: "array[int]", known: int) -> int:
        """How many leading blocks of `hashes` others have, by what they were told: 0 for none.

        `known`: how many we had before: what we had forgotten, they have, too.
        """
        usable, ends = self._usable, self._ends
        depth = known
        while depth:
            last = hashes[depth - 1]
            if last in usable:
                found = ends.get(last)
                if found is not None and found[1] == depth and find(found[0], depth, last) is not None:
                    return depth
                del usable[last]  # forgotten here, and so by the others
            depth -= 1
        return 0

    def find(self, last: int, depth: int) -> Node | None:
        """The node that has block number `depth`, `last`, of a chain that ended there; `None`: we do not have it."""
        found = self._ends.get(last)
        if found is None or found[1] != depth:
            return None
        node = found[0]
        run = node.run
        if node.end == depth and run and run[-1] == last:
            return node  # as it was left: nearly always
        return find(node, depth, last)

    def follow(self, last: int, depth: int) -> "array[int] | None":
        """The chain of `depth` blocks that ended with `last`; `None` where we do not have it."""
        node = self.find(last, depth)
        return None if node is None else chain(node, depth, last)

    def remember(self, hashes: "array[int]", node: Node, anchor: int, mark: int) -> None:
        """A chain was told or heard, on top of its first `anchor` blocks; at `mark` prompts are known to part."""
        depth = len(hashes)
        self.went_on(hashes[anchor - 1] if anchor else 0, anchor, hashes[depth - 1], depth, node)
        if 0 < mark < depth:
            self._end(hashes[mark - 1], at_depth(node, mark), mark, parts=True)

    def went_on(self, last: int, anchor: int, end: int, depth: int, node: Node) -> None:
        """The same by the hashes of its ends: from block number `anchor`, `last` (0: none), to `depth`, `end`."""
        usable = self._usable
        if 0 < anchor < depth:
            parts = usable.get(last)
            if parts is False:
                del usable[last]  # the session goes on from its new end
            else:
                if parts:
                    usable.move_to_end(last)
                if last in self._ends:
                    self._ends.move_to_end(last)
        self._end(end, node, depth, parts=False)

    def learn(self, last: int, node: Node, depth: int) -> None:
        """A snapshot had a chain that ends there. Others may build on it, if they did before we asked."""
        self._ends[last] = (node, depth)
        if len(self._ends) > self._ends_max:
            self._ends.popitem(last=False)

    def build_anew(self) -> None:
        """Somebody may not have what was told until now: build on nothing of it."""
        self._usable.clear()

    def _end(self, last: int, node: Node, depth: int, *, parts: bool) -> None:
        usable, ends = self._usable, self._ends
        if last in usable:
            usable.move_to_end(last)
            if parts:
                usable[last] = True
        else:
            usable[last] = parts
            if len(usable) > self._usable_max:
                usable.popitem(last=False)
        before = len(ends)
        ends[last] = (node, depth)
        if len(ends) == before:
            ends.move_to_end(last)
        elif before == self._ends_max:
            ends.popitem(last=False)
