"""Everything that observes decisions and ends of requests: counts, the last decisions, traces, a recording."""

from collections.abc import Callable

from picker.decision import Finished, Picked
from picker.edge.telemetry.decisions import DecisionRing
from picker.edge.telemetry.page import Telemetry


class Observers:
    """The observers of all exchanges of this process. Every request passes through: no I/O, nothing that waits."""

    __slots__ = (
        "_decisions",
        "_telemetry",
        "keeps_hashes",
        "on_decided",
        "on_end",
        "running_by_model",
        "running_by_priority",
    )

    def __init__(self, decisions: DecisionRing, telemetry: Telemetry) -> None:
        self._decisions = decisions
        self._telemetry = telemetry
        self.keeps_hashes = False
        """Records get their prompt's block hashes, for a recording."""
        self.on_decided: list[Callable[[Picked, Finished], None]] = []
        """Further observers of decisions: traces."""
        self.on_end: list[Callable[[Finished], None]] = []
        """Further observers of ends: traces, a recording, a log of requests."""
        self.running_by_model: dict[str, int] = {}
        """Requests that were routed and are not over."""
        self.running_by_priority: dict[tuple[str, int], int] = {}
        """Of these, by model and priority, the ones whose priority is another than 0: most have none."""

    def decided(self, picked: Picked, record: Finished) -> None:
        """A request was routed."""
        self._decisions.add(picked, record)
        if self.keeps_hashes:
            record.block_hashes = picked.booking.hashes
        model = record.model or ""
        self.running_by_model[model] = self.running_by_model.get(model, 0) + 1
        if record.priority:
            kind = model, record.priority
            self.running_by_priority[kind] = self.running_by_priority.get(kind, 0) + 1
        for told in self.on_decided:
            told(picked, record)

    def finished(self, record: Finished) -> None:
        """An exchange is over."""
        if record.reason is not None:
            model = record.model or ""
            left = self.running_by_model[model] - 1
            if left:
                self.running_by_model[model] = left
            else:
                del self.running_by_model[model]
            if record.priority:
                kind = model, record.priority
                self.running_by_priority[kind] -= 1
                if not self.running_by_priority[kind]:
                    del self.running_by_priority[kind]
        self._telemetry.finished(record)
        for told in self.on_end:
            told(record)
