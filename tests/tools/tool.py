"""What tests run that pip does not install: found, or made by `make tools` before pytest starts.

A `Tool` is one or more files under one folder that git ignores. `make tools` makes what is not there
and writes down what it was made of; a later run makes it anew only where that changed. Where a tool
cannot be had on this machine, the reason is kept in its place, and its tests are skipped with it.

Tests only look. What is neither there nor explained is an error that names the command, not a skip.
"""

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.tools.progress import Progress


class Missing(RuntimeError):
    """A tool that cannot be had on this machine; the text says why, and what would bring it."""


class NotMade(RuntimeError):
    """A tool that nobody has tried to make here yet: run `make tools`."""


def nowhere(file: str) -> Path | None:
    """No other place to look."""
    return None


@dataclass(frozen=True)
class Tool:
    """`make` writes `files` into the folder it is given, or raises `Missing`."""

    name: str
    needed_for: str
    folder: Path
    files: tuple[str, ...]
    recipe: str
    """What decides the result: versions, hashes, flags."""
    takes: str
    """How it is made and how long that takes the first time, for whoever waits."""
    make: Callable[[Path, Progress], None]
    elsewhere: Callable[[str], Path | None] = nowhere
    """One that the machine already has, or that an environment variable names. Raises `Missing`."""

    def look(self, file: str) -> Path:
        """Where the file is. Makes and downloads nothing. Raises `Missing` or `NotMade`."""
        assert file in self.files
        found = self.elsewhere(file)
        if found is not None:
            return found
        if self.is_made():
            return self.folder / file
        if self._reason.exists():
            raise Missing(self._reason.read_text("utf-8"))
        raise NotMade(f"{self.name} is not here yet: run `make tools` (fixtures neither build nor download)")

    def is_made(self) -> bool:
        """Whether every file is there, of today's recipe."""
        stamp = self._stamp
        here = all((self.folder / file).exists() for file in self.files)
        return here and stamp.exists() and stamp.read_text("utf-8") == self._recipe_hash()

    def is_elsewhere(self) -> bool:
        """Whether nothing has to be made. Raises `Missing`."""
        return all(self.elsewhere(file) is not None for file in self.files)

    def bring(self, progress: Progress) -> None:
        """Make it and remember of what, or remember why not. Raises `Missing`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        part = self.folder / f".{self._word}.{os.getpid()}"
        part.mkdir()
        try:
            self.make(part, progress)
            for file in self.files:
                # Renamed into place: another test process never runs half a binary.
                (part / file).rename(self.folder / file)
        except Missing as missing:
            self._reason.write_text(str(missing), "utf-8")
            raise
        finally:
            for left in part.iterdir():
                left.unlink()
            part.rmdir()
        self._stamp.write_text(self._recipe_hash(), "utf-8")
        self._reason.unlink(missing_ok=True)

    @property
    def _word(self) -> str:
        return self.name.replace(" ", "-")

    @property
    def _stamp(self) -> Path:
        return self.folder / f"{self._word}.stamp"

    @property
    def _reason(self) -> Path:
        return self.folder / f"{self._word}.missing"

    def _recipe_hash(self) -> str:
        return hashlib.sha256(self.recipe.encode()).hexdigest()
