"""Programs and files from Go modules: pinned by version and by the hashes of go.sum."""

import functools
import os
import re
import shutil
import subprocess
from collections import deque
from pathlib import Path

from tests.tools.progress import Progress
from tests.tools.tool import Missing

GO_MIN = (1, 21)
"""From 1.21 on, Go gets the newer release that a module names through the module proxy."""


@functools.cache
def go() -> str:
    """The `go` command. Raises `Missing`."""
    program = shutil.which("go")
    if program is None:
        raise Missing("Go is not installed (1.26, or 1.21 and newer, which gets 1.26 by itself)")
    said = subprocess.run(
        [program, "env", "GOVERSION"], capture_output=True, text=True, timeout=60, check=False, cwd="/"
    )
    version = re.match(r"go(\d+)\.(\d+)", said.stdout.strip())
    if version is None or (int(version[1]), int(version[2])) < GO_MIN:
        raise Missing(
            f"this Go is too old ({said.stdout.strip() or said.stderr.strip()[-100:]}): install 1.21 or newer"
        )
    return program


def build(progress: Progress, arguments: list[str], *, cwd: Path, **environment: str) -> None:
    """`go ARGUMENTS`, with each module and package counted as it comes. Raises `Missing` where it fails."""
    command = [go(), *arguments]
    running = subprocess.Popen(
        ["nice", "-n", "10", *command] if shutil.which("nice") else command,
        cwd=cwd,
        env={**os.environ, "CGO_ENABLED": "0", **environment},
        stderr=subprocess.PIPE,
        text=True,
    )
    downloaded = compiled = 0
    last: deque[str] = deque(maxlen=8)
    try:
        assert running.stderr is not None
        for line in running.stderr:
            if line.startswith("go: downloading "):
                downloaded += 1
            elif re.fullmatch(r"[\w./-]+\n", line):
                compiled += 1
            else:
                last.append(line)
            progress.step(f"{downloaded} modules downloaded, {compiled} packages compiled")
        code = running.wait()
    finally:
        if running.poll() is None:
            running.terminate()
            running.wait()
    if code:
        raise Missing(f"`go {' '.join(arguments)}` failed: {''.join(last).strip()[-400:]}")
