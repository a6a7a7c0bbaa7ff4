"""What grows with the pool: `python -m tests.bench.scale`; with `--write docs/scale.md` the tables of that page.

    pool       real processes: a picker over so many recorded vLLM pages, behind an Envoy: left alone, saturated, paced
    prompts    the same picker, saturated with prompts of other sizes, and with chunks of streamed answers
    pickers    computed from these: how many pickers carry how many requests a second
    decision   the decision alone, with readings in between as they come at two rates; and a reading's own
    events     joins, restarts and leaves: what each takes of the loop at a time; a page of metrics likewise
    lag        the event loop's lag of a real picker whose pool begins, has one restart a second, and ends

`decision` and `events` are CPU time of one process, right on a machine that others use; the others want a quiet one.
"""

import argparse
import contextlib
import gc
import math
import random
import re
import tempfile
import time
import urllib.request
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from picker.api import find_api, read_body
from picker.budget import Budget
from picker.config import Config
from picker.director import Director
from picker.edge.membership import Membership
from picker.edge.telemetry.page import Telemetry
from picker.edge.telemetry.view import PoolView, pool_view
from picker.kernels import build
from picker.lab.envoy import EnvoyConfig, EnvoyProcess
from picker.pool.specs import EndpointSpec, EngineSample
from tests.bench import raw_exchange
from tests.bench.decision import SIZES, chat_body, director_of
from tests.bench.processes import PickerProcess, cpu_seconds, resident_mib, upstream
from tests.bench.report import Row, machine, markdown, part, wrapped
from tests.bench.through_envoy import measure, request_file
from tests.ports import free_ports

ENDPOINTS = (4, 100, 1_000, 3_000)
RATE = 500.0
SATURATED = 10_000.0
"""Requests a second of a core that does nothing else, about: how often a reading comes between two decisions then."""
IN_FLIGHT = 100
RING = 256
"""Decisions that the picker keeps to be explained (edge/telemetry/decisions.py)."""
INDEX_BLOCKS, RUN = 1_000_000, 50


def pool(counts: Sequence[int], seconds: float) -> Iterator[Row]:
    """One row a size."""
    ports = free_ports(max(counts))
    with EnvoyProcess(upstream(ports)), tempfile.TemporaryDirectory() as folder:
        path = request_file(Path(folder), SIZES["2 KB"])
        for count in counts:
            addresses = [f"127.0.0.1:{port}" for port in ports[:count]]
            with PickerProcess(addresses, "--insecure") as picker:
                read_all = _until_read(picker)
                time.sleep(1.0)
                cores = _cores(picker.pid, max(6.0, 2 * seconds))
                row: Row = {
                    "endpoints": count,
                    "to ports s": round(picker.started_seconds, 2),
                    "all read after s": round(read_all, 1),
                    "idle cores": round(cores, 4),
                }
                with EnvoyProcess(EnvoyConfig(picker_address=picker.address)) as envoy:
                    for name, rate in (("saturated us", 0.0), (f"at {RATE:.0f}/s us", RATE)):
                        found = _measured("2 KB", path, envoy, picker, rate, seconds)
                        row[name] = found["picker us"]
                        if rate:
                            row |= {"p50 ms": found["p50 ms"], "p99 ms": found["p99 ms"]}
                        else:
                            row["req/s"] = found["req/s"]
                row["MiB"] = round(resident_mib(picker.pid))
                yield row


def _measured(size: str, path: Path, envoy: EnvoyProcess, picker: PickerProcess, rate: float, seconds: float) -> Row:
    """A cell; again where the machine was too busy for it to count right."""
    for _ in range(3):
        with contextlib.suppress(RuntimeError):
            return measure("", size, path, envoy=envoy, picker=picker.pid, rate=rate, seconds=max(3.0, seconds))
    return measure("", size, path, envoy=envoy, picker=picker.pid, rate=rate, seconds=max(3.0, seconds))


def prompts(counts: Sequence[int], seconds: float) -> Iterator[Row]:
    """CPU by size of the body, of a pool of 4 and the second largest asked for; and of a chunk."""
    pools = sorted({min(counts), sorted(counts)[-2] if len(counts) > 1 else counts[0]})
    ports = free_ports(max(pools))
    with EnvoyProcess(upstream(ports)), tempfile.TemporaryDirectory() as folder:
        for count in pools:
            with PickerProcess([f"127.0.0.1:{port}" for port in ports[:count]], "--insecure") as picker:
                _until_read(picker)
                row: Row = {"endpoints": count}
                with EnvoyProcess(EnvoyConfig(picker_address=picker.address)) as envoy:
                    for size, length in SIZES.items():
                        path = request_file(Path(folder), length)
                        found = _measured(size, path, envoy, picker, 0.0, seconds)
                        row[f"{size} us"] = found["picker us"]
                raw_exchange.stream(picker.address, picker.pid, calls=16, width=16)
                row["a chunk us"] = round(raw_exchange.stream(picker.address, picker.pid, calls=64)[1], 2)
                yield row


USED_MAX = 0.6
"""Of a core: beyond it waits grow (one loop, one core)."""
TELL_US, HEAR_US, TOLD_BYTES = 3.4, 2.9, 215
"""To tell a request of one's own, to hear one of another picker, and its bytes (docs/high-availability.md, the largest
of what `python -m tests.bench.sharing` measured there)."""
RATES = (1_000, 10_000, 100_000)


def pickers(costs: Sequence[Row]) -> Iterator[Row]:
    """`costs`: the rows of `prompts`."""
    for row in costs:
        for size in SIZES:
            each_us = row[f"{size} us"]
            found: Row = {
                "endpoints": row["endpoints"],
                "prompt": size,
                "CPU a request us": each_us,
                "one picker carries /s": round(USED_MAX * 1e6 / each_us, -2),
            }
            for rate in RATES:
                shared = pickers_for(rate, each_us)
                alone = pickers_for(rate, each_us, shared=False)
                found[f"{rate:,}/s"] = f"{'-' if shared is None else shared} ({alone})"
            yield found


def pickers_for(rate: float, each_us: float, *, shared: bool = True) -> int | None:
    """How many carry `rate` requests a second; `None`: however many, hearing the others takes all that each has.

    N pickers, each with rate / N requests of its own and all others to hear: rate / N * (each + tell) +
    (rate - rate / N) * hear <= used_max.
    """
    tell, hear = (TELL_US, HEAR_US) if shared else (0.0, 0.0)
    left = USED_MAX * 1e6 - rate * hear
    if rate * each_us <= USED_MAX * 1e6:
        return 1
    return math.ceil(rate * (each_us + tell - hear) / left) if left > 0 else None


def _cores(pid: int, seconds: float) -> float:
    before, began = cpu_seconds(pid), time.perf_counter()
    time.sleep(seconds)
    return (cpu_seconds(pid) - before) / (time.perf_counter() - began)


def _figure(picker: PickerProcess, name: str) -> float:
    with urllib.request.urlopen(f"http://{picker.metrics}/metrics", timeout=10) as page:
        found = re.search(rf"^{name} (\S+)$", page.read().decode(), re.MULTILINE)
    return float(found.group(1)) if found else float("nan")


def _until_read(picker: PickerProcess) -> float:
    began = time.perf_counter()
    while _figure(picker, "picker_unread_endpoints") != 0:
        if time.perf_counter() - began > 120:
            raise RuntimeError("endpoints stay unread")
        time.sleep(0.1)
    return time.perf_counter() - began + picker.started_seconds


def decision(counts: Sequence[int], calls: int = 3_000) -> Iterator[Row]:
    """CPU of a decision of 2 KB that was parsed before, by how many readings come between two."""
    api = find_api("/v1/chat/completions")
    assert api is not None
    requests = [read_body(api, chat_body(SIZES["2 KB"], seed)) for seed in range(40)]
    for count in counts:
        row: Row = {"endpoints": count}
        for name, rate, unread in (
            ("no reading between", 0.0, 0),
            ("saturated", SATURATED, 0),
            (f"at {RATE:.0f}/s", RATE, 0),
            (f"at {RATE:.0f}/s, one never read", RATE, 1),
        ):
            director = director_of(count)
            samples = list(director.datastore.samples.values())
            if unread:
                director.replace_endpoints(
                    [*(each.spec for each in director.datastore.endpoints), _spec(1 << 20, "unread")]
                )
            decided, read = _times(director, samples, requests, count / rate if rate else 0.0, calls)
            row[f"{name}, p50 us"] = round(1e6 * decided[len(decided) // 2], 1)
            if rate and not unread:
                row[f"{name}, p99 us"] = round(1e6 * decided[int(0.99 * len(decided))], 1)
                row["a reading us"] = round(1e6 * read[len(read) // 2], 1)
        yield row


def _times(
    director: Director, samples: list[EngineSample], requests: list, between: float, calls: int
) -> tuple[list[float], list[float]]:
    """Seconds of each decision and of each reading, rising."""
    rng = random.Random(1)
    decided: list[float] = []
    read: list[float] = []
    ring: deque = deque(maxlen=RING)
    running: deque = deque()
    clock, now, at, due = time.thread_time, 1.0, 0, 0.0
    for number in range(calls + 300):
        now += 1 / RATE
        due += between
        while due >= 1.0:
            due -= 1.0
            at = (at + 1) % len(samples)
            sample = msgspec.structs.replace(
                samples[at], taken_at_seconds=now, kv_cache_utilization=rng.random() / 2, waiting_requests=0
            )
            began = clock()
            director.record_sample(sample)
            read.append(clock() - began)
        began = clock()
        picked = director.decide(requests[number % len(requests)], now=now, rng=rng, first_chunk_visible=True)
        if number >= 300:
            decided.append(clock() - began)
        ring.append(picked)
        running.append(picked)
        if len(running) > IN_FLIGHT:
            director.finish(running.popleft().booking, reached=True)
    return sorted(decided), sorted(read) or [0.0]


def _spec(number: int, life: str = "") -> EndpointSpec:
    address = f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}:8000"
    labels = {"app": "vllm", "pod-template-hash": "5d9c8"}
    return EndpointSpec(address=address, uid=f"{number}{life}", name=f"vllm-{number}{life}", labels=labels)


def events(counts: Sequence[int]) -> Iterator[Row]:
    """Milliseconds that the loop is held by what happens to the pool; the index holds a million blocks."""
    for count in counts:
        director = Director(Config())
        specs = [_spec(number) for number in range(count)]
        row: Row = {"endpoints": count, "all join ms": _ms(lambda d=director, s=specs: d.replace_endpoints(s))}
        row["first snapshot ms"] = _ms(lambda d=director: d.datastore.snapshot(1.0))
        first = max(_ms(lambda d=director, n=number: d.record_sample(_sample(n))) for number in range(count))
        row["slowest first reading ms"] = first
        rng = random.Random(3)
        director.index.bytes_max = 1 << 40
        for number in range(INDEX_BLOCKS // RUN):
            director.index.record(array("Q", rng.randbytes(8 * RUN)), number % count)
        changed = [*specs[: count // 2], _spec(count // 2, "b"), *specs[count // 2 + 1 :]]
        row["one restarts ms"] = _ms(lambda d=director, s=changed: d.replace_endpoints(s))
        row["next snapshot ms"] = _ms(lambda d=director: d.datastore.snapshot(1.0))
        row["metrics page ms"] = _ms(lambda d=director: "".join(Telemetry(_view(d)).parts()))
        steps: list[Callable[[], None]] = []
        membership = Membership(director, log=lambda *_, **__: None, changed=lambda: None, call_soon=steps.append)
        longest = _ms(lambda m=membership: m.replace(()))
        while steps:
            longest = max(longest, _ms(steps.pop()))
        row["longest step of all leaving ms"] = longest
        yield row


def _view(director: Director) -> Callable[[], PoolView]:
    def view() -> PoolView:
        return pool_view(
            director,
            Budget(1 << 30),
            1.0,
            pool_name="p",
            running_by_model={},
            running_by_priority={},
            api_server_up=None,
            leader=None,
        )

    return view


def _sample(number: int) -> EngineSample:
    return EngineSample(
        uid=str(number),
        taken_at_seconds=1.0,
        engine="vllm",
        waiting_requests=0,
        running_requests=0,
        kv_cache_utilization=0.1,
        kv_capacity_tokens=500_000 + number % 3,
        prefix_queries_total=1.0,
        prefix_hits_total=0.0,
    )


def _ms(action: Callable[[], object]) -> float:
    began = time.thread_time()
    action()
    return round(1e3 * (time.thread_time() - began), 2)


def lag(counts: Sequence[int], seconds: float) -> Iterator[Row]:
    """The event loop's lag of a real picker that follows a file: the bounds that no wake-up of a phase was beyond."""
    ports = free_ports(max(counts))
    with EnvoyProcess(upstream(ports)), tempfile.TemporaryDirectory() as folder:
        for count in counts:
            path = Path(folder) / "endpoints.json"
            write = _Writer(path, ports[:count])
            write([0])
            with PickerProcess([], "--insecure", "--endpoints-file", str(path)) as picker:
                time.sleep(2.0)
                row: Row = {"endpoints": count}
                everybody = list(range(count))
                row["quiet ms"] = _lag(picker, lambda: time.sleep(3.0))

                def join(p: PickerProcess = picker, w: _Writer = write, e: list[int] = everybody) -> None:
                    w(e)
                    time.sleep(1.5)
                    _until_read(p)

                def restart(w: _Writer = write, e: list[int] = everybody) -> None:
                    for second in range(max(3, round(seconds))):
                        w([number for number in e if number != second % len(e)])
                        time.sleep(1.0)

                def leave(w: _Writer = write) -> None:
                    w([0])
                    time.sleep(3.0)

                row["all join ms"] = _lag(picker, join)
                row["one leaves and joins each second ms"] = _lag(picker, restart)
                row["all leave ms"] = _lag(picker, leave)
                yield row


class _Writer:
    """Writes a file of endpoints in one step."""

    def __init__(self, path: Path, ports: list[int]) -> None:
        self._path, self._ports = path, ports

    def __call__(self, numbers: list[int]) -> None:
        entries = [{"address": "127.0.0.1", "port": self._ports[number]} for number in numbers]
        new = self._path.with_suffix(".new")
        new.write_bytes(msgspec.json.encode({"endpoints": entries}))
        new.replace(self._path)


def _lag(picker: PickerProcess, phase: Callable[[], None]) -> str:
    before = _buckets(picker)
    phase()
    after = _buckets(picker)
    total = after[float("inf")] - before.get(float("inf"), 0)
    for bound in sorted(after):
        if after[bound] - before.get(bound, 0) >= total:
            return f"under {1e3 * bound:g}" if bound < float("inf") else "beyond all"
    return "-"


def _buckets(picker: PickerProcess) -> dict[float, float]:
    with urllib.request.urlopen(f"http://{picker.metrics}/metrics", timeout=10) as page:
        found = re.findall(
            r'^picker_loop_lag_seconds_bucket\{le="([^"]+)"\} (\S+)$', page.read().decode(), re.MULTILINE
        )
    return {float(bound): float(count) for bound, count in found}


TITLES = {
    "pool": "A pool, left alone and under load",
    "prompts": "CPU a request by the size of its body, and of a chunk of a streamed answer",
    "pickers": "How many pickers",
    "decision": "The decision alone",
    "events": "What comes at once: milliseconds in one step of the loop",
    "lag": "What the loop's lag stays under while it comes",
}
NOTES = {
    "pool": "One Envoy worker, requests of 2 KB, 64 connections or 500 a second; each endpoint has a page of 50 KB.",
    "prompts": "Through Envoy, saturated, responses left alone; chunks from prepared frames, in full-duplex mode.",
    "pickers": f"Computed from the last table, each picker at most at {USED_MAX} of a core: with shared state, in "
    "brackets without. One more for availability is not counted. `-`: no number of them does.",
    "decision": "CPU of a request of 2 KB that was parsed before; each endpoint is read once a second.",
    "events": "CPU time. Each endpoint tells a capacity of its own; a million blocks are in the index at the restart.",
    "lag": "`picker_loop_lag_seconds` of a real picker that follows a file: the bound that no wake-up was beyond.",
}
BEGIN, END = "<!-- scale: begin -->", "<!-- scale: end -->"


def measured(names: Sequence[str], counts: Sequence[int], seconds: float) -> Iterator[str]:
    """A paragraph about the machine, then each part's table."""
    known = machine()
    load = known["load_before"][0]
    yield wrapped(
        f"Measured on {known['cores']} cores ({known['cpu']}), Python {known['python']}, the {build().kind} build, by "
        f"`python -m tests.bench.scale`. Load of the machine when it began: {load:.2f} (0 is a quiet machine)."
    )
    costs: list[Row] = []
    for name in names:
        if name == "prompts":
            rows = costs = list(prompts(counts, seconds))
        elif name == "pickers":
            rows = list(pickers(costs or list(prompts(counts, seconds))))
        else:
            rows = {
                "pool": lambda: list(pool(counts, seconds)),
                "decision": lambda: list(decision(counts)),
                "events": lambda: list(events(counts)),
                "lag": lambda: list(lag(counts, seconds)),
            }[name]()
        yield markdown(part(TITLES[name], rows, NOTES[name])).strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default=",".join(TITLES), metavar="PART,...", help=", ".join(TITLES))
    parser.add_argument("--endpoints", default=",".join(map(str, ENDPOINTS)), metavar="N,...")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each cell (default %(default)s)")
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the tables into this page, between its markers")
    options = parser.parse_args()
    counts = [int(word) for word in options.endpoints.split(",")]
    gc.collect()
    gc.freeze()  # as `picker serve` does once it runs
    kept = []
    for text in measured(options.only.split(","), counts, options.seconds):
        print(text, end="\n\n", flush=True)
        kept.append(text)
    if options.write is not None:
        page = options.write.read_text("utf-8")
        before, _, rest = page.partition(BEGIN)
        after = rest.partition(END)[2]
        options.write.write_text(before + BEGIN + "\n" + "\n\n".join(kept) + "\n" + END + after, "utf-8")


if __name__ == "__main__":
    main()
