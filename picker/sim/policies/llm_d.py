"""llm-d's endpoint picker, which grew out of the Gateway API Inference Extension (GIE): published configurations.

Prefixes, in the first two: `approx-prefix-cache-producer`. Per server an LRU of as many blocks as the engine reports
(`autoTune`; 31,250 before the first scrape). The walk goes on while any server has the block, and
counts for each server the blocks it has; the root of a chain is the first to be evicted.

* `weighted`: the default without a configuration file: queue-scorer 2, kv-cache-utilization-scorer 2,
  prefix-cache-scorer 3, max-score-picker with ties at random, gauges read every 50 ms
  (`--refresh-metrics-interval`), zero until the first reading. Blocks of 64 bytes (the engine's 16
  tokens at 4 characters each), at most 256 of a prompt (`maxPrefixBlocksToMatch`), so prompts
  that agree for 16 KiB look alike.
* `llmd_optimized`: the later "optimized baseline" guide: prefix-cache-affinity-filter (threshold 0.80,
  exploration 0.01, stickiness ends where the estimated TTFT, in-flight tokens over `peakPrefillThroughput`
  15,928 a second, is `maxTTFTPenaltyMs` 5,000 above the best other server's), then token-load-scorer:
  the fewest in-flight tokens, which are uncached prompt tokens until the first chunk. Blocks of 64
  tokens, up to 131,072 tokens of a prompt (`maxPrefixTokensToMatch`), the LRU still sized in engine blocks.
* `llmd_session`: what the same guide names for gateways that cannot read prompts (docs 0.10, 2026): a session's
  requests go where its last one went (`session-affinity-scorer`), the first one where the fewest are
  active (`active-request-scorer`).
"""

from array import array
from collections import OrderedDict

from picker.outcomes import Usage
from picker.sim.block_cache import BlockCache
from picker.sim.policies.peer import Homes, PeerPolicy
from picker.sim.policies.policy import Gauges, PolicyTicket, Setting
from picker.sim.profiles import BLOCK_TOKENS
from picker.sim.scripts import SimRequest

HORIZON_TOKENS = 256 * BLOCK_TOKENS
LATER_BLOCK_TOKENS, LATER_HORIZON_TOKENS = 64, 131_072
DEFAULT_LRU_BLOCKS = 31_250
METRICS_SECONDS = 0.05
QUEUE_WEIGHT, KV_WEIGHT, PREFIX_WEIGHT = 2.0, 2.0, 3.0
AFFINITY_THRESHOLD = 0.8
EXPLORATION = 0.01
TTFT_PENALTY_SECONDS_MAX = 5.0
PEAK_PREFILL_TOKENS_PER_SECOND = 15_928.0


class ApproximatePrefixes:
    """Block -> servers as a bitmask, and one LRU a server."""

    def __init__(self, *, block_tokens: int, horizon_tokens: int) -> None:
        self._stride = block_tokens // BLOCK_TOKENS
        self._horizon = horizon_tokens // BLOCK_TOKENS
        self._holders: dict[int, int] = {}
        self._lru: dict[int, OrderedDict[int, None]] = {}
        self._capacity: dict[int, int] = {}

    def join(self, replica: int) -> None:
        """A server appears."""
        self._lru[replica] = OrderedDict()

    def leave(self, replica: int) -> None:
        """A server is gone, its entries with it."""
        for block in self._lru.pop(replica):
            self._forget(block, replica)
        self._capacity.pop(replica, None)

    def size(self, replica: int, blocks: int) -> None:
        """What the engine reports; the first value stays, as there."""
        self._capacity.setdefault(replica, blocks)

    def shares(self, request: SimRequest) -> dict[int, float]:
        """Matched over all blocks by server; servers that match nothing are missing."""
        blocks = self._blocks(request)
        counts: dict[int, int] = {}
        previous, run = 0, 0
        for block in blocks:
            holders = self._holders.get(block, 0)
            if holders != previous:
                _count(counts, previous, run)
                previous, run = holders, 0
            if not holders:
                break
            run += 1
        _count(counts, previous, run)
        return {replica: count / len(blocks) for replica, count in counts.items()}

    def add(self, request: SimRequest, replica: int) -> None:
        """The request goes there: its blocks, head first."""
        lru, holders, bit = self._lru[replica], self._holders, 1 << replica
        for block in self._blocks(request):
            if block in lru:
                lru.move_to_end(block)
            else:
                lru[block] = None
                holders[block] = holders.get(block, 0) | bit
        capacity = self._capacity.get(replica, DEFAULT_LRU_BLOCKS)
        while len(lru) > capacity:
            self._forget(lru.popitem(last=False)[0], replica)

    def _blocks(self, request: SimRequest) -> "array[int]":
        """A coarser block is known by the id of its last engine block: ids are chained."""
        return request.ids[self._stride - 1 : min(request.prompt_blocks, self._horizon) : self._stride]

    def _forget(self, block: int, replica: int) -> None:
        holders = self._holders[block] & ~(1 << replica)
        if holders:
            self._holders[block] = holders
        else:
            del self._holders[block]


def _count(counts: dict[int, int], holders: int, run: int) -> None:
    while holders and run:
        low = holders & -holders
        holders ^= low
        replica = low.bit_length() - 1
        counts[replica] = counts.get(replica, 0) + run


class Weighted(PeerPolicy):
    """The default: a weighted sum of 0..1 scores over scraped gauges."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.scrape_seconds = METRICS_SECONDS
        self._prefixes = ApproximatePrefixes(block_tokens=BLOCK_TOKENS, horizon_tokens=HORIZON_TOKENS)

    def join(self, replica: int, cache: BlockCache, now: float) -> None:
        """A server appears."""
        super().join(replica, cache, now)
        self._prefixes.join(replica)

    def leave(self, replica: int, now: float) -> None:
        """A server is gone."""
        super().leave(replica, now)
        self._prefixes.leave(replica)

    def scraped(self, replica: int, gauges: Gauges) -> None:
        """A reading."""
        super().scraped(replica, gauges)
        if replica in self.in_flight:
            self._prefixes.size(replica, gauges.kv_capacity_tokens // BLOCK_TOKENS)

    def choose(self, request: SimRequest, now: float) -> int:
        """The highest sum; ties at random."""
        shares = self._prefixes.shares(request)
        waiting = [self.gauges[each].waiting_requests if each in self.gauges else 0 for each in self.members]
        low, high = min(waiting), max(waiting)
        best, tied = -1.0, [self.members[0]]
        for replica, queue in zip(self.members, waiting, strict=True):
            gauges = self.gauges.get(replica)
            score = (
                QUEUE_WEIGHT * ((high - queue) / (high - low) if high > low else 1.0)
                + KV_WEIGHT * (1.0 - (gauges.kv_cache_utilization if gauges else 0.0))
                + PREFIX_WEIGHT * shares.get(replica, 0.0)
            )
            if score > best:
                best, tied = score, [replica]
            elif score == best:
                tied.append(replica)
        replica = tied[int(self.rng.random() * len(tied))]
        self._prefixes.add(request, replica)
        return replica


class Optimized(Weighted):
    """Affinity filter, then the fewest in-flight tokens."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._prefixes = ApproximatePrefixes(block_tokens=LATER_BLOCK_TOKENS, horizon_tokens=LATER_HORIZON_TOKENS)
        self._tokens: dict[int, float] = {}

    def join(self, replica: int, cache: BlockCache, now: float) -> None:
        """A server appears."""
        super().join(replica, cache, now)
        self._tokens[replica] = 0.0

    def leave(self, replica: int, now: float) -> None:
        """A server is gone."""
        super().leave(replica, now)
        del self._tokens[replica]

    def pick(self, request: SimRequest, now: float) -> PolicyTicket | None:
        """Choose, count, and book the uncached tokens."""
        if not self.members:
            return None
        shares = self._prefixes.shares(request)
        candidates = self._candidates(shares)
        lowest = min(self._tokens[replica] for replica in candidates)
        tied = [replica for replica in candidates if self._tokens[replica] == lowest]
        replica = tied[int(self.rng.random() * len(tied))]
        self._prefixes.add(request, replica)
        self.in_flight[replica] += 1
        uncached = request.prompt_tokens * (1.0 - shares.get(replica, 0.0))
        self._tokens[replica] += uncached
        return PolicyTicket(replica, uncached)

    def _candidates(self, shares: dict[int, float]) -> list[int]:
        sticky = [replica for replica in self.members if shares.get(replica, 0.0) >= AFFINITY_THRESHOLD]
        if not sticky or self.rng.random() < EXPLORATION:
            return self.members
        here = min(self._tokens[replica] for replica in sticky)
        anywhere = min(self._tokens.values())
        penalty = (here - anywhere) / PEAK_PREFILL_TOKENS_PER_SECOND
        return self.members if penalty > TTFT_PENALTY_SECONDS_MAX else sticky

    def _release(self, ticket: PolicyTicket) -> None:
        uncached, ticket.state = ticket.state, 0.0
        if ticket.replica in self._tokens:
            self._tokens[ticket.replica] = max(0.0, self._tokens[ticket.replica] - uncached)

    def first_token(self, ticket: PolicyTicket, request: SimRequest, now: float) -> None:
        """The prefill is over."""
        self._release(ticket)

    def finished(self, ticket: PolicyTicket, request: SimRequest, usage: Usage | None, now: float) -> None:
        """Likewise where nothing was streamed."""
        self._release(ticket)
        super().finished(ticket, request, usage, now)


class KeptSessions(PeerPolicy):
    """Sessions with homes that nothing moves."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._homes = Homes()

    def choose(self, request: SimRequest, now: float) -> int:
        """Home, while it is there."""
        home = self._homes.get(request.session)
        if home is None or home not in self.in_flight:
            home = self.least(self.members)
        self._homes.settle(request.session, home)
        return home
