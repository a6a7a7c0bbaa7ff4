"""What telling each other costs: `python -m tests.bench.sharing`. CPU time, one core; compiled where the tree is.

Conversations of 20,000-token prompts (80 blocks), each turn two blocks longer, over 32 endpoints, a thousand
requests in flight; one picker tells, another hears. And a snapshot of a million blocks: its bytes, its seconds,
its longest step. `--instructions` counts what hearing takes with callgrind (Debian: valgrind), which a busy machine
does not disturb.
"""

import os
import subprocess
import sys
import tempfile
import time
from array import array
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from random import Random

import msgspec

from picker.api.request import InferenceRequest
from picker.config import Config, Limits, Routing
from picker.decision import Booking, Picked
from picker.director import Director
from picker.edge.process.gc_freeze import heap_frozen
from picker.kernels import build
from picker.pool.specs import EndpointSpec
from picker.sharing.attach import attach
from picker.sharing.shared import Shared

ENDPOINTS = 32
RATE = 500.0
"""Requests a second of one picker."""
INTERVAL = 0.075
SECONDS = 40.0
FLIGHT_SECONDS = 2.0
ROUNDS = 7
"""So often the same batches are heard, and a snapshot written and read. Of each step the least time counts: the rest
is what others did meanwhile."""
SESSIONS = (2_000, 4_000)
BLOCKS, TURN_BLOCKS = 80, 2
SNAPSHOT_BLOCKS = 1_000_000


def picker(name: int) -> tuple[Director, Shared]:
    director = Director(Config(limits=Limits(index_bytes_max=2**31), routing=Routing(kv_capacity_tokens=100_000_000)))
    shared = attach(director, name=name, started_ms=name)
    director.replace_endpoints(
        EndpointSpec(address=f"10.0.0.{each}:80", uid=f"pod-{each}", name=f"pod-{each}") for each in range(ENDPOINTS)
    )
    shared.settle()
    return director, shared


def hashes(rng: Random, count: int) -> "array[int]":
    return array("Q", rng.randbytes(8 * count))


def decide(director: Director, prompt: "array[int]", now: float, rng: Random) -> Booking:
    request = InferenceRequest(api="chat", model="m", prompt_bytes=1024 * len(prompt), block_hashes=prompt)
    picked = director.decide(request, now=now, rng=rng)
    assert isinstance(picked, Picked)
    return picked.booking


def decided(director: Director, rng: Random, sessions: int) -> Iterator[tuple[float, int]]:
    """Decisions at `RATE`, each in flight for `FLIGHT_SECONDS`. After each interval: the time, how many they were."""
    prompts = [hashes(rng, BLOCKS) for _ in range(sessions)]
    running: deque[tuple[float, Booking]] = deque()
    now, due = 1000.0, 0.0
    while now < 1000.0 + SECONDS:
        now += INTERVAL
        due += RATE * INTERVAL
        count, due = int(due), due % 1
        for _ in range(count):
            which = int(rng.random() * sessions)
            if rng.random() < 0.1:
                prompts[which] = hashes(rng, BLOCKS)  # a session ends, another begins
            else:
                prompts[which] = prompts[which] + hashes(rng, TURN_BLOCKS)
            running.append((now + FLIGHT_SECONDS, decide(director, prompts[which], now, rng)))
        while running and running[0][0] <= now:
            director.finish(running.popleft()[1], reached=True)
        yield now, count


def hear(hears: Shared, batch: bytes, now: float) -> None:
    hears.receive(batch, at=now, now=now)
    while hears.work(now):
        pass


def stream(sessions: int) -> None:
    teller, told = picker(1)
    requests, size, telling = 0, 0, 0.0
    batches: list[tuple[float, bytes]] = []
    for now, count in decided(teller, Random(1), sessions):
        requests += count
        began = time.process_time()
        batch = told.flush(now)
        telling += time.process_time() - began
        if batch is not None:
            size += len(batch)
            batches.append((now, batch))
    spent = [float("inf")] * len(batches)
    for _ in range(ROUNDS):
        _, hears = picker(2)
        for number, (now, batch) in enumerate(batches):
            began = time.process_time()
            hear(hears, batch, now)
            spent[number] = min(spent[number], time.process_time() - began)
        assert hears.counts.dropped["unresolved"] == 0
    print(f"{build().kind}: {requests} requests of {sessions} sessions, {BLOCKS} blocks and more each")
    print(f"  telling    {telling / requests * 1e6:6.2f} us a request of our own")
    print(f"  hearing    {sum(spent) / requests * 1e6:6.2f} us a request of each other picker")
    print(
        f"  store      {size / SECONDS / 1e6:6.3f} MB/s at {RATE:.0f} requests/s, {size / requests:.0f} bytes a request"
    )


def hear_recorded(path: str, batches: int) -> None:
    """The first so many of a file. What callgrind watches."""
    _, hears = picker(2)
    for now, batch in msgspec.msgpack.decode(Path(path).read_bytes(), type=list[tuple[float, bytes]])[:batches]:
        hear(hears, batch, now)


def instructions(sessions: int) -> None:
    """What hearing a request takes, by callgrind: twice as many batches less the first half of them."""
    teller, told = picker(1)
    found, counts = [], []
    for now, count in decided(teller, Random(1), sessions):
        batch = told.flush(now)
        if batch is not None:
            found.append((now, batch))
            counts.append(count)
    half = len(found) // 2
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "batches")
        path.write_bytes(msgspec.msgpack.encode(found))
        totals = [_counted(str(path), batches) for batches in (1, half, len(found))][1:]  # the first compiles modules
    print(
        f"{build().kind}, {sessions} sessions: {(totals[1] - totals[0]) / sum(counts[half:]):.0f} instructions"
        " a request of each other picker"
    )


def _counted(path: str, batches: int) -> int:
    tool = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"]
    command = [*tool, sys.executable, "-m", "tests.bench.sharing", "--hear", path, str(batches)]
    env = {**os.environ, "PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1"}
    said = subprocess.run(command, env=env, capture_output=True, text=True, check=True).stderr
    return int(said.rsplit("Collected :", 1)[1].split()[0])


def steps(work: "Iterator[object]", spent: list[float]) -> Iterator[object]:
    while True:
        began = time.process_time()
        try:
            found = next(work)
        except StopIteration:
            spent.append(time.process_time() - began)
            return
        spent.append(time.process_time() - began)
        yield found


def snapshot() -> None:
    rng = Random(2)
    teller, told = picker(1)
    while teller.index.blocks < SNAPSHOT_BLOCKS:
        teller.finish(decide(teller, hashes(rng, 50), 1000.0, rng), reached=True)
        teller.index.news = []  # not what is measured
    written: list[list[float]] = []
    read: list[list[float]] = []
    for _ in range(ROUNDS):
        written.append([])
        read.append([])
        chunks = [each for each in steps(told.snapshot(0, 1001.0), written[-1]) if each is not None]
        _, hears = picker(2)
        loader = hears.loader()
        for chunk in chunks:
            assert isinstance(chunk, bytes)
            for _ in steps(hears.load(loader, chunk, 1_001_000_000, 1001.0), read[-1]):
                pass
    writing, reading = [[min(each) for each in zip(*rounds, strict=True)] for rounds in (written, read)]
    size = sum(len(each) for each in chunks if isinstance(each, bytes))
    print(f"snapshot of {loader.blocks} blocks: {size / 1e6:.1f} MB, {len(chunks)} chunks")
    for name, spent in (("written", writing), ("read", reading)):
        spent.sort()
        print(
            f"  {name} in {sum(spent):.2f} s of CPU, {len(spent)} steps; the longest {spent[-1] * 1e3:.2f} ms,"
            f" 99 % under {spent[int(len(spent) * 0.99)] * 1e3:.2f} ms"
        )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--hear"]:
        hear_recorded(sys.argv[2], int(sys.argv[3]))
    elif sys.argv[1:] == ["--instructions"]:
        instructions(SESSIONS[0])
    else:
        with heap_frozen():  # as `picker serve` runs
            for each in SESSIONS:
                stream(each)
            snapshot()
