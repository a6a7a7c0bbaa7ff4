"""docs/install.md and docs/chart.md, on a real API server: each of their commands that carries no mark, in order."""

import contextlib
import json
import re
import subprocess
from pathlib import Path

import pytest

from picker import __version__
from tests.deploy.cluster_fixture import ChartCluster
from tests.deploy.node import Node
from tests.deploy.terminal import Terminal
from tests.deploy.tools import REPOSITORY
from tests.printed import Command, blocks, to_run

pytestmark = pytest.mark.usefixtures("helm")

FOR_THE_READER = {"REGISTRY", "REGION", "NETWORK", "CLUSTER"}
"""What a command leaves to whoever types it."""
TO_RUN = to_run("docs/install.md")


def sections(wanted: list[Command] | None = None) -> dict[str, list[str]]:
    """Commands by heading, of these or all."""
    found: dict[str, list[str]] = {}
    for block in blocks("docs/install.md"):
        lines = [each.text for each in block.commands if wanted is None or each in wanted]
        if lines:
            found.setdefault(block.heading, []).extend(lines)
    return found


NEEDS_PODS = re.compile(r"kubectl (rollout|port-forward)|helm test")


@pytest.mark.parametrize("heading", sections(TO_RUN))
def test_the_commands_run_in_their_order(cluster: ChartCluster, tmp_path: Path, heading: str) -> None:
    """A section that goes on from "On kind" begins with its installation. Pods run from the first command on that needs
    them; most sections end before that."""
    namespace = cluster.namespace()
    lines = sections(TO_RUN)[heading]
    if not any(line.startswith(("helm install", "helm template")) for line in lines):
        lines = [line for line in sections(TO_RUN)["On kind"] if re.match(r"helm install|kubectl apply", line)] + lines
    said: dict[str, str] = {}
    with Terminal(cluster, namespace, tmp_path, {"NAME": namespace}) as terminal, contextlib.ExitStack() as stack:
        for line in lines:
            if NEEDS_PODS.match(line) and not any(map(NEEDS_PODS.match, said)):
                stack.enter_context(Node(cluster, namespace, tmp_path))
            said[line] = terminal.types(line)
        for name in {line.split()[2] for line in lines if line.startswith("helm install")}:
            if f"helm uninstall {name}" not in lines:
                terminal.types(f"helm uninstall {name}")
    if heading == "On kind":
        answers = [json.loads(out) for line, out in said.items() if "/v1/chat/completions" in line]
        assert [each["choices"][0]["message"]["role"] for each in answers] == ["assistant"]
        assert sum("successfully rolled out" in out for out in said.values()) == 2
        assert any(re.search(r"^Phase: +Succeeded$", out, re.MULTILINE) for out in said.values())
    if heading == "Scraping":
        (page,) = (out for line, out in said.items() if line.startswith("curl "))
        assert "\npicker_synced 1" in page


def test_the_chart_pages_commands_run(cluster: ChartCluster, tmp_path: Path) -> None:
    namespace = cluster.namespace()
    with Terminal(cluster, namespace, tmp_path, {"models": namespace}) as terminal:
        for command in to_run("docs/chart.md"):
            terminal.types(command.text)
        assert "llm\n" in terminal.types("helm list --short")
        terminal.types("helm uninstall llm")


def test_no_way_in_is_left_out() -> None:
    """Each of the table's places has a section that installs something."""
    table = re.findall(r"^\| \[[^|]*\]\(#([\w-]+)\)", (REPOSITORY / "docs/install.md").read_text(), re.MULTILINE)
    headings = {re.sub(r"\W+", "-", heading.lower()): lines for heading, lines in sections().items()}
    assert len(table) >= 6
    for anchor in table:
        assert any(line.startswith(("helm install", "helm template")) for line in headings[anchor]), anchor


WALKS = [heading for heading in sections() if heading.startswith(("On ", "With "))]


def test_a_reader_replaces_few_words_and_never_a_version() -> None:
    text = "\n".join(line for heading in WALKS for line in sections()[heading])
    capitals = set(re.findall(r"(?:(?<=[=/ ])|^)[A-Z]+(?:-[A-Z]+)*(?=[/ ]|$)", text, re.MULTILINE))
    assert capitals - {"ACTIVE"} == FOR_THE_READER  # gcloud's own


@pytest.mark.parametrize("heading", [heading for heading in WALKS if heading != "On kind"])
def test_off_kind_every_image_comes_from_the_readers_registry(heading: str) -> None:
    """kind alone is given the image; any other cluster pulls it, that of the model servers too."""
    lines = sections()[heading]
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
    apply, install = sections()["Plain manifests first, Helm afterwards"]
    deployments = f"/apis/apps/v1/namespaces/{namespace}/deployments"

    def uids() -> dict[str, str]:
        found = cluster.api.request("GET", deployments)["items"]
        return {each["metadata"]["name"]: each["metadata"]["uid"] for each in found}

    terminal = Terminal(cluster, namespace, tmp_path)
    terminal.types(apply)
    before = uids()
    assert list(before) == ["llm-picker"]
    token = cluster.api.service_account_token(namespace, "llm-picker")
    assert cluster.api.request("GET", f"/api/v1/namespaces/{namespace}/pods", token=token)["items"] == []
    terminal.types(install)
    assert uids() == before
    terminal.types("helm uninstall llm")
    assert uids() == {}
