"""Who is told of every decision and of every end: counts, the last decisions, and whoever else wants to know."""

from collections.abc import Callable

from picker.decision import Finished, Picked
from picker.edge.decisions import DecisionRing
from picker.edge.telemetry import Telemetry


class Followers:
    """Of all exchanges of this process. What each request passes through: no I/O, nothing that waits."""

    __slots__ = ("_decisions", "_telemetry", "keeps_hashes", "on_end", "running_by_model")

    def __init__(self, decisions: DecisionRing, telemetry: Telemetry) -> None:
        self._decisions = decisions
        self._telemetry = telemetry
        self.keeps_hashes = False
        """Records get their prompt's block hashes, for a recording."""
        self.on_end: list[Callable[[Finished], None]] = []
        """More that want to know of ends: traces, a recording, a log of requests."""
        self.running_by_model: dict[str, int] = {}
        """Requests that were routed and are not over."""

    def decided(self, picked: Picked, record: Finished) -> None:
        """A request was routed."""
        self._decisions.add(picked, record)
        if self.keeps_hashes:
            record.block_hashes = picked.charge.hashes
        model = record.model or ""
        self.running_by_model[model] = self.running_by_model.get(model, 0) + 1

    def finished(self, record: Finished) -> None:
        """An exchange is over."""
        if record.reason is not None:
            model = record.model or ""
            left = self.running_by_model[model] - 1
            if left:
                self.running_by_model[model] = left
            else:
                del self.running_by_model[model]
        self._telemetry.finished(record)
        for told in self.on_end:
            told(record)
