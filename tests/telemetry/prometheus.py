"""The real Prometheus for the tests: found, or unpacked from Debian's package, and run on the loopback."""

import json
import os
import shutil
import subprocess
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.ports import free_ports
from tests.tools.progress import Progress
from tests.tools.tool import Missing, Tool

CACHE = Path(__file__).parent / "bin"
FILES = ("prometheus", "promtool")


def _on_this_machine(file: str) -> Path | None:
    named = os.environ.get(f"PICKER_{file.upper()}") or shutil.which(file)
    return Path(named) if named else None


def _unpack(folder: Path, progress: Progress) -> None:
    way = "apt-get install prometheus, or set PICKER_PROMETHEUS and PICKER_PROMTOOL to binaries"
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        raise Missing(f"Prometheus is not installed, and this is no Debian: {way}")
    with tempfile.TemporaryDirectory() as temporary:
        command = ["apt-get", "download", "prometheus"]
        done = subprocess.run(command, cwd=temporary, capture_output=True, text=True, timeout=300, check=False)
        packages = list(Path(temporary).glob("prometheus_*.deb"))
        if done.returncode or not packages:
            raise Missing(f"`apt-get download prometheus` failed ({done.stderr.strip()[-200:]}): {way}")
        subprocess.run(["dpkg-deb", "-x", str(packages[0]), temporary], check=True, timeout=120)
        for name in FILES:
            shutil.copy(Path(temporary, "usr", "bin", name), folder / name)


PROMETHEUS = Tool(
    name="Prometheus",
    needed_for="the tests of dashboard and alerts",
    folder=CACHE,
    files=FILES,
    recipe="Debian's package",
    takes="downloaded with apt-get (25 MB) and unpacked",
    make=_unpack,
    elsewhere=_on_this_machine,
)


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
def running(
    program: Path, folder: Path, target_port: int, rules: Path, labels: Mapping[str, str] | None = None
) -> Iterator[RunningPrometheus]:
    """Prometheus that scrapes 127.0.0.1:`target_port` four times a second and evaluates `rules`.

    `labels`: what it adds to every series, as a service discovery does.
    """
    configuration = folder / "prometheus.yml"
    configuration.write_text(
        "global: {scrape_interval: 250ms, scrape_timeout: 250ms, evaluation_interval: 500ms}\n"
        f"rule_files: ['{rules}']\n"
        "scrape_configs:\n"
        "  - job_name: picker\n"
        f"    static_configs: [{{targets: ['127.0.0.1:{target_port}'], labels: {json.dumps(dict(labels or {}))}}}]\n"
    )
    (port,) = free_ports(1)
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
