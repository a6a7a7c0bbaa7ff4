"""Each endpoint's share of the prefix index: its engine's KV capacity, times what it is seen to keep.

Joins the index, the datastore's capacities and the controller (`sizing.py`): a decision asks what is expected of
its request, the end of the request says what was.
"""

from array import array
from typing import Final

from picker.config import Routing
from picker.outcomes import Reason, Usage
from picker.pool.datastore import Datastore
from picker.pool.snapshot import Snapshot
from picker.pool.specs import EngineSample
from picker.prefix.blocks import BLOCK_BYTES
from picker.prefix.index import PrefixIndex
from picker.prefix.matches import Recorded
from picker.scheduling.columns import Columns, Holding
from picker.scheduling.sizing import Expected, IndexSizing

_LOAD: Final = Reason.LOAD


class IndexShares:
    """Keeps the index's capacities. One event loop owns it."""

    def __init__(self, index: PrefixIndex, datastore: Datastore, routing: Routing) -> None:
        self.sizing = IndexSizing()
        self._index = index
        self._datastore = datastore
        self._routing = routing
        self._usual_tokens = float(routing.kv_capacity_tokens)
        """What an endpoint counts as that did not tell its capacity."""
        self._guessed: set[int] = set()
        """Slots of such endpoints whose share is seen to be another than the usual one."""

    def reconfigure(self, routing: Routing) -> None:
        """Other constants from now on."""
        self._routing = routing
        self._set_usual(self._datastore.usual_capacity_tokens())
        for endpoint in self._datastore.endpoints:
            self._resize(endpoint.slot)

    def forget(self, slot: int) -> None:
        """The slot's cache is another's now, or empty."""
        self.sizing.forget(slot)
        self._guessed.discard(slot)

    def read(self, slot: int, sample: EngineSample, *, capacity_changed: bool) -> None:
        """A reading of an engine: its capacity, and its own counters of hits."""
        if capacity_changed:
            self._resize(slot)
            self.follow()
        capacity = self._datastore.capacity_tokens(slot)
        if self.sizing.counted(slot, sample.prefix_queries_total, sample.prefix_hits_total, capacity):
            self._resize(slot)

    def follow(self) -> None:
        """Somebody joined, left or told another capacity: the mean of those that are known is that of the others."""
        usual = self._datastore.usual_capacity_tokens()
        if usual != self._usual_tokens:
            self._set_usual(usual)

    def expected(
        self,
        columns: Columns,
        holding: Holding,
        recorded: Recorded,
        hashes: "array[int]",
        snapshot: Snapshot,
        reason: Reason,
        now: float,
    ) -> Expected | None:
        """What is thought to be cached where the request goes; `None`: nothing is compared."""
        if not self._routing.index_adapts:
            return None
        slot, blocks, tokens = recorded.slot, holding.blocks, columns.prompt_tokens
        evicted = self._index.evicted_from(hashes[blocks]) if blocks < len(hashes) else 0
        likelihood = 1.0
        if evicted and reason is _LOAD:
            likelihood = (evicted & snapshot.ready_bits).bit_count() / snapshot.ready_count
        return Expected(
            slot,
            tokens,
            holding.held_tokens / tokens if tokens else 0.0,
            1.5 * BLOCK_BYTES / columns.bytes_per_token,
            now - recorded.last_used_seconds,
            bool(evicted >> slot & 1),
            likelihood,
        )

    def compare(self, expected: Expected, usage: Usage | None) -> None:
        """What was cached with what was thought to be."""
        if usage is None or not usage.input_tokens:
            self.sizing.sent(expected, expected.prompt_tokens)
            return
        cached, capacity = usage.cached_tokens, self._datastore.capacity_tokens(expected.slot)
        if cached is None:
            self.sizing.sent(expected, usage.input_tokens)
        elif self.sizing.observe(expected, usage.input_tokens, cached, capacity):
            self._resize(expected.slot)

    def _set_usual(self, tokens: float) -> None:
        self._usual_tokens = tokens
        self._index.set_default_capacity(index_blocks(tokens, self._routing))
        for slot in tuple(self._guessed):
            self._resize(slot)

    def _resize(self, slot: int) -> None:
        factor = self.sizing.factor(slot) if self._routing.index_adapts else 1.0
        guessed = not self._datastore.tells_capacity(slot)
        if guessed and factor == 1.0:  # the index's default, which follows by itself
            self._guessed.discard(slot)
            self._index.set_capacity(slot, None)
            return
        if guessed:
            self._guessed.add(slot)
        else:
            self._guessed.discard(slot)
        self._index.set_capacity(slot, index_blocks(self._datastore.capacity_tokens(slot) * factor, self._routing))


def index_blocks(capacity_tokens: float, routing: Routing) -> int:
    """An engine's KV capacity in our blocks, oversized as configured."""
    return max(1, int(capacity_tokens * routing.bytes_per_token * routing.index_oversize / BLOCK_BYTES))
