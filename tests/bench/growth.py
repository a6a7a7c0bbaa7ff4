"""The same figures at ten times the load or the size, and the exponent between: figure ~ load^exponent.

0: ten times the load costs each unit the same. 1: the figure grows as the load does. Above 1 something would give way.
"""

import math
import random
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from picker.api import find_api, read_body
from picker.lab.envoy import EnvoyConfig, EnvoyProcess
from tests.bench import raw_exchange, resources
from tests.bench.decision import SIZES, Timed, best_of, chat_body, director_of
from tests.bench.processes import PickerProcess, resident_mib, upstream
from tests.bench.report import Row
from tests.bench.through_envoy import ENDPOINTS, measure, request_file
from tests.ports import free_ports


def row(what: str, figure: str, loads: tuple[int, int], measured: Callable[[int], float | None]) -> Row:
    """`measured(load)` at both loads."""
    low, high = measured(loads[0]), measured(loads[1])
    exponent = None
    if low is not None and high is not None and low > 0 and high > 0:
        exponent = round(math.log(high / low) / math.log(loads[1] / loads[0]), 2)
    return {
        "": what,
        "figure": figure,
        "from": loads[0],
        "is": None if low is None else round(low, 3),
        "to": loads[1],
        "is then": None if high is None else round(high, 3),
        "exponent": exponent,
    }


def decision_us(endpoints: int, body_bytes: int) -> float:
    """A decision with its parsing, CPU microseconds."""
    api = find_api("/v1/chat/completions")
    assert api is not None
    bodies = [chat_body(body_bytes, seed) for seed in range(20)]
    once = Timed(director_of(endpoints), random.Random(1), lambda at: read_body(api, bodies[at % 20]))
    calls = 2_000 if body_bytes < 100_000 else 200
    best_of(1, 100, once)
    return best_of(5, calls, once)


def rows(*, seconds: float, quick: bool = False) -> Iterator[Row]:
    """What can be had without a proxy first, then through Envoy."""
    yield row("a decision, by endpoints", "us", (100, 1_000), lambda count: decision_us(count, SIZES["2 KB"]))
    yield row("a decision, by bytes of the body", "us", (40_000, 400_000), lambda size: decision_us(4, size))
    ports = free_ports(1_000)
    addresses = [f"127.0.0.1:{port}" for port in ports]

    def started(count: int) -> float:
        times = []
        for _ in range(1 if quick else 3):
            with PickerProcess(addresses[:count], "--insecure") as picker:
                times.append(picker.started_seconds)
        return min(times)

    yield row("start-up, by endpoints", "s", (100, 1_000), started)
    if not quick:
        scraped = {
            each["endpoints, one page a second each"]: each["% of a core"]
            for each in resources.scraping((1, 100, 1_000), 5.0)
        }
        yield row("scraping, by endpoints", "% of a core", (100, 1_000), scraped.get)
    with EnvoyProcess(upstream(ports[:ENDPOINTS])):
        yield from _loaded(addresses[:ENDPOINTS], seconds)


def _loaded(addresses: list[str], seconds: float) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder, PickerProcess(addresses, "--insecure") as picker:
        path = request_file(Path(folder), SIZES["2 KB"])
        with EnvoyProcess(EnvoyConfig(picker_address=picker.address)) as envoy:

            def cpu(rate: float = 0.0, connections: int = 64) -> float | None:
                found = measure(
                    "",
                    "2 KB",
                    path,
                    envoy=envoy,
                    picker=picker.pid,
                    rate=rate,
                    seconds=seconds,
                    connections=connections,
                )
                value: float | None = found["picker us"]
                return value

            cpu(connections=16)  # warm
            yield row(
                "CPU a request of 2 KB, by requests a second", "us", (50, 500), lambda rate: cpu(rate=float(rate))
            )
            yield row("CPU a request of 2 KB, by connections", "us", (16, 160), lambda count: cpu(connections=count))
        raw_exchange.held(picker.address, 200, lambda: 0)
        warm = resident_mib(picker.pid)

        def held(count: int) -> float:
            return raw_exchange.held(picker.address, count, lambda: resident_mib(picker.pid)) - warm

        yield row("memory of requests in flight", "MiB", (1_000, 10_000), held)
