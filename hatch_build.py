"""The compiled build: the picker's hot path through mypyc and its kernels in C, from the same sources.

    pip install .                        # compiled where a C compiler is; else pure Python, and one line says so
    PICKER_PURE=1 pip install .          # pure Python
    PICKER_COMPILED=1 pip install .      # compiled, or an error (the Dockerfile and `make wheels` do so)

An editable install is always pure Python. pip shows what a build says only with `-v`; `picker --version` and
the log of `picker serve` say which build was installed. Behaviour is the same but for speed: `make test` runs
the tests of both.

What stays interpreted: what runs once a second or less, or only when somebody asks, and every module that
defines a msgspec struct: mypyc drops what its class line says (`frozen`, `kw_only`), and of its annotations,
by which JSON is decoded, it keeps only the outer type. A test holds the list to that. The kernels are listed
where they are loaded, in picker/kernels.py.
"""

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

COMPILED = (
    "picker/admission.py",
    "picker/api/answers.py",
    "picker/api/chat_completions.py",
    "picker/api/document.py",
    "picker/api/fields.py",
    "picker/api/json_answer.py",
    "picker/api/messages_text.py",
    "picker/api/request.py",
    "picker/budget.py",
    "picker/decision.py",
    "picker/director.py",
    "picker/edge/grpc/ext_proc.py",
    "picker/edge/grpc/h2/*.py",
    "picker/edge/telemetry/decisions.py",
    "picker/edge/telemetry/models.py",
    "picker/edge/telemetry/objectives.py",
    "picker/edge/telemetry/observers.py",
    "picker/edge/telemetry/page.py",
    "picker/edge/telemetry/series.py",
    "picker/edge/telemetry/tenants.py",
    "picker/engines/excerpt.py",
    "picker/engines/exposition.py",
    "picker/extproc/*.py",
    "picker/metering.py",
    "picker/pool/datastore.py",
    "picker/pool/endpoint.py",
    "picker/pool/inflight.py",
    "picker/pool/model_lists.py",
    "picker/pool/snapshot.py",
    "picker/prefix/blocks.py",
    "picker/prefix/index.py",
    "picker/prefix/matches.py",
    "picker/prefix/walks.py",
    "picker/residency/residency.py",
    "picker/scheduling/*.py",
    "picker/scheduling/filters/*.py",
    "picker/scheduling/scorers/*.py",
    "picker/sharing/*.py",
)
INTERPRETED = (
    "picker/edge/grpc/h2/server.py",  # once a connection
    "picker/scheduling/normalized.py",  # when somebody asks
    *("picker/sharing/records.py", "picker/sharing/status.py"),  # structs
)
ONLY_64_BITS_LITTLE = ("picker.prefix._blocks",)
"""Kernels that are left out for processors of 32 bits and big-endian ones."""
BUILD_REQUIRES = ("mypy>=1.19", "setuptools>=77", "types-protobuf", "types-PyYAML")
ERROR_CHARS_MAX = 3000
"""Of what the compilers say, at most."""


def machine_lacks() -> str | None:
    """What this machine lacks for a compiled build; `None`: nothing."""
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")[0]
    if shutil.which(compiler) is None:
        return f"no C compiler ({compiler}): install one (Debian: gcc libc6-dev)"
    if not (Path(sysconfig.get_path("include")) / "Python.h").is_file():
        return f"no Python.h for {sys.executable}: install Python's headers (Debian: python3-dev)"
    return None


def missing() -> str | None:
    """The same, with the packages that a build not isolated has to find."""
    absent = [name for name in ("mypyc", "setuptools", "numpy") if importlib.util.find_spec(name) is None]
    if absent:
        return f"no {', '.join(absent)} in this environment: install mypy, setuptools and numpy"
    return machine_lacks()


def sources(root: Path) -> list[str]:
    """What mypyc compiles, relative to `root`."""
    return sorted(
        str(path.relative_to(root))
        for pattern in COMPILED
        for path in root.glob(pattern)
        if path.name != "__init__.py" and not any(path.match(name) for name in INTERPRETED)
    )


def kernels(root: Path) -> dict[str, str]:
    """Module -> source in C, of those that can be built for this machine."""
    spec = importlib.util.spec_from_file_location("kernels", root / "picker" / "kernels.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    usual = sys.byteorder == "little" and sys.maxsize > 2**32
    return {name: f"{name.replace('.', '/')}.c" for name in module.KERNELS if usual or name not in ONLY_64_BITS_LITTLE}


def compile_here() -> None:
    """Compile `picker` in the working directory, in place. Runs in a process of its own: see `compile_in_place`."""
    import numpy
    from mypyc.build import mypycify
    from setuptools import Extension, setup

    root = Path()
    modules = mypycify(["--ignore-missing-imports", *sources(root)], opt_level="3", debug_level="0")
    for module in modules:  # calls among them go straight, and may be inlined
        module.extra_compile_args += ["-fvisibility=hidden", "-fno-plt"]
    by_hand = [
        Extension(name, [source], include_dirs=[numpy.get_include()], extra_compile_args=["-O3", "-g0"])
        for name, source in kernels(root).items()
    ]
    setup(
        name="compiled",
        packages=[],
        script_args=["--quiet", "build_ext", "--inplace"],
        ext_modules=[*by_hand, *modules],
    )


def compile_in_place(root: Path) -> list[Path]:
    """Compile `root/picker`; returns the extension modules. Raises `RuntimeError` with what the compilers said."""
    lacks = missing()
    if lacks is not None:
        raise RuntimeError(f"nothing can be compiled here: {lacks}")
    with tempfile.TemporaryDirectory() as temporary:
        path = os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])])  # pip's isolation is in it
        environment = {**os.environ, "PYTHONPATH": path, "MYPY_CACHE_DIR": temporary}
        # -P: this file's directory has a `picker` too, which mypy must not find.
        command = [sys.executable, "-P", str(Path(__file__).resolve()), "--compile-here"]
        done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    shutil.rmtree(root / "build", ignore_errors=True)
    if done.returncode:
        said = f"{done.stdout[-ERROR_CHARS_MAX:]}{done.stderr[-ERROR_CHARS_MAX:]}"
        raise RuntimeError(f"the compiled build failed; mypyc or the C compiler says:\n{said}")
    return sorted(root.rglob("*.so"))


def _is_set(name: str) -> bool:
    return os.environ.get(name, "0") not in ("", "0")


def wanted() -> bool | None:
    """Whether to compile: yes, no, or (`None`) where it can be done. Raises `ValueError`."""
    pure, compiled = _is_set("PICKER_PURE"), _is_set("PICKER_COMPILED")
    if pure and compiled:
        raise ValueError("PICKER_PURE and PICKER_COMPILED contradict each other: set one of them")
    return True if compiled else False if pure else None


class CompiledBuildHook(BuildHookInterface[Any]):
    """For hatchling: puts the extension modules into a wheel."""

    _temporary: tempfile.TemporaryDirectory[str] | None = None
    """Holds them until the wheel is written."""

    def dependencies(self) -> list[str]:
        """Of an isolated build. mypy reads the types of what the picker imports, so that has to be there too."""
        asked = wanted()
        if asked or (asked is None and machine_lacks() is None):
            return [*BUILD_REQUIRES, *self.metadata.core.dependencies]
        return []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """hatchling's, before the files of the wheel are gathered."""
        asked = wanted()
        if asked is False or version == "editable":
            return
        lacks = missing()
        if asked is None and lacks is not None:
            self._say_pure(lacks)
            return
        self._temporary = tempfile.TemporaryDirectory()
        root = Path(self._temporary.name)
        shutil.copytree(
            Path(self.root) / "picker", root / "picker", ignore=shutil.ignore_patterns("__pycache__", "*.so")
        )
        shutil.copy2(Path(self.root) / "pyproject.toml", root)
        try:
            modules = compile_in_place(root)
        except RuntimeError as error:
            self._temporary.cleanup()
            if asked:
                raise
            said = str(error).strip().splitlines()
            self._say_pure(f"it does not compile here ({said[-1]}); PICKER_COMPILED=1 shows all of it")
            return
        for path in modules:
            build_data["force_include"][str(path)] = str(path.relative_to(root))
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """hatchling's, behind the wheel."""
        if self._temporary is not None:
            self._temporary.cleanup()

    def _say_pure(self, why: str) -> None:
        self.app.display_warning(f"picker: pure Python, some 3.5 times the CPU of the compiled build: {why}")


if __name__ == "__main__":
    if sys.argv[1:] != ["--compile-here"]:
        sys.exit("this is a build hook: use `pip install .`, or `make compiled` for a compiled copy of the tree")
    compile_here()
