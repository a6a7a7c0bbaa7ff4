"""A copy of the tree with its `picker` compiled in place, for the tests and benchmarks of the compiled build.

python -m tests.compiled_copy build/compiled     # `make compiled`
python -m tests.compiled_copy --check            # what this machine lacks for it, if anything
"""

import hashlib
import os
import shutil
import sys
import tempfile
from pathlib import Path

from hatch_build import compile_in_place, missing

COPIED = (
    "picker",
    "protos",
    "deploy",
    "docs",
    "tests",
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "pyproject.toml",
    "Dockerfile",
    "hatch_build.py",
    "Makefile",
    "requirements.lock",
    ".ci",
    ".dockerignore",
    ".gitignore",
)
MARK = ".compiled-copy"
"""Tells a directory that may be written anew."""


def _left_out(folder: str, names: list[str]) -> set[str]:
    """Of the copy: caches, and programs that tests of what is not compiled have installed."""
    programs = {"bin"} if Path(folder).name in ("deploy", "kube", "telemetry") else set()
    return {name for name in names if name == "__pycache__" or name.endswith(".so")} | programs


def copied(source: Path, target: Path) -> None:
    """A copy of the tree, in place of an earlier one. Raises `RuntimeError`."""
    target = target.resolve()
    if source.is_relative_to(target) or any(target.is_relative_to(source / name) for name in COPIED):
        raise RuntimeError(f"{target} holds the sources or is among them: name another directory, like build/compiled")
    if target.exists() and (not target.is_dir() or (any(target.iterdir()) and not (target / MARK).exists())):
        raise RuntimeError(f"{target} is no earlier compiled copy: name another directory, or remove it")
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    (target / MARK).touch()
    for name in COPIED:
        origin = source / name
        if origin.is_dir():
            shutil.copytree(origin, target / name, ignore=_left_out)
        elif origin.exists():
            shutil.copy2(origin, target / name)


def compiled_copy(source: Path, target: Path) -> list[Path]:
    """The same with its `picker` compiled, as an earlier copy has it where nothing of it changed. `RuntimeError`."""
    target = target.resolve()
    state = _state(source)
    with tempfile.TemporaryDirectory(dir=target.parent if target.parent.is_dir() else None) as aside:
        mark = target / MARK
        found = []
        if mark.is_file() and mark.read_text() == state:
            for each in target.rglob("*.so"):
                kept = Path(aside) / each.relative_to(target)
                kept.parent.mkdir(parents=True, exist_ok=True)
                each.rename(kept)
                found.append(kept)
        copied(source, target)
        for each in found:
            each.rename(target / each.relative_to(aside))
    made = sorted(target.rglob("*.so")) if found else compile_in_place(target)
    mark.write_text(state)
    return made


def _state(source: Path) -> str:
    """Of all that the compiled modules depend on."""
    state = hashlib.sha256(f"{sys.version} {os.environ.get('CFLAGS', '')} {os.environ.get('CC', '')}".encode())
    files = [each for name in ("picker", "protos") for each in (source / name).rglob("*") if each.is_file()]
    files += [source / name for name in ("hatch_build.py", "pyproject.toml", "requirements.lock")]
    for each in sorted(files):
        if "__pycache__" not in each.parts and each.suffix != ".so":
            state.update(f"{each.relative_to(source)} {each.stat().st_size} ".encode())
            state.update(each.read_bytes())
    return state.hexdigest()


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        sys.exit(missing())
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit("usage: python -m tests.compiled_copy DIRECTORY | --check")
    try:
        found = compiled_copy(Path(__file__).resolve().parents[1], Path(sys.argv[1]))
    except RuntimeError as error:
        sys.exit(str(error))
    print(f"{len(found)} compiled modules in {sys.argv[1]}")
