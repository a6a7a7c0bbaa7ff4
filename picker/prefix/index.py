"""Which endpoints hold which prefix: a radix tree over chained block hashes, bounded.

A node is a run of consecutive blocks that the same endpoints hold; it splits where prompts part
or where holdings differ. Because hashes are chained, a node is found by its first hash alone and
two runs agree up to the first difference and nowhere after: one comparison of the last hash
settles a whole run, a binary search finds where it breaks. So matching and recording cost steps
of the tree, not blocks: a 400 KB prompt of a known session takes as long as a 4 KB one.

Endpoints are slots (small integers, see pool/datastore.py); a set of them is an int used as a
bitmask. Per slot, what is least recent goes first when it holds more than its capacity. Recency is
one integer a (node, slot): the tick of the last use, below it the depth, reversed, and last a bit
that is set where another picker told of that use (`merge`). An
ancestor is used whenever its descendant is, so the least key of a slot is always one of its
leaves: what goes is the deepest block of the coldest chain, never a root whose rest stays.
A heap finds that key; its entries are corrected when they reach the top, so a use costs one
store and no reordering.

Invariants (`check()`):
* a node's holders are among its parent's; a node without holders does not exist;
* a slot's recency has exactly the nodes whose holders include it, keys rising towards the root;
* `blocks_held[slot]` is the sum of the runs that slot holds, at most its capacity but for requests that
  are not answered yet;
* every (node, slot) has a heap entry whose key is at most its own; a heap has at most twice as many
  entries as its slot has nodes, and 64;
* children counts and the hash -> node map agree with the tree;
* what is known of branching is known of live nodes;
* what is remembered of evictions is at most `evictions_max` blocks.

What other pickers tell may come late, twice and in any order: `merge` keeps of two uses the later,
and with `exact` no use refreshes a block that it did not reach, so that the same set of uses gives the
same holdings in whatever order it came (as long as nothing is evicted).
"""

from array import array
from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush, heapreplace
from math import exp
from typing import Final

import numpy as np
import numpy.typing as npt

from picker.prefix.matches import Match, Recorded, SharedStretch
from picker.prefix.nodes import HeapEntry, Node

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
FILLING_SHARE: Final = 0.25
"""Of a slot's share of the index: below, nothing will have to go soon."""
ROOM_SHARE: Final = 0.9
"""A slot whose capacity grew has room again from this share of it down."""

NEWS_MAX: Final = 20_000
"""Chains that wait to be told."""

EVICTIONS_MAX: Final = 65_536
"""Evicted runs that are remembered, by their first block: some 8 MB."""
EVICTION_BYTES: Final = 120
"""Of each, about: the hash, the slots, the map's entry."""

_DEPTH_BITS: Final = 24  # 16 M blocks of 1 KiB: no prompt is that deep
_DEPTH_MASK: Final = (1 << _DEPTH_BITS) - 1
_TICK_SHIFT: Final = _DEPTH_BITS + 1  # below the depth: 1 where another picker told of the use


class PrefixIndex:
    """The map from block hashes to the endpoints that hold them. Not thread-safe: one loop owns it."""

    def __init__(self, *, bytes_max: int, capacity_blocks: int) -> None:
        """`capacity_blocks`: of a slot whose engine has not reported its size."""
        self.bytes_max = bytes_max
        self.default_capacity_blocks = capacity_blocks
        self.blocks_held: dict[int, int] = {}
        self.evicted_blocks_total = 0
        self.news: list[tuple[array[int], Recorded]] | None = None
        """What `record` added since somebody last took the list, for other pickers; `None`: there are none."""
        self.withdrawn: list[tuple[array[int], Recorded]] | None = None
        """Likewise of `withdraw`."""
        self.news_missed = False
        self.exact = False
        """A chain that stops inside a run refreshes no more than itself: it costs a node, and others agree."""
        self.full_bits = 0
        """Slots that had to evict for want of room, and got no more since."""
        self.filling_bits = 0
        """Slots of which a good part is in use."""
        self._fill = np.zeros(8)
        """How full each slot's share is: 0..1, float64. Read more rarely than it changes."""
        self._unfilled: set[int] = set()
        """Slots of which it does not show that yet."""
        self._root = Node(None, array("Q"), 0, 0, 0)
        self._heads: dict[int, Node] = {}
        self._recency: dict[int, dict[Node, int]] = {}
        self._heaps: dict[int, list[HeapEntry]] = {}
        self._capacity: dict[int, int] = {}
        self._bits: list[int] = []  # 1 << slot: one object for all nodes of a slot
        self._entries = 0
        self._blocks = 0
        self._readings = 0
        self._tick = 0  # microseconds of the caller's clock, made unique
        self._branching: dict[Node, tuple[float, float]] = {}  # decayed count, as of when
        self._residence = RESIDENCE_SECONDS_MAX
        self._evicted_at = -RESIDENCE_SECONDS_MAX
        self._unsettled: set[int] = set()
        """Slots that hold more than their capacity for requests that are not answered yet: nobody makes room."""
        self.evictions_max = max(1, min(EVICTIONS_MAX, bytes_max // 16 // EVICTION_BYTES))
        self._evictions: dict[int, int] = {}
        """Slots whose capacity evicted a run, by the run's first block; the oldest go first."""

    @property
    def blocks(self) -> int:
        """Distinct blocks in the tree."""
        return self._blocks

    @property
    def entries(self) -> int:
        """(node, holder) pairs."""
        return self._entries

    def entries_of(self, slot: int) -> int:
        """Of these, one slot's: what to purge it takes."""
        recency = self._recency.get(slot)
        return 0 if recency is None else len(recency)

    @property
    def bytes_estimate(self) -> int:
        """What the index takes, by measured sizes of its parts."""
        nodes = len(self._heads) * NODE_BYTES + self._blocks * 8 + self._entries * ENTRY_BYTES
        return nodes + len(self._evictions) * EVICTION_BYTES

    def set_capacity(self, slot: int, blocks: int | None) -> None:
        """What `slot` can hold, in our blocks; `None`: unknown, the default."""
        if blocks is None:
            self._capacity.pop(slot, None)
        else:
            self._capacity[slot] = max(1, blocks)
        self._resized(slot)

    def set_default_capacity(self, blocks: int) -> None:
        """What the slots can hold whose size is unknown."""
        if blocks != self.default_capacity_blocks:
            self.default_capacity_blocks = blocks
            for slot in [slot for slot in self.blocks_held if slot not in self._capacity]:
                self._resized(slot)

    def _resized(self, slot: int) -> None:
        self._evict(slot)
        self._filled(slot)
        if self._share(slot) < ROOM_SHARE:
            self.full_bits &= ~(1 << slot)

    def evicted_from(self, block: int) -> int:
        """The slots that held this block, as a bitmask, and lost it to their capacity, as far as is remembered.

        They may hold it again: ask only of a block beyond their match.
        """
        return self._evictions.get(block, 0)

    def residence_seconds(self, now: float) -> float:
        """How long what is not used again stays, lately: its age when capacity evicts it."""
        return min(max(self._residence, now - self._evicted_at), RESIDENCE_SECONDS_MAX)

    def match(self, hashes: "array[int]", now: float = 0.0) -> Match:
        """Walk the chain once for all endpoints. Matches are contiguous from the first block."""
        heads = self._heads
        total = len(hashes)
        depth = 0
        shared: list[SharedStretch] = []
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
                    shared.append(SharedStretch(depth, self._branch_rate(node, now), holders.bit_count()))
                continue
            depth += _agreement(run, hashes, depth)
            break
        if remaining:
            steps.append((remaining, depth))
        return Match(tuple(steps), tuple(shared), total)

    def record(self, hashes: "array[int]", slot: int, now: float = 0.0, *, settled: bool = True) -> Recorded:
        """`slot` is about to hold the whole chain. Makes it the slot's most recent. `now`: seconds, any clock."""
        tick = int(now * 1e6)
        self._tick += 1
        self._tick = max(self._tick, tick)
        recorded = self._put(hashes, slot, self._tick, 0, settled=settled)
        news = self.news
        if news is not None:
            if len(news) < NEWS_MAX:
                news.append((hashes, recorded))
            else:
                self.news_missed = True
        return recorded

    def merge(self, hashes: "array[int]", slot: int, tick: int) -> Recorded:
        """Another picker recorded this chain at `tick` (microseconds of the caller's clock, not in its future)."""
        self._tick = max(self._tick, tick)
        return self._put(hashes, slot, tick, 1, settled=True)

    def merge_below(self, node: Node, rest: "array[int]", slot: int, tick: int) -> Node | None:
        """The same for a chain that is in the tree as far as the end of `node`, and goes on with `rest`, if at all.

        Returns the chain's last node. `None`: nothing is done, and the whole chain has to be given to `merge`.
        Neither the blocks above nor their hashes are looked at, and of the nodes above those alone that this use
        refreshes. `rest` is the index's from now on.
        """
        recency = self._recency.get(slot)
        capacity = self._capacity.get(slot, self.default_capacity_blocks)
        if recency is None or not node.run or node.end + len(rest) > capacity:
            return None
        bit = self._bits[slot]
        last = node
        if rest:
            child = self._heads.get(rest[0])
            if child is None:
                if node.children:
                    self._branched(_upwards(node), tick / 1e6)
                last = self._grow(node, rest, slot, bit, apart=recency.get(node, 0) >> _TICK_SHIFT >= tick)
            elif len(child.run) == len(rest) and child.run[-1] == rest[-1]:
                last = child  # somebody else has these very blocks
            else:
                return None
        self._tick = max(self._tick, tick)
        base = (tick << _TICK_SHIFT) | (_DEPTH_MASK << 1) | 1
        each, parent = last, last.parent
        while parent is not None:
            key = base - (each.end << 1)
            known = recency.get(each)
            if known is None:
                if not each.holders & bit:
                    each.holders |= bit
                    self.blocks_held[slot] += len(each.run)
                heappush(self._heaps[slot], HeapEntry(key, each))
                self._entries += 1
                recency[each] = key
            elif key >> 1 > known >> 1:
                recency[each] = key
            else:
                break  # keys rise towards the root: what lies above was used as lately
            each, parent = parent, parent.parent
        if self.blocks_held[slot] > capacity:
            self._evict(slot)
        if self.bytes_estimate > self.bytes_max:
            self._shrink()
        self._filled(slot)
        return last

    def _put(self, hashes: "array[int]", slot: int, tick: int, told: int, *, settled: bool) -> Recorded:
        bits = self._bits
        while slot >= len(bits):
            bits.append(1 << len(bits))
        bit = bits[slot]
        recency = self._recency.get(slot)
        if recency is None:
            recency = self._recency[slot] = {}
            self._heaps[slot] = []
            self.blocks_held[slot] = 0
        capacity = self._capacity.get(slot, self.default_capacity_blocks)
        if len(hashes) > capacity:
            hashes = hashes[:capacity]  # nothing can hold more
        total = len(hashes)
        base = (tick << _TICK_SHIFT) | (_DEPTH_MASK << 1) | told
        node = self._root
        depth = held = 0
        known_before = total
        last_held: Node | None = None
        path: list[Node] = []
        while depth < total:
            child = self._heads.get(hashes[depth])
            if child is None:
                known_before = depth
                if node.children and depth:
                    self._branched(path, tick / 1e6)
                older = told == 1 and recency.get(node, 0) >> _TICK_SHIFT >= tick
                node = self._grow(node, hashes[depth:], slot, bit, apart=older)
                path.append(node)
                break
            common = _agreement(child.run, hashes, depth)
            if common < len(child.run) and (self.exact or not (depth + common == total and child.holders & bit)):
                child = self._split(child, common)
            if child.holders & bit:
                held = depth + common
                last_held = child
            else:
                child.holders |= bit
                self.blocks_held[slot] += len(child.run)
            node = child
            path.append(node)
            depth += common
        last_used = 0.0 if last_held is None else (recency[last_held] >> _TICK_SHIFT) / 1e6
        held_as_told = False
        for node in path:
            key = base - (node.end << 1)
            known = recency.get(node)
            if known is None:
                heappush(self._heaps[slot], HeapEntry(key, node))
                self._entries += 1
                recency[node] = key
            else:
                held_as_told = known & 1 == 1
                if key >> 1 > known >> 1:
                    recency[node] = key
        recorded = Recorded(slot, held, tick, last_used, node if total else None, known_before, held_as_told)
        if self.blocks_held[slot] > capacity:
            if settled:
                self._evict(slot)
            else:
                self._unsettled.add(slot)
        if self.bytes_estimate > self.bytes_max:
            self._shrink()
        self._filled(slot)
        return recorded

    def settle(self, slot: int) -> None:
        """A request is answered, or over: what was recorded for it takes the place of what is older."""
        if slot in self._unsettled:
            self._unsettled.discard(slot)
            self._evict(slot)
            self._filled(slot)

    def withdraw(self, hashes: "array[int]", recorded: Recorded) -> None:
        """Take back what `record` added and was not used since: the request never got there."""
        if self.withdrawn is not None and len(self.withdrawn) < NEWS_MAX:
            self.withdrawn.append((hashes, recorded))
        self.take_back(hashes, recorded)

    def take_back(self, hashes: "array[int]", recorded: Recorded) -> None:
        """The same, by another picker's word: it is no news."""
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
            if added_nothing or recency[node] >> _TICK_SHIFT != recorded.tick:
                return
            start = node.end - len(node.run)
            self._drop(node, recorded.slot, keep=max(0, recorded.held_before - start))

    def confirm(self, hashes: "array[int]", depth: int, slot: int) -> None:
        """The engine itself says that `slot` holds the first `depth` blocks. Believed already: nothing changes."""
        recency = self._recency.get(slot)
        if recency is not None:
            at = 0
            while at < depth:
                node = self._heads.get(hashes[at])
                if node is None or node not in recency:
                    break
                at += _agreement(node.run, hashes, at)
            if at >= depth:
                return
        self.record(hashes[:depth], slot, self._tick / 1e6)

    def shorten(self, hashes: "array[int]", keep: int, slot: int) -> None:
        """The engine let go of block `keep` of this chain: `slot` holds it and what lies beneath no longer."""
        recency = self._recency.get(slot)
        if recency is None or keep >= len(hashes):
            return
        depth = 0
        while True:
            node = self._heads.get(hashes[depth])
            if node is None or node not in recency:
                return
            common = _agreement(node.run, hashes, depth)
            if depth + common > keep:
                break
            if common < len(node.run):
                return  # they part before it
            depth += common
            if depth >= len(hashes):
                return
        if node.children:
            beneath = [each for each in recency if self._lies_beneath(each, node)]
            beneath.sort(key=lambda each: each.end, reverse=True)
            for each in beneath:
                self._drop(each, slot, keep=0)
        self._drop(node, slot, keep=keep - depth)

    def _lies_beneath(self, node: Node, above: Node) -> bool:
        parent = node.parent
        while parent is not None and parent.end >= above.end:
            if parent is above:
                return True
            parent = parent.parent
        return False

    def clear(self, slot: int) -> None:
        """The slot's engine holds nothing any more; it is as large as before."""
        capacity = self._capacity.get(slot)
        self.purge(slot)
        if capacity is not None:
            self._capacity[slot] = capacity

    def purge(self, slot: int) -> None:
        """The endpoint is gone, or its engine lost its cache: its entries go at once."""
        recency = self._recency.pop(slot, None)
        self._heaps.pop(slot, None)
        self._capacity.pop(slot, None)
        self.blocks_held.pop(slot, None)
        if self.news:  # of an endpoint that is gone, or lost it already
            self.news = [each for each in self.news if each[1].slot != slot]
        self._unsettled.discard(slot)
        self.full_bits &= ~(1 << slot)
        self._filled(slot)
        if recency is None:
            return
        self._entries -= len(recency)
        bit = 1 << slot
        for node in recency:
            node.holders ^= bit
            if not node.holders:
                self._remove(node)

    def forget_before(self, slot: int, tick: int) -> None:
        """What `slot` held and nobody used from `tick` on goes: its engine lost its cache then."""
        recency = self._recency.get(slot)
        while recency:
            node = self._coldest(slot)
            if recency[node] >> _TICK_SHIFT >= tick:
                return
            self._drop(node, slot, keep=0)

    def told(self, hashes: "array[int]", slot: int) -> bool:
        """Whether the last use of what `slot` holds of this chain is known from another picker."""
        recency = self._recency.get(slot)
        if recency is None:
            return False
        depth, key = 0, 0
        while depth < len(hashes):
            node = self._heads.get(hashes[depth])
            if node is None or node not in recency:
                break
            key, depth = recency[node], node.end
        return key & 1 == 1

    def holdings(
        self, since: int = 0, step: int = 256
    ) -> "Iterator[tuple[int, int, array[int], list[tuple[int, int]]] | None]":
        """Every run that was used from tick `since` on, parents first: the block before it (hash and depth, 0 and 0
        for none), its hashes, its holders as (slot, tick). `None` after each `step` nodes that were looked at: the
        index may change between any two. Nothing made for it is as large as the tree: one slot is listed at a time.
        """
        self._readings += 1
        reading, looked = self._readings, 0
        for each in list(self._recency):
            for leaf in list(self._recency.get(each, ())):
                looked += 1
                path: list[Node] = []
                node: Node | None = leaf
                while node is not None and node.seen != reading and node.run:
                    path.append(node)
                    node = node.parent
                for node in reversed(path):
                    looked += 1
                    node.seen = reading
                    found = self._uses(node, since)
                    if found is not None:
                        yield found
                    if looked >= step:
                        looked = 0
                        yield None
                if looked >= step:
                    looked = 0
                    yield None

    def _uses(self, node: Node, since: int) -> "tuple[int, int, array[int], list[tuple[int, int]]] | None":
        parent = node.parent
        if parent is None or not node.run:
            return None
        uses = []
        bits = node.holders
        while bits:
            low = bits & -bits
            bits ^= low
            slot = low.bit_length() - 1
            tick = self._recency[slot][node] >> _TICK_SHIFT
            if tick >= since:
                uses.append((slot, tick))
        return (parent.run[-1] if parent.run else 0, parent.end, node.run[:], uses) if uses else None

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
        assert len(self._evictions) <= self.evictions_max and all(self._evictions.values())
        for slot, recency in self._recency.items():
            held = [node for node in self._heads.values() if node.holders >> slot & 1]
            assert set(held) == set(recency), "recency and holders disagree"
            assert self.blocks_held[slot] == sum(len(node.run) for node in held)
            within = self.blocks_held[slot] <= self._capacity.get(slot, self.default_capacity_blocks)
            assert within or slot in self._unsettled
            queued: dict[Node, int] = {}
            for entry in self._heaps[slot]:
                queued[entry.node] = min(entry.key, queued.get(entry.node, entry.key))
            for node, key in recency.items():
                assert key >> 1 & _DEPTH_MASK == _DEPTH_MASK - node.end, "a key of another depth"
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

    def _grow(self, parent: Node, rest: "array[int]", slot: int, bit: int, *, apart: bool) -> Node:
        """New blocks below `parent`: in place where its run is a leaf of this slot alone, and not `apart`."""
        self._blocks += len(rest)
        self.blocks_held[slot] += len(rest)
        if parent.children == 0 and parent.holders == bit and not apart:
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
            recency[upper] = key = recency[node] + ((node.end - upper.end) << 1)  # as recent, less deep
            heappush(self._heaps[slot], HeapEntry(key, upper))
            self._entries += 1
        return upper

    def _drop(self, node: Node, slot: int, keep: int) -> None:
        """`slot` no longer holds `node` beyond its first `keep` blocks. `node` is a leaf of the slot."""
        bit = 1 << slot
        lost = len(node.run) - keep
        if keep and node.holders == bit:
            del node.run[keep:]
            node.end -= lost
            self._recency[slot][node] += lost << 1
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
                heap[:] = [HeapEntry(key, each) for each, key in recency.items()]
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

    def fill_of(self, width: int) -> "npt.NDArray[np.float64]":
        """How full the first `width` slots are: a copy of this moment."""
        slots = max([width - 1, *self._unfilled]) + 1
        if slots > len(self._fill):
            self._fill = np.append(self._fill, np.zeros(max(slots, 2 * len(self._fill)) - len(self._fill)))
        for slot in self._unfilled:
            self._fill[slot] = self._share(slot)
        self._unfilled.clear()
        return self._fill[:width].copy()

    def _share(self, slot: int) -> float:
        capacity = self._capacity.get(slot, self.default_capacity_blocks)
        return min(1.0, self.blocks_held.get(slot, 0) / capacity)

    def _filled(self, slot: int) -> None:
        """What `slot` holds changed, or what it can hold."""
        self._unfilled.add(slot)
        if self._share(slot) >= FILLING_SHARE:
            self.filling_bits |= 1 << slot
        else:
            self.filling_bits &= ~(1 << slot)

    def _evict(self, slot: int) -> None:
        """Bring `slot` down to its capacity, coldest leaves first."""
        held = self.blocks_held.get(slot, 0)
        capacity = self._capacity.get(slot, self.default_capacity_blocks)
        while held > capacity:
            self.full_bits |= 1 << slot
            node = self._coldest(slot)
            last_use = (self._recency[slot][node] >> _TICK_SHIFT) / 1e6
            self._evicted_at = self._tick / 1e6
            self._residence += _RESIDENCE_STEP * (self._evicted_at - last_use - self._residence)
            keep = max(0, len(node.run) - (held - capacity))
            self._remember_eviction(node.run[keep], slot)
            self._drop(node, slot, keep=keep)
            self.evicted_blocks_total += held - self.blocks_held[slot]
            held = self.blocks_held[slot]

    def _remember_eviction(self, block: int, slot: int) -> None:
        evictions = self._evictions
        evictions[block] = evictions.pop(block, 0) | 1 << slot
        if len(evictions) > self.evictions_max:
            del evictions[next(iter(evictions))]

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
                heapreplace(heap, HeapEntry(current, entry.node))


def _upwards(node: Node) -> Iterator[Node]:
    """`node` and what lies above it, without the root."""
    at: Node | None = node
    while at is not None and at.run:
        yield at
        at = at.parent


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
