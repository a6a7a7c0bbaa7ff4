"""The compiled build: the picker's hot path through mypyc, from the same sources.

    PICKER_COMPILED=1 pip wheel .                       # a wheel for this platform (the Dockerfile does so)
    python deploy/image/compiled.py build/compiled      # a copy of the tree, compiled in place (`make compiled`)
    python deploy/image/compiled.py --check             # what is missing for it, if anything

Without PICKER_COMPILED nothing is compiled and the wheel is pure Python: a C compiler is never needed.
Behaviour is the same but for speed; `make test` runs the tests of both.

What stays interpreted: what runs once a second or less, or only when somebody asks, and every module that
defines a msgspec struct: mypyc drops what its class line says (`frozen`, `kw_only`), and of its annotations,
by which JSON is decoded, it keeps only the outer type. A test holds the list to that.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

COMPILED = (
    "picker/api/chat_completions.py",
    "picker/api/document.py",
    "picker/api/messages_text.py",
    "picker/api/request.py",
    "picker/decision.py",
    "picker/director.py",
    "picker/edge/decisions.py",
    "picker/edge/ext_proc.py",
    "picker/edge/followers.py",
    "picker/edge/h2/*.py",
    "picker/edge/telemetry.py",
    "picker/edge/telemetry_models.py",
    "picker/edge/telemetry_series.py",
    "picker/extproc/*.py",
    "picker/flowcontrol/*.py",
    "picker/pool/datastore.py",
    "picker/pool/endpoint.py",
    "picker/pool/inflight.py",
    "picker/pool/model_lists.py",
    "picker/pool/snapshot.py",
    "picker/prefix/blocks.py",
    "picker/prefix/index.py",
    "picker/prefix/matches.py",
    "picker/scheduling/*.py",
    "picker/scheduling/filters/*.py",
    "picker/scheduling/scorers/*.py",
)
INTERPRETED = (
    *("picker/edge/h2/handshakes.py", "picker/edge/h2/limits.py", "picker/edge/h2/server.py"),  # once a connection
    "picker/scheduling/normalized.py",  # when somebody asks
)
COPIED = (
    "picker",
    "protos",
    "deploy",
    "docs",
    "tests",
    "README.md",
    "CHANGELOG.md",
    "pyproject.toml",
    "Dockerfile",
    "Makefile",
    "requirements.lock",
    ".ci",
    ".dockerignore",
    ".gitignore",
)
BUILD_REQUIRES = ("mypy>=1.19", "setuptools>=77", "types-protobuf", "types-PyYAML")
MARK = ".compiled-copy"
"""Tells a directory that may be written anew."""
_SETUP = """
import sys
import numpy
from mypyc.build import mypycify
from setuptools import Extension, setup
options = {"include_dirs": [numpy.get_include()], "extra_compile_args": ["-O3", "-g0"]}
kernels = [
    Extension("picker.scheduling.kernel", ["picker/scheduling/kernel.c"], **options),
    Extension("picker.extproc.scan", ["picker/extproc/scan.c"], **options),
    Extension("picker.prefix.chain", ["picker/prefix/chain.c"], optional=True, **options),  # 64 bits, little-endian
    Extension("picker.edge.h2.bulk_kernel", ["picker/edge/h2/bulk_kernel.c"], **options),
    Extension("picker.api.skim", ["picker/api/skim.c"], optional=True, **options),  # x86-64
]
modules = mypycify(["--ignore-missing-imports", *sys.argv[1:]], opt_level="3", debug_level="0")
for module in modules:  # calls among them go straight, and may be inlined
    module.extra_compile_args += ["-fvisibility=hidden", "-fno-plt"]
setup(name="compiled", packages=[], script_args=["--quiet", "build_ext", "--inplace"], ext_modules=[*kernels, *modules])
"""


def missing() -> str | None:
    """What this machine lacks for a compiled build; `None`: nothing."""
    if shutil.which("cc") is None:
        return "no C compiler (cc): install gcc"
    if not (Path(sysconfig.get_path("include")) / "Python.h").is_file():
        return f"no Python.h for {sys.executable}: install Python's headers (Debian: python3-dev)"
    return None


def sources(root: Path) -> list[str]:
    """What is compiled, relative to `root`."""
    return sorted(
        str(path.relative_to(root))
        for pattern in COMPILED
        for path in root.glob(pattern)
        if path.name != "__init__.py" and not any(path.match(name) for name in INTERPRETED)
    )


def compile_in_place(root: Path) -> list[Path]:
    """Compile `root/picker`; returns the extension modules. Raises `RuntimeError` with what the compilers said."""
    with tempfile.TemporaryDirectory() as temporary:
        environment = {**os.environ, "PYTHONPATH": str(root), "MYPY_CACHE_DIR": temporary}
        command = [sys.executable, "-c", _SETUP, *sources(root)]
        done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    shutil.rmtree(root / "build", ignore_errors=True)
    if done.returncode:
        raise RuntimeError(
            f"the compiled build failed; {missing() or 'mypyc or cc say'}:\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
        )
    return sorted(root.rglob("*.so"))


def _left_out(folder: str, names: list[str]) -> set[str]:
    """Of the copy: caches, and programs that tests of what is not compiled have installed."""
    programs = {"bin"} if Path(folder).name in ("deploy", "kube", "telemetry") else set()
    return {name for name in names if name == "__pycache__" or name.endswith(".so")} | programs


def compiled_copy(source: Path, target: Path) -> list[Path]:
    """A copy of the tree with its `picker` compiled, in place of an earlier one. Raises `RuntimeError`."""
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
    return compile_in_place(target)


def _asked() -> bool:
    return os.environ.get("PICKER_COMPILED", "0") not in ("", "0")


class CompiledBuildHook(BuildHookInterface[Any]):
    """For hatchling: puts the extension modules into the wheel where PICKER_COMPILED is set."""

    def dependencies(self) -> list[str]:
        """Of an isolated build. mypy reads the types of what the picker imports, so that has to be there too."""
        return [*BUILD_REQUIRES, *self.metadata.core.dependencies] if _asked() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if not _asked() or version == "editable":
            return
        self._temporary = tempfile.TemporaryDirectory()
        root = Path(self._temporary.name)
        shutil.copytree(Path(self.root) / "picker", root / "picker", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy2(Path(self.root) / "pyproject.toml", root)
        for path in compile_in_place(root):
            build_data["force_include"][str(path)] = str(path.relative_to(root))
        build_data["pure_python"] = False
        build_data["infer_tag"] = True


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        sys.exit(missing())
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit("usage: python compiled.py DIRECTORY | --check")
    try:
        found = compiled_copy(Path(__file__).resolve().parents[2], Path(sys.argv[1]))
    except RuntimeError as error:
        sys.exit(str(error))
    print(f"{len(found)} modules compiled in {sys.argv[1]}")
