"""Says once that a file loses lines, and once that it goes on: requests do not wait for a disk."""

from collections.abc import Callable

from picker.files.line_writer import LineWriter

QUIET_SECONDS = 60.0
"""Without a loss for so long, it goes on."""


class LineWatch:
    """`look()` about once a second."""

    def __init__(self, writer: LineWriter, what: str, *, log: Callable[..., None], clock: Callable[[], float]) -> None:
        """`what` the file is: "recording"."""
        self._writer = writer
        self._what = what
        self._log = log
        self._clock = clock
        self._lost = 0
        self._lost_at: float | None = None

    def look(self) -> None:
        """Bring what is buffered on its way to the disk, and tell what became of the rest."""
        writer, what = self._writer, self._what
        writer.hand_over()
        now = self._clock()
        if writer.lost > self._lost:
            if self._lost_at is None:
                self._log(
                    "error",
                    f"the {what} loses requests, serving goes on; make room on its disk or end the {what}",
                    file=str(writer.path),
                    error=writer.problem or "the disk is too slow",
                    lost=writer.lost,
                )
            self._lost, self._lost_at = writer.lost, now
        elif self._lost_at is not None and now - self._lost_at >= QUIET_SECONDS and writer.problem is None:
            self._lost_at = None
            self._log("info", f"the {what} goes on", file=str(writer.path), lost=writer.lost)
