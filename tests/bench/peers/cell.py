"""One measurement: one contestant, one workload, started anew before emptied caches.

Hits are the model servers' own counters, times are what the clients saw, CPU is what the kernel charged
the router's processes between the first request and the last answer, idle work included.
"""

import asyncio
import contextlib
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import psutil

from picker.lab.load_client import LoadClient
from picker.sim.prompts import Session
from picker.sim.statistics import Percentiles, summarize
from tests.bench.peers.adapters.contract import Contestant, StartError

CELL_SECONDS_MAX = 40.0
"""Several times what any cell takes that goes well."""
REQUEST_SECONDS_MAX = 30.0
PROBES = 4
SETTLE_SECONDS = 1.2
"""Between the first answer and the measurement: every router has read every server's metrics once, where it does."""
_QUERIES, _HITS = "vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total"


class Cell(msgspec.Struct, kw_only=True):
    """What was measured, `None` where it is not known. Times in seconds, CPU in microseconds a request."""

    contestant: str
    workload: str
    round: int
    position: int
    """Which one of its round and workload it was."""
    seed: int
    requests: int = 0
    errors: int = 0
    first_error: str | None = None
    hit_rate: float | None = None
    ttft: Percentiles | None = None
    e2e: Percentiles | None = None
    busiest_over_mean: float | None = None
    cpu_us: dict[str, float | None] = {}
    """By process."""
    idle_share: float | None = None
    """Of all cores, while it ran."""
    harness_cores: float | None = None
    """Cores that the load client and the model servers themselves took."""
    late_p99_seconds: float | None = None
    seconds: float = 0.0


async def measure(
    cell: Cell, contestant: Contestant, wanted: list[Session], servers: Sequence[str], servers_pid: int
) -> Cell:
    """Fill in `cell`. `servers_pid`: the model servers' process. Raises `StartError`, in one line, where it cannot."""
    async with aiohttp.ClientSession() as http:
        await _empty_caches(http, servers)
        async with contestant.start(servers) as running:
            await _probe(http, contestant.name, running.url)
            await asyncio.sleep(SETTLE_SECONDS)
            before = await _counters(http, servers)
            harness = Charge({"client": os.getpid(), "servers": servers_pid})
            cpu, machine = Charge(running.processes), psutil.cpu_times()
            client = LoadClient(running.url, request_seconds_max=REQUEST_SECONDS_MAX)
            duration = CELL_SECONDS_MAX
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CELL_SECONDS_MAX):
                    duration = await client.run(wanted)
            cell.idle_share = idle_share(machine, psutil.cpu_times())
            charged, own = cpu.seconds(), harness.seconds()
            after = await _counters(http, servers)
    summary = summarize(client.samples, servers, duration)
    # What did not end, or was not even sent because the turn before it failed, counts as failed.
    cell.requests, cell.seconds = sum(len(session.turns) for session in wanted), duration
    cell.errors = cell.requests - summary.requests + summary.errors
    cell.first_error = next((sample.error for sample in client.samples if sample.error is not None), None)
    if cell.errors and cell.first_error is None:
        cell.first_error = f"no end within {CELL_SECONDS_MAX:g} s"
    cell.harness_cores = None if None in own.values() else sum(filter(None, own.values())) / duration
    queries, hits = (after[name] - before[name] for name in (_QUERIES, _HITS))
    cell.hit_rate = hits / queries if queries else None
    cell.ttft, cell.e2e, cell.late_p99_seconds = summary.ttft, summary.e2e, summary.late_p99_seconds
    cell.busiest_over_mean = None if summary.spread_requests is None else summary.spread_requests.max_over_mean
    cell.cpu_us = {
        name: None if value is None or not summary.requests else 1e6 * value / summary.requests
        for name, value in charged.items()
    }
    return cell


async def _empty_caches(http: aiohttp.ClientSession, servers: Sequence[str]) -> None:
    for server in servers:
        async with http.post(f"http://{server}/reset_prefix_cache") as answer:
            answer.raise_for_status()


async def _probe(http: aiohttp.ClientSession, name: str, url: str) -> None:
    """A few small requests: connections are open, and it routes at all."""
    for number in range(PROBES):
        body = {"model": "m", "messages": [{"role": "user", "content": f"{number}: ready?"}], "max_tokens": 8}
        try:
            async with http.post(
                f"{url}/v1/chat/completions", json=body, timeout=aiohttp.ClientTimeout(total=5.0)
            ) as answer:
                await answer.read()
                if answer.status != 200:
                    raise StartError(f"{name} answers a small request with status {answer.status}")
        except (aiohttp.ClientError, TimeoutError) as error:
            raise StartError(f"{name} does not answer a small request: {type(error).__name__}") from None


async def _counters(http: aiohttp.ClientSession, servers: Sequence[str]) -> dict[str, float]:
    """The servers' prefix cache counters, in tokens, over all of them."""
    total = {_QUERIES: 0.0, _HITS: 0.0}
    for server in servers:
        async with http.get(f"http://{server}/metrics") as answer:
            page = await answer.text()
        for name in total:
            total[name] += sum(float(value) for value in re.findall(rf"^{name}{{[^}}]*}} (\S+)$", page, re.MULTILINE))
    return total


class Charge:
    """CPU of processes from now on."""

    def __init__(self, processes: Mapping[str, int | None]) -> None:
        self._pids = processes
        self._before = {name: None if pid is None else _used(pid) for name, pid in self._pids.items()}

    def seconds(self) -> Mapping[str, float | None]:
        """So far, by process; `None` where it is unknown."""
        found: dict[str, float | None] = {}
        for name, pid in self._pids.items():
            before = self._before[name]
            now = None if pid is None else _used(pid)
            found[name] = None if before is None or now is None else _charged(before, now)
        return found


TICK_SECONDS = 0.01


def _used(pid: int) -> tuple[float, float] | None:
    """Seconds so far: of the threads that live, to the nanosecond, and of the whole process, in ticks."""
    fine = 0
    for task in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            fine += int(task.read_text().split()[0])
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return None
    return fine / 1e9, float(times.user + times.system)


def _charged(before: tuple[float, float], now: tuple[float, float]) -> float:
    """The fine figure, unless threads ended meanwhile and took theirs along: then the coarse one."""
    fine, coarse = now[0] - before[0], now[1] - before[1]
    return fine if fine > 0 and fine > coarse - 4 * TICK_SECONDS else coarse


_KINDS = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")


def idle_share(before: Any, after: Any) -> float | None:
    """Of all cores between two readings of `psutil.cpu_times()`."""
    spent = {kind: getattr(after, kind, 0.0) - getattr(before, kind, 0.0) for kind in _KINDS}
    total = sum(spent.values())
    return (spent["idle"] + spent["iowait"]) / total if total > 0 else None
