"""The plain manifests are what the chart renders today, and the README lists them all."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from tests.deploy.cluster_fixture import ChartCluster
from tests.deploy.examples import EXAMPLES, folders, manifests
from tests.deploy.terminal import Terminal
from tests.deploy.tools import REPOSITORY, Objects, objects
from tests.printed import commands, to_run


@pytest.mark.usefixtures("helm")
@pytest.mark.parametrize("folder", folders(), ids=lambda folder: folder.name)
def test_manifests_are_as_rendered(folder: Path) -> None:
    written = (folder / "manifests.yaml").read_text()
    assert written == manifests(folder), "stale: run `.venv/bin/python -m tests.deploy.examples`"
    assert objects(written)


def test_the_readme_lists_every_folder() -> None:
    text = (EXAMPLES / "README.md").read_text()
    assert [f.name for f in folders() if f"`{f.name}`" not in text] == []


def everything() -> dict[str, Objects]:
    """Every object that the folder of examples brings, by file."""
    files = [path for path in EXAMPLES.rglob("*.yaml") if path.name != "values.yaml"]
    return {path.relative_to(EXAMPLES).as_posix(): objects(path.read_text()) for path in files}


def test_no_object_names_a_namespace() -> None:
    """So `kubectl` puts it where it is told. Only subjects do: of cluster roles, and Google's collector."""
    named = set()
    for file, found in everything().items():
        for o in found:
            assert "namespace" not in o["metadata"], (file, o["kind"])
            if o["kind"] in ("RoleBinding", "ClusterRoleBinding"):
                named |= {(file, o["kind"], subject.get("namespace")) for subject in o["subjects"]}
        assert ".svc" not in (EXAMPLES / file).read_text(), f"{file}: the name of a Service with a namespace in it"
    assert {each for each in named if each[2] is not None} == {
        ("gke/manifests.yaml", "ClusterRoleBinding", "default"),
        ("gke/manifests.yaml", "RoleBinding", "gmp-system"),
    }


def test_the_readmes_command_leaves_no_namespace_behind() -> None:
    (line,) = commands("deploy/examples/README.md")
    command = line.text.partition(" | ")[0].replace("NAMESPACE", "models")
    text = subprocess.run(["sh", "-c", command], cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
    bindings = [o for o in objects(text) if o["kind"] == "ClusterRoleBinding"]
    assert [subject["namespace"] for o in bindings for subject in o["subjects"]] == ["models", "models"]
    names = [o["metadata"]["name"] for o in objects(text) if o["kind"].startswith("ClusterRole")]
    assert len(names) == 4 and all(name.startswith("models") for name in names)
    assert {o["roleRef"]["name"] for o in bindings} <= set(names)


def test_the_readmes_command_runs(cluster: ChartCluster, tmp_path: Path) -> None:
    """On a real API server, in a namespace of another name than the manifests'."""
    namespace = cluster.namespace()
    with Terminal(cluster, "default", tmp_path, {"NAMESPACE": namespace}) as terminal:
        for line in to_run("deploy/examples/README.md"):
            terminal.types(line.text)
        bindings = json.loads(terminal.types("kubectl get clusterrolebindings --output json"))["items"]
    ours = [each for each in bindings if each["metadata"]["name"].startswith(f"{namespace}:")]
    assert ours and {subject["namespace"] for each in ours for subject in each["subjects"]} == {namespace}
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments/llm-picker"
    assert cluster.api.request("GET", path)["spec"]["replicas"] >= 1


def test_the_model_servers_take_their_uid_from_the_image() -> None:
    """OpenShift's restricted SCC refuses one that is named; the kubelet believes `runAsNonRoot` of a number alone."""
    (deployment,) = objects((EXAMPLES / "model-servers.yaml").read_text())
    context = deployment["spec"]["template"]["spec"]["securityContext"]
    assert context["runAsNonRoot"] is True and "runAsUser" not in context
    users = re.findall(r"^USER (.+)$", (REPOSITORY / "Dockerfile").read_text(), re.MULTILINE)
    assert users and re.fullmatch(r"[1-9]\d*(:\d+)?", users[-1])
