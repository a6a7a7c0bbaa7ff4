"""Lines for a file, one a request, written by a thread: a disk that is slow or gone holds no request.

Bounded: what waits for the disk is at most `BLOCKS_WAITING_MAX` blocks of `BUFFER_BYTES`. What cannot be written in
time, or at all, is counted and never raised.
"""

import queue
import threading
from pathlib import Path
from typing import Final

from picker.files.line_file import LineFile

BUFFER_BYTES: Final = 64 * 1024
BLOCKS_WAITING_MAX: Final = 64
"""Of the buffer's size: 4 MB wait for a slow disk."""


class LineWriter:
    """One event loop owns it. `add` costs a microsecond; `hand_over` once a second brings the rest on its way."""

    def __init__(self, path: Path, bytes_max: int, first: bytes, *, resumes: bool) -> None:
        """As `LineFile`, which says what each is. Raises `OSError` if the file cannot be written."""
        if bytes_max < BUFFER_BYTES:
            raise ValueError(f"bytes_max is {bytes_max}: at least {BUFFER_BYTES} are needed")
        self.path = path
        self.written = 0
        """Lines in the file. Only the writing thread raises it."""
        self._not_written = 0
        self._not_taken = 0
        self._file = LineFile(path, bytes_max, first, resumes=resumes)
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._blocks: queue.Queue[bytes | threading.Event | None] = queue.Queue(BLOCKS_WAITING_MAX)
        self._thread = threading.Thread(target=self._write, name="lines", daemon=True)
        self._thread.start()

    @property
    def lost(self) -> int:
        """Lines that could not be written, or not in time."""
        return self._not_written + self._not_taken

    @property
    def problem(self) -> str | None:
        """Why the last block could not be written whole; `None`: it was."""
        return self._file.problem

    def add(self, line: bytes) -> None:
        """A line, with its end. Never raises on I/O."""
        if self._pending_bytes + len(line) > BUFFER_BYTES:
            self.hand_over()
        self._pending.append(line)
        self._pending_bytes += len(line)

    def hand_over(self) -> None:
        """What is buffered, to the thread that writes. Where too much waits there already, it is lost."""
        if not self._pending:
            return
        lines, self._pending, self._pending_bytes = self._pending, [], 0
        try:
            self._blocks.put_nowait(b"".join(lines))
        except queue.Full:
            self._not_taken += len(lines)

    def flush(self, seconds: float = 5.0) -> None:
        """Bring what is buffered to the file, as far as that can be done in `seconds`. Never raises on I/O."""
        self.hand_over()
        done = threading.Event()
        try:
            self._blocks.put(done, timeout=seconds)
        except queue.Full:
            return
        done.wait(seconds)

    def close(self, seconds: float = 5.0) -> None:
        """Nothing more comes. A disk that does not answer within `seconds` keeps the process from nothing."""
        self.hand_over()
        try:
            self._blocks.put(None, timeout=seconds)
        except queue.Full:
            return
        self._thread.join(seconds)

    def _write(self) -> None:
        while True:
            block = self._blocks.get()
            if block is None:
                self._file.close()
                return
            if isinstance(block, threading.Event):
                block.set()
                continue
            kept = self._file.append(block)
            self.written += kept
            self._not_written += block.count(b"\n") - kept
