"""The one reader of files that others write while we run: configuration, endpoints, certificates, tokens.

Whoever edits a file in place first empties it and then writes it in pieces, and a reader in between
sees a shorter file that often parses: a configuration without its last tables, a pool of half its
endpoints. So what has changed is taken only once it has *settled*:

* two reads in a row, `AGREE_SECONDS` or more apart, give the same bytes;
* what is only the beginning of the content in force (a file being written again) stands for `CUT_SECONDS`;
* an empty file never takes the place of a filled one. Remove what is meant to be gone, or write so;
* where texts differ in every read (somebody writes each second, with the time in a comment), all of them have
  meant the same for `MEANT_SECONDS`, and something else than the text in force. Only files with a `meaning` settle
  so. It is asked for no more than a tenth of the time, as it parses.

Only regular files are opened for reading, without waiting, and no more than `bytes_max` is read: a named pipe,
a device or an endless file costs a message. A bad state is told once, when two reads in a row found it; the last
good content stays.

One owner at a time; `poll` does blocking reads, which for large files belong in a thread.
"""

import os
import re
import stat
import time
from collections.abc import Callable, Sequence
from pathlib import Path

AGREE_SECONDS = 0.5
CUT_SECONDS = 10.0
MEANT_SECONDS = 5.0
MEANING_SHARE = 10
"""So many times as long as asking for a meaning took, it is not asked for again."""
FRESH_SECONDS = 2.0
"""At the start, a file that was written so recently is read again before it is believed."""
START_TRIES = 10
START_PAUSE_SECONDS = 0.1
_READ_BYTES = 256 * 1024

_STATEMENT = re.compile(rb"^[ \t]*[^#\s]", re.MULTILINE)
"""A line that is no comment."""

_KINDS: tuple[tuple[Callable[[int], bool], str], ...] = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


Meaning = Callable[[bytes], object]
"""What a text says, to be compared; `ValueError` for one that says nothing good."""


class FileProblem(Exception):
    """A file cannot be used; the text names it, what is wrong and what to do."""


def read_regular(path: Path, *, bytes_max: int) -> bytes:
    """All of a regular file, now. Raises `FileProblem`; never waits for a writer."""
    try:
        # A pipe without a writer would block `open` without O_NONBLOCK; a terminal could become ours without O_NOCTTY.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = getattr(error, "strerror", None) or str(error)
        raise FileProblem(f"cannot read {path}: {reason}; check the path and its permissions") from None
    try:
        kind = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(kind):
            what = next((name for test, name in _KINDS if test(kind)), "something else")
            raise FileProblem(f"cannot read {path}: it is {what}; give a regular file")
        return _read_to_end(descriptor, path, bytes_max)
    except OSError as error:
        raise FileProblem(f"cannot read {path}: {error.strerror}") from None
    finally:
        os.close(descriptor)


def _read_to_end(descriptor: int, path: Path, bytes_max: int) -> bytes:
    pieces: list[bytes] = []
    size = 0
    while piece := os.read(descriptor, _READ_BYTES):
        size += len(piece)
        if size > bytes_max:
            raise FileProblem(f"cannot read {path}: it is larger than {bytes_max:,} bytes, which is the most allowed")
        pieces.append(piece)
    return b"".join(pieces)


class FollowedFiles:
    """One file, or some that belong together (a certificate and its key): they settle together.

    `contents` is what is in force, by position; `None` until something could be read.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        *,
        bytes_max: int,
        clock: Callable[[], float] = time.monotonic,
        meaning: Meaning | None = None,
    ) -> None:
        """Reads nothing yet: `start` or `poll` does. `clock`: monotonic seconds. `meaning`: of texts whose lines may
        be comments (`#`)."""
        self.paths = tuple(paths)
        self.contents: tuple[bytes, ...] | None = None
        self._bytes_max = bytes_max
        self._clock = clock
        self._candidate: tuple[bytes, ...] | None = None
        self._candidate_since = 0.0
        self._meaning = meaning
        self._meant: object = None
        """What the texts say that differ in every read, and since when; `None` where that was not asked."""
        self._meant_since = 0.0
        self._meant_in_force: object = None
        self._ask_at = 0.0
        self.problem: str | None = None
        """What is wrong with the files now, as it was told."""
        self._suspected: str | None = None

    def read(self) -> tuple[bytes, ...]:
        """All of them, now. Raises `FileProblem`."""
        return tuple(read_regular(path, bytes_max=self._bytes_max) for path in self.paths)

    def start(self, *, wait: Callable[[float], None] | None = time.sleep) -> tuple[bytes, ...]:
        """What the files say at the start. Raises `FileProblem`.

        Files that were written just now are read until two reads agree: a second at most, then they are taken as
        they are. `wait=None`: as they are, at once.
        """
        contents = self.read()
        for _ in range(START_TRIES):
            if wait is None or not any(0 <= time.time() - _written_at(path) < FRESH_SECONDS for path in self.paths):
                break
            wait(START_PAUSE_SECONDS)
            again = self.read()
            if again == contents and all(map(bytes.strip, again)):
                break
            contents = again
        self.contents = contents
        return contents

    def poll(self) -> tuple[bytes, ...] | None:
        """New contents that have settled, else `None`. Raises `FileProblem` once for each bad state."""
        try:
            found = self.read()
            self._refuse_emptied(found)
        except FileProblem as problem:
            self._candidate = self._meant = None
            seen, self._suspected = self._suspected, str(problem)
            if seen != str(problem) or self.problem == str(problem):
                return None  # for this moment only, as when a file is taken away and written anew; or told already
            self.problem = str(problem)
            raise
        self.problem = self._suspected = None
        if found == self.contents:
            self._candidate = self._meant = None
            return None
        now = self._clock()
        if self._candidate is None:
            self._candidate, self._candidate_since = found, now
            return None
        if found != self._candidate:
            self._candidate, self._candidate_since = found, now
            settled = self._meaning is not None and self._means_the_same(found, self._meaning, now)
        else:
            settled = now - self._candidate_since >= (CUT_SECONDS if self._cut(found) else AGREE_SECONDS)
        if not settled:
            return None
        self._candidate = self._meant = self._meant_in_force = None
        self.contents = found
        return found

    def _means_the_same(self, found: tuple[bytes, ...], meaning: Meaning, now: float) -> bool:
        """Whether texts that differ have said the same for long enough, and something new."""
        if now < self._ask_at:
            return False
        meant = _meant(meaning, found)
        if self._meant_in_force is None and self.contents is not None:
            self._meant_in_force = _meant(meaning, self.contents)
        self._ask_at = now + MEANING_SHARE * (self._clock() - now)
        if meant != self._meant:
            self._meant, self._meant_since = meant, now
            return False
        return now - self._meant_since >= MEANT_SECONDS and meant != self._meant_in_force

    def _refuse_emptied(self, found: tuple[bytes, ...]) -> None:
        for path, before, now in zip(self.paths, self.contents or (), found, strict=False):
            if not self._empty(before) and self._empty(now):
                what = "holds nothing but comments" if now.strip() else "is empty"
                raise FileProblem(
                    f"{path} {what}, as a file is while it is written: what it said before stays in force"
                )

    def _empty(self, content: bytes) -> bool:
        """Also with nothing but comments, where a text may have them."""
        return not content.strip() if self._meaning is None else _STATEMENT.search(content) is None

    def _cut(self, found: tuple[bytes, ...]) -> bool:
        """Whether a file holds only the beginning of what it said before."""
        pairs = zip(map(self._said, self.contents or ()), map(self._said, found), strict=False)
        return any(len(new) < len(old) and old.startswith(new) for old, new in pairs)

    def _said(self, content: bytes) -> bytes:
        """Without the lines that are comments: the time in one does not make a cut text another."""
        if self._meaning is None or b"#" not in content:
            return content
        return b"".join(line for line in content.splitlines(keepends=True) if not line.lstrip().startswith(b"#"))


class FollowedFile:
    """One file. `content` is what is in force."""

    def __init__(
        self,
        path: Path,
        *,
        bytes_max: int,
        clock: Callable[[], float] = time.monotonic,
        meaning: Meaning | None = None,
    ) -> None:
        """Reads at once. Raises `FileProblem`."""
        self._files = FollowedFiles((path,), bytes_max=bytes_max, clock=clock, meaning=meaning)
        self.content = self._files.start()[0]

    @property
    def problem(self) -> str | None:
        """What is wrong with the file now, as it was told."""
        return self._files.problem

    def poll(self) -> bytes | None:
        """New content that has settled, else `None`. Raises `FileProblem` once for each bad state."""
        found = self._files.poll()
        if found is None:
            return None
        self.content = found[0]
        return self.content


def _meant(meaning: Meaning, contents: tuple[bytes, ...]) -> object:
    try:
        return tuple(map(meaning, contents))
    except ValueError as error:  # so that it is told, where it stays the same
        return str(error)


def _written_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
