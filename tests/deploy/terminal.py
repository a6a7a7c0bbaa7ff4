"""Somebody who types a page's commands into a shell, one after the other, before a real API server."""

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Self

from picker.lab.child import dying_with_us
from tests.deploy.cluster_fixture import ChartCluster
from tests.deploy.tools import REPOSITORY, home, tool
from tests.envoy.picker_process import wait_until
from tests.ports import free_ports


class Terminal:
    """A shell in one namespace, in the repository's root; a context manager, which ends what runs in the background.

    Three things are other than on the page. A port of this machine (`port-forward ... 8080:80`) is one that is free,
    there and in each later `localhost:8080`. A port-forward always goes to the background, and the next command waits
    for it. curl fails where the answer is no 2xx, which a reader would see. What a line sets (`ADDRESS=...`) later
    lines have.
    """

    def __init__(
        self, cluster: ChartCluster, namespace: str, folder: Path, words: dict[str, str] | None = None
    ) -> None:
        self._words = words or {}
        """What the reader types in place of the page's capitals."""
        self._ports: dict[str, int] = {}
        self._background: list[subprocess.Popen[str]] = []
        self._variables: list[str] = []
        programs = folder / "programs"
        programs.mkdir()
        (programs / "picker").write_text(f'#!/bin/sh\nPYTHONPATH={REPOSITORY} exec {sys.executable} -m picker "$@"\n')
        (programs / "picker").chmod(0o755)
        for name in ("helm", "kubectl"):
            (programs / name).symlink_to(tool(name))
        kubeconfig = cluster.api.kubeconfig(folder / "kubeconfig", cluster.api.admin_token, namespace)
        self._environment = {**os.environ, **home(), "KUBECONFIG": str(kubeconfig), "NO_PROXY": "*"}
        self._curl = programs / ".curlrc"
        self._curl.write_text("fail\nshow-error\n")
        self._environment["CURL_HOME"] = str(programs)
        self._environment["PATH"] = f"{programs}:{os.environ['PATH']}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._background:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()

    def reaches(self, address: str, here: str) -> None:
        """From now on curl finds that HOST:PORT of a network at one of this machine."""
        with self._curl.open("a") as file:
            file.write(f'connect-to = "{address}:{here}"\n')

    def types(self, line: str) -> str:
        """What it says. A command that fails, fails the test."""
        for word, meant in self._words.items():
            line = re.sub(rf"(?<![\w-]){word}(?![\w-])", meant, line)
        if re.match(r"kubectl .*port-forward ", line):
            self._forward(line.removesuffix("&").strip())
            return ""
        for printed, port in self._ports.items():
            line = re.sub(rf"\b(localhost|127\.0\.0\.1):{printed}\b", f"127.0.0.1:{port}", line)
        script = "\n".join([*self._variables, line])
        if re.match(r"[A-Z]+=", line):
            self._variables.append(line)
        process = self._starts(["bash", "-euo", "pipefail", "-c", script], stderr=subprocess.PIPE)
        try:
            out, error = process.communicate(timeout=100)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            raise
        assert process.returncode == 0, f"{line}\n{out}{error}{self._last_words()}"
        return out

    def _starts(self, command: list[str], *, stderr: int) -> subprocess.Popen[str]:
        """In a group of its own, so that all of it can be stopped."""
        return subprocess.Popen(
            command,
            cwd=REPOSITORY,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            start_new_session=True,
        )

    def _last_words(self) -> str:
        """Of the background, what has ended."""
        ended = [process for process in self._background if process.poll() is not None]
        self._background = [process for process in self._background if process not in ended]
        return "\n".join(["", *(process.communicate()[0] for process in ended)])

    def _forward(self, line: str) -> None:
        found = re.fullmatch(r"(.*) (?:(\d+):)?(\d+)", line)
        assert found, line
        printed = found[2] or found[3]
        (port,) = free_ports(1)
        self._ports[printed] = port
        forward = dying_with_us(["bash", "-c", f"exec {found[1]} {port}:{found[3]}"])
        process = self._starts(forward, stderr=subprocess.STDOUT)
        self._background.append(process)

        def is_open() -> bool:
            assert process.poll() is None, f"{line}\n{process.stdout.read() if process.stdout else ''}"
            with socket.socket() as tried:
                return tried.connect_ex(("127.0.0.1", port)) == 0

        wait_until(is_open, f"{line} does not listen", 30)
