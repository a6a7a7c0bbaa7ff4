"""One real API server for all chart tests, with the CRDs in."""

import itertools
from pathlib import Path

import yaml

from tests.deploy.crds import gateway_api, vendor_crds
from tests.deploy.tools import Objects, run
from tests.kube.cluster import CRDS, TestCluster

_numbers = itertools.count(1)


class ChartCluster:
    """A cluster, and helm and kubectl as its administrator."""

    def __init__(self) -> None:
        self.gateway_crds = gateway_api()
        self.api = TestCluster()
        try:
            self.kubeconfig = self.api.kubeconfig(self.api.folder / "admin.kubeconfig")
            files = [f"--filename={path}" for path in (*sorted(CRDS.glob("*.yaml")), *self.gateway_crds)]
            self.kubectl("apply", "--server-side", *files)
            self.kubectl("apply", "--server-side", "-f", "-", stdin=yaml.safe_dump_all(vendor_crds()))
            self.kubectl("wait", "--for=condition=Established", "--timeout=30s", "crd", "--all")
        except BaseException:
            self.api.stop()
            raise

    def namespace(self) -> str:
        """A new one: without controllers, a deleted namespace never goes."""
        name = f"models-{next(_numbers)}"
        self.api.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        return name

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """kubectl's answer; its complaint fails the test."""
        done = run("kubectl", *arguments, kubeconfig=self.kubeconfig, stdin=stdin)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    def helm(self, *arguments: str, stdin: str | None = None) -> str:
        """helm's answer; its complaint fails the test."""
        done = run("helm", *arguments, kubeconfig=self.kubeconfig, stdin=stdin)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    def dry_run(self, found: Objects) -> tuple[int, str]:
        """Let the API server judge: schema, unknown fields, CEL, defaults. Nothing is kept."""
        text = yaml.safe_dump_all(found)
        done = run("kubectl", "apply", "--dry-run=server", "-f", "-", kubeconfig=self.kubeconfig, stdin=text)
        return done.returncode, done.stdout + done.stderr

    def path(self, name: str) -> Path:
        """A file in the cluster's folder, which goes with it."""
        return self.api.folder / name
