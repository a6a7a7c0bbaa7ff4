"""Real vLLM servers on loopback ports: start, ready, what their own pages say, stop.

What counts as truth about caches is here: `vllm:prefix_cache_hits_total` and `..._queries_total`, in
tokens, read with an independent parser. Whatever happens to us, a keeper ends a server with its engine.
"""

import contextlib
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Self

import msgspec
import psutil
from prometheus_client.parser import text_string_to_metric_families

from tests.vllm.environment import FOLDER, PYTHON, SetupError

KEEPER = Path(__file__).with_name("keeper.py")
LOGS = FOLDER / "log"
MODEL = "m"
BLOCK_TOKENS = 32
"""vLLM on a CPU takes multiples of 32."""
BLOCKS = 900
MODEL_TOKENS_MAX = 16384
START_SECONDS_MAX = 600.0
STOP_SECONDS_MAX = 30.0
ASK_SECONDS_MAX = 120.0
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))

SETTINGS = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "VLLM_SERVER_DEV_MODE": "1",  # /reset_prefix_cache
    "VLLM_ENABLE_RESPONSES_API_STORE": "1",
}


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """Of an HTTP request, whatever its status."""

    status: int
    headers: dict[str, str]
    """Names in lower case."""
    body: bytes

    def json(self) -> Any:
        """`None` where it is none."""
        with contextlib.suppress(ValueError):
            return json.loads(self.body)
        return None


def ask(url: str, body: object = None, headers: dict[str, str] | None = None, method: str | None = None) -> Answer:
    """GET, or POST where there is a body (bytes as they are, else JSON). Raises `OSError` without an answer."""
    data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    sent = {"content-type": "application/json", **(headers or {})}
    request = urllib.request.Request(url, data, sent, method=method)
    try:
        with _DIRECT.open(request, timeout=ASK_SECONDS_MAX) as reply:
            status, got, read = reply.status, reply.headers, reply.read()
    except urllib.error.HTTPError as error:
        with error:
            status, got, read = error.code, error.headers, error.read()
    return Answer(status=status, headers={name.lower(): value for name, value in got.items()}, body=read)


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """What a server's own counters say; differences of two readings say what happened between them."""

    hits_tokens: float
    queries_tokens: float
    requests: float
    preemptions: float

    def since(self, before: "Counts") -> "Counts":
        """This reading less an earlier one."""
        return Counts(**{name: getattr(self, name) - getattr(before, name) for name in self.__struct_fields__})

    @classmethod
    def total(cls, each: "Iterable[Counts]") -> "Counts":
        """Of several servers."""
        rows = list(each)
        return cls(**{name: sum(getattr(row, name) for row in rows) for name in cls.__struct_fields__})


class VllmServer:
    """One server. `adapters`: of the LoRA adapters those that it serves. `more`: further flags; the last one counts."""

    def __init__(
        self,
        number: int,
        port: int,
        folder: Path,
        adapters: Iterable[str],
        *,
        host: str = "127.0.0.1",
        more: Iterable[str] = (),
    ) -> None:
        self.address = f"{host}:{port}"
        self.url = f"http://{self.address}"
        self.log = LOGS / f"server-{number}.log"
        self._keeper: subprocess.Popen[bytes] | None = None
        self._command = [
            "nice", "-n", "10",
            str(PYTHON), "-m", "vllm.entrypoints.cli.main", "serve", str(folder / "model"),
            "--served-model-name", MODEL, "--load-format", "dummy", "--dtype", "bfloat16", "--enforce-eager",
            "--max-model-len", str(MODEL_TOKENS_MAX), "--host", host, "--port", str(port),
            "--block-size", str(BLOCK_TOKENS), "--num-gpu-blocks-override", str(BLOCKS),
            "--enable-prompt-tokens-details", "--enable-scale-out",
            "--enable-lora", "--max-loras", "2", "--max-lora-rank", "8",
            "--lora-modules", *(f"{name}={folder / 'adapters' / name}" for name in adapters), *more,
        ]  # fmt: skip

    def start(self) -> None:
        """Begin to start; `wait_ready` waits for it."""
        LOGS.mkdir(parents=True, exist_ok=True)
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("VLLM_", "PYTHON"))}
        with self.log.open("wb") as log:
            self._keeper = subprocess.Popen(
                [sys.executable, "-I", "-S", str(KEEPER), *self._command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C reaches us alone
                env={**environment, **SETTINGS},
                cwd=FOLDER,
            )

    def wait_ready(self) -> None:
        """Raises `SetupError` with the server's last words."""
        deadline = time.monotonic() + START_SECONDS_MAX
        while not self._is_healthy():
            assert self._keeper is not None
            if self._keeper.poll() is not None:
                raise SetupError(f"vLLM at {self.address} ended before it was ready: {self.last_words()}")
            if time.monotonic() > deadline:
                raise SetupError(
                    f"vLLM at {self.address} was not ready after {START_SECONDS_MAX:g} s; is the machine busy? "
                    f"Its log: {self.log}"
                )
            time.sleep(0.5)

    def _is_healthy(self) -> bool:
        try:
            return ask(f"{self.url}/health").status == 200
        except OSError:
            return False

    def last_words(self) -> str:
        """The error that it ended with, and where the rest stands."""
        lines = [line.strip() for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        errors = [line for line in lines if "Error" in line]
        return f"{(errors or lines or ['without a word'])[-1][-300:]} (all of it: {self.log})"

    def let_go(self) -> None:
        """Begin to stop; `stop` waits for it."""
        if self._keeper is not None and self._keeper.stdin is not None:
            self._keeper.stdin.close()

    def stop(self) -> None:
        """In order, and for certain. Twice is fine."""
        if self._keeper is None:
            return
        self.let_go()
        try:
            self._keeper.wait(STOP_SECONDS_MAX)
        finally:
            self._keeper = None

    def kill(self) -> None:
        """-9, the server and its engine, as the kernel does where memory is out."""
        assert self._keeper is not None
        for child in psutil.Process(self._keeper.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        self._keeper.wait(STOP_SECONDS_MAX)
        self._keeper = None

    def empty_cache(self) -> None:
        """Forget all prefixes; nothing may be running."""
        answer = ask(f"{self.url}/reset_prefix_cache", b"")
        if answer.status != 200:
            raise SetupError(f"{self.address} would not empty its cache: status {answer.status}")

    def page(self) -> bytes:
        """Its /metrics."""
        return ask(f"{self.url}/metrics").body

    def counts(self) -> Counts:
        """Now."""
        sums: dict[str, float] = {}
        for family in text_string_to_metric_families(self.page().decode()):
            for sample in family.samples:
                sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
        return Counts(
            hits_tokens=sums["vllm:prefix_cache_hits_total"],
            queries_tokens=sums["vllm:prefix_cache_queries_total"],
            requests=sums["vllm:request_success_total"],
            preemptions=sums["vllm:num_preemptions_total"],
        )

    def tokens_in(self, text: str) -> int:
        """By its own tokenizer."""
        found = ask(f"{self.url}/tokenize", {"model": MODEL, "prompt": text, "add_special_tokens": False}).json()
        return int(found["count"])


class Servers:
    """All of them, started together; a context manager."""

    def __init__(self, made: list[VllmServer], tell: Callable[[str], None]) -> None:
        self.all = made
        self._tell = tell

    @property
    def addresses(self) -> tuple[str, ...]:
        return tuple(server.address for server in self.all)

    def counts(self) -> list[Counts]:
        """Of each."""
        return [server.counts() for server in self.all]

    def empty_caches(self) -> None:
        """Of all."""
        for server in self.all:
            server.empty_cache()

    def __enter__(self) -> Self:
        began = time.monotonic()
        self._tell(f"starting {len(self.all)} vLLM servers: a minute or two, logs in {LOGS}")
        try:
            for server in self.all:
                server.start()
            for server in self.all:
                server.wait_ready()
        except BaseException:
            self.__exit__()
            raise
        self._tell(f"ready after {time.monotonic() - began:.0f} s")
        return self

    def __exit__(self, *_: object) -> None:
        for server in self.all:
            server.let_go()
        for server in self.all:
            server.stop()
