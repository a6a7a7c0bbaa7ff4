"""What a routing policy is to the simulator, and what it is told: only what it would know in production.

A policy lives in one router process. It learns of replicas as they join and leave, of their
gauges as it scrapes them (`scrape_seconds` apart, as old as the run's options say), and of its own
requests' first tokens and ends. Replicas are numbers that are never used twice.
"""

from random import Random
from typing import Any, NamedTuple, Protocol

from picker.config import Config
from picker.outcomes import Usage
from picker.sim.block_cache import BlockCache
from picker.sim.scripts import SimRequest


class Gauges(NamedTuple):
    """One reading of a replica's metrics page."""

    taken_at_seconds: float
    waiting_requests: int
    running_requests: int
    kv_cache_utilization: float
    kv_capacity_tokens: int
    prompt_tokens_total: int
    prefix_queries_total: int
    prefix_hits_total: int


class PolicyTicket:
    """A pick: where the request goes, and whatever the policy keeps about it."""

    __slots__ = ("replica", "state")

    def __init__(self, replica: int, state: Any = None) -> None:
        self.replica = replica
        self.state = state


class Setting(NamedTuple):
    """What a run tells each of its policies at the start."""

    rng: Random
    config: Config
    """The picker's configuration. Peers ignore it."""
    first_chunk_visible: bool = True
    """Response bodies pass the router."""


class RoutingPolicy(Protocol):
    """One router."""

    scrape_seconds: float | None
    """Its published period of reading gauges; `None`: it reads none."""

    def join(self, replica: int, cache: BlockCache, now: float) -> None:
        """A replica is ready. `cache`: what its KV events tell; only policies that subscribe to them look."""

    def leave(self, replica: int, now: float) -> None:
        """A replica is gone from the pool."""

    def scraped(self, replica: int, gauges: Gauges) -> None:
        """A reading arrived."""

    def pick(self, request: SimRequest, now: float) -> PolicyTicket | None:
        """Choose and book. `None`: there is no replica to send it to."""

    def answered(self, ticket: PolicyTicket, status: int, now: float) -> None:
        """Response headers came."""

    def first_token(self, ticket: PolicyTicket, request: SimRequest, now: float) -> None:
        """The first chunk of a streamed answer came."""

    def finished(self, ticket: PolicyTicket, request: SimRequest, usage: Usage | None, now: float) -> None:
        """The request is over, however it ended. `usage`: what its answer reported."""

    def check(self) -> None:
        """Assert its invariants. For tests."""
