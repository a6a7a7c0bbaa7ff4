"""A peer that is an HTTP proxy itself: a child process from its start to the moment it knows every model server.

All three peers list at `/workers` what they route to, and whether it is healthy: ready is when
that is every server. Each runs in a session of its own, so that Ctrl-C reaches us alone; it dies with us should we be
killed. Its log goes to a file; where it does not start, the last line of that is the reason.
"""

import asyncio
import contextlib
import re
import signal
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import IO

import aiohttp
import msgspec

from picker.lab.child import dying_with_us
from picker.lab.children import end
from tests.bench.peers import environments
from tests.bench.peers.adapters.contract import Contestant, Running, StartError
from tests.ports import free_ports

START_SECONDS_MAX = 20.0
STOP_SECONDS_MAX = 3.0
POLL_SECONDS = 0.1
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")

Launch = Callable[[Path], list[str]]
"""Given its environment's `bin` folder, the command; what all three understand comes after it."""


class _Worker(msgspec.Struct):
    is_healthy: bool = False


class _Workers(msgspec.Struct):
    workers: list[_Worker] = []


def peer(package: str, launch: Launch, name: str, flags: tuple[str, ...]) -> Contestant:
    """A contestant from the package's environment, with `flags` and otherwise its defaults."""

    def start(servers: Sequence[str]) -> AbstractAsyncContextManager[Running]:
        return _router(package, [*launch(environments.FOLDER / package / "bin"), *flags], servers)

    return Contestant(
        name=name,
        flags=" ".join((package, *flags)),
        start=start,
        version=environments.pinned(package),
        environment=package,
    )


@contextlib.asynccontextmanager
async def _router(name: str, command: list[str], servers: Sequence[str]) -> AsyncIterator[Running]:
    port, metrics_port = free_ports(2)
    words = [*command, "--host", "127.0.0.1", "--port", str(port), "--log-level", "error"]
    words += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics_port)]
    words += ["--worker-urls", *(f"http://{server}" for server in servers)]
    with tempfile.TemporaryFile(prefix="picker-peer-") as log:
        try:
            process = await asyncio.create_subprocess_exec(
                *dying_with_us(words), stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        except OSError as error:
            raise StartError(f"{name} cannot be started: {error}") from None
        try:
            url = f"http://127.0.0.1:{port}"
            await _ready(name, process, url, len(servers), log)
            yield Running(url=url, processes={name: process.pid})
        finally:
            await end(process, signal.SIGTERM, STOP_SECONDS_MAX)


async def _ready(name: str, process: asyncio.subprocess.Process, url: str, servers: int, log: IO[bytes]) -> None:
    known = 0
    try:
        async with asyncio.timeout(START_SECONDS_MAX), aiohttp.ClientSession() as http:
            while known < servers:
                if process.returncode is not None:
                    raise StartError(f"{name} did not start: {last_words(log)}")
                await asyncio.sleep(POLL_SECONDS)
                with contextlib.suppress(aiohttp.ClientError, msgspec.MsgspecError):
                    async with http.get(f"{url}/workers") as answer:
                        listed = msgspec.json.decode(await answer.read(), type=_Workers)
                        known = sum(worker.is_healthy for worker in listed.workers)
    except TimeoutError:
        raise StartError(
            f"{name} knew {known} of {servers} model servers after {START_SECONDS_MAX:g} s: {last_words(log)}"
        ) from None


def last_words(log: IO[bytes]) -> str:
    """The last line that it logged, without colours."""
    log.seek(0)
    lines = [_COLOUR.sub("", line).strip() for line in log.read().decode(errors="replace").splitlines()]
    return next((line for line in reversed(lines) if line), "it said nothing")
