"""For every test: Hypothesis measures no time, CI repeats the same examples, one slow test fails alone, and each
tier's time is kept.

`PICKER_TIERS_TO` names a file for `tests/run.py`, which makes the table at the end of `make test`.
"""

import json
import os
import signal
import threading
from pathlib import Path
from types import FrameType

import pytest
from _pytest.outcomes import Failed
from hypothesis import settings
from pytest_timeout import Settings

settings.register_profile("here", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "here")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell's background job ignores Ctrl+C, and so would each program that a test stops with it.
    signal.signal(signal.SIGINT, signal.default_int_handler)

TIERS_TO = os.environ.get("PICKER_TIERS_TO")


class TierTimes:
    """Seconds, counts and reasons by tier (the folder under tests/), and which tests failed."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._tiers: dict[str, dict[str, float]] = {}
        self._skips: list[tuple[str, str]] = []
        self._failed: dict[str, None] = {}
        self._crashed = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = report.nodeid.split("/")[1]
        tier = self._tiers.setdefault(name, {"seconds": 0.0, "passed": 0, "failed": 0, "skipped": 0})
        tier["seconds"] += report.duration
        if report.skipped and isinstance(report.longrepr, tuple):
            tier["skipped"] += 1
            self._skips.append((name, report.longrepr[2].removeprefix("Skipped: ")))
        elif report.failed:
            tier["failed"] += 1
            self._failed[report.nodeid] = None
            self._crashed |= report.when == "???"
        elif report.when == "call":
            tier["passed"] += 1

    def pytest_sessionfinish(self) -> None:
        # Who ends the interpreter (xdist says "???") is not to be tried again: a kernel may have done it.
        failed = [] if self._crashed else list(self._failed)
        self._file.write_text(json.dumps({"tiers": self._tiers, "skips": self._skips, "failed": failed}), "utf-8")


def pytest_configure(config: pytest.Config) -> None:
    # A worker of xdist reports to its controller, which hears of every test.
    if TIERS_TO and not hasattr(config, "workerinput"):
        config.pluginmanager.register(TierTimes(Path(TIERS_TO)))


AGAIN_SECONDS = 30.0
"""A test that does not end when its time is up (a `finally` that waits) is told again so often."""


class TimedOut(Failed, SystemExit):
    """The test took too long. asyncio and uvloop keep running after any exception in a callback but a SystemExit,
    and pytest-timeout's own is none; pytest calls neither of the two the end of the run."""


def pytest_timeout_set_timer(item: pytest.Item, settings: Settings) -> bool | None:
    """In place of pytest-timeout's, where the method is a signal."""
    if settings.method != "signal" or threading.current_thread() is not threading.main_thread():
        return None

    def is_up(number: int, frame: FrameType | None) -> None:
        raise TimedOut(f"the test took longer than {settings.timeout:g} s")

    signal.signal(signal.SIGALRM, is_up)
    signal.setitimer(signal.ITIMER_REAL, settings.timeout, AGAIN_SECONDS)
    return True


def pytest_timeout_cancel_timer(item: pytest.Item) -> None:
    """pytest-timeout does not know of our timer and cancels none."""
    if hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread():
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
