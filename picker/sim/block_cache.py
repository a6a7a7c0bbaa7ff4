"""A model server's KV blocks: reference counts, prefix cache, least recently used out first.

Models vLLM's block pool. Blocks of a prompt are known by chained ids: an id stands for
the whole prompt up to and with its block, so equal id means equal prefix. The cache keeps them
as a tree of runs: a run is a stretch of blocks that the same requests hold, found by its first id.
Chained ids agree up to the first difference and nowhere after, so one comparison settles a
whole run and a binary search finds where two part: work is by steps of the tree, not by
blocks, and yet what is cached, hit and evicted is the same to the block.

A block is one of: blank (nothing worth keeping in it), private to a running request (not yet
full), or in a run: held by the requests below it, or idle. Idle runs stand in
the order of their release, deeper ones of one release first, and are eaten from their tails, as
vLLM returns a request's blocks in reverse.

Invariants (`check()`): blank + private + in runs = total; an idle run has no held child, and stands
in the queue after all its children, so what is evicted is always a leaf.
"""

from array import array
from collections import OrderedDict
from collections.abc import Callable


class BlockRun:
    """Consecutive blocks with the same holders. `holders` counts requests at or below it."""

    __slots__ = ("blocks", "children", "holders", "parent")

    def __init__(self, blocks: "array[int]", parent: "BlockRun | None", holders: int) -> None:
        self.blocks = blocks
        self.parent = parent
        self.holders = holders
        self.children = 0


class CacheMatch:
    """What of a prompt is cached: `blocks` in all, `idle_blocks` of them held by nobody.

    Valid until the cache changes. `run` is the deepest run, of which the first `inside` blocks match.
    """

    __slots__ = ("blocks", "idle_blocks", "inside", "run")

    def __init__(self, run: BlockRun | None, inside: int, blocks: int, idle_blocks: int) -> None:
        self.run = run
        self.inside = inside
        self.blocks = blocks
        self.idle_blocks = idle_blocks


class BlockCache:
    """The blocks of one model server. `total` is fixed."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.on_removed: Callable[[array[int]], None] | None = None
        """Is told what is evicted, a run's end at a time, in the run's order."""
        self._blank = total
        self._idle_blocks = 0
        self._idle: OrderedDict[BlockRun, None] = OrderedDict()
        self._run_by_first: dict[int, BlockRun] = {}

    @property
    def free(self) -> int:
        """Blocks that an allocation may take: blank and idle ones."""
        return self._blank + self._idle_blocks

    @property
    def utilization(self) -> float:
        """Share of blocks in use by requests, 0..1: vLLM's `kv_cache_usage_perc`."""
        return 1.0 - (self._blank + self._idle_blocks) / self.total

    @property
    def cached(self) -> int:
        """Blocks that a prompt could hit."""
        return sum(len(run.blocks) for run in self._run_by_first.values())

    def match(self, ids: "array[int]", limit: int) -> CacheMatch:
        """How much of the first `limit` ids is cached. Touches nothing."""
        find = self._run_by_first.get
        matched = idle = inside = 0
        deepest: BlockRun | None = None
        while matched < limit:
            run = find(ids[matched])
            if run is None:
                break
            inside = _common(run.blocks, ids, matched, limit)
            deepest = run
            matched += inside
            if not run.holders:
                idle += inside
            if inside < len(run.blocks):
                break
        return CacheMatch(deepest, inside, matched, idle)

    def hold(self, match: CacheMatch) -> BlockRun | None:
        """Keep the matched blocks for one more request; returns the run at whose end they end."""
        end = match.run
        if end is None:
            return None
        if match.inside < len(end.blocks):
            end = self._split(end, match.inside)
        node: BlockRun | None = end
        while node is not None:
            if not node.holders:
                del self._idle[node]
                self._idle_blocks -= len(node.blocks)
            node.holders += 1
            node = node.parent
        return end

    def keep(self, ids: "array[int]", blocks: int) -> BlockRun | None:
        """Hold the first `blocks` ids, cached or not; returns the run at whose end they end."""
        match = self.match(ids, blocks)
        end = self.hold(match)
        if blocks > match.blocks:
            self.take(blocks - match.blocks)
            end = self.commit(end, ids, match.blocks, blocks)
        return end

    def _split(self, run: BlockRun, size: int) -> BlockRun:
        """Cut the first `size` blocks off into a parent of their own. The rest keeps its place in the queue."""
        upper = BlockRun(run.blocks[:size], run.parent, run.holders)
        upper.children = 1
        del run.blocks[:size]
        run.parent = upper
        self._run_by_first[upper.blocks[0]] = upper
        self._run_by_first[run.blocks[0]] = run
        if not upper.holders:
            self._idle[upper] = None  # behind its child, and held before anything else moves
        return upper

    def take(self, count: int) -> None:
        """Make `count` free blocks private to a request, evicting where no blank ones are left."""
        lacking = count - self._blank
        if lacking > 0:
            self._evict(lacking)
        self._blank -= count

    def _evict(self, count: int) -> None:
        assert count <= self._idle_blocks, "allocation beyond the free blocks"
        self._idle_blocks -= count
        self._blank += count
        while count:
            run = next(iter(self._idle))
            size = len(run.blocks)
            if size > count:
                if self.on_removed is not None:
                    self.on_removed(run.blocks[size - count :])
                del run.blocks[size - count :]
                return
            if self.on_removed is not None:
                self.on_removed(run.blocks)
            del self._idle[run]
            del self._run_by_first[run.blocks[0]]
            if run.parent is not None:
                run.parent.children -= 1
            count -= size

    def give_back(self, count: int) -> None:
        """Private blocks that a request gives up with nothing in them worth keeping."""
        self._blank += count

    def commit(self, end: BlockRun | None, ids: "array[int]", start: int, stop: int) -> BlockRun:
        """Private blocks `start..stop` of a request became full: cache them below `end`, its last run.

        Returns the run at whose end they now end. Where another request computed the same ones
        before, its copies are shared and ours become blank (vLLM keeps both until one is released).
        """
        if end is not None and end.holders == 1 and not end.children:
            end.blocks.extend(ids[start:stop])
            return end
        while start < stop:
            run = self._run_by_first.get(ids[start])
            if run is None:
                run = BlockRun(ids[start:stop], end, 1)
                if end is not None:
                    end.children += 1
                self._run_by_first[ids[start]] = run
                return run
            same = _common(run.blocks, ids, start, stop)
            if same < len(run.blocks):
                run = self._split(run, same)
            if not run.holders:
                del self._idle[run]
                self._idle_blocks -= same
            run.holders += 1
            self._blank += same
            end = run
            start += same
        assert end is not None
        return end

    def release(self, end: BlockRun | None) -> None:
        """One request holds its runs no longer. They stay cached, idle, until their turn to go."""
        node = end
        while node is not None:
            node.holders -= 1
            if not node.holders:
                self._idle[node] = None
                self._idle_blocks += len(node.blocks)
            node = node.parent

    def forget(self) -> None:
        """Drop every idle run: vLLM's `reset_prefix_cache`, for what no request holds."""
        self._evict(self._idle_blocks)

    def check(self, private_blocks: int) -> None:
        """Assert the invariants, given how many blocks requests hold outside runs."""
        runs = set(self._run_by_first.values())
        assert self._blank + private_blocks + sum(len(run.blocks) for run in runs) == self.total
        assert self._idle_blocks == sum(len(run.blocks) for run in self._idle)
        assert set(self._idle) == {run for run in runs if not run.holders}
        seen: set[BlockRun] = set()
        for run in self._idle:
            assert run.parent not in seen, "a parent would go before its child"
            seen.add(run)
        for run in runs:
            assert run.blocks and self._run_by_first[run.blocks[0]] is run
            children = [other for other in runs if other.parent is run]
            assert run.children == len(children)
            assert run.holders >= sum(child.holders for child in children)


def _common(run: "array[int]", ids: "array[int]", start: int, limit: int) -> int:
    """Length of the common part of `run` and `ids[start:limit]`, whose first ids are equal."""
    size = min(len(run), limit - start)
    if run[size - 1] == ids[start + size - 1]:
        return size
    low, high = 1, size - 1  # blocks below `low` agree, block `high` does not
    while low < high:
        middle = (low + high) // 2
        if run[middle] == ids[start + middle]:
            low = middle + 1
        else:
            high = middle
    return low
