"""Programs of ours as child processes that say `listening ...` when they are ready: the demo's and the benchmarks'.

Each runs in a session of its own, so that Ctrl-C reaches us alone and we end things in order, and
dies with us should we be killed without a word. What it logs goes to a file; when it
does not start, the last line of that is the reason that `ChildError` gives.
"""

import asyncio
import contextlib
import signal
import sys
import tempfile
from typing import IO, Self

from picker.lab.child import dying_with_us

START_SECONDS_MAX = 30.0
STOP_SECONDS_MAX = 5.0
READY = "listening "


class ChildError(RuntimeError):
    """A child did not start, or is gone."""


class Child:
    """`python -m MODULE ARGUMENTS`, from its ready line to its end; an async context manager.

    `ready` is what follows `listening ` on that line.
    """

    def __init__(self, name: str, module: str, *arguments: str) -> None:
        self.name = name
        self.ready = ""
        self._command = dying_with_us([sys.executable, "-m", module, *arguments])
        self._process: asyncio.subprocess.Process | None = None
        self._log: IO[bytes] = tempfile.TemporaryFile(prefix="picker-child-")  # noqa: SIM115  closed by `stop`

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def _start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(START_SECONDS_MAX):
                line = (await self._process.stdout.readline()).decode(errors="replace").strip()
        except TimeoutError:
            raise ChildError(f"{self.name} was not ready after {START_SECONDS_MAX:g} s") from None
        if not line.startswith(READY):
            raise ChildError(f"{self.name} did not start: {self.last_words() or line or 'it ended without a word'}")
        self.ready = line.removeprefix(READY)

    @property
    def pid(self) -> int:
        """The process id of the running child."""
        assert self._process is not None
        return self._process.pid

    def is_running(self) -> bool:
        """False before the start and after the end."""
        return self._process is not None and self._process.returncode is None

    def last_words(self) -> str:
        """The last line that it logged."""
        if self._log.closed:
            return ""
        self._log.seek(0)
        lines = [line for line in self._log.read().decode(errors="replace").splitlines() if line.strip()]
        return lines[-1].strip() if lines else ""

    async def stop(self) -> None:
        """Ask it to end (SIGINT: the picker then drains without its first wait), insist, reap. Twice is fine."""
        if self._process is not None:
            await end(self._process, signal.SIGINT, STOP_SECONDS_MAX)
        self._log.close()


async def end(process: asyncio.subprocess.Process, signal_number: signal.Signals, seconds: float) -> None:
    """Tell it by a signal, insist after `seconds` or when cancelled, reap. Twice is fine."""
    if process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal_number)
    try:
        async with asyncio.timeout(seconds):
            await process.wait()
    except (TimeoutError, asyncio.CancelledError):
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
