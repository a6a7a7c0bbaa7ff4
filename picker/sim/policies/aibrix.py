"""AIBrix's `prefix-cache` router (`pkg/plugins/gateway/algorithms/prefix_cache.go`).

Among the pods with a prefix match, by decreasing match (whole percents) and then fewer requests, the
first whose requests are at most mean + 1 x standard deviation (`AIBRIX_PREFIX_CACHE_STANDARD_DEVIATION_FACTOR`);
if there is none, the fewest requests. Where the busiest pod has more than 2 x (mean + 1) requests and
8 more than the idlest (`..._LOAD_IMBALANCE_FACTOR`, `..._MIN_GAP`), only the idlest are matched at all.
Prompts are cut into blocks of 4 bytes (the default tokenizer is by character, `..._BLOCK_SIZE` 4) in
one LRU table of 200,000 blocks for all pods (`..._BLOCK_NUMBER`), which is 200,000 tokens of text. Request
counts are the gateway's own. The table is kept here in blocks of 64 bytes.
"""

from array import array
from collections import OrderedDict
from statistics import fmean, pstdev

from picker.sim.policies.peer import PeerPolicy
from picker.sim.policies.policy import Setting
from picker.sim.profiles import BLOCK_TOKENS
from picker.sim.prompts import BYTES_PER_TOKEN
from picker.sim.scripts import SimRequest

STANDARD_DEVIATION_FACTOR = 1
IMBALANCE_FACTOR = 2.0
IMBALANCE_GAP_MIN = 8
TABLE_BYTES = 200_000 * 4


class PrefixCache(PeerPolicy):
    """Prefix match, bounded by the standard deviation of request counts."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._table: OrderedDict[int, int] = OrderedDict()  # block -> pods as a bitmask
        self._table_blocks = TABLE_BYTES // (BLOCK_TOKENS * BYTES_PER_TOKEN)

    def choose(self, request: SimRequest, now: float) -> int:
        """The longest match that is not too busy, else the fewest requests."""
        blocks = request.ids[: request.prompt_blocks]
        matched = self._match(blocks, self._matchable())
        counts = list(self.in_flight.values())
        limit = fmean(counts) + STANDARD_DEVIATION_FACTOR * pstdev(counts)
        order = sorted(matched, key=lambda each: (-matched[each], self.in_flight[each], self.rng.random()))
        replica = next((each for each in order if self.in_flight[each] <= limit), None)
        if replica is None:
            replica = self.least(self.members)
        self._add(blocks, replica)
        return replica

    def _matchable(self) -> int:
        """Pods that may match, as a bitmask."""
        counts = self.in_flight.values()
        low, high = min(counts), max(counts)
        skewed = high > IMBALANCE_FACTOR * (fmean(counts) + 1) and high - low >= IMBALANCE_GAP_MIN
        return sum(1 << each for each in self.members if not skewed or self.in_flight[each] == low)

    def _match(self, blocks: "array[int]", pods: int) -> dict[int, int]:
        """Percent matched by pod."""
        table = self._table
        percents: dict[int, int] = {}
        for number, block in enumerate(blocks, 1):
            holders = table.get(block, 0) & pods
            if holders != pods:
                self._note(percents, pods & ~holders, (number - 1) * 100 // len(blocks))
                pods = holders
            if not pods:
                return percents
            table.move_to_end(block)
        self._note(percents, pods, 100)
        return percents

    def _note(self, percents: dict[int, int], pods: int, percent: int) -> None:
        if percent:  # below one percent is none
            percents.update({each: percent for each in self.members if pods >> each & 1})

    def _add(self, blocks: "array[int]", replica: int) -> None:
        table, bit = self._table, 1 << replica
        for block in blocks:
            table[block] = table.get(block, 0) | bit
            table.move_to_end(block)
        while len(table) > self._table_blocks:
            table.popitem(last=False)
