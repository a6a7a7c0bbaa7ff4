"""A day in less than one: a workload whose rate follows the hours.

The rate at the share `t` of the day is `peak * (low + (1 - low) * sin(pi t)^2)`: night at both ends, noon between.
Sessions are those of the steady workload, in their order; only their starts move, so that a burst stays a burst.
"""

from collections.abc import Iterator
from math import pi, sin

import msgspec

from picker.sim import workloads
from picker.sim.prompts import Session
from picker.sim.scripts import Script, SessionScript
from picker.sim.sources import SETTLE_SECONDS, Workload, first_planned, settled


class Day(msgspec.Struct, frozen=True):
    """A workload over one day of `seconds`. Its rate is the peak's, in requests a second."""

    workload: Workload
    seconds: float
    low: float = 0.2
    """The night's rate, as a share of the peak's."""

    @property
    def name(self) -> str:
        """For tables."""
        return f"{self.workload.name} over a day of {self.seconds:g} s"

    @property
    def unit(self) -> str:
        """Requests a second at noon."""
        return "/s"

    def requests(self, rate: float) -> int:
        """In the whole day."""
        return max(1, round(rate * self._busy(1.0)))

    def scripts(self, seed: int, requests: int, rate: float, warm_up: float) -> Iterator[Script]:
        """Its first `requests` requests by planned time."""
        steady = workloads.sessions(self.workload.name, seed, rate, self.workload.parameters)
        stream = settled(steady, SETTLE_SECONDS[self.workload.name])
        planned = first_planned(self._moved(stream), requests, warm_up)
        return (SessionScript(session, warm_turns) for session, warm_turns in planned)

    def _busy(self, share: float) -> float:
        """Seconds of the peak's rate that are in the first `share` of the day: the integral of the curve."""
        return self.seconds * (self.low * share + (1 - self.low) * (share / 2 - sin(2 * pi * share) / (4 * pi)))

    def _moved(self, stream: Iterator[Session]) -> Iterator[Session]:
        """Each start goes to where the curve has brought as many seconds. Both rise, so one walk finds all."""
        step = 1.0 / max(self.seconds, 1.0)
        share, before, after = 0.0, 0.0, self._busy(step)
        for session in stream:
            while after <= session.at_seconds:
                share += step
                before, after = after, self._busy(share + step)
            at = share + step * (session.at_seconds - before) / (after - before)
            yield msgspec.structs.replace(session, at_seconds=at * self.seconds)
