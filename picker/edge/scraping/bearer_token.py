"""A bearer token from a file that others rotate (a mounted Secret): read again when it changes.

Invariant: `header` touches the file system at most once a second, and never raises.
"""

from pathlib import Path

from picker.files.files_in_use import FilesInUse

TOKEN_BYTES_MAX = 64 * 1024
CHECK_SECONDS = 1.0


class BearerTokenFile:
    """`header(now)` is the Authorization line, `problem` what is wrong with the file, if anything."""

    def __init__(self, path: str | None) -> None:
        self._path = path
        self._header = ""
        self._files = (
            None
            if path is None
            else FilesInUse((Path(path),), bytes_max=TOKEN_BYTES_MAX, check_seconds=CHECK_SECONDS, take=self._take)
        )

    @property
    def problem(self) -> str | None:
        """As of the last look."""
        problem = None if self._files is None else self._files.problem
        return None if problem is None else f"bearer_token_file {problem}"

    def header(self, now: float) -> str:
        """`Authorization: Bearer ...` with its CRLF, or nothing. `now`: monotonic seconds."""
        if self._files is not None:
            self._files.look(now)
        return self._header

    def _take(self, contents: tuple[bytes, ...]) -> None:
        token = contents[0].strip()
        if not token or any(not 0x21 <= byte <= 0x7E for byte in token):
            raise ValueError(f"{self._path}: expected one token, ASCII without spaces")
        self._header = f"Authorization: Bearer {token.decode('ascii')}\r\n"
