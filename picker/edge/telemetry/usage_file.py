"""`usage_file`: one JSON line for each request that was routed. Who, which model, how many tokens; never content.

    {"at": "2026-01-31T12:00:00.123Z", "request_id": "...", "tenant": "acme", "model": "...", "api": "chat_completions",
     "endpoint": "pod-7", "status": 200, "outcome": "completed", "usage": "reported", "input_tokens": 1810,
     "cached_tokens": 1536, "output_tokens": 240, "engine_seconds": 0.0712, "duration_seconds": 3.217}

`at` is when it ended. `usage` says how well the counts are known; what is unknown is null. The file goes on after a
restart, and at `USAGE_BYTES_MAX` it becomes `FILE.1`; others may rotate it as they like.
"""

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from picker.decision import Finished
from picker.files.line_writer import LineWriter

USAGE_BYTES_MAX: Final = 256 * 1024 * 1024
_encode: Final = msgspec.json.Encoder().encode


class UsageFile(LineWriter):
    """Owns the file. `finished` costs some microseconds and never waits for the disk."""

    def __init__(self, path: Path, *, clock: Callable[[], datetime]) -> None:
        """`clock`: the time of day, with its zone. Raises `OSError` if the file cannot be written."""
        super().__init__(path, USAGE_BYTES_MAX, b"", resumes=True)
        self._now = clock

    def finished(self, record: Finished) -> None:
        """An exchange is over."""
        if record.reason is not None:
            self.add(_encode(self._line(record)) + b"\n")

    def _line(self, record: Finished) -> dict[str, Any]:
        charged, seconds = record.charged, record.engine_seconds
        at = self._now().isoformat(timespec="milliseconds").replace("+00:00", "Z")
        return {
            "at": at,
            "request_id": _text(record.request_id),
            "tenant": _text(record.tenant),
            "model": _text(record.model),
            "api": record.path,
            "endpoint": record.endpoint_name,
            "status": record.status,
            "outcome": record.outcome.value,
            "usage": record.metered.value,
            "input_tokens": None if charged is None else charged.input_tokens,
            "cached_tokens": None if charged is None else charged.cached_tokens,
            "output_tokens": None if charged is None else charged.output_tokens,
            "engine_seconds": None if seconds is None else round(seconds, 6),
            "duration_seconds": round(record.duration_seconds, 6),
        }


def _text(words: str | None) -> str | None:
    """Of a client. A lone surrogate would make the line unwritable."""
    return None if words is None else words.encode("utf-8", "replace").decode()
