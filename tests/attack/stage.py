"""What an attack is run on: engines, a picker, an honest client beside it, and somebody who measures."""

import contextlib
import json
import re
import resource
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import grpc
import msgspec
from grpc_health.v1 import health_pb2, health_pb2_grpc

from picker.lab.child import dying_with_us
from picker.lab.envoy import EnvoyConfig, EnvoyProcess
from tests.bench.processes import TREE, environment

MB = 1_000_000
MEMORY_BYTES_MAX = 256 * 1024 * 1024
"""`limits.memory_bytes_max` of the pickers that are attacked: small, so that attacks need not be large."""
BASELINE_SECONDS = 2.0
SETTLE_SECONDS = 12.0
WAIT_SECONDS_MAX = 0.1
KEPT_BYTES_MAX = 64 * 1024 * 1024
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Outcome(NamedTuple):
    """What an attack came to."""

    name: str
    build: str
    asked: int
    failed: int
    first_failure: str
    typical_seconds: float
    slowest_seconds: float
    before_bytes: int
    peak_bytes: int
    after_bytes: int
    budget_bytes: int
    kept_bytes_max: int
    sick: int
    wrong: tuple[str, ...]

    @property
    def faults(self) -> list[str]:
        """In what it is not right; empty where it is."""
        found = list(self.wrong)
        if self.failed:
            found.append(f"{self.failed} honest requests failed ({self.first_failure})")
        if self.slowest_seconds - self.typical_seconds > WAIT_SECONDS_MAX:
            found.append(
                f"an honest request waited {1e3 * (self.slowest_seconds - self.typical_seconds):.0f} ms longer"
            )
        if self.peak_bytes > self.before_bytes + self.budget_bytes:
            found.append(f"memory grew by {(self.peak_bytes - self.before_bytes) // MB} MB")
        if self.after_bytes > self.before_bytes + self.kept_bytes_max:
            found.append(f"{(self.after_bytes - self.before_bytes) // MB} MB more are resident afterwards")
        if self.sick:
            found.append(f"health was not SERVING {self.sick} times")
        return found


class EnvoyTree(NamedTuple):
    """An Envoy that is attacked itself: a whole configuration, from the engines' addresses and the picker's port."""

    build: Callable[[list[str], int], dict[str, Any]]
    bytes_max: int
    """What it may take. Within that its allocator keeps what was freed."""


class Stage:
    """A running picker under attack; a context manager. What is not as it should be goes into `wrong`."""

    def __init__(
        self,
        build: str,
        *,
        config: str = "",
        flags: Sequence[str] = (),
        tricks: Sequence[str] = ("decent", "decent"),
        files_max: int | None = None,
        envoy: "EnvoyConfig | EnvoyTree | None" = None,
        tls: bool = False,
        endpoints_file: Callable[[Sequence[str]], str] | None = None,
    ) -> None:
        """`{folder}` in `flags` and `config`: a folder of this stage. `endpoints_file`: from the engines' addresses."""
        self.build = build
        self._tls = tls
        self.tree = TREE / "build/compiled" if build == "compiled" else TREE
        self.wrong: list[str] = []
        self._stack = contextlib.ExitStack()
        self.folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="picker-attack-")))
        engines = self._child([sys.executable, "-m", "tests.attack.engines", *tricks])
        self.endpoints = [f"127.0.0.1:{port}" for port in self._line(engines).split()]
        text = f"limits: {{memory_bytes_max: {MEMORY_BYTES_MAX}}}\n{config}"
        (self.folder / "config.yaml").write_text(text.replace("{folder}", str(self.folder)))
        command = [
            sys.executable,
            "-m",
            "picker",
            "serve",
            "--host",
            "127.0.0.1",
            "--config",
            str(self.folder / "config.yaml"),
        ]
        command += ["--grpc-port", "0", "--grpc-health-port", "0", "--metrics-port", "0"]
        command += [flag.replace("{folder}", str(self.folder)) for flag in flags]
        if not tls:
            command.append("--insecure")
        if endpoints_file is not None:
            (self.folder / "endpoints.yaml").write_text(endpoints_file(self.endpoints))
            command += ["--endpoints-file", str(self.folder / "endpoints.yaml")]
        else:
            command += ["--endpoints", ",".join(self.endpoints)]
        if files_max is not None:
            command = ["prlimit", f"--nofile={files_max}:{files_max}", *command]
        self._log = (self.folder / "log").open("wb")
        self.picker = self._child(command, stderr=self._log, cwd=self.tree)
        found = re.match(r"listening grpc=\S+:(\d+) health=\S+:(\d+) metrics=\S+:(\d+)", self._line(self.picker))
        assert found is not None, self.log()
        self.port, self.health_port, self.metrics_port = map(int, found.groups())
        self.envoy: EnvoyProcess | None = None
        self.watched = self.picker.pid
        """Whose memory is measured."""
        self.budget_bytes = MEMORY_BYTES_MAX
        self.kept_bytes_max = KEPT_BYTES_MAX
        if isinstance(envoy, EnvoyTree):
            self.envoy = self._stack.enter_context(EnvoyProcess(envoy.build(self.endpoints, self.port)))
            self.watched = self.envoy.pid
            self.budget_bytes = self.kept_bytes_max = envoy.bytes_max
        elif envoy is not None:
            made = msgspec.structs.replace(envoy, picker_address=f"127.0.0.1:{self.port}", endpoints=())
            self.envoy = self._stack.enter_context(EnvoyProcess(made))
        time.sleep(1.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        self._log.close()

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def resident(self) -> int:
        """Bytes, of the picker or of the Envoy that is attacked."""
        text = Path(f"/proc/{self.watched}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+)", text)
        return int(found[1]) * 1024 if found else 0

    def get(self, path: str, seconds: float = 10.0) -> bytes:
        """Of the metrics port."""
        with _DIRECT.open(f"http://127.0.0.1:{self.metrics_port}{path}", timeout=seconds) as answer:
            return bytes(answer.read())

    def health(self) -> str:
        with grpc.insecure_channel(f"127.0.0.1:{self.health_port}", [("grpc.use_local_subchannel_pool", 1)]) as channel:
            try:
                found = health_pb2_grpc.HealthStub(channel).Check(
                    health_pb2.HealthCheckRequest(service="readiness"), timeout=3
                )
            except grpc.RpcError as error:
                return str(error.code().name)
        return str(health_pb2.HealthCheckResponse.ServingStatus.Name(found.status))

    def require(self, right: bool, what: str) -> None:
        if not right:
            self.wrong.append(what)

    def run(self, name: str, attack: Any, *, patience_seconds: float = 0.0, process: bool = False) -> Outcome:
        """The attack between a quiet time and another. `patience_seconds`: how long it stops the picker itself."""
        if process:
            resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
        port = self.envoy.port if self.envoy is not None else self.port
        how = "http" if self.envoy is not None else "tls" if self._tls else "plain"
        honest = self._child([sys.executable, "-m", "tests.attack.honest", str(port), how], stdin=subprocess.PIPE)
        assert self._line(honest) == "asking"
        time.sleep(BASELINE_SECONDS)
        before = self.resident()
        watch = _Watch(self)
        began = time.monotonic()
        try:
            attack(self)
        except Exception as error:  # the picker may be gone, and that is the outcome
            self.wrong.append(f"{type(error).__name__}: {error}"[:200])
        ended = time.monotonic()
        watch.wait_settled(before)
        peak, sick = watch.stop()
        after = self.resident()
        assert honest.stdin is not None
        honest.stdin.close()
        said = json.loads(self._line(honest))
        self.require(self.picker.poll() is None, "the picker is gone")
        for line in self.log().splitlines():
            if '"a fault of the picker' in line:
                self.wrong.append("a fault of ours is in the log")
                break
        quiet = sorted(took for due, took in said["latencies"] if due < began)
        during = [took for due, took in said["latencies"] if due >= began]
        typical = quiet[len(quiet) // 2] if quiet else 0.0
        return Outcome(
            name=name,
            build=self.build,
            asked=len(during) + len(said["failures"]),
            failed=len(said["failures"]),
            first_failure=min(said["failures"])[1] if said["failures"] else "",
            typical_seconds=typical,
            slowest_seconds=max(0.0, max(during, default=0.0) - patience_seconds),
            before_bytes=before,
            peak_bytes=peak,
            after_bytes=after,
            budget_bytes=self.budget_bytes,
            kept_bytes_max=self.kept_bytes_max,
            sick=sick,
            wrong=tuple(self.wrong if during else [*self.wrong, f"asked {ended - began:.0f} s, and nothing came"]),
        )

    def _child(self, command: list[str], **options: Any) -> "subprocess.Popen[bytes]":
        options.setdefault("stdin", subprocess.DEVNULL)
        options.setdefault("cwd", TREE)
        child = subprocess.Popen(
            dying_with_us(command), stdout=subprocess.PIPE, env=environment(Path(options["cwd"])), **options
        )
        self._stack.callback(_end, child)
        return child

    def _line(self, child: "subprocess.Popen[bytes]") -> str:
        assert child.stdout is not None
        return child.stdout.readline().decode().strip()


class _Watch(threading.Thread):
    """Resident memory, ten times a second, and health, twice."""

    def __init__(self, stage: Stage) -> None:
        super().__init__(daemon=True)
        self._stage = stage
        self._peak = 0
        self._sick = 0
        self._over = threading.Event()
        self.start()

    def run(self) -> None:
        for step in range(10**9):
            if self._over.wait(0.1):
                return
            with contextlib.suppress(OSError):
                self._peak = max(self._peak, self._stage.resident())
            if step % 5 == 0 and not getattr(self._stage, "stopped", False) and self._stage.health() != "SERVING":
                self._sick += 1

    def wait_settled(self, before: int) -> None:
        """Until memory is back, or has had its time."""
        deadline = time.monotonic() + SETTLE_SECONDS
        time.sleep(1.0)
        while time.monotonic() < deadline and self._stage.resident() > before + self._stage.kept_bytes_max:
            time.sleep(0.2)

    def stop(self) -> tuple[int, int]:
        self._over.set()
        self.join()
        return self._peak, self._sick


def _end(child: "subprocess.Popen[bytes]") -> None:
    if child.poll() is None:
        child.kill()
    child.wait()
    for pipe in (child.stdout, child.stdin):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
