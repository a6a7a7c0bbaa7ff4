"""A bearer token from a file that others rotate (a mounted Secret): read again when it changes.

Invariant: `header` touches the file system at most once a second, and never raises.
"""

import os

TOKEN_BYTES_MAX = 64 * 1024
CHECK_SECONDS = 1.0


class BearerTokenFile:
    """`header(now)` is the Authorization line, `problem` what is wrong with the file, if anything."""

    def __init__(self, path: str | None) -> None:
        self._path = path
        self._seen: tuple[int, int, int] | None = None
        self._checked_at: float | None = None
        self._header = ""
        self.problem: str | None = None

    def header(self, now: float) -> str:
        """`Authorization: Bearer ...` with its CRLF, or nothing. `now`: monotonic seconds."""
        if self._path is not None and (self._checked_at is None or now - self._checked_at >= CHECK_SECONDS):
            self._checked_at = now
            self._read(self._path)
        return self._header

    def _read(self, path: str) -> None:
        try:
            found = os.stat(path)
            seen = (found.st_mtime_ns, found.st_ino, found.st_size)
            if seen == self._seen:
                return
            with open(path, encoding="ascii") as file:
                token = file.read(TOKEN_BYTES_MAX).strip()
        except (OSError, UnicodeDecodeError) as error:
            # The last good token stays: a rotation may be half done.
            self._seen = None
            self.problem = f"bearer_token_file {path}: {getattr(error, 'strerror', None) or 'not ASCII text'}"
            return
        if not token or any(c <= " " or c > "~" for c in token):
            self.problem = f"bearer_token_file {path}: expected one token without spaces"
            return
        self._seen = seen
        self._header = f"Authorization: Bearer {token}\r\n"
        self.problem = None
