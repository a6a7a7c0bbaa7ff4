"""The other pickers: what was heard of each, who is the oldest, and what they have in flight.

Load is state: each picker tells its own whole, and what is `LOAD_SECONDS` old counts no more, so
one that died leaves nothing behind. Invariant (`check()`): an endpoint's `others` is the sum of
what the pickers told last.
"""

from typing import Final

from picker.pool.endpoint import NOTHING, Endpoint, Load
from picker.pool.inflight import InflightLedger

LOAD_SECONDS: Final = 1.0
"""So long the load of a picker counts that says nothing more."""
ALIVE_SECONDS: Final = 3.0
"""Who said nothing for so long writes no snapshot."""
FORGET_SECONDS: Final = 15.0
PEERS_MAX: Final = 256
OFFSET_STEP_US: Final = 50_000
"""A sender's clock is thought to run evenly with ours: only a larger difference is taken for one."""


class Peer:
    """One other picker."""

    __slots__ = (
        "ask_after",
        "ask_wait",
        "heard_at",
        "lag",
        "load",
        "load_at",
        "load_sequence",
        "name",
        "offset_us",
        "sequence",
        "started_ms",
        "told_us",
        "whole",
    )

    def __init__(self, name: int) -> None:
        self.name = name
        self.sequence = 0
        self.offset_us: int | None = None
        self.started_ms = 0
        self.whole = False
        self.heard_at = 0.0
        self.lag = 0.0
        """Seconds from its batch to us, lately."""
        self.told_us = 0
        """On our clock: until when all that it told is here."""
        self.load: dict[Endpoint, Load] = {}
        self.load_at = -1e9
        self.load_sequence = 0
        self.ask_after = 0.0
        self.ask_wait = 0.0


class Peers:
    """All of them, and the sums of their load."""

    def __init__(self, ledger: InflightLedger) -> None:
        self._ledger = ledger
        self._peers: dict[int, Peer] = {}
        self._gone: dict[int, Peer] = {}
        """Who may come back, when the store does: what it told meanwhile is a gap then."""

    def __len__(self) -> int:
        return len(self._peers)

    def all(self) -> list[Peer]:
        """Every one that was heard lately."""
        return list(self._peers.values())

    def find(self, name: int) -> Peer | None:
        """The one of this name, if it was heard lately."""
        return self._peers.get(name)

    def meet(self, name: int) -> Peer | None:
        """The one of this name, also if it is new; `None` where there are too many."""
        peer = self._peers.get(name)
        if peer is None:
            if len(self._peers) >= PEERS_MAX:
                return None
            peer = self._peers[name] = self._gone.pop(name) if name in self._gone else Peer(name)
        return peer

    def alive(self, now: float) -> list[Peer]:
        """Those that said something within the last seconds."""
        return [peer for peer in self._peers.values() if now - peer.heard_at <= ALIVE_SECONDS]

    def carry(self, peer: Peer, load: dict[Endpoint, Load], at: float) -> None:
        """`peer` has this in flight, and nothing else, as of `at`."""
        before, peer.load, peer.load_at = peer.load, load, at
        gone = [endpoint for endpoint in before if endpoint not in load]
        self._sum_up([*load, *gone])

    def expire(self, now: float) -> list[Peer]:
        """Drop the load of the silent. Returns those of whom nothing was heard for so long that they are forgotten."""
        gone = []
        for peer in list(self._peers.values()):
            if peer.load and now - peer.load_at > LOAD_SECONDS:
                self.carry(peer, {}, peer.load_at)
            if now - peer.heard_at > FORGET_SECONDS:
                gone.append(peer)
                del self._peers[peer.name]
                self._gone[peer.name] = peer
                while len(self._gone) > PEERS_MAX:
                    del self._gone[next(iter(self._gone))]
        return gone

    def requests(self) -> int:
        """What they have in flight together."""
        return sum(load.requests for peer in self._peers.values() for load in peer.load.values())

    def check(self) -> None:
        """Assert the invariant. For tests."""
        for endpoint in {endpoint for peer in self._peers.values() for endpoint in peer.load}:
            loads = [peer.load[endpoint] for peer in self._peers.values() if endpoint in peer.load]
            assert endpoint.others.requests == sum(load.requests for load in loads)

    def _sum_up(self, endpoints: list[Endpoint]) -> None:
        peers = [peer for peer in self._peers.values() if peer.load]
        for endpoint in endpoints:
            loads = [load for peer in peers if (load := peer.load.get(endpoint)) is not None]
            if len(loads) < 2:
                self._ledger.others_have(endpoint, loads[0] if loads else NOTHING)
                continue
            total = Load(
                sum([load.requests for load in loads]),
                sum([load.sequences for load in loads]),
                sum([load.prefilling_requests for load in loads]),
                sum([load.prefill_tokens for load in loads]),
                sum([load.context_tokens for load in loads]),
                sum([load.memory_tokens for load in loads]),
            )
            self._ledger.others_have(endpoint, total)
