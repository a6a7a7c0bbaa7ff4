"""The real Envoy, with and without the picker, in one run: throughput, CPU, added latency.

Closed loop of 64 connections (16 at 400 KB) for CPU and throughput, open loop for latency. The
upstream is another Envoy that answers 200 at once. CPU is what the kernel charged the process
(utime + stime) over the requests that were served.
"""

import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from picker.sim.envoy import Balancing, BodyMode, EnvoyConfig, EnvoyProcess
from tests.bench.decision import SIZES, chat_body

ENDPOINTS = 4
TYPES = "type.googleapis.com/envoy.extensions"
ANSWER = json.dumps(
    {
        "id": "x",
        "object": "chat.completion",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "Yes."}}],
        "usage": {"prompt_tokens": 500, "completion_tokens": 2},
    }
)


class Cell(NamedTuple):
    """One measurement."""

    what: str
    size: str
    mode: str
    per_second: float
    picker_us: float | None
    envoy_us: float
    p50_ms: float
    p99_ms: float
    errors: int


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def upstream(ports: list[int]) -> dict[str, Any]:
    """An Envoy that answers 200 on each port."""
    answer = {"status": 200, "body": {"inline_string": ANSWER}}
    headers = [{"header": {"key": "content-type", "value": "application/json"}}]
    route = {"match": {"prefix": "/"}, "direct_response": answer, "response_headers_to_add": headers}
    manager = {
        "@type": f"{TYPES}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "u",
        "route_config": {"virtual_hosts": [{"name": "v", "domains": ["*"], "routes": [route]}]},
        "http_filters": [
            {
                "name": "router",
                "typed_config": {"@type": f"{TYPES}.filters.http.router.v3.Router"},
            }
        ],
    }
    listeners = [
        {
            "name": "in" if at == 0 else f"in{at}",
            "address": {"socket_address": {"address": "127.0.0.1", "port_value": port}},
            "filter_chains": [{"filters": [{"name": "hcm", "typed_config": manager}]}],
        }
        for at, port in enumerate(ports)
    ]
    admin = {"address": {"socket_address": {"address": "127.0.0.1", "port_value": 0}}}
    return {"admin": admin, "static_resources": {"listeners": listeners}}


class PickerProcess:
    """`picker serve` as users start it."""

    def __init__(self, addresses: list[str], *flags: str) -> None:
        command = [sys.executable, "-m", "picker", "serve", "--host", "127.0.0.1", "--endpoints", ",".join(addresses)]
        command += [
            "--grpc-port",
            "0",
            "--grpc-health-port",
            "0",
            "--metrics-port",
            "0",
            "--log-level",
            "error",
            *flags,
        ]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        ports = dict(part.split("=") for part in self.process.stdout.readline().split()[1:])
        self.address = ports["grpc"]
        self.pid = self.process.pid

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


def cpu_seconds(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def request_file(folder: Path, size: int) -> Path:
    requests = []
    for seed in range(40):
        body = chat_body(size, seed)
        head = (
            "POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
            f"authorization: Bearer none\r\nuser-agent: bench\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        requests.append(head.encode() + body)
    path = folder / f"{size}.requests"
    path.write_bytes(b"\x00\x00bench\x00\x00".join(requests))
    return path


def measure(
    what: str, size: str, path: Path, *, envoy: EnvoyProcess, picker: int | None, rate: float, seconds: float
) -> Cell:
    connections = 16 if size == "400 KB" and not rate else 64
    command = [sys.executable, "-m", "tests.bench.load", "--port", str(envoy.port), "--requests", str(path)]
    command += [
        "--connections",
        str(connections),
        "--seconds",
        str(seconds),
        "--rate",
        str(rate),
        "--warm-seconds",
        "1",
    ]
    load = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    time.sleep(1.0 + 0.5)  # imports and the warm-up
    before = (cpu_seconds(envoy.pid), cpu_seconds(picker) if picker else 0.0, envoy.stats("downstream_rq_completed"))
    time.sleep(max(0.5, seconds - 1.0))
    after = (cpu_seconds(envoy.pid), cpu_seconds(picker) if picker else 0.0, envoy.stats("downstream_rq_completed"))
    output, _ = load.communicate(timeout=120)
    found = json.loads(output)
    served = max(1, sum(after[2].values()) - sum(before[2].values()))
    return Cell(
        what,
        size,
        f"{rate:.0f}/s" if rate else f"{connections} connections",
        found.get("per_second", 0.0),
        1e6 * (after[1] - before[1]) / served if picker else None,
        1e6 * (after[0] - before[0]) / served,
        found.get("p50_ms", float("nan")),
        found.get("p99_ms", float("nan")),
        found["errors"],
    )


def cells(
    *, seconds: float, transports: tuple[str, ...] = ("h2", "grpcio"), sizes: tuple[str, ...] = tuple(SIZES)
) -> Iterator[Cell]:
    """Every cell, the baseline first."""
    ports = free_ports(ENDPOINTS)
    addresses = [f"127.0.0.1:{port}" for port in ports]
    with tempfile.TemporaryDirectory() as folder, EnvoyProcess(upstream(ports)):
        files = {size: request_file(Path(folder), SIZES[size]) for size in sizes}
        rates = {"2 KB": 500.0, "32 KB": 500.0, "400 KB": 100.0}
        plain = EnvoyConfig(balancing=Balancing.ROUND_ROBIN, endpoints=tuple(addresses))
        with EnvoyProcess(plain) as envoy:
            for size, path in files.items():
                for rate in (0.0, rates[size]):
                    yield measure("Envoy alone", size, path, envoy=envoy, picker=None, rate=rate, seconds=seconds)
        for transport in transports:
            for response in (BodyMode.NONE, BodyMode.FULL_DUPLEX_STREAMED):
                answers = "left alone" if response == BodyMode.NONE else "echoed"
                name = f"picker {transport}, responses {answers}"
                picker = PickerProcess(addresses, "--insecure", "--transport", transport)
                try:
                    config = EnvoyConfig(picker_address=picker.address, response_body=response)
                    with EnvoyProcess(config) as envoy:
                        for size, path in files.items():
                            for rate in (0.0, rates[size]):
                                yield measure(
                                    name, size, path, envoy=envoy, picker=picker.pid, rate=rate, seconds=seconds
                                )
                finally:
                    picker.stop()
