"""`make test-pythons`: the quick tier and the demo on every supported Python that is found here.

Looks for `python3.11` and its like on PATH, and where pyenv keeps its own. Each gets an environment in
.venv-pythons, installed from the lock once. A version that is not found is named, and skipped.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from tests.run import QUICK, ROOT, Failed, Row, Run, table

VERSIONS = ("3.11", "3.12", "3.13")
ENVIRONMENTS = ROOT / ".venv-pythons"


def candidates(version: str) -> list[Path]:
    """Programs that may be this version, best guess first."""
    on_path = [Path(folder, f"python{version}") for folder in os.get_exec_path()]
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    return [*on_path, *sorted(pyenv.glob(f"{version}.*/bin/python"), reverse=True)]


def interpreter(version: str) -> str | None:
    """One that runs, says that it is this version, and can make environments."""
    program = "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"
    for path in candidates(version):
        if path.is_file():
            said = subprocess.run([path, "-c", program], capture_output=True, text=True, timeout=60, check=False)
            if said.stdout.strip() == version:
                return str(path)
    return None


def environment(version: str, python: str) -> Path:
    """The `bin` of an environment with everything in the lock. Raises `subprocess.CalledProcessError`."""
    folder = ENVIRONMENTS / version
    done, lock = folder / ".done", ROOT / "requirements.lock"
    newest = max(path.stat().st_mtime for path in (lock, ROOT / "pyproject.toml"))
    if not done.exists() or done.stat().st_mtime < newest:
        shutil.rmtree(folder, ignore_errors=True)
        pip = [str(folder / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([python, "-m", "venv", str(folder)], check=True)
        subprocess.run([*pip, "--require-hashes", "-r", str(lock)], check=True)
        subprocess.run([*pip, "--no-deps", "--no-build-isolation", "--editable", str(ROOT)], check=True)
        done.touch()
    return folder / "bin"


def test_with(run: Run, version: str, demo: bool) -> None:
    """Raises `Failed`."""
    python = interpreter(version)
    if python is None:
        run.skips.append((f"Python {version}", "it was not found: no such program on PATH, none of pyenv's"))
        return
    print(f"== Python {version}: {python}", flush=True)
    began = time.monotonic()
    try:
        programs = environment(version, python)
    except subprocess.CalledProcessError as error:
        raise Failed(f"installing for Python {version}", error.returncode) from error
    run.rows.append(Row(f"{version}: install", time.monotonic() - began))
    run.tests(version, *QUICK, python=str(programs / "python"))
    if demo:
        run.step(f"{version}: demo", str(programs / "picker"), "demo")


def main() -> int:
    parser = argparse.ArgumentParser(prog="make test-pythons", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--no-demo", action="store_true", help="the tests alone")
    parser.add_argument("versions", nargs="*", default=VERSIONS, help="default: all")
    asked = parser.parse_args()
    run, began, code = Run(), time.monotonic(), 0
    for version in asked.versions:
        try:
            test_with(run, version, not asked.no_demo)
        except Failed as failed:
            code = failed.code
            print(f"\nFAILED: {failed.step}")
    print(table(run, time.monotonic() - began), flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
