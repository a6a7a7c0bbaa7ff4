"""What peers have in common: who is there, what was last scraped, how many requests are in flight."""

from collections import OrderedDict

from picker.outcomes import Usage
from picker.sim.block_cache import BlockCache
from picker.sim.policies.policy import Gauges, PolicyTicket, Setting
from picker.sim.scripts import SimRequest

SESSIONS_MAX = 100_000


class Homes:
    """Where each session's requests go; those of which nothing came for longest are forgotten."""

    def __init__(self) -> None:
        self._homes: OrderedDict[int, int] = OrderedDict()

    def get(self, session: int) -> int | None:
        """`None`: nowhere yet."""
        return self._homes.get(session)

    def settle(self, session: int, replica: int) -> None:
        """There, from now on."""
        self._homes[session] = replica
        self._homes.move_to_end(session)
        if len(self._homes) > SESSIONS_MAX:
            self._homes.popitem(last=False)


class PeerPolicy:
    """A router whose books are counts. Subclasses say where (`choose`), and what else they keep."""

    def __init__(self, setting: Setting) -> None:
        self.scrape_seconds: float | None = None
        self.rng = setting.rng
        self.members: list[int] = []
        self.in_flight: dict[int, int] = {}
        self.gauges: dict[int, Gauges] = {}

    def join(self, replica: int, cache: BlockCache, now: float) -> None:
        """A replica is ready."""
        self.members.append(replica)
        self.in_flight[replica] = 0

    def leave(self, replica: int, now: float) -> None:
        """A replica is gone."""
        self.members.remove(replica)
        self.in_flight.pop(replica, None)
        self.gauges.pop(replica, None)

    def scraped(self, replica: int, gauges: Gauges) -> None:
        """The last reading counts, whatever its age."""
        if replica in self.in_flight:
            self.gauges[replica] = gauges

    def pick(self, request: SimRequest, now: float) -> PolicyTicket | None:
        """Choose and count."""
        if not self.members:
            return None
        replica = self.choose(request, now)
        self.in_flight[replica] += 1
        return PolicyTicket(replica)

    def choose(self, request: SimRequest, now: float) -> int:
        """Where. At least one member exists."""
        raise NotImplementedError

    def answered(self, ticket: PolicyTicket, status: int, now: float) -> None:
        """Nothing depends on it."""

    def first_token(self, ticket: PolicyTicket, request: SimRequest, now: float) -> None:
        """Nothing depends on it."""

    def finished(self, ticket: PolicyTicket, request: SimRequest, usage: Usage | None, now: float) -> None:
        """One fewer in flight, unless the replica left meanwhile."""
        if ticket.replica in self.in_flight:
            self.in_flight[ticket.replica] -= 1

    def check(self) -> None:
        """Counts agree with the members."""
        assert set(self.members) == set(self.in_flight)
        assert all(count >= 0 for count in self.in_flight.values())

    def least(self, candidates: list[int], load: dict[int, int] | None = None) -> int:
        """One of the least loaded candidates, at random. `load` is in-flight requests unless given."""
        counts = self.in_flight if load is None else load
        lowest = min(counts[replica] for replica in candidates)
        tied = [replica for replica in candidates if counts[replica] == lowest]
        return tied[0] if len(tied) == 1 else tied[int(self.rng.random() * len(tied))]
