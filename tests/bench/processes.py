"""The processes that a bench starts and weighs: `picker serve`, an upstream of many addresses, servers of its own.

CPU is what the kernel charged a process's threads (`/proc/PID/task/*/schedstat`, nanoseconds;
elsewhere psutil's user + system time, in ticks of 10 ms).
"""

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Self

import psutil

TREE = Path(__file__).resolve().parents[2]
INTERPRETED = TREE.parents[1] if TREE.parts[-2:] == ("build", "compiled") else None
"""The tree that this one was compiled from (`make compiled`); `None`: this one is interpreted."""

TYPES = "type.googleapis.com/envoy.extensions"
METRICS_PAGE = Path(__file__).parent.parent / "fixtures/engines/vllm-0.32-idle.txt"
ANSWER = json.dumps(
    {
        "id": "x",
        "object": "chat.completion",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "Yes."}}],
        "usage": {"prompt_tokens": 500, "completion_tokens": 2},
    }
)


def environment(tree: Path = TREE) -> dict[str, str]:
    """Ours, with the picker of `tree`; bytecode may be kept, as in an installation."""
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    return kept | {"PYTHONPATH": str(tree)}


def interpreted_json(*command: str) -> Any:
    """What `python -m command` prints in the tree that this one was compiled from."""
    assert INTERPRETED is not None
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=INTERPRETED,
        env=environment(INTERPRETED),
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def cpu_seconds(pid: int) -> float:
    """User and system time so far."""
    total, found = 0, False
    for task in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            total += int(task.read_text().split()[0])
            found = True
    if found and total:
        return total / 1e9
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def resident_mib(pid: int) -> float:
    """Resident memory now."""
    return float(psutil.Process(pid).memory_info().rss / 2**20)


def upstream(ports: list[int]) -> dict[str, Any]:
    """An Envoy that on each port answers 200 at once, and on /metrics a recorded vLLM page."""

    def answer(body: str, content_type: str) -> dict[str, Any]:
        return {
            "direct_response": {"status": 200, "body": {"inline_string": body}},
            "response_headers_to_add": [{"header": {"key": "content-type", "value": content_type}}],
        }

    routes = [
        {"match": {"path": "/metrics"}, **answer(METRICS_PAGE.read_text(), "text/plain")},
        {"match": {"prefix": "/"}, **answer(ANSWER, "application/json")},
    ]
    manager = {
        "@type": f"{TYPES}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "u",
        "route_config": {
            "max_direct_response_body_size_bytes": 1 << 20,
            "virtual_hosts": [{"name": "v", "domains": ["*"], "routes": routes}],
        },
        "http_filters": [
            # An answer before the request's end would cost the connection in front its keep-alive, and each
            # request of the measurement a TCP connection.
            {
                "name": "buffer",
                "typed_config": {"@type": f"{TYPES}.filters.http.buffer.v3.Buffer", "max_request_bytes": 1 << 23},
            },
            {"name": "router", "typed_config": {"@type": f"{TYPES}.filters.http.router.v3.Router"}},
        ],
    }
    first, *others = [{"socket_address": {"address": "127.0.0.1", "port_value": port}} for port in ports]
    listener = {
        "name": "in",
        "address": first,
        "additional_addresses": [{"address": address} for address in others],
        "filter_chains": [{"filters": [{"name": "hcm", "typed_config": manager}]}],
    }
    admin = {"address": {"socket_address": {"address": "127.0.0.1", "port_value": 0}}}
    return {"admin": admin, "static_resources": {"listeners": [listener]}}


class PickerProcess:
    """`picker serve` as users start it. `started_seconds`: from the fork to the line that says its ports."""

    def __init__(self, addresses: list[str], *flags: str, tree: Path = TREE) -> None:
        command = [sys.executable, "-m", "picker", "serve", "--host", "127.0.0.1"]
        command += ["--endpoints", ",".join(addresses)] if addresses else []
        command += ["--grpc-port", "0", "--grpc-health-port", "0", "--metrics-port", "0", "--log-level", "error"]
        began = time.perf_counter()
        self.process = subprocess.Popen(
            [*command, *flags], stdout=subprocess.PIPE, text=True, cwd=tree, env=environment(tree)
        )
        assert self.process.stdout is not None
        ports = dict(part.split("=") for part in self.process.stdout.readline().split()[1:])
        self.started_seconds = time.perf_counter() - began
        self.address = ports["grpc"]
        self.metrics = ports["metrics"]
        self.pid = self.process.pid

    def stop(self) -> None:
        """At once."""
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class ServerModule:
    """A module of this package as a process of its own, which prints the port of 127.0.0.1 that it serves on."""

    def __init__(self, module: str, *arguments: str) -> None:
        command = [sys.executable, "-m", f"tests.bench.{module}", *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.address = f"127.0.0.1:{int(self.process.stdout.readline())}"
        self.pid = self.process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
