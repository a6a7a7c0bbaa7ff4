"""The ceiling of any router's hit rate: one LRU cache as large as the fleet's caches together.

It sees every request in the order of arrival, at once and on one server, so no router over
separate replicas of the same total size can be expected to hit more.
"""

from array import array

from picker.sim.block_cache import BlockCache, BlockRun
from picker.sim.profiles import BLOCK_TOKENS


class PooledLru:
    """Feed it each prompt at its arrival and each answer at its end."""

    def __init__(self, capacity_tokens: int) -> None:
        self._cache = BlockCache(capacity_tokens // BLOCK_TOKENS)
        self.prompt_tokens = 0
        self.hit_tokens = 0

    def prompt(self, ids: "array[int]", prompt_tokens: int, *, counted: bool = True) -> None:
        """A prompt arrives: what of it is cached, and then all of its full blocks are."""
        hits = self._use(ids, prompt_tokens, prompt_tokens - 1)
        if counted:
            self.prompt_tokens += prompt_tokens
            self.hit_tokens += hits * BLOCK_TOKENS

    def answer(self, ids: "array[int]", tokens: int) -> None:
        """A request of `tokens` in all, prompt and answer, is over."""
        self._use(ids, tokens, tokens)

    @property
    def hit_rate(self) -> float:
        """Token-weighted."""
        return self.hit_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    def _use(self, ids: "array[int]", tokens: int, hit_tokens_max: int) -> int:
        """Touch the first `tokens`; returns the blocks that were there, at most those of `hit_tokens_max`."""
        cache = self._cache
        full = min(tokens // BLOCK_TOKENS, len(ids), cache.total)
        hits_max = min(hit_tokens_max // BLOCK_TOKENS, len(ids), cache.total)
        match = cache.match(ids, full)
        end: BlockRun | None = cache.hold(match)
        if full > match.blocks:
            cache.take(full - match.blocks)
            end = cache.commit(end, ids, match.blocks, full)
        cache.release(end)
        return min(match.blocks, hits_max)
