"""An autoscaler over a simulated fleet, by the rules of Kubernetes' HorizontalPodAutoscaler.

    desired = ceil(ready * value / target)         a mean over replicas (queue, kv, running, saturation)
    desired = ceil(value / target)                 a number of replicas (wanted)

It looks every 15 s. Nothing changes within a tenth of the target, and nothing while the value is unknown. Up goes
at once, at most to twice as many or to four more; down goes to the most that it wanted within the
`cool_down_seconds` before (HPA's stabilisation window). These are the rules and defaults of
https://kubernetes.io/docs/tasks/run-application/horizontal-pod-autoscale/.
"""

from collections import deque
from collections.abc import Sequence
from math import ceil
from typing import Final

import msgspec

from picker.sim.engine import ModelServer
from picker.sim.policies.picker import PickerPolicy
from picker.sim.policies.policy import RoutingPolicy

SYNC_SECONDS: Final = 15.0
_TOLERANCE: Final = 0.1
_MORE_AT_ONCE: Final = 4

SIGNALS: Final = ("wanted", "saturation", "queue", "kv", "running")
"""What can be scaled on: the two metrics of ours, and the means over replicas of waiting requests, of the share of
KV cache in use, and of requests in the engine."""


class Autoscale(msgspec.Struct, frozen=True, kw_only=True):
    """A signal, what it shall be, and between which numbers of replicas."""

    signal: str
    target: float
    replicas_min: int = 1
    replicas_max: int = 8
    start_seconds: float = 60.0
    """From the wish for a replica until it takes requests."""
    cool_down_seconds: float = 300.0

    @property
    def name(self) -> str:
        """As the command line has it."""
        return f"{self.signal}@{self.target:g}"


class Scaler:
    """What the autoscaler remembers. `desired` is a function of it and its arguments."""

    def __init__(self, rules: Autoscale) -> None:
        self.rules = rules
        self._wishes: deque[tuple[float, int]] = deque()

    def desired(self, at: float, value: float | None, *, ready: int, current: int) -> int:
        """How many replicas there shall be. `current`: those that are ready, and those that start."""
        rules = self.rules
        wish = current
        if value is not None:
            per_replica = value / max(current, 1) if rules.signal == "wanted" else value
            if abs(per_replica / rules.target - 1.0) > _TOLERANCE:
                wish = ceil(value / rules.target) if rules.signal == "wanted" else ceil(ready * value / rules.target)
        wish = min(max(wish, rules.replicas_min), rules.replicas_max)
        while self._wishes and self._wishes[0][0] < at - rules.cool_down_seconds:
            self._wishes.popleft()
        self._wishes.append((at, wish))
        if wish >= current:
            return min(wish, max(2 * current, current + _MORE_AT_ONCE))
        return min(current, max(earlier for _, earlier in self._wishes))


def value_of(signal: str, at: float, servers: Sequence[ModelServer], policies: Sequence[RoutingPolicy]) -> float | None:
    """The signal as it is now, without the delay of a scrape. `servers`: the ready ones."""
    if signal == "wanted":
        known = [each.director.wanted_replicas(at) for each in policies if isinstance(each, PickerPolicy)]
        return sum(value for value in known if value is not None) if any(v is not None for v in known) else None
    if signal == "saturation":
        values = [each.director.saturation(at) for each in policies if isinstance(each, PickerPolicy)]
        return _mean([value for value in values if value is not None])
    if signal == "queue":
        return _mean([float(server.waiting) for server in servers])
    if signal == "kv":
        return _mean([server.utilization(at) for server in servers])
    return _mean([float(server.waiting + server.running) for server in servers])


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
