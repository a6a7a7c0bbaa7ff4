"""Routers that compare a cost over prompt and load: NVIDIA Dynamo's, and LMetric's product.

Dynamo's KV router (`docs/design_docs/router_design.md`): cost = `overlap_score_weight` (1.0) x prefill
blocks + decode blocks, the least wins at `router_temperature` 0. Prefill blocks: uncached tokens of the
request and those still being prefilled there, over the block size. Decode blocks: distinct blocks of
active requests there, with this one's. Cached blocks come from the engines' KV events, without delay
here; active blocks are the router's own books.

Two more of its settings (`docs/knowledge-base/.../configuration-and-tuning`, version 1.6 of 2026; no preset for
agents is among them): `dynamo_session` has session affinity on (`router_session_affinity_ttl_secs`):
the cost chooses for a session's first request, and the others follow it. `dynamo_credit` counts a cached
block twice (`router_kv_overlap_score_credit` 2, the prefill cost never below 0), and less where more prefill is
under way than on the idlest worker (`..._credit_decay` 1: half at one request's worth).

LMetric (Zhang et al. 2026, arXiv:2603.15202): score = (new prefill tokens if routed there, those still
queued included) x (batch size there), no parameters. Where a product is 0 ties are broken by the other
factor. The paper takes both from the engines; here they are the router's own and current.
"""

from picker.outcomes import Usage
from picker.sim.block_cache import BlockCache, BlockRun
from picker.sim.policies.peer import Homes, PeerPolicy
from picker.sim.policies.policy import PolicyTicket, Setting
from picker.sim.profiles import BLOCK_TOKENS
from picker.sim.scripts import SimRequest

OVERLAP_SCORE_WEIGHT = 1.0
OVERLAP_SCORE_CREDIT, CREDIT_DECAY = 2.0, 1.0
_BOOK_BLOCKS = 2**40


class _Booked:
    """What one request adds to the books of its replica."""

    __slots__ = ("end", "prefill_tokens")

    def __init__(self, prefill_tokens: int, end: BlockRun | None) -> None:
        self.prefill_tokens = prefill_tokens
        self.end = end


class _TokenBooks(PeerPolicy):
    """Prefill tokens under way by replica, cached blocks by its KV events."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.caches: dict[int, BlockCache] = {}
        self.prefill_tokens: dict[int, int] = {}

    def join(self, replica: int, cache: BlockCache, now: float) -> None:
        """Subscribe to its events."""
        super().join(replica, cache, now)
        self.caches[replica] = cache
        self.prefill_tokens[replica] = 0

    def leave(self, replica: int, now: float) -> None:
        """A replica is gone."""
        super().leave(replica, now)
        del self.caches[replica], self.prefill_tokens[replica]

    def uncached_tokens(self, request: SimRequest, replica: int) -> int:
        """Tokens of this prompt that this replica has not cached."""
        matched = self.caches[replica].match(request.ids, request.prompt_blocks).blocks
        return request.prompt_tokens - matched * BLOCK_TOKENS

    def cost(self, request: SimRequest, replica: int, uncached_tokens: int) -> tuple[float, float]:
        """The least wins; the second value breaks ties."""
        raise NotImplementedError

    def book(self, request: SimRequest, replica: int) -> BlockRun | None:
        """Further books of a pick."""
        return None

    def unbook(self, replica: int, end: BlockRun | None) -> None:
        """The inverse of `book`."""

    def pick(self, request: SimRequest, now: float) -> PolicyTicket | None:
        """Compare all and book."""
        if not self.members:
            return None
        uncached = {replica: self.uncached_tokens(request, replica) for replica in self.members}
        replica = self.cheapest(request, uncached)
        self.in_flight[replica] += 1
        self.prefill_tokens[replica] += uncached[replica]
        return PolicyTicket(replica, _Booked(uncached[replica], self.book(request, replica)))

    def cheapest(self, request: SimRequest, uncached: dict[int, int]) -> int:
        """Where. Ties at random."""
        costs = {replica: self.cost(request, replica, uncached[replica]) for replica in self.members}
        least = min(costs.values())
        tied = [replica for replica in self.members if costs[replica] == least]
        return tied[int(self.rng.random() * len(tied))]

    def first_token(self, ticket: PolicyTicket, request: SimRequest, now: float) -> None:
        """The prefill is over."""
        booked = ticket.state
        if ticket.replica in self.prefill_tokens:
            self.prefill_tokens[ticket.replica] -= booked.prefill_tokens
        booked.prefill_tokens = 0

    def finished(self, ticket: PolicyTicket, request: SimRequest, usage: Usage | None, now: float) -> None:
        """Release everything."""
        self.first_token(ticket, request, now)
        if ticket.replica in self.caches:
            self.unbook(ticket.replica, ticket.state.end)
        super().finished(ticket, request, usage, now)

    def check(self) -> None:
        """Never negative."""
        super().check()
        assert all(tokens >= 0 for tokens in self.prefill_tokens.values())


class DynamoCost(_TokenBooks):
    """Prefill blocks plus decode blocks. Its books of active blocks are a block cache that forgets what is idle."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._active: dict[int, BlockCache] = {}

    def join(self, replica: int, cache: BlockCache, now: float) -> None:
        """A worker appears."""
        super().join(replica, cache, now)
        self._active[replica] = BlockCache(_BOOK_BLOCKS)

    def leave(self, replica: int, now: float) -> None:
        """A worker is gone."""
        super().leave(replica, now)
        del self._active[replica]

    def cost(self, request: SimRequest, replica: int, uncached_tokens: int) -> tuple[float, float]:
        """In blocks."""
        active = self._active[replica]
        prefill_blocks = (self.prefill_tokens[replica] + uncached_tokens) / BLOCK_TOKENS
        blocks = request.prompt_blocks
        decode_blocks = active.total - active.free + blocks - active.match(request.ids, blocks).blocks
        return OVERLAP_SCORE_WEIGHT * prefill_blocks + decode_blocks, 0.0

    def book(self, request: SimRequest, replica: int) -> BlockRun | None:
        """The prompt's blocks are active there."""
        return self._active[replica].keep(request.ids, request.prompt_blocks)

    def unbook(self, replica: int, end: BlockRun | None) -> None:
        """They are no longer, where nobody else holds them."""
        active = self._active[replica]
        active.release(end)
        active.forget()


class DynamoCredit(DynamoCost):
    """More for what is cached, less of it where prefill waits."""

    def cost(self, request: SimRequest, replica: int, uncached_tokens: int) -> tuple[float, float]:
        """In blocks."""
        cached = request.prompt_tokens - uncached_tokens
        excess = self.prefill_tokens[replica] - min(self.prefill_tokens.values())
        credit = OVERLAP_SCORE_CREDIT / (1.0 + CREDIT_DECAY * excess / max(request.prompt_tokens, 1))
        return super().cost(request, replica, max(0, round(request.prompt_tokens - credit * cached)))


class DynamoSession(DynamoCost):
    """The first request of a session chooses for all."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._homes = Homes()

    def cheapest(self, request: SimRequest, uncached: dict[int, int]) -> int:
        """Home, while it is there."""
        home = self._homes.get(request.session)
        if home is None or home not in self.in_flight:
            home = super().cheapest(request, uncached)
        self._homes.settle(request.session, home)
        return home


class LMetric(_TokenBooks):
    """New prefill tokens times batch size."""

    def cost(self, request: SimRequest, replica: int, uncached_tokens: int) -> tuple[float, float]:
        """A product; an empty replica wins by the fewer tokens."""
        tokens = self.prefill_tokens[replica] + uncached_tokens
        return float(tokens * self.in_flight[replica]), float(tokens)
