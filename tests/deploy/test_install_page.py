"""docs/install.md and docs/chart.md, on a real API server: each `helm` and `kubectl apply` command of theirs, in order.

Of the page's shell blocks everything is run but what needs containers, a cloud or the internet (`NOT_HERE`); a command
that is neither run nor known as such fails the test.
"""

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from picker import __version__
from tests.deploy.cluster_fixture import ChartCluster
from tests.deploy.tools import REPOSITORY, home, tool

pytestmark = pytest.mark.usefixtures("helm")

NOT_HERE = (
    *("docker ", "kind ", "gcloud ", "istioctl ", "oc "),  # no container engine, no cloud
    *(
        "curl ",
        "kubectl port-forward",
        "kubectl rollout status",
        "kubectl wait",
        "helm test",
        "ADDRESS=",
        "SERVICE=",
        "kubectl get ",
    ),  # no pods run
    *("--region=", "-d "),  # continued lines of those
)
FROM_THE_INTERNET = re.compile(r"https?://\S+\.yaml|oci://")
FOR_THE_READER = {"REGISTRY", "REGION", "NETWORK", "CLUSTER"}
"""What a command leaves to whoever types it."""


def sections(page: str) -> dict[str, list[str]]:
    """Commands by heading, continued lines joined."""
    found: dict[str, list[str]] = {}
    for part in re.split(r"^## ", (REPOSITORY / "docs" / page).read_text(), flags=re.MULTILINE):
        heading, _, text = part.partition("\n")
        blocks = re.findall(r"^ *```sh\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE)
        lines = [line.strip() for block in blocks for line in block.replace("\\\n", " ").splitlines() if line.strip()]
        if lines:
            found[heading] = lines
    return found


def is_run(line: str) -> bool:
    return not line.startswith(NOT_HERE) and not FROM_THE_INTERNET.search(line)


def type_in(cluster: ChartCluster, namespace: str, line: str, folder: Path) -> str:
    """Run one command in that namespace, as if it were the kubeconfig's."""
    words = shlex.split(line.removesuffix("&").strip())
    assert words[0] in ("helm", "kubectl", "sed"), f"neither run nor excused: {line}"
    kubeconfig = cluster.api.kubeconfig(folder / "kubeconfig", cluster.api.admin_token, namespace)
    environment = {**os.environ, **home(), "KUBECONFIG": str(kubeconfig)}
    if words[0] == "sed":  # what it writes goes to kubectl
        environment["PATH"] = f"{tool('kubectl').parent}:{environment['PATH']}"
        command = ["bash", "-o", "pipefail", "-c", line]
    else:
        command = [str(tool(words[0])), *(namespace if word == "models" else word for word in words[1:])]
    done = subprocess.run(
        command,
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("heading", [*sections("install.md"), "chart.md"])
def test_the_commands_run_in_their_order(cluster: ChartCluster, tmp_path: Path, heading: str) -> None:
    namespace = cluster.namespace()
    lines = sections("install.md").get(heading) or [line for each in sections("chart.md").values() for line in each]
    run = [line for line in lines if is_run(line)]
    if heading in ("Scraping", "Uninstall"):  # they go on from "On kind"
        run = [line for line in sections("install.md")["On kind"] if line.startswith("helm install")] + run
    for line in run:
        type_in(cluster, namespace, line, tmp_path)
    installed = [line.split()[2] for line in run if line.startswith("helm install")]
    for name in installed:
        if not any(line.startswith(f"helm uninstall {name}") for line in run):
            type_in(cluster, namespace, f"helm uninstall {name}", tmp_path)


def test_no_way_in_is_left_out() -> None:
    """Each of the table's places has a section that installs something."""
    table = re.findall(r"^\| \[[^|]*\]\(#([\w-]+)\)", (REPOSITORY / "docs/install.md").read_text(), re.MULTILINE)
    headings = {re.sub(r"\W+", "-", heading.lower()): lines for heading, lines in sections("install.md").items()}
    assert len(table) >= 6
    for anchor in table:
        assert any(line.startswith(("helm install", "helm template")) for line in headings[anchor]), anchor


WALKS = [heading for heading in sections("install.md") if heading.startswith(("On ", "With "))]


def test_a_reader_replaces_few_words_and_never_a_version() -> None:
    text = "\n".join(line for heading in WALKS for line in sections("install.md")[heading])
    capitals = set(re.findall(r"(?:(?<=[=/ ])|^)[A-Z]+(?:-[A-Z]+)*(?=[/ ]|$)", text, re.MULTILINE))
    assert capitals - {"ACTIVE"} == FOR_THE_READER  # gcloud's own


@pytest.mark.parametrize("heading", [heading for heading in WALKS if heading != "On kind"])
def test_off_kind_every_image_comes_from_the_readers_registry(heading: str) -> None:
    """kind alone is given the image; any other cluster pulls it, that of the model servers too."""
    lines = sections("install.md")[heading]
    assert "kubectl apply -f deploy/examples/model-servers.yaml" not in lines
    installs = [line for line in lines if line.startswith("helm install llm ")]
    assert installs and all("--set image.repository=REGISTRY/inference-picker" in line for line in installs)
    for line in (line for line in lines if line.startswith("sed ")):
        command, _, rest = line.partition(" | ")
        assert rest == "kubectl apply -f -"
        text = subprocess.run(["sh", "-c", command], cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
        assert re.findall(r"image: (\S+)", text) == [f"REGISTRY/inference-picker:{__version__}"]


def test_helm_takes_plain_manifests_over_as_they_run(cluster: ChartCluster, tmp_path: Path) -> None:
    """In a namespace that nobody named in a file; nothing is made anew, and the picker may do its work before it."""
    namespace = cluster.namespace()
    apply, install = sections("install.md")["Plain manifests first, Helm afterwards"]
    deployments = f"/apis/apps/v1/namespaces/{namespace}/deployments"

    def uids() -> dict[str, str]:
        found = cluster.api.request("GET", deployments)["items"]
        return {each["metadata"]["name"]: each["metadata"]["uid"] for each in found}

    type_in(cluster, namespace, apply, tmp_path)
    before = uids()
    assert list(before) == ["llm-picker"]
    token = cluster.api.service_account_token(namespace, "llm-picker")
    assert cluster.api.request("GET", f"/api/v1/namespaces/{namespace}/pods", token=token)["items"] == []
    type_in(cluster, namespace, install, tmp_path)
    assert uids() == before
    type_in(cluster, namespace, "helm uninstall llm", tmp_path)
    assert uids() == {}
