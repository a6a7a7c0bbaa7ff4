"""The last decisions, with their reasons: what `picker explain` and the admin endpoint show.

A bounded ring: a decision keeps its columns (some hundred bytes an endpoint) only while it is in
here. The explanation is computed when read.
"""

from collections import deque
from typing import Any

import msgspec

from picker.decision import Finished, Picked

RECENT_MAX = 256


class DecisionRing:
    """The last `size` decisions, newest first when listed."""

    def __init__(self, size: int = RECENT_MAX) -> None:
        self._ring: deque[tuple[Picked, Finished]] = deque(maxlen=size)

    def add(self, picked: Picked, record: Finished) -> None:
        """A decision was made."""
        self._ring.append((picked, record))

    def find(self, request_id: str) -> dict[str, Any] | None:
        """The newest decision of a request, explained."""
        for picked, record in reversed(self._ring):
            if record.request_id == request_id:
                return _shown(picked, record)
        return None

    def recent(self, count: int) -> list[dict[str, Any]]:
        """The newest `count`, explained."""
        newest = list(self._ring)[-count:] if count > 0 else []
        return [_shown(picked, record) for picked, record in reversed(newest)]


def _shown(picked: Picked, record: Finished) -> dict[str, Any]:
    """What is shown of a decision: never the prompt, which nobody keeps."""
    return {
        "request_id": record.request_id,
        "api": record.path,
        "model": record.model,
        "priority": record.priority,
        "addresses": list(picked.addresses),
        "decision_seconds": record.decision_seconds,
        "predicted_ttft_seconds": picked.predicted_ttft_seconds,
        **msgspec.to_builtins(picked.explain()),
    }
