"""kube-apiserver and etcd for the tests: named by KUBEBUILDER_ASSETS, or built by `make tools`.

The modules beside this file (apiserver/, etcd/) pin versions and hashes (go.sum). A build takes some
minutes once and lands in tests/kube/bin (git-ignored); it is repeated only when go.sum changed.
"""

import os
from functools import partial
from pathlib import Path

from tests.tools.go import build
from tests.tools.progress import Progress
from tests.tools.tool import Missing, Tool

HERE = Path(__file__).parent
BIN = HERE / "bin"
KUBERNETES_VERSION = "v1.37.2"

_VERSION_PACKAGE = "k8s.io/component-base/version"
_MAJOR, _MINOR = KUBERNETES_VERSION.removeprefix("v").split(".")[:2]
# Unstamped, the server calls itself v0.0.0-master+$Format:%H$, which kubectl cannot parse.
_API_SERVER_FLAGS = (
    f"-s -w -X {_VERSION_PACKAGE}.gitVersion={KUBERNETES_VERSION}"
    f" -X {_VERSION_PACKAGE}.gitMajor={_MAJOR} -X {_VERSION_PACKAGE}.gitMinor={_MINOR}"
)


def _from_assets(file: str) -> Path | None:
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    if not assets:
        return None
    path = Path(assets, file)
    if not path.exists():
        raise Missing(f"KUBEBUILDER_ASSETS={assets} has no {file}")
    return path


def _build(name: str, module: str, package: str, flags: str, folder: Path, progress: Progress) -> None:
    arguments = ["build", "-v", "-trimpath", f"-ldflags={flags}", "-o", str(folder / name), package]
    build(progress, arguments, cwd=HERE / module)


def _tool(name: str, module: str, package: str, flags: str, takes: str) -> Tool:
    return Tool(
        name=name,
        needed_for="tests against a real API server",
        folder=BIN,
        files=(name,),
        recipe=(HERE / module / "go.sum").read_text() + flags,
        takes=takes,
        make=partial(_build, name, module, package, flags),
        elsewhere=_from_assets,
    )


KUBE_APISERVER = _tool(
    "kube-apiserver",
    "apiserver",
    "k8s.io/kubernetes/cmd/kube-apiserver",
    _API_SERVER_FLAGS,
    f"Kubernetes {KUBERNETES_VERSION} built with Go, some 4 minutes on two cores, then kept",
)
ETCD = _tool("etcd", "etcd", "go.etcd.io/etcd/server/v3", "-s -w", "built with Go, about a minute, then kept")
