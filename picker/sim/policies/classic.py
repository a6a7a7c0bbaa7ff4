"""Load balancers that know nothing of prompts, as every proxy has them."""

from picker.sim.policies.peer import PeerPolicy
from picker.sim.policies.policy import Setting
from picker.sim.scripts import SimRequest


class RoundRobin(PeerPolicy):
    """One after the other: Envoy's ROUND_ROBIN with equal weights."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._next = 0

    def choose(self, request: SimRequest, now: float) -> int:
        """The next in turn."""
        self._next += 1
        return self.members[self._next % len(self.members)]


class RandomChoice(PeerPolicy):
    """Any: Envoy's RANDOM."""

    def choose(self, request: SimRequest, now: float) -> int:
        """A uniform draw."""
        return self.members[int(self.rng.random() * len(self.members))]


class LeastRequest(PeerPolicy):
    """The fewest in flight among all: Envoy's LEAST_REQUEST with FULL_SCAN."""

    def choose(self, request: SimRequest, now: float) -> int:
        """A full scan."""
        return self.least(self.members)


class PowerOfTwo(PeerPolicy):
    """The fewer in flight of two drawn at random: Envoy's LEAST_REQUEST as it comes (`choice_count` 2)."""

    def choose(self, request: SimRequest, now: float) -> int:
        """Two draws, with replacement as in Envoy."""
        count = len(self.members)
        first = self.members[int(self.rng.random() * count)]
        second = self.members[int(self.rng.random() * count)]
        return first if self.in_flight[first] <= self.in_flight[second] else second
