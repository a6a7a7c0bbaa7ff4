"""Affinity without an index: a hash ring with bounded loads, and sessions that stick until a server is full.

`consistent_hash_bounded`: consistent hashing with bounded loads (Mirrokni et al. 2018) over the first 256
tokens of a prompt, load factor 1.25: smg's `prefix_hash` (`prefix_token_count` 256,
`prefix_hash_load_factor` 1.25), KubeAI's PrefixHash likewise at 125 %. 160 points a server on the
ring. Where the server of the hash has more than 1.25 x the mean in flight, the next on the ring.

`sticky_until_saturated`: a session stays where it began until that server is saturated by llm-d's
definition (`utilization-detector`: more than 5 waiting or KV use above 0.8, as last scraped), then moves to the
server with the fewest in flight and stays there. Sessions are known, as by a header or cookie.

`sticky_until_full`: the same, but until requests wait there or KV use is above 0.95: no later can it be.
"""

from bisect import bisect_right, insort

from xxhash import xxh3_64_intdigest

from picker.sim.block_cache import BlockCache
from picker.sim.policies.peer import Homes, PeerPolicy
from picker.sim.policies.policy import Setting
from picker.sim.profiles import BLOCK_TOKENS
from picker.sim.scripts import SimRequest

PREFIX_TOKENS = 256
LOAD_FACTOR = 1.25
RING_POINTS = 160
WAITING_MAX = 5
KV_MAX = 0.8
KV_FULL = 0.95
GAUGES_SECONDS = 1.0


class ConsistentHashBounded(PeerPolicy):
    """The ring."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._ring: list[tuple[int, int]] = []

    def join(self, replica: int, cache: BlockCache, now: float) -> None:
        """Its points enter the ring."""
        super().join(replica, cache, now)
        for point in range(RING_POINTS):
            insort(self._ring, (xxh3_64_intdigest(f"{replica}/{point}".encode()), replica))

    def leave(self, replica: int, now: float) -> None:
        """Its points leave."""
        super().leave(replica, now)
        self._ring = [entry for entry in self._ring if entry[1] != replica]

    def choose(self, request: SimRequest, now: float) -> int:
        """The first on the ring below its bound."""
        blocks = min(PREFIX_TOKENS // BLOCK_TOKENS, request.prompt_blocks)
        key = request.ids[blocks - 1] if blocks else request.number
        start = bisect_right(self._ring, (xxh3_64_intdigest(key.to_bytes(8, "little")), -1))
        bound = LOAD_FACTOR * (sum(self.in_flight.values()) + 1) / len(self.members)
        for step in range(len(self._ring)):
            replica = self._ring[(start + step) % len(self._ring)][1]
            if self.in_flight[replica] + 1 <= max(bound, 1.0):
                return replica
        return self.least(self.members)


class StickyUntilSaturated(PeerPolicy):
    """Sessions with homes."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.scrape_seconds = GAUGES_SECONDS
        self._homes = Homes()

    def choose(self, request: SimRequest, now: float) -> int:
        """Home, unless it is saturated and another is not."""
        home = self._homes.get(request.session)
        if home is None or home not in self.in_flight or self._saturated(home):
            open_ones = [replica for replica in self.members if not self._saturated(replica)]
            home = self.least(open_ones) if open_ones else home if home in self.in_flight else self.least(self.members)
        assert home is not None
        self._homes.settle(request.session, home)
        return home

    def _saturated(self, replica: int) -> bool:
        gauges = self.gauges.get(replica)
        return gauges is not None and (gauges.waiting_requests > WAITING_MAX or gauges.kv_cache_utilization > KV_MAX)


class StickyUntilFull(StickyUntilSaturated):
    """Sessions leave no earlier than they must."""

    def _saturated(self, replica: int) -> bool:
        gauges = self.gauges.get(replica)
        return gauges is not None and (gauges.waiting_requests > 0 or gauges.kv_cache_utilization > KV_FULL)
