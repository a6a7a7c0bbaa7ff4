"""Files that are looked at while they are used: a token, certificates. The last good content stays.

Invariant: the file system is touched at most once in `check_seconds`, and `look` never raises.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from picker.files.followed_file import FileProblem, FollowedFiles


class FilesInUse:
    """Call `look(now)` before each use. `problem` is what is wrong now, with the files or with what they say."""

    def __init__(
        self,
        paths: Sequence[Path],
        *,
        bytes_max: int,
        check_seconds: float,
        take: Callable[[tuple[bytes, ...]], None],
    ) -> None:
        """Reads nothing yet. `take` gets new contents; it raises `ValueError`, in words, for what cannot be used."""
        self.problem: str | None = None
        self._check_seconds = check_seconds
        self._take = take
        self._now = 0.0
        self._checked_at: float | None = None
        self._content_problem: str | None = None
        self._files = FollowedFiles(paths, bytes_max=bytes_max, clock=lambda: self._now)

    def look(self, now: float) -> None:
        """Take what changed, if it is time to look again. `now`: monotonic seconds."""
        if self._checked_at is not None and now - self._checked_at < self._check_seconds:
            return
        self._now = self._checked_at = now
        files = self._files
        try:
            found = files.start(wait=None) if files.contents is None else files.poll()
        except FileProblem as problem:
            self.problem = str(problem)
            return
        if found is not None:
            try:
                self._take(found)
                self._content_problem = None
            except ValueError as error:
                self._content_problem = str(error)
        self.problem = files.problem or self._content_problem
