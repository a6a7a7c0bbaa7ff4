"""The real Prometheus for the tests: found, or unpacked from Debian's package, and run on the loopback."""

import functools
import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CACHE = Path(__file__).parent / "bin"


class Missing(RuntimeError):
    """Prometheus is not here, and the way to get it."""


@functools.cache
def binary(name: str) -> Path:
    """The path of `prometheus` or `promtool`. Raises `Missing`."""
    named = os.environ.get(f"PICKER_{name.upper()}") or shutil.which(name)
    if named:
        return Path(named)
    path = CACHE / name
    if not path.exists():
        _unpack(path)
    return path


def _unpack(path: Path) -> None:
    way = f"{path.name} is not here: apt-get install prometheus, or set PICKER_{path.name.upper()} to a binary"
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        raise Missing(way)
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            ["apt-get", "download", "prometheus"], cwd=folder, capture_output=True, timeout=120, check=False
        )
        packages = list(Path(folder).glob("prometheus_*.deb"))
        if done.returncode or not packages:
            raise Missing(way)
        subprocess.run(["dpkg-deb", "-x", str(packages[0]), folder], check=True, timeout=120)
        CACHE.mkdir(exist_ok=True)
        for name in ("prometheus", "promtool"):
            # Renamed into place: a second test process never runs half a binary.
            part = CACHE / f".{name}.{os.getpid()}"
            shutil.copy(Path(folder, "usr", "bin", name), part)
            part.rename(CACHE / name)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class RunningPrometheus:
    """Asks a running Prometheus over its HTTP API."""

    def __init__(self, base: str) -> None:
        self.base = base

    def api(self, path: str, **parameters: str) -> Any:
        query = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(f"{self.base}/api/v1/{path}?{query}", timeout=5) as response:
            return json.load(response)["data"]

    def query(self, expression: str) -> list[Any]:
        found: list[Any] = self.api("query", query=expression)["result"]
        return found

    def wait_for(self, expression: str, *, timeout_seconds: float = 30) -> None:
        """Until `expression` has a value; a real Prometheus has a clock of its own."""
        end = time.monotonic() + timeout_seconds
        while not self.query(expression):
            assert time.monotonic() < end, f"no data for {expression} within {timeout_seconds} s"
            time.sleep(0.2)


@contextmanager
def running(program: Path, folder: Path, target_port: int, rules: Path) -> Iterator[RunningPrometheus]:
    """Prometheus that scrapes 127.0.0.1:`target_port` four times a second and evaluates `rules`."""
    configuration = folder / "prometheus.yml"
    configuration.write_text(
        "global: {scrape_interval: 250ms, scrape_timeout: 250ms, evaluation_interval: 500ms}\n"
        f"rule_files: ['{rules}']\n"
        "scrape_configs:\n"
        "  - job_name: picker\n"
        f"    static_configs: [{{targets: ['127.0.0.1:{target_port}']}}]\n"
    )
    port = free_port()
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            [
                str(program),
                f"--config.file={configuration}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
                "--log.level=warn",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        base = f"http://127.0.0.1:{port}"
        end = time.monotonic() + 30
        while True:
            assert process.poll() is None, (folder / "prometheus.log").read_text()[-2000:]
            try:
                with urllib.request.urlopen(f"{base}/-/ready", timeout=2):
                    break
            except OSError:
                assert time.monotonic() < end, "Prometheus did not become ready"
                time.sleep(0.1)
        yield RunningPrometheus(base)
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
