"""The last decisions, with their reasons: what `picker explain` and the admin endpoint show.

A ring, bounded in decisions and in bytes: a decision keeps its columns (some hundred bytes an endpoint) only while
it is in here. The explanation is computed when read.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import msgspec
import numpy as np

from picker.decision import Finished, Picked
from picker.edge.telemetry.moments import moment_text
from picker.scheduling.explanation import LazyExplanation

RECENT_MAX: Final = 1000
BYTES_MAX: Final = 32 * 1024 * 1024
"""Of all decisions together, by the estimate below. What is oldest goes, however many are left."""
_ENTRY_BYTES: Final = 4096
_SLOT_BYTES: Final = 120
"""Of one endpoint's columns in one decision: load, cost, and its part of a snapshot that few others share."""
_HASH_BYTES: Final = 8


class KeptDecision:
    """One of the ring. Its record goes on being filled in until the request is over."""

    __slots__ = ("bytes_estimate", "decided_at", "number", "picked", "record")

    number: int
    """In the order in which they were made, from 1 on."""
    decided_at: float
    """Seconds since the epoch, by the picker's wall clock."""
    picked: Picked
    record: Finished
    bytes_estimate: int

    def __init__(self, number: int, decided_at: float, picked: Picked, record: Finished) -> None:
        self.number = number
        self.decided_at = decided_at
        self.picked = picked
        self.record = record
        explain = picked.explain
        self.bytes_estimate = _ENTRY_BYTES + _HASH_BYTES * len(picked.booking.hashes)
        if isinstance(explain, LazyExplanation):
            self.bytes_estimate += _SLOT_BYTES * explain.snapshot.width


class DecisionRing:
    """The last decisions, newest first when listed: `size` at most, and fewer where they are large."""

    def __init__(
        self,
        size: int = RECENT_MAX,
        told: Callable[[Picked, str], bool] | None = None,
        *,
        clock: Callable[[], float] = time.time,
        bytes_max: int = BYTES_MAX,
    ) -> None:
        """`told`: whether what an address holds of the prompt is known from another picker. `clock`: the wall's."""
        self.size = size
        self.added_total = 0
        """How many decisions were ever made: the number of the newest."""
        self.bytes_estimate = 0
        self._bytes_max = bytes_max
        self._ring: deque[KeptDecision] = deque()
        self._told = told
        self.clock = clock

    def __len__(self) -> int:
        return len(self._ring)

    def add(self, picked: Picked, record: Finished) -> None:
        """A decision was made."""
        ring = self._ring
        self.added_total += 1
        kept = KeptDecision(self.added_total, self.clock(), picked, record)
        ring.append(kept)
        self.bytes_estimate += kept.bytes_estimate
        while len(ring) > self.size or (self.bytes_estimate > self._bytes_max and len(ring) > 1):
            self.bytes_estimate -= ring.popleft().bytes_estimate

    def newest(self, count: int | None = None, *, since: int = 0) -> list[KeptDecision]:
        """So many, the newest first; all of them where no number is given. `since`: only of a higher number."""
        found: list[KeptDecision] = []
        for kept in reversed(self._ring):
            if kept.number <= since or (count is not None and len(found) >= count):
                break
            found.append(kept)
        return found

    def numbered(self, number: int) -> KeptDecision | None:
        """The decision of this number; `None`: it is not kept, or was never made."""
        at = number - 1 - self.added_total + len(self._ring)
        return self._ring[at] if 0 <= at < len(self._ring) else None

    def shown(self, kept: KeptDecision) -> dict[str, Any]:
        """What is shown of a decision: never the prompt, which nobody keeps."""
        picked, record, explain = kept.picked, kept.record, kept.picked.explain
        explanation = explain()
        shown = {
            "number": kept.number,
            "decided_at": moment_text(kept.decided_at),
            "request_id": record.request_id,
            "api": record.path,
            "model": record.model,
            "tenant": record.tenant,
            "priority": record.priority,
            "addresses": list(picked.addresses),
            "served": record.served_address,
            "status": record.status,
            "outcome": str(record.outcome) if picked.booking.finished else None,
            "decision_seconds": record.decision_seconds,
            "predicted_ttft_seconds": picked.predicted_ttft_seconds,
            "ttft_seconds": record.ttft_seconds,
            "weights": {},
            "candidates": 1,
            **msgspec.to_builtins(explanation),
        }
        if isinstance(explain, LazyExplanation):
            shown["weights"] = explain.weights(explanation.endpoints[0].seconds)
            shown["candidates"] = int(np.isfinite(explain.choice.cost).sum())
        for row in shown["endpoints"]:
            self._add_told(picked, row)
        return shown

    def rows(self, picked: Picked, slots: Iterable[int]) -> Iterator[dict[str, Any]]:
        """The candidates of these slots, as `shown` has them."""
        explain = picked.explain
        assert isinstance(explain, LazyExplanation), "decided without costs"
        for view in explain.views(slots):
            row: dict[str, Any] = msgspec.to_builtins(view)
            self._add_told(picked, row)
            yield row

    def _add_told(self, picked: Picked, row: dict[str, Any]) -> None:
        if self._told is not None:
            row["told"] = row["matched_share"] > 0 and self._told(picked, row["address"])
            if row["told"]:
                row["why"] += "; what it holds is known from another picker"
