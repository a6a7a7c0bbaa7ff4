"""The guides' commands: each `helm` line renders, each file exists, and the first try works as processes."""

import re
import shlex
import subprocess
import sys
import urllib.request

import pytest
import yaml

from picker.lab.child import dying_with_us
from picker.lab.envoy import EnvoyProcess
from tests.deploy.standalone import on_this_machine
from tests.deploy.tools import REPOSITORY, objects, run
from tests.envoy.clients import post
from tests.envoy.picker_process import PickerProcess
from tests.printed import commands

GUIDES = ("install.md", "migrate.md", "chart.md")


@pytest.mark.usefixtures("helm")
@pytest.mark.parametrize("page", ["install.md", "chart.md"])  # migrate.md: test_migrate.py walks it
def test_every_helm_command_renders(page: str) -> None:
    lines = [command.text for command in commands(f"docs/{page}")]
    found = [line for line in lines if re.match(r"helm (install|upgrade) ", line) and "deploy/chart" in line]
    assert found
    for line in found:
        arguments = shlex.split(line)[2:]
        for number, word in enumerate(arguments):
            if word.startswith("deploy/"):
                arguments[number] = str(REPOSITORY / word)
        done = run("helm", "template", *arguments)
        needs_labels = "modelServers.matchLabels is empty" in done.stderr
        assert done.returncode == 0 and not needs_labels, f"{line}\n{done.stderr}"


@pytest.mark.parametrize("page", GUIDES)
def test_every_file_that_a_guide_names_exists(page: str) -> None:
    text = (REPOSITORY / "docs" / page).read_text()
    named = set(re.findall(r"(?:tests/)?deploy/[\w./-]*\w", text)) | {
        f"docs/{link}" for link in re.findall(r"\]\(([\w.-]+\.md)", text)
    }
    assert [path for path in sorted(named) if not (REPOSITORY / path).exists()] == []


def test_what_the_peers_chart_has_and_ours_lacks_has_its_reason() -> None:
    """Every value or flag that the migration's tables leave without a counterpart, but for what is said there."""
    text = (REPOSITORY / "docs" / "chart.md").read_text().partition("## Beside the peers")[2]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| ")
    ]
    lacking = {what: here for what, here, there in rows if here.startswith("no:")}
    assert all(len(here) > 40 for here in lacking.values()), "a reason, not a word"
    for name in (
        *("extraContainerPorts", "extraServicePorts", "grpcHealthPort", "proxy.failOpen"),
        *("--enable-pprof", "--disable-endpoint-subset-filter", "preferred backends", "agentgateway"),
    ):
        assert any(name in what for what in lacking), name


@pytest.mark.usefixtures("helm")
def test_the_first_try_on_kind_as_processes() -> None:
    """The model servers' own command, the picker, the chart's Envoy, and the page's curl, twice."""
    manifest = objects((REPOSITORY / "deploy/examples/model-servers.yaml").read_text())[0]
    container = manifest["spec"]["template"]["spec"]["containers"][0]
    assert container["command"][0] == "/opt/picker/bin/python"
    here = {"--host=0.0.0.0": "--host=127.0.0.1", "--ports=8000": "--ports=0,0,0,0"}
    arguments = [here.get(word, word) for word in container["args"]]
    assert set(here) <= set(container["args"])
    command = [sys.executable, *container["command"][1:], *arguments]
    body = next(
        re.findall(r"-d '(\{.*?\})'", each.text)[0] for each in commands("docs/install.md") if "/chat/" in each.text
    )
    rendered = objects((REPOSITORY / "deploy/examples/standalone/manifests.yaml").read_text())
    text = next(o["data"]["envoy.yaml"] for o in rendered if "envoy.yaml" in o.get("data", {}))
    servers = subprocess.Popen(dying_with_us(command), stdout=subprocess.PIPE, text=True, cwd=REPOSITORY)
    try:
        assert servers.stdout is not None
        addresses = servers.stdout.readline().removeprefix("listening ").strip().split(",")
        with PickerProcess(addresses, insecure=False) as picker:
            with EnvoyProcess(on_this_machine(yaml.safe_load(text), picker.grpc_address)) as envoy:
                for _ in range(2):
                    answer = post(envoy.port, "/v1/chat/completions", body.encode())
                    assert answer.status == 200 and b'"choices"' in answer.body
            page = urllib.request.urlopen(f"http://{picker.metrics_address}/metrics", timeout=10)
            with page:
                assert b"\npicker_decisions_total{" in page.read()
    finally:
        servers.kill()
        servers.wait()
        if servers.stdout is not None:
            servers.stdout.close()
