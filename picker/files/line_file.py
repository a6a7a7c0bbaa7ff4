"""A file of whole lines on a disk that may be full: what it cannot take is counted, and what it took stays readable.

Invariants: after every `append` the file ends with a whole line, whatever failed in between; it never grows beyond
`bytes_max` by more than one block; nothing is raised after the start. Only regular files are written: a named pipe
would wait for its reader.
"""

import os
import stat
from pathlib import Path
from typing import Final

_LINE_BYTES_MAX: Final = 64 * 1024
"""Of a line that may be unfinished when an old file is taken up."""


class LineFile:
    """`append` blocks of lines; at `bytes_max` the file is rotated to `FILE.1` and begun anew with `header`.

    Others may rotate it too: where the path no longer leads to the open file, or that was emptied in its place
    (logrotate's `copytruncate`), it is begun anew.
    """

    def __init__(self, path: Path, bytes_max: int, header: bytes, *, resumes: bool = False) -> None:
        """`resumes`: go on behind what an old file holds; else that is rotated away. Raises `OSError` if it cannot be
        written."""
        self.problem: str | None = None
        """Why the last block could not be written whole."""
        self._path = path
        self._bytes_max = bytes_max
        self._header = header
        self._descriptor: int | None = None
        self._size = 0
        if path.exists():
            if not path.is_file():
                raise OSError(f"cannot write to {path}: it is not a regular file")
            self._resume() if resumes else self._rotate()
        else:
            self._open()

    def append(self, block: bytes) -> int:
        """How many of the block's lines are in the file now. Never raises."""
        written = 0
        try:
            descriptor = self._ready(len(block))
            view = memoryview(block)
            while written < len(block):
                written += os.write(descriptor, view[written:])
        except OSError as error:
            self.problem = error.strerror or str(error)
            kept = block.rfind(b"\n", 0, written) + 1
            self._cut(self._size + kept)
            return block.count(b"\n", 0, kept)
        self._size += written
        self.problem = None
        return block.count(b"\n")

    def close(self) -> None:
        """Nothing more is written. Never raises."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            try:
                os.close(descriptor)
            except OSError as error:
                self.problem = error.strerror

    def _ready(self, length: int) -> int:
        if self._descriptor is not None and self._taken(self._descriptor):
            self.close()
            self._open()
        if self._size + length > self._bytes_max and self._size > len(self._header):
            self._rotate()
        elif self._descriptor is None:
            self._rotate() if self._size else self._open()
        assert self._descriptor is not None
        return self._descriptor

    def _cut(self, size: int) -> None:
        """End with a whole line; where even that fails, what comes next begins another file."""
        if self._descriptor is None:
            return
        try:
            os.ftruncate(self._descriptor, size)
            self._size = size
        except OSError:
            self.close()

    def _taken(self, descriptor: int) -> bool:
        """Whether somebody renamed, removed or emptied the file."""
        own = os.fstat(descriptor)
        if not own.st_size and self._size:
            return True
        self._size = own.st_size
        try:
            return not os.path.samestat(os.stat(self._path), own)
        except FileNotFoundError:
            return True

    def _resume(self) -> None:
        """What a crash left unfinished at the end is cut off."""
        descriptor = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC)
        size = os.fstat(descriptor).st_size
        tail = os.pread(descriptor, _LINE_BYTES_MAX, max(0, size - _LINE_BYTES_MAX))
        self._descriptor = descriptor
        if size and b"\n" not in tail:  # not ours
            self._rotate()
        else:
            self._cut(size - len(tail) + tail.rfind(b"\n") + 1)

    def _open(self) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(self._path, flags, 0o600)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise OSError(f"cannot write to {self._path}: it is not a regular file")
            written = os.write(descriptor, self._header)
            if written < len(self._header):
                raise OSError(f"cannot write to {self._path}: no room for its first line")
        except OSError:
            self._size = 0
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        self._size = len(self._header)

    def _rotate(self) -> None:
        self.close()
        os.replace(self._path, self._path.with_name(self._path.name + ".1"))
        self._size = 0
        self._open()
