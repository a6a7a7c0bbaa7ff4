"""The kernels on ARM64: compiled by a cross compiler, their tests run under qemu's user emulation. `make test-arm`.

A Python for ARM64 comes from Debian's archive (packages unpacked below build/arm64, nothing installed), the Python
packages from requirements.lock, by hash. mypyc's modules stay interpreted there: what they are compiled from is
portable C that mypyc wrote; what can go wrong on another processor is in the kernels. Where a tool is missing,
one line says that nothing was run.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import hatch_build
from tests.compiled_copy import copied

REPOSITORY = Path(__file__).resolve().parents[2]
WORK = REPOSITORY / "build" / "arm64"
ROOT, APT, WHEELS, SITE, TREE = (WORK / name for name in ("root", "apt", "wheels", "site", "tree"))
COMPILER, EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64"
PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"
TESTED = (
    *(
        "tests/properties/test_long_strings.py",
        "tests/properties/test_large_messages.py",
        "tests/properties/test_wire.py",
    ),
    *("tests/unit/prefix/test_blocks.py", "tests/unit/scheduling/test_fused.py"),
    *("tests/unit/edge/grpc/h2/test_bulk.py", "tests/unit/engines/test_excerpt.py"),
)
LOCK_ROOTS = ("pytest", "pytest-timeout", "hypothesis", "h2")
PLATFORMS = ("manylinux2014", "manylinux_2_17", "manylinux_2_26", "manylinux_2_27", "manylinux_2_28", "manylinux_2_31")


def run(*command: str | Path, folder: Path = REPOSITORY) -> str:
    """Its output. Raises `CalledProcessError`, after showing what it said."""
    done = subprocess.run([str(word) for word in command], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        print(done.stdout[-3000:], done.stderr[-3000:], sep="\n")
        done.check_returncode()
    return done.stdout


def unpack_python() -> None:
    """Debian's Python for ARM64 and all that it needs, by an apt with state of its own."""
    (APT / "lists" / "partial").mkdir(parents=True, exist_ok=True)
    (APT / "archives" / "partial").mkdir(parents=True, exist_ok=True)
    (APT / "status").touch()
    options = [
        *("-o", f"Dir::State::status={APT}/status", "-o", f"Dir::State::lists={APT}/lists", "-o", f"Dir::Cache={APT}"),
        *("-o", "APT::Architecture=arm64", "-o", "APT::Architectures::=arm64", "-o", "APT::Sandbox::User="),
    ]
    run("apt-get", *options, "update", "-qq")
    only = [f"--no-{kind}" for kind in ("recommends", "suggests", "conflicts", "breaks", "replaces", "enhances")]
    wanted = [PYTHON, f"lib{PYTHON}-dev", "libstdc++6"]
    listed = run("apt-cache", *options, "depends", "--recurse", *only, *wanted).splitlines()
    packages = sorted({line for line in listed if line and line[0].isalnum()})
    debs = APT / "debs"
    debs.mkdir(exist_ok=True)
    run("apt-get", *options, "download", "-qq", *packages, folder=debs)
    for deb in debs.glob("*.deb"):
        run("dpkg", "-x", deb, ROOT)
    shutil.rmtree(APT)


def install_packages() -> None:
    """What the tests import, as wheels for ARM64."""
    roots = [word for name in LOCK_ROOTS for word in ("--root", name)]
    chosen = run(sys.executable, "deploy/image/locked.py", "requirements.lock", "--project", "pyproject.toml", *roots)
    (WORK / "arm64.lock").write_text(chosen)
    platforms = [word for name in PLATFORMS for word in ("--platform", f"{name}_aarch64")]
    run(
        *(sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--require-hashes"),
        *("--only-binary=:all:", *platforms, "--python-version", f"{sys.version_info.major}.{sys.version_info.minor}"),
        *("--target", SITE, "--requirement", WORK / "arm64.lock"),
    )


def compile_kernels() -> None:
    """Into a copy of the tree."""
    copied(REPOSITORY, TREE)
    include = ROOT / "usr" / "include"
    suffix = f".{sys.implementation.cache_tag}-aarch64-linux-gnu.so"
    for name, source in hatch_build.kernels(REPOSITORY).items():
        run(
            *(COMPILER, "-O3", "-Wall", "-Werror", "-shared", "-fPIC", f"-I{include}/{PYTHON}", f"-I{include}"),
            *(f"-I{SITE}/numpy/_core/include", "-o", TREE / f"{name.replace('.', '/')}{suffix}", TREE / source),
        )


def emulated(*arguments: str) -> Sequence[str]:
    return (EMULATOR, "-L", str(ROOT), str(ROOT / "usr" / "bin" / PYTHON), *arguments)


def main() -> int:
    absent = [tool for tool in (COMPILER, EMULATOR, "apt-get", "dpkg") if shutil.which(tool) is None]
    if absent:
        print(f"ARM64: not run, as {', '.join(absent)} is missing (Debian: gcc-aarch64-linux-gnu libc6-dev-arm64-cross")
        print("qemu-user)")
        return 0
    began = time.monotonic()
    if not (WORK / "done").exists():
        shutil.rmtree(WORK, ignore_errors=True)
        WORK.mkdir(parents=True)
        for step in (unpack_python, install_packages):
            print(f"ARM64: {step.__name__.replace('_', ' ')} ...", flush=True)
            step()
        (WORK / "done").touch()
    compile_kernels()
    os.environ.update(PYTHONPATH=f"{TREE}:{SITE}", PYTHONDONTWRITEBYTECODE="1")
    print(*run(*emulated("-m", "picker", "--version"), folder=TREE).splitlines(), flush=True)
    ways = "import picker.api._document as d, platform; print('ARM64:', platform.machine(), *d.WAYS)"
    print(run(*emulated("-c", ways), folder=TREE), end="", flush=True)
    code = subprocess.call(emulated("-m", "pytest", "-o", "timeout=7200", *TESTED, *sys.argv[1:]), cwd=TREE)
    print(f"ARM64: {time.monotonic() - began:.0f} s")
    return code


if __name__ == "__main__":
    sys.exit(main())
