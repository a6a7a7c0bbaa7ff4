"""Faults of our own: counted by where they were met, and logged once a minute with their traceback.

A fault costs knowledge, never a request: whoever meets one tells it here and goes on. The traceback has types and
places, not the exception's text, which may quote what a client sent.
"""

from collections.abc import Callable
from typing import Final

from picker.edge.telemetry.logs import Log

LOG_SECONDS: Final = 60.0

PLACES: Final = (
    *("decode", "headers", "body", "decision", "explanation", "answer", "end"),
    *("telemetry", "stream", "transport"),
)
"""Where a fault is met: the label of `picker_faults_total`."""


class Faults:
    """Call it with where and what. It never raises."""

    def __init__(self, log: Log, *, count: Callable[[str], None], clock: Callable[[], float]) -> None:
        self._log = log
        self._count = count
        self._clock = clock
        self._told_at: dict[str, float] = {}
        self._untold: dict[str, int] = {}

    def __call__(self, where: str, error: BaseException) -> None:
        """A fault was met."""
        try:
            self._tell(where if where in PLACES else PLACES[-1], error)
        except Exception:
            return  # a fault in telling one must not cost more than the line

    def _tell(self, where: str, error: BaseException) -> None:
        self._count(where)
        now = self._clock()
        if now - self._told_at.get(where, -LOG_SECONDS) < LOG_SECONDS:
            self._untold[where] = self._untold.get(where, 0) + 1
            return
        self._told_at[where] = now
        more = self._untold.pop(where, 0)
        fields = {"met_in": where} | ({"more_since_last_line": more} if more else {})
        self._log.fault("a fault of the picker: please report it; requests go on, with less known", error, **fields)
