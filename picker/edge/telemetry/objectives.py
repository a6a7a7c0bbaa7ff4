"""Requests served in time: within the targets of their objective (`objectives`, `targets` of the configuration).

Judged are streamed answers, whose first token is seen. One that was refused for want of room, or that failed,
did not keep its time to first token; nor did one whose client gave up after the target had passed. Who gave up
before it, or was answered 4xx, says nothing. Labels are the configuration's own names, so they are bounded.
"""

from typing import Final

from picker.config import Config
from picker.config.config_objectives import targets_by_objective
from picker.decision import Finished
from picker.edge.telemetry.series import Counters
from picker.outcomes import Outcome

_ABORTED: Final = Outcome.ABORTED
_COMPLETED: Final = Outcome.COMPLETED
_LOST: Final = frozenset({Outcome.SHED, Outcome.UNAVAILABLE, Outcome.FAILED})

Judged = dict[str | None, tuple[float | None, float | None]]


class ObjectiveCounts:
    """How many requests kept their targets, and how many did not."""

    def __init__(self) -> None:
        self.counters = Counters(
            "picker_objective_requests_total",
            "Streamed requests by whether they kept the target of their objective.",
            ("objective", "target", "met"),
        )
        self.targets: Judged = {}
        """Empty: there are none, and nothing is judged."""

    def reconfigure(self, config: Config) -> None:
        """Other targets from now on. Counts of objectives that are gone stay."""
        self.targets = targets_by_objective(config.objectives, config.targets)

    def judge(self, finished: Finished) -> None:
        """Count a request that is over."""
        if not finished.streaming:
            return
        named = finished.objective if finished.objective in self.targets else None
        found = self.targets.get(named)
        if found is None:
            return
        ttft_target, tpot_target = found
        ttft, outcome, status = finished.ttft_seconds, finished.outcome, finished.status
        well = status is not None and status < 400
        if ttft_target is not None:
            gave_up = outcome is _ABORTED and finished.duration_seconds > ttft_target
            if ttft is not None and well:
                self._count(named, "ttft", ttft <= ttft_target)
            elif gave_up or outcome in _LOST or (status is not None and status >= 500):
                self._count(named, "ttft", False)
        usage = finished.usage
        if tpot_target is None or usage is None or usage.output_tokens is None or usage.output_tokens < 2:
            return
        if ttft is not None and well and outcome is _COMPLETED:
            each = (finished.duration_seconds - ttft) / (usage.output_tokens - 1)
            self._count(named, "tpot", each <= tpot_target)

    def _count(self, objective: str | None, target: str, met: bool) -> None:
        self.counters.add(objective or "", target, "true" if met else "false")
