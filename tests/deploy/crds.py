"""Gateway API's CRDs, from its Go module: pinned by version and hash, copied by `make tools`."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

from tests.deploy.tools import CACHE
from tests.tools.go import go
from tests.tools.progress import Progress
from tests.tools.tool import Missing, Tool

MODULE = "sigs.k8s.io/gateway-api@v1.6.3"
MODULE_SUM = "h1:lKpJa5bGlraC/QeACvCpsHLdmO6y0iKfzVl6gzaFEYc="
FILES = tuple(f"gateway.networking.k8s.io_{name}.yaml" for name in ("gatewayclasses", "gateways", "httproutes"))


def _copy(folder: Path, progress: Progress) -> None:
    command = [go(), "mod", "download", "-json", MODULE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd="/")
    if done.returncode:
        raise Missing(f"`go mod download {MODULE}` failed: {(done.stderr or done.stdout)[-200:]}")
    answer = json.loads(done.stdout)
    assert answer["Sum"] == MODULE_SUM, f"{MODULE} is not what was pinned: {answer['Sum']}"
    for file in FILES:
        shutil.copyfile(Path(answer["Dir"], "config", "crd", "standard", file), folder / file)


GATEWAY_API = Tool(
    name="Gateway API CRDs",
    needed_for="the chart applied to a real API server",
    folder=CACHE,
    files=FILES,
    recipe=MODULE + MODULE_SUM,
    takes="downloaded with Go, some seconds",
    make=_copy,
)


def gateway_api() -> tuple[Path, ...]:
    """The files that define what the chart and the examples use. Raises `Missing`."""
    return tuple(GATEWAY_API.look(file) for file in FILES)


VENDORS = (
    ("networking.gke.io", "v1", "HealthCheckPolicy", "healthcheckpolicies"),
    ("networking.gke.io", "v1", "GCPBackendPolicy", "gcpbackendpolicies"),
    ("monitoring.googleapis.com", "v1", "PodMonitoring", "podmonitorings"),
    ("monitoring.googleapis.com", "v1", "Rules", "rules"),
    ("networking.istio.io", "v1", "DestinationRule", "destinationrules"),
    ("monitoring.coreos.com", "v1", "ServiceMonitor", "servicemonitors"),
    ("monitoring.coreos.com", "v1", "PodMonitor", "podmonitors"),
    ("monitoring.coreos.com", "v1", "PrometheusRule", "prometheusrules"),
    ("keda.sh", "v1alpha1", "ScaledObject", "scaledobjects"),
    ("llm-d.ai", "v1alpha2", "InferenceObjective", "inferenceobjectives"),
)


def vendor_crds() -> list[dict[str, Any]]:
    """Stand-ins that take any field: names and groups are right, so that a release of every provider installs. What
    the fields may be is judged by tests/deploy/schemas."""
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return [
        {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{plural}.{group}"},
            "spec": {
                "group": group,
                "scope": "Namespaced",
                "names": {"kind": kind, "plural": plural, "singular": kind.lower()},
                "versions": [
                    {"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": anything}}
                ],
            },
        }
        for group, version, kind, plural in VENDORS
    ]
