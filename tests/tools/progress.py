"""What a person sees while a tool is built: one line that changes on a terminal, a line now and then elsewhere."""

import sys
import time
from typing import TextIO

QUIET_SECONDS = 15.0
"""Between two lines in a log."""


class Progress:
    """The lines of one tool."""

    def __init__(self, name: str, out: TextIO | None = None) -> None:
        self._name = name
        self._out = out or sys.stdout
        self._is_terminal = self._out.isatty()
        self._began = self._shown = time.monotonic()

    @property
    def seconds(self) -> float:
        """Since it began."""
        return time.monotonic() - self._began

    def step(self, text: str) -> None:
        """How far it is."""
        now = time.monotonic()
        if now - self._shown < (0.5 if self._is_terminal else QUIET_SECONDS):
            return
        self._shown = now
        line = f"  {self._name}: {text}, {self.seconds:.0f} s so far"
        if self._is_terminal:
            self._out.write(f"\r\033[K{line[:100]}")
        else:
            self._out.write(line + "\n")
        self._out.flush()

    def say(self, text: str) -> None:
        """A line that stays."""
        self._out.write(("\r\033[K" if self._is_terminal else "") + f"  {self._name}: {text}\n")
        self._out.flush()
