"""A real store as a child process: redis-server or valkey-server, whichever the machine has."""

import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Self

import pytest
import redis

from picker.lab.child import dying_with_us
from tests.ports import free_ports

START_SECONDS_MAX = 10.0
BINARIES = ("redis-server", "valkey-server")


def installed() -> list[str]:
    """The stores that can be run here."""
    return [name for name in BINARIES if shutil.which(name) is not None]


def any_store() -> str:
    """One of them; skips the test where there is none."""
    found = installed()
    if not found:
        pytest.skip("neither redis-server nor valkey-server is installed: apt-get install redis-server")
    return found[0]


class RedisServer:
    """One store on a port of its own; a context manager. It can be killed, frozen and started again."""

    def __init__(self, binary: str | None = None, *, flags: tuple[str, ...] = ()) -> None:
        self._binary = binary or any_store()
        self._folder = tempfile.TemporaryDirectory(prefix="picker-store-")
        self._flags = flags
        (self.port,) = free_ports(1)
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def client(self, **options: object) -> "redis.Redis":
        """To look in, and to do harm."""
        return redis.Redis(host="127.0.0.1", port=self.port, socket_timeout=5, **options)  # type: ignore[arg-type]

    def start(self) -> None:
        with (Path(self._folder.name) / "log").open("ab") as log:
            command = [self._binary, "--port", str(self.port), "--bind", "127.0.0.1", "--save", ""]
            command += ["--appendonly", "no", "--dir", self._folder.name, *self._flags]
            self.process = subprocess.Popen(dying_with_us(command), stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        deadline = time.monotonic() + START_SECONDS_MAX
        while True:
            try:
                with socket.create_connection(("127.0.0.1", self.port), timeout=1):
                    return
            except OSError:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise AssertionError((Path(self._folder.name) / "log").read_text()) from None
                time.sleep(0.02)

    def kill(self) -> None:
        """At once. What it held is gone: it keeps nothing on disk."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def freeze(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._folder.cleanup()
