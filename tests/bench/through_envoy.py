"""The real Envoy, with and without the picker, in one run: throughput, CPU, added latency.

Closed loop of 64 connections (16 at 400 KB) for CPU and throughput, open loop for latency. The
upstream is another Envoy that answers 200 at once, or an asyncio server that streams. CPU is what
the kernel charged the process over the requests that were served.
"""

import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from picker.lab.envoy import Balancing, BodySendMode, EnvoyConfig, EnvoyProcess
from tests.bench.decision import SIZES, chat_body
from tests.bench.processes import (
    INTERPRETED,
    TREE,
    PickerProcess,
    ServerModule,
    cpu_seconds,
    upstream,
)
from tests.bench.report import Row
from tests.ports import free_ports

ENDPOINTS = 4
RATES = {"2 KB": 500.0, "32 KB": 500.0, "400 KB": 100.0}
SCRAPED = 100
"""Endpoints of the cells that scrape many: each has a metrics page of its own and takes requests."""

DUPLEX = BodySendMode.FULL_DUPLEX_STREAMED
EVENTS, EVENT_SECONDS = 1_000, 0.02
SEPARATOR = b"\x00\x00bench\x00\x00"


COMPLETED = "http.in.downstream_rq_completed"
"""Envoy's counter; a listener's has the same ending and counts the same requests again."""


class Variant(NamedTuple):
    """One way to run the picker."""

    transport: str
    response: BodySendMode = BodySendMode.NONE
    tls: bool = False
    endpoints: int = ENDPOINTS
    sizes: Sequence[str] = tuple(SIZES)
    tree: Path = TREE
    decides: bool = True

    @property
    def name(self) -> str:
        if not self.decides:
            return "ext_proc that decides nothing, responses left alone"
        answers = "left alone" if self.response == BodySendMode.NONE else "echoed"
        extra = ", TLS" * self.tls + f", {self.endpoints} endpoints" * (self.endpoints != ENDPOINTS)
        build = ", interpreted" * (self.tree is not TREE)
        return f"picker {self.transport}{build}, responses {answers}{extra}"

    def start(self, addresses: list[str]) -> PickerProcess | ServerModule:
        """A server for Envoy to ask, over these endpoints."""
        if not self.decides:
            return ServerModule("no_decision", addresses[0])
        flags = [*([] if self.tls else ["--insecure"]), "--transport", self.transport]
        return PickerProcess(addresses[: self.endpoints], *flags, tree=self.tree)


def variants(transports: Sequence[str], sizes: Sequence[str]) -> list[Variant]:
    """The plain ones over all sizes; TLS, many endpoints and no decision over fewer."""
    ends = [size for size in sizes if size != "32 KB"]
    found = [Variant("h2", sizes=ends, decides=False)]
    found += [
        Variant(transport, response, sizes=sizes)
        for transport in transports
        for response in (BodySendMode.NONE, DUPLEX)
    ]
    if INTERPRETED is not None:
        found += [Variant("h2", response, sizes=sizes, tree=INTERPRETED) for response in (BodySendMode.NONE, DUPLEX)]
    found += [Variant(transport, tls=True, sizes=ends) for transport in transports]
    found += [Variant(transport, endpoints=SCRAPED, sizes=ends[:1]) for transport in transports]
    return found


def request_file(folder: Path, size: int) -> Path:
    """40 different requests of one size."""
    requests = []
    for seed in range(40):
        body = chat_body(size, seed)
        head = (
            "POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
            f"authorization: Bearer none\r\nuser-agent: bench\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        requests.append(head.encode() + body)
    path = folder / f"{size}.requests"
    path.write_bytes(SEPARATOR.join(requests))
    return path


def start_load(port: int, path: Path, connections: int, seconds: float, rate: float) -> subprocess.Popen[str]:
    """The load client; it warms up for a second first."""
    command = [sys.executable, "-m", "tests.bench.load", "--port", str(port), "--requests", str(path)]
    command += ["--connections", str(connections), "--seconds", str(seconds), "--rate", str(rate)]
    return subprocess.Popen([*command, "--warm-seconds", "1"], stdout=subprocess.PIPE, text=True)


class Spent(NamedTuple):
    """What a run has come to so far."""

    at_seconds: float
    envoy_seconds: float
    picker_seconds: float
    completed: int


def _spent(envoy: EnvoyProcess, picker: int | None) -> Spent:
    completed = envoy.stats(f"^{re.escape(COMPLETED)}$")[COMPLETED]
    return Spent(time.perf_counter(), cpu_seconds(envoy.pid), cpu_seconds(picker) if picker else 0.0, completed)


def _check_count(envoy: float, client: float) -> None:
    """Requests a second, counted twice: by Envoy, which CPU is divided by, and by who sent them."""
    if client > 10 and not 0.7 < envoy / client < 1.4:
        raise RuntimeError(f"Envoy completed {envoy:.0f} requests a second, the load client got {client:.0f} answered")


def measure(
    what: str,
    size: str,
    path: Path,
    *,
    envoy: EnvoyProcess,
    picker: int | None,
    rate: float,
    seconds: float,
    connections: int | None = None,
) -> Row:
    """One cell."""
    connections = connections or (16 if size == "400 KB" and not rate else 64)
    load = start_load(envoy.port, path, connections, seconds, rate)
    time.sleep(1.0 + 0.5)  # imports and the warm-up
    before = _spent(envoy, picker)
    time.sleep(max(0.5, seconds - 1.0))
    after = _spent(envoy, picker)
    output, _ = load.communicate(timeout=60)
    found = json.loads(output)
    served = max(1, after.completed - before.completed)
    _check_count(served / (after.at_seconds - before.at_seconds), found.get("per_second", 0.0))
    return {
        "": what,
        "body": size,
        "load": f"{rate:.0f}/s" if rate else f"{connections} connections",
        "req/s": round(found.get("per_second", 0.0)),
        "picker us": round(1e6 * (after.picker_seconds - before.picker_seconds) / served, 1) if picker else None,
        "Envoy us": round(1e6 * (after.envoy_seconds - before.envoy_seconds) / served, 1),
        "p50 ms": round(found["p50_ms"], 3) if "p50_ms" in found else None,
        "p99 ms": round(found["p99_ms"], 3) if "p99_ms" in found else None,
        "client us": round(found["client_us"], 1) if "client_us" in found else None,
        "errors": found["errors"],
    }


def cells(*, seconds: float, transports: Sequence[str], sizes: Sequence[str]) -> Iterator[Row]:
    """Every cell, the baseline first. `added p50 ms`, `added p99 ms`: above the baseline's of the same load."""
    ports = free_ports(SCRAPED)
    addresses = [f"127.0.0.1:{port}" for port in ports]
    alone: dict[tuple[str, str], Row] = {}

    def added(row: Row) -> Row:
        if row[""] == "Envoy alone":
            alone[row["body"], row["load"]] = row
        base = alone.get((row["body"], row["load"])) if row["load"].endswith("/s") else None
        found = dict(row)
        for name in ("p50 ms", "p99 ms"):
            known = base is not None and base is not row and base[name] is not None and row[name] is not None
            found[f"added {name}"] = round(row[name] - base[name], 3) if known else None
        return found

    with tempfile.TemporaryDirectory() as folder, EnvoyProcess(upstream(ports)):
        files = {size: request_file(Path(folder), SIZES[size]) for size in sizes}
        plain = EnvoyConfig(balancing=Balancing.ROUND_ROBIN, endpoints=tuple(addresses[:ENDPOINTS]))
        with EnvoyProcess(plain) as envoy:
            for size, path in files.items():
                for rate in (0.0, RATES[size]):
                    yield added(
                        measure("Envoy alone", size, path, envoy=envoy, picker=None, rate=rate, seconds=seconds)
                    )
        for variant in variants(transports, sizes):
            with variant.start(addresses) as picker:
                config = EnvoyConfig(
                    picker_address=picker.address, picker_tls=variant.tls, response_body=variant.response
                )
                with EnvoyProcess(config) as envoy:
                    for size in variant.sizes:
                        for rate in (0.0, RATES[size]):
                            yield added(
                                measure(
                                    variant.name,
                                    size,
                                    files[size],
                                    envoy=envoy,
                                    picker=picker.pid,
                                    rate=rate,
                                    seconds=seconds,
                                )
                            )


def streamed(*, transports: Sequence[str], streams: int = 64, seconds: float = 4.0) -> Iterator[Row]:
    """Answers of 1,000 events, one each 20 ms, through Envoy in full-duplex mode: CPU by 1,000 chunks.

    A chunk is a message that Envoy sent the picker (its own counter); the few of the requests'
    beginnings are before the window of measurement.
    """
    with (
        tempfile.TemporaryDirectory() as folder,
        ServerModule("sse_server", str(EVENTS), str(EVENT_SECONDS)) as upstream_server,
    ):
        path = request_file(Path(folder), SIZES["2 KB"])
        address = upstream_server.address
        plain = EnvoyConfig(balancing=Balancing.ROUND_ROBIN, endpoints=(address,))
        for transport in (None, *transports):
            picker = None if transport is None else PickerProcess([address], "--insecure", "--transport", transport)
            try:
                config = plain if picker is None else EnvoyConfig(picker_address=picker.address, response_body=DUPLEX)
                with EnvoyProcess(config) as envoy:
                    yield _streamed(transport, envoy, picker, path, streams=streams, seconds=seconds)
            finally:
                if picker is not None:
                    picker.stop()


def _streamed(
    transport: str | None,
    envoy: EnvoyProcess,
    picker: PickerProcess | None,
    path: Path,
    *,
    streams: int,
    seconds: float,
) -> Row:
    load = start_load(envoy.port, path, streams, seconds, 0.0)
    try:
        time.sleep(1.5)

        def now() -> tuple[float, float, float, int]:
            sent = sum(envoy.stats("stream_msgs_sent").values())
            return time.perf_counter(), cpu_seconds(envoy.pid), cpu_seconds(picker.pid) if picker else 0.0, sent

        before = now()
        time.sleep(seconds)
        after = now()
    finally:
        load.kill()
        load.communicate()
    wall = after[0] - before[0]
    chunks = after[3] - before[3] if picker else round(streams * wall / EVENT_SECONDS)
    return {
        "": "Envoy alone" if transport is None else f"picker {transport}",
        "streams": streams,
        "chunks/s": round(chunks / wall),
        "picker ms a 1,000 chunks": round(1e6 * (after[2] - before[2]) / max(1, chunks), 2) if picker else None,
        "Envoy ms a 1,000 chunks": round(1e6 * (after[1] - before[1]) / max(1, chunks), 2),
    }
