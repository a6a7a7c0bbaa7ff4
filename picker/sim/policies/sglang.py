"""SGLang's router, now the Shepherd Model Gateway (smg): `cache_aware`.

Balanced: the worker with the longest prefix in an approximate radix tree of past prompts, if it matches
more than `cache_threshold` of the prompt, else the worker with the fewest in flight (earlier
releases: with the smallest tree). Imbalanced, where max - min > `balance_abs_threshold` and max >
`balance_rel_threshold` x min in flight: the fewest in flight. Defaults: 0.3, 64, 1.5, and
`max_tree_size` 2^26 characters a worker, evicted by LRU every 120 s (the first release had 0.5, 32,
1.0001). Several workers may hold the longest prefix: the tree answers with the last one that used it.
"""

from picker.prefix.index import PrefixIndex
from picker.sim.block_cache import BlockCache
from picker.sim.policies.peer import PeerPolicy
from picker.sim.policies.policy import Setting
from picker.sim.profiles import BLOCK_TOKENS
from picker.sim.prompts import BYTES_PER_TOKEN
from picker.sim.scripts import SimRequest

CACHE_THRESHOLD = 0.3
BALANCE_ABS_THRESHOLD = 64
BALANCE_REL_THRESHOLD = 1.5
TREE_CHARACTERS_MAX = 2**26
_UNBOUNDED_BYTES = 2**40


class CacheAware(PeerPolicy):
    """Our radix tree serves as theirs, over 16-token blocks: it is the same structure, coarser by a few characters."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._tree = PrefixIndex(
            bytes_max=_UNBOUNDED_BYTES, capacity_blocks=TREE_CHARACTERS_MAX // (BLOCK_TOKENS * BYTES_PER_TOKEN)
        )
        self._last_used: dict[int, int] = {}
        self._picks = 0

    def leave(self, replica: int, now: float) -> None:
        """A worker is gone, its part of the tree with it."""
        super().leave(replica, now)
        self._tree.purge(replica)
        self._last_used.pop(replica, None)

    def join(self, replica: int, cache: BlockCache, now: float) -> None:
        """A worker appears."""
        super().join(replica, cache, now)
        self._last_used[replica] = 0

    def choose(self, request: SimRequest, now: float) -> int:
        """Shortest queue when imbalanced, else the longest prefix."""
        blocks = request.ids[: request.prompt_blocks]
        counts = self.in_flight.values()
        low, high = min(counts), max(counts)
        replica = None
        if not (high - low > BALANCE_ABS_THRESHOLD and high > BALANCE_REL_THRESHOLD * low) and blocks:
            steps = self._tree.match(blocks, now).steps
            if steps and steps[-1][1] * BLOCK_TOKENS > CACHE_THRESHOLD * request.prompt_tokens:
                holders = [each for each in self.members if steps[-1][0] >> each & 1]
                replica = max(holders, key=self._last_used.__getitem__)
        if replica is None:
            replica = self.least(self.members)
        if blocks:
            self._tree.record(blocks, replica, now)
        self._picks += 1
        self._last_used[replica] = self._picks
        return replica

    def check(self) -> None:
        """The tree's invariants too."""
        super().check()
        self._tree.check()
