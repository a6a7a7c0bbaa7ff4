"""kube-apiserver and etcd for the tests: named by KUBEBUILDER_ASSETS, or built here from pinned Go modules.

The modules beside this file (apiserver/, etcd/) pin versions and hashes (go.sum). A build takes some
minutes once and lands in tests/kube/bin (git-ignored); it is repeated only when go.sum changed. A lock
lets parallel test runs wait for one build instead of making two.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

HERE = Path(__file__).parent
BIN = HERE / "bin"
KUBERNETES_VERSION = "v1.37.2"
BUILD_SECONDS_MAX = 1800

_VERSION_PACKAGE = "k8s.io/component-base/version"
_MAJOR, _MINOR = KUBERNETES_VERSION.removeprefix("v").split(".")[:2]
# Unstamped, the server calls itself v0.0.0-master+$Format:%H$, which kubectl cannot parse.
_LDFLAGS = {
    "kube-apiserver": f"-s -w -X {_VERSION_PACKAGE}.gitVersion={KUBERNETES_VERSION}"
    f" -X {_VERSION_PACKAGE}.gitMajor={_MAJOR} -X {_VERSION_PACKAGE}.gitMinor={_MINOR}",
    "etcd": "-s -w",
}
_SOURCES = {
    "kube-apiserver": ("apiserver", "k8s.io/kubernetes/cmd/kube-apiserver"),
    "etcd": ("etcd", "go.etcd.io/etcd/server/v3"),
}


class Missing(RuntimeError):
    """The binaries are not here and cannot be built; the text says how to get them."""


def binary(name: str) -> Path:
    """The path of `kube-apiserver` or `etcd`, built first where needed. Raises `Missing`."""
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    if assets:
        path = Path(assets, name)
        if not path.exists():
            raise Missing(f"KUBEBUILDER_ASSETS={assets} has no {name}")
        return path
    folder, package = _SOURCES[name]
    module = HERE / folder
    wanted = hashlib.sha256((module / "go.sum").read_bytes() + _LDFLAGS[name].encode()).hexdigest()
    path, stamp = BIN / name, BIN / f"{name}.stamp"
    if _is_built(path, stamp, wanted):
        return path
    if shutil.which("go") is None:
        raise Missing(
            "a real API server needs Go (1.26 or newer, builds in some minutes, then cached)"
            " or KUBEBUILDER_ASSETS=<folder with kube-apiserver and etcd>"
        )
    BIN.mkdir(exist_ok=True)
    with (BIN / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _is_built(path, stamp, wanted):
            _build(name, module, package, path)
            stamp.write_text(wanted)
    return path


def _is_built(path: Path, stamp: Path, wanted: str) -> bool:
    return path.exists() and stamp.exists() and stamp.read_text() == wanted


def _build(name: str, module: Path, package: str, path: Path) -> None:
    part = path.with_suffix(".part")
    command = ["go", "build", "-trimpath", f"-ldflags={_LDFLAGS[name]}", "-o", str(part), package]
    done = subprocess.run(
        ["nice", "-n", "10", *command] if shutil.which("nice") else command,
        cwd=module,
        env={**os.environ, "CGO_ENABLED": "0"},
        capture_output=True,
        text=True,
        timeout=BUILD_SECONDS_MAX,
        check=False,
    )
    if done.returncode:
        raise Missing(f"building {name} failed: {done.stderr.strip()[-400:]}")
    part.rename(path)


if __name__ == "__main__":
    for each in _SOURCES:
        print(binary(each))
