"""What the picker takes when it is left alone, and what each thing it holds adds: CPU of scraping, start, memory."""

import json
import random
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path

from picker.lab.envoy import Balancing, EnvoyConfig, EnvoyProcess
from tests.bench import raw_exchange
from tests.bench.decision import SIZES
from tests.bench.processes import (
    METRICS_PAGE,
    PickerProcess,
    cpu_seconds,
    environment,
    resident_mib,
    upstream,
)
from tests.bench.report import Row, loop_ns
from tests.bench.through_envoy import measure, request_file
from tests.ports import free_ports

INDEX_BLOCKS = 1_000_000
CONVERSATION_BLOCKS = 50


def scraping(counts: Sequence[int], seconds: float) -> Iterator[Row]:
    """CPU of an idle picker that reads so many recorded vLLM pages a second."""
    ports = free_ports(max(counts))
    base: float | None = None
    with EnvoyProcess(upstream(ports)):
        for count in counts:
            with PickerProcess([f"127.0.0.1:{port}" for port in ports[:count]], "--insecure") as picker:
                time.sleep(2.5)  # first connections, model lists
                before, began = cpu_seconds(picker.pid), time.perf_counter()
                time.sleep(seconds)
                percent = 100 * (cpu_seconds(picker.pid) - before) / (time.perf_counter() - began)
                yield {
                    "endpoints, one page a second each": count,
                    "page KB": round(METRICS_PAGE.stat().st_size / 1000),
                    "% of a core": round(percent, 2),
                    "us a page": None if base is None else round(1e4 * (percent - base) / (count - counts[0])),
                    "resident MiB": round(resident_mib(picker.pid), 1),
                }
                base = percent if base is None else base


def calibration(seconds: float) -> Iterator[Row]:
    """How fast Python and an Envoy are here, and what an Envoy takes that has nothing to do."""
    yield {"": "Python, `total += each` in a loop", "figure": round(loop_ns(), 1), "unit": "ns"}
    ports = free_ports(4)
    with EnvoyProcess(upstream(ports)) as servers, tempfile.TemporaryDirectory() as folder:
        path = request_file(Path(folder), SIZES["2 KB"])
        plain = EnvoyConfig(balancing=Balancing.ROUND_ROBIN, endpoints=tuple(f"127.0.0.1:{port}" for port in ports))
        with EnvoyProcess(plain) as envoy:
            before, began = cpu_seconds(servers.pid), time.perf_counter()
            time.sleep(seconds)
            idle = 100 * (cpu_seconds(servers.pid) - before) / (time.perf_counter() - began)
            yield {"": "an idle Envoy", "figure": round(idle, 2), "unit": "% of a core"}
            found = measure("", "2 KB", path, envoy=envoy, picker=None, rate=0.0, seconds=seconds)
            yield {"": "Envoy without ext_proc, 2 KB, saturated", "figure": found["Envoy us"], "unit": "us a request"}
            yield {"": "the load client in it", "figure": found["client us"], "unit": "us a request"}


def start_up(rounds: int) -> Iterator[Row]:
    """Seconds from the fork until ports are said, the best of some rounds."""
    address = f"127.0.0.1:{free_ports(1)[0]}"

    def command(*words: str) -> float:
        began = time.perf_counter()
        subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL, env=environment())
        return time.perf_counter() - began

    def serve(*flags: str) -> float:
        with PickerProcess([address], *flags) as picker:
            return picker.started_seconds

    for name, once in (
        ("python -c pass", lambda: command("-c", "pass")),
        ("python -c 'import grpc.aio' (baseline)", lambda: command("-c", "import grpc.aio")),
        ("picker --version", lambda: command("-m", "picker", "--version")),
        ("picker serve, h2, plaintext", lambda: serve("--insecure")),
        ("picker serve, h2, TLS (makes a certificate)", serve),
        ("picker serve, grpcio, plaintext", lambda: serve("--insecure", "--transport", "grpcio")),
    ):
        yield {"from the fork to the ports": name, "seconds": round(min(once() for _ in range(rounds)), 3)}


def memory(streams: Sequence[int], transports: Sequence[str]) -> Iterator[Row]:
    """Resident memory: idle, with requests in flight, with a full index."""
    ports = free_ports(4)
    addresses = [f"127.0.0.1:{port}" for port in ports]
    with EnvoyProcess(upstream(ports)):
        for transport in transports:
            with PickerProcess(addresses, "--insecure", "--transport", transport) as picker:
                time.sleep(1.5)
                idle = resident_mib(picker.pid)
                yield _memory(f"{transport}, idle, 4 endpoints", idle, None, None)
                raw_exchange.held(picker.address, 200, lambda: 0)
                warm = resident_mib(picker.pid)
                for count in streams if transport == "h2" else streams[:1]:  # grpcio takes a minute for 10,000
                    full = raw_exchange.held(picker.address, count, lambda pid=picker.pid: resident_mib(pid))
                    yield _memory(
                        f"{transport}, {count:,} requests in flight", full, full - warm, 2**10 * (full - warm) / count
                    )
    answer = subprocess.run([sys.executable, "-m", "tests.bench.resources"], capture_output=True, text=True, check=True)
    before, after = json.loads(answer.stdout)
    added = after - before
    yield _memory(
        f"{INDEX_BLOCKS:,} index blocks, {CONVERSATION_BLOCKS} a conversation",
        after,
        added,
        added * 2**10 / INDEX_BLOCKS,
    )


def _memory(what: str, resident: float, added: float | None, each_kib: float | None) -> Row:
    return {
        "": what,
        "resident MiB": round(resident, 1),
        "added MiB": None if added is None else round(added, 1),
        "bytes each": None if each_kib is None else round(1024 * each_kib),
    }


def _full_index() -> tuple[float, float]:
    """In a process of its own, with all that `picker serve` imports: MiB before and after."""
    import os

    from picker import wiring
    from picker.edge.process.malloc import tune_malloc
    from picker.prefix.index import PrefixIndex

    assert wiring
    tune_malloc()
    rng = random.Random(3)
    before = resident_mib(os.getpid())
    index = PrefixIndex(bytes_max=1 << 40, capacity_blocks=1 << 40)
    for number in range(INDEX_BLOCKS // CONVERSATION_BLOCKS):
        index.record(array("Q", [rng.getrandbits(64) for _ in range(CONVERSATION_BLOCKS)]), number % 100)
    return before, resident_mib(os.getpid())


if __name__ == "__main__":
    print(json.dumps(_full_index()))
