"""Which endpoints hold which prefix: a radix tree over chained block hashes, bounded.

A node is a run of consecutive blocks that the same endpoints hold; it splits where prompts part
or where holdings differ. Because hashes are chained, a node is found by its first hash alone and
two runs agree up to the first difference and nowhere after: one comparison of the last hash
settles a whole run, a binary search finds where it breaks. So matching and recording cost steps
of the tree, not blocks: a 400 KB prompt of a known session takes as long as a 4 KB one.

Endpoints are slots (small integers, see pool/datastore.py); a set of them is an int used as a
bitmask. Per slot, what is least recent goes first when it holds more than its capacity. Recency is
one integer a (node, slot): the tick of the last use, and below it the depth, reversed. An
ancestor is used whenever its descendant is, so the least key of a slot is always one of its
leaves: what goes is the deepest block of the coldest chain, never a root whose rest stays.
A heap finds that key; its entries are corrected when they reach the top, so a use costs one
store and no reordering.

Invariants (`check()`):
* a node's holders are among its parent's; a node without holders does not exist;
* a slot's recency has exactly the nodes whose holders include it, keys rising towards the root;
* `blocks_held[slot]` is the sum of the runs that slot holds, at most its capacity;
* every (node, slot) has a heap entry whose key is at most its own; a heap has at most twice as many
  entries as its slot has nodes, and 64;
* children counts and the hash -> node map agree with the tree;
* what is known of branching is known of live nodes.
"""

from array import array
from collections.abc import Iterable
from heapq import heapify, heappop, heappush, heapreplace
from math import exp
from typing import Final

from picker.prefix.matches import Match, Recorded, Shared
from picker.prefix.nodes import Entry, Node

SHARED_CONTINUATIONS: Final = 3
"""A block with this many different continuations ends a prefix that many prompts share."""

NODE_BYTES: Final = 235
"""Measured resident bytes of a node beside its hashes: object, array, map entry (docs/decisions/0002)."""
ENTRY_BYTES: Final = 120
"""Measured resident bytes of one (node, holder) entry: recency, key, heap."""

BRANCH_MEMORY_SECONDS: Final = 60.0
"""Time constant with which new continuations are forgotten."""
RESIDENCE_SECONDS_MAX: Final = 3600.0
"""What is not evicted is thought to stay this long."""
_RESIDENCE_STEP: Final = 0.02

_DEPTH_BITS: Final = 24  # 16 M blocks of 1 KiB: no prompt is that deep
_DEPTH_MASK: Final = (1 << _DEPTH_BITS) - 1


class PrefixIndex:
    """The map from block hashes to the endpoints that hold them. Not thread-safe: one loop owns it."""

    def __init__(self, *, bytes_max: int, capacity_blocks: int) -> None:
        """`capacity_blocks`: of a slot whose engine has not reported its size."""
        self.bytes_max = bytes_max
        self.default_capacity_blocks = capacity_blocks
        self.blocks_held: dict[int, int] = {}
        self.evicted_blocks_total = 0
        self._root = Node(None, array("Q"), 0, 0, 0)
        self._heads: dict[int, Node] = {}
        self._recency: dict[int, dict[Node, int]] = {}
        self._heaps: dict[int, list[Entry]] = {}
        self._capacity: dict[int, int] = {}
        self._bits: list[int] = []  # 1 << slot: one object for all nodes of a slot
        self._entries = 0
        self._blocks = 0
        self._tick = 0  # microseconds of the caller's clock, made unique
        self._branching: dict[Node, tuple[float, float]] = {}  # decayed count, as of when
        self._residence = RESIDENCE_SECONDS_MAX
        self._evicted_at = -RESIDENCE_SECONDS_MAX

    @property
    def blocks(self) -> int:
        """Distinct blocks in the tree."""
        return self._blocks

    @property
    def entries(self) -> int:
        """(node, holder) pairs."""
        return self._entries

    @property
    def bytes_estimate(self) -> int:
        """What the index takes, by measured sizes of its parts."""
        return len(self._heads) * NODE_BYTES + self._blocks * 8 + self._entries * ENTRY_BYTES

    def set_capacity(self, slot: int, blocks: int | None) -> None:
        """What `slot` can hold, in our blocks; `None`: unknown, the default."""
        if blocks is None:
            self._capacity.pop(slot, None)
        else:
            self._capacity[slot] = max(1, blocks)
        self._evict(slot)

    def residence_seconds(self, now: float) -> float:
        """How long what is not used again stays, lately: its age when capacity evicts it."""
        return min(max(self._residence, now - self._evicted_at), RESIDENCE_SECONDS_MAX)

    def match(self, hashes: "array[int]", now: float = 0.0) -> Match:
        """Walk the chain once for all endpoints. Matches are contiguous from the first block."""
        heads = self._heads
        total = len(hashes)
        depth = 0
        shared: list[Shared] = []
        remaining = 0
        steps: list[tuple[int, int]] = []
        while depth < total:
            node = heads.get(hashes[depth])
            if node is None:
                break
            holders = node.holders
            if holders != remaining:
                if depth:
                    steps.append((remaining ^ holders, depth))
                remaining = holders
            run = node.run
            size = len(run)
            if depth + size <= total and run[-1] == hashes[depth + size - 1]:
                depth += size
                if node.children >= SHARED_CONTINUATIONS:
                    shared.append(Shared(depth, self._branch_rate(node, now), holders.bit_count()))
                continue
            depth += _agreement(run, hashes, depth)
            break
        if remaining:
            steps.append((remaining, depth))
        return Match(tuple(steps), tuple(shared), total)

    def record(self, hashes: "array[int]", slot: int, now: float = 0.0) -> Recorded:
        """`slot` is about to hold the whole chain. Makes it the slot's most recent. `now`: seconds, any clock."""
        bits = self._bits
        while slot >= len(bits):
            bits.append(1 << len(bits))
        bit = bits[slot]
        tick, self._tick = int(now * 1e6), self._tick + 1
        self._tick = max(self._tick, tick)
        tick = self._tick
        recency = self._recency.get(slot)
        if recency is None:
            recency = self._recency[slot] = {}
            self._heaps[slot] = []
            self.blocks_held[slot] = 0
        total = len(hashes)
        node = self._root
        depth = held = 0
        path: list[Node] = []
        while depth < total:
            child = self._heads.get(hashes[depth])
            if child is None:
                if node.children and depth:
                    self._branched(path, now)
                node = self._grow(node, hashes[depth:], slot, bit)
                path.append(node)
                break
            common = _agreement(child.run, hashes, depth)
            if common < len(child.run) and not (depth + common == total and child.holders & bit):
                child = self._split(child, common)
            if child.holders & bit:
                held = depth + common
            else:
                child.holders |= bit
                self.blocks_held[slot] += len(child.run)
            node = child
            path.append(node)
            depth += common
        base = (tick << _DEPTH_BITS) | _DEPTH_MASK
        for node in path:
            key = base - node.end
            if node not in recency:
                heappush(self._heaps[slot], Entry(key, node))
                self._entries += 1
            recency[node] = key
        if self.blocks_held[slot] > self._capacity.get(slot, self.default_capacity_blocks):
            self._evict(slot)
        if self.bytes_estimate > self.bytes_max:
            self._shrink()
        return Recorded(slot, held, tick)

    def withdraw(self, hashes: "array[int]", recorded: Recorded) -> None:
        """Take back what `record` added and nobody has used since: the request never got there."""
        recency = self._recency.get(recorded.slot)
        if recency is None:
            return
        path: list[Node] = []
        depth = 0
        while depth < len(hashes):
            node = self._heads.get(hashes[depth])
            if node is None or node not in recency:
                break
            path.append(node)
            depth = node.end
        for node in reversed(path):
            added_nothing = min(node.end, len(hashes)) <= recorded.held_before
            if added_nothing or recency[node] >> _DEPTH_BITS != recorded.tick:
                return
            start = node.end - len(node.run)
            self._drop(node, recorded.slot, keep=max(0, recorded.held_before - start))

    def purge(self, slot: int) -> None:
        """The endpoint is gone, or its engine lost its cache: its entries go at once."""
        recency = self._recency.pop(slot, None)
        self._heaps.pop(slot, None)
        self._capacity.pop(slot, None)
        self.blocks_held.pop(slot, None)
        if recency is None:
            return
        self._entries -= len(recency)
        bit = 1 << slot
        for node in recency:
            node.holders ^= bit
            if not node.holders:
                self._remove(node)

    def check(self) -> None:
        """Assert the invariants of the module docstring. For tests."""
        children: dict[Node, int] = {}
        for head, node in self._heads.items():
            parent = node.parent
            assert parent is not None and node.run and node.run[0] == head
            assert node.holders, "a node without holders"
            assert parent is self._root or node.holders & ~parent.holders == 0, "holders outgrow the parent's"
            assert node.end == parent.end + len(node.run)
            children[parent] = children.get(parent, 0) + 1
        for node in (*self._heads.values(), self._root):
            assert node.children == children.get(node, 0), "children miscounted"
        assert self._blocks == sum(len(node.run) for node in self._heads.values())
        assert self._entries == sum(len(recency) for recency in self._recency.values())
        assert set(self._branching) <= set(self._heads.values())
        for slot, recency in self._recency.items():
            held = [node for node in self._heads.values() if node.holders >> slot & 1]
            assert set(held) == set(recency), "recency and holders disagree"
            assert self.blocks_held[slot] == sum(len(node.run) for node in held)
            assert self.blocks_held[slot] <= self._capacity.get(slot, self.default_capacity_blocks)
            queued: dict[Node, int] = {}
            for entry in self._heaps[slot]:
                queued[entry.node] = min(entry.key, queued.get(entry.node, entry.key))
            for node, key in recency.items():
                assert key & _DEPTH_MASK == _DEPTH_MASK - node.end, "a key of another depth"
                assert node.parent is not None and (node.parent is self._root or recency[node.parent] > key), (
                    "a parent colder than its child"
                )
                assert queued[node] <= key, "a node that eviction cannot find"
            assert len(self._heaps[slot]) <= 2 * len(recency) + 64, "a heap that outgrows its slot"

    def _branched(self, path: Iterable[Node], now: float) -> None:
        """A new continuation begins at the end of `path`."""
        for node in path:
            if node.children >= SHARED_CONTINUATIONS - 1:  # the new one is not counted yet
                self._branching[node] = (self._branch_rate(node, now) * BRANCH_MEMORY_SECONDS + 1.0, now)

    def _branch_rate(self, node: Node, now: float) -> float:
        count, since = self._branching.get(node, (0.0, now))
        return count * exp((since - now) / BRANCH_MEMORY_SECONDS) / BRANCH_MEMORY_SECONDS

    def _grow(self, parent: Node, rest: "array[int]", slot: int, bit: int) -> Node:
        """New blocks below `parent`: in place where its run is a leaf of this slot alone."""
        self._blocks += len(rest)
        self.blocks_held[slot] += len(rest)
        if parent.children == 0 and parent.holders == bit:
            parent.run.extend(rest)
            parent.end += len(rest)
            return parent
        node = Node(parent, rest, parent.end + len(rest), bit, 0)
        parent.children += 1
        self._heads[rest[0]] = node
        return node

    def _split(self, node: Node, keep: int) -> Node:
        """Cut `node` after `keep` blocks. The upper part is new and returned, the lower keeps identity."""
        parent = node.parent
        assert parent is not None
        upper = Node(parent, node.run[:keep], node.end - len(node.run) + keep, node.holders, 1)
        del node.run[:keep]
        node.parent = upper
        self._heads[upper.run[0]] = upper
        self._heads[node.run[0]] = node
        holders = node.holders
        while holders:
            low = holders & -holders
            holders ^= low
            slot = low.bit_length() - 1
            recency = self._recency[slot]
            recency[upper] = key = recency[node] + node.end - upper.end  # as recent, less deep
            heappush(self._heaps[slot], Entry(key, upper))
            self._entries += 1
        return upper

    def _drop(self, node: Node, slot: int, keep: int) -> None:
        """`slot` no longer holds `node` beyond its first `keep` blocks. `node` is a leaf of the slot."""
        bit = 1 << slot
        lost = len(node.run) - keep
        if keep and node.holders == bit:
            del node.run[keep:]
            node.end -= lost
            self._recency[slot][node] += lost
            self._blocks -= lost
        else:
            if keep:
                self._split(node, keep)
            node.holders ^= bit
            recency, heap = self._recency[slot], self._heaps[slot]
            del recency[node]
            self._entries -= 1
            if not node.holders:
                self._remove(node)
            if len(heap) > 2 * len(recency) + 64:  # mostly entries of nodes that were dropped
                heap[:] = [Entry(key, each) for each, key in recency.items()]
                heapify(heap)
        self.blocks_held[slot] -= lost

    def _remove(self, node: Node) -> None:
        parent = node.parent
        assert parent is not None
        parent.children -= 1
        self._blocks -= len(node.run)
        del self._heads[node.run[0]]
        del node.run[:]  # a heap may keep the node for a while
        self._branching.pop(node, None)

    def _evict(self, slot: int) -> None:
        """Bring `slot` down to its capacity, coldest leaves first."""
        held = self.blocks_held.get(slot, 0)
        capacity = self._capacity.get(slot, self.default_capacity_blocks)
        while held > capacity:
            node = self._coldest(slot)
            last_use = (self._recency[slot][node] >> _DEPTH_BITS) / 1e6
            self._evicted_at = self._tick / 1e6
            self._residence += _RESIDENCE_STEP * (self._evicted_at - last_use - self._residence)
            self._drop(node, slot, keep=max(0, len(node.run) - (held - capacity)))
            self.evicted_blocks_total += held - self.blocks_held[slot]
            held = self.blocks_held[slot]

    def _shrink(self) -> None:
        """Over the memory budget: the slots with the most entries give their coldest, 1/64 at a time."""
        while self.bytes_estimate > self.bytes_max:
            slot = max(self._recency, key=lambda each: len(self._recency[each]))
            for _ in range(max(1, len(self._recency[slot]) // 64)):
                node = self._coldest(slot)
                self.evicted_blocks_total += len(node.run)
                self._drop(node, slot, keep=0)

    def _coldest(self, slot: int) -> Node:
        """The least recent node of `slot`, one of its leaves."""
        recency = self._recency[slot]
        heap = self._heaps[slot]
        while True:
            entry = heap[0]
            current = recency.get(entry.node)
            if current == entry.key:
                return entry.node
            if current is None:
                heappop(heap)
            else:
                heapreplace(heap, Entry(current, entry.node))


def _agreement(run: "array[int]", hashes: "array[int]", start: int) -> int:
    """How many leading blocks `run` and `hashes[start:]` share, at least 1 (the first is known equal)."""
    low, high = 1, min(len(run), len(hashes) - start)
    if run[high - 1] == hashes[start + high - 1]:
        return high
    while low < high:  # run[low - 1] agrees, run[high - 1] does not: chained hashes never agree again
        middle = (low + high) // 2
        if run[middle] == hashes[start + middle]:
            low = middle + 1
        else:
            high = middle
    return low
