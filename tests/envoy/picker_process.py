"""The picker as users run it: a process of its own, spoken to over its ports alone."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from picker.lab.child import dying_with_us

COMMAND = [sys.executable, "-m", "picker", "serve", "--host", "127.0.0.1"]
START_SECONDS_MAX = 20.0
WAIT_SECONDS_MAX = 10.0
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
REPOSITORY = Path(__file__).resolve().parents[2]


class PickerProcess:
    """`picker serve` on free ports; a context manager."""

    def __init__(
        self,
        endpoints: Sequence[str] = (),
        config: str = "",
        *,
        insecure: bool = True,
        flags: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="picker-test-")
        self.config_path = Path(self._folder.name) / "config.yaml"
        command = [*COMMAND, "--grpc-port", "0", "--grpc-health-port", "0", "--metrics-port", "0", *flags]
        if insecure:
            command.append("--insecure")
        if endpoints:
            command += ["--endpoints", ",".join(endpoints)]
        if config:
            self.config_path.write_text(config)
            command += ["--config", str(self.config_path)]
        self._log_path = Path(self._folder.name) / "log"
        with self._log_path.open("wb") as log:
            self.process = subprocess.Popen(
                dying_with_us(command),
                stdout=subprocess.PIPE,
                stderr=log,
                stdin=subprocess.DEVNULL,
                cwd=REPOSITORY,
                env={**os.environ, **(env or {})},
            )
        try:
            self._read_addresses()
        except BaseException:
            self.close()
            raise

    def _read_addresses(self) -> None:
        """Wait for the line `listening grpc=HOST:PORT health=HOST:PORT metrics=HOST:PORT`."""
        assert self.process.stdout is not None
        kill = threading.Timer(START_SECONDS_MAX, self.process.kill)  # a read from a pipe has no timeout
        kill.start()
        seen = b""
        for line in self.process.stdout:
            seen += line
            found = re.match(rb"listening grpc=(\S+) health=(\S+) metrics=(\S+)", line)
            if found:
                self.grpc_address, self.health_address, self.metrics_address = (
                    part.decode() for part in found.groups()
                )
                kill.cancel()
                return
        kill.cancel()
        raise AssertionError(f"picker did not start: {seen.decode()}{self.log()}")

    def log(self) -> str:
        return self._log_path.read_text(errors="replace")

    def metrics(self) -> dict[str, float]:
        """Series and values of the telemetry page, by their text: `name{labels}`."""
        with _DIRECT.open(f"http://{self.metrics_address}/metrics", timeout=WAIT_SECONDS_MAX) as page:
            lines = bytes(page.read()).decode().splitlines()
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[:1] != "#")}

    def metric(self, name: str, **labels: str) -> float:
        """Sum over the series of that name which carry these labels."""
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        return sum(
            value
            for series, value in self.metrics().items()
            if series.partition("{")[0] == name and all(label in series for label in wanted)
        )

    def endpoint_metric(self, name: str, address: str) -> float:
        """The value of a series about one endpoint, found by its address in any label."""
        return next(value for series, value in self.metrics().items() if series.startswith(name) and address in series)

    def in_flight(self) -> float:
        """Requests charged to an endpoint and not released."""
        return self.metrics()["picker_requests_in_flight"]

    def ended(self) -> float:
        """Requests that are over, however they ended."""
        return self.metric("picker_requests_total")

    def wait_idle(self) -> None:
        """Until nothing is in flight; an assertion fails if that never happens."""
        wait_until(lambda: self.in_flight() == 0, "requests still in flight")

    def health(self, service: str, address: str | None = None, channel: grpc.Channel | None = None) -> str:
        """The gRPC health status by name; `NOT_FOUND` where the server says so."""
        with channel or grpc.insecure_channel(address or self.grpc_address) as opened:
            stub = health_pb2_grpc.HealthStub(opened)
            try:
                reply = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=WAIT_SECONDS_MAX)
            except grpc.RpcError as error:
                code: grpc.StatusCode = error.code()
                return code.name
        name: str = health_pb2.HealthCheckResponse.ServingStatus.Name(reply.status)
        return name

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        if os.environ.get("PICKER_TEST_LOGS"):
            sys.stderr.write(self.log())
        self._folder.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def wait_until(condition: Callable[[], bool], what: str, seconds: float = WAIT_SECONDS_MAX) -> None:
    """Ask until it is so. Processes of their own have no clock that a test could move."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"after {seconds:g} s: {what}"
        time.sleep(0.02)
