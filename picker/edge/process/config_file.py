"""The configuration file, followed by content: a mounted ConfigMap changes by symbolic link.

A bad state of the file is told once, and the last good configuration stays. What counts as a state, and what
as a file that is just being written, is `followed_file`'s to say.
"""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from picker import config as configuration
from picker.config import Config, ConfigError
from picker.files.background import unnoticed
from picker.files.followed_file import FileProblem, FollowedFile, read_regular

FILE_BYTES_MAX = 256 * 1024
"""Every key with its reason as a comment takes 20 KB; reading a megabyte of YAML takes seconds."""


class ConfigFile:
    """One file, or none: then all defaults and never a change."""

    def __init__(self, path: Path | None, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Reads at once. Raises `ConfigError`."""
        try:
            self._file = (
                FollowedFile(path, bytes_max=FILE_BYTES_MAX, clock=clock, meaning=_loaded) if path is not None else None
            )
        except FileProblem as problem:
            raise ConfigError(str(problem)) from None
        self.config = _load(self._file.content) if self._file is not None else Config()
        self._content_good = True
        self._look = asyncio.Event()

    def look(self) -> None:
        """Do not wait for the next regular look (SIGHUP)."""
        self._look.set()

    async def follow(
        self, seconds: float, *, changed: Callable[[Config], None], refused: Callable[[ConfigError], None]
    ) -> None:
        """Look every so many seconds, in a thread, until cancelled."""
        while True:
            try:
                async with asyncio.timeout(seconds):
                    await self._look.wait()
            except TimeoutError:
                pass
            self._look.clear()
            try:
                config = await asyncio.to_thread(self.poll)
            except ConfigError as error:
                refused(error)
                continue
            if config is not None:
                changed(config)

    def poll(self) -> Config | None:
        """The configuration where the file changed or is good again, else `None`.

        Raises `ConfigError` once for a bad state. Reads and parses, which belongs in a thread.
        """
        if self._file is None:
            return None
        unreadable = self._file.problem is not None
        try:
            content = self._file.poll()
        except FileProblem as problem:
            raise ConfigError(str(problem)) from None
        if content is not None:
            self._content_good = False
            self.config = _loaded(content)
            self._content_good = True
            return self.config
        readable_again = unreadable and self._file.problem is None
        return self.config if readable_again and self._content_good else None


def read(path: Path) -> Config:
    """A configuration file as it stands, for a look at it. Raises `ConfigError`."""
    try:
        return _load(read_regular(path, bytes_max=FILE_BYTES_MAX))
    except FileProblem as problem:
        raise ConfigError(str(problem)) from None


def _loaded(content: bytes) -> Config:
    with unnoticed():
        return _load(content)


def _load(content: bytes) -> Config:
    try:
        text = content.decode("utf-8-sig")  # editors of one system put a byte order mark first
    except UnicodeDecodeError as error:
        raise ConfigError(f"not UTF-8 text: {error.reason} at byte {error.start}; save the file as UTF-8") from None
    return configuration.load(text)
