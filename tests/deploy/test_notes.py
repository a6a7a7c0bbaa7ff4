"""What the chart's notes print, typed as printed, in each mode: on a real API server, with pods that run.

tests/deploy/test_apply.py types the wait too, to see for what it waits.
"""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from picker.lab.envoy import EnvoyProcess
from tests.deploy.cluster_fixture import ChartCluster
from tests.deploy.node import Node
from tests.deploy.standalone import bootstrap, on_this_machine
from tests.deploy.terminal import Terminal
from tests.deploy.test_apply import Release, notes
from tests.deploy.test_rights_of_a_picker import add_pod
from tests.deploy.tools import CHART, run
from tests.deploy.values import BASE, Values, merged
from tests.envoy.clients import post
from tests.envoy.picker_process import wait_until
from tests.envoy.upstream import Upstream
from tests.printed import NOTES, as_printed, to_run

pytestmark = pytest.mark.usefixtures("helm")

ADDRESS = "192.0.2.7"
"""The Gateway's."""
MODES: dict[str, Values] = {
    "standalone": {"discovery": "selector", "standalone": {"enabled": True}},
    "routed": {"httpRoute": {"enabled": True}},
    "an existing pool": {"inferencePool": {"create": False, "name": "theirs"}},
    "gke, with a token": {"provider": "gke", "metrics": {"auth": {"enabled": True}}},
}


def typed_in(said: str) -> Iterator[str]:
    """The commands of these notes, in order."""
    for command in to_run(NOTES):
        line = as_printed(command, said)
        if line is not None:
            yield line


def test_every_command_is_printed_in_one_of_the_modes() -> None:
    missing = {command.text for command in to_run(NOTES)}
    for values in MODES.values():
        text = yaml.safe_dump(merged(BASE, values))
        done = run("helm", "install", "demo", str(CHART), "--dry-run=client", "--values", "-", stdin=text)
        missing -= {command.text for command in to_run(NOTES) if as_printed(command, done.stdout) is not None}
    assert missing == set()


@pytest.mark.parametrize("mode", MODES)
def test_the_commands_of_a_mode(cluster: ChartCluster, tmp_path: Path, mode: str) -> None:
    """A request went through the picker before its metrics are asked for."""
    with ExitStack() as stack:
        upstream = stack.enter_context(Upstream())
        port = int(upstream.address.rpartition(":")[2])
        release = Release(cluster, **merged({"modelServers": {"targetPorts": [port]}}, MODES[mode]))
        add_pod(cluster, release.namespace, "vllm-0", "127.0.0.1")
        if mode == "an existing pool":
            cluster.api.request("POST", pools(release), their_pool(port))
        if mode == "routed":
            add_gateway(release)
        node = stack.enter_context(Node(cluster, release.namespace, tmp_path))
        terminal = stack.enter_context(Terminal(cluster, "default", tmp_path))
        if mode != "standalone":  # the gateway's proxy, in front of the same picker
            config = on_this_machine(bootstrap(MODES["standalone"]), node.pickers["demo-picker-0"].grpc_address)
            envoy = stack.enter_context(EnvoyProcess(config))
            terminal.reaches(f"{ADDRESS}:80", f"127.0.0.1:{envoy.port}")
            body = b'{"model":"m","messages":[]}'
            wait_until(lambda: post(envoy.port, "/v1/chat/completions", body).status == 200, "no way to the picker", 30)
        said = {line: terminal.types(line) for line in typed_in(notes(release))}
        assert any("picker_decisions_total{" in out for out in said.values())
        assert any("Succeeded" in out for line, out in said.items() if line.startswith("helm test demo"))
        if mode in ("standalone", "routed"):
            (models,) = (out for line, out in said.items() if line.endswith("/v1/models"))
            assert json.loads(models), "of the model server"
        if mode == "an existing pool":
            (patch,) = (line for line in said if "patch inferencepool theirs" in line)
            assert picker_of(release) == {"name": "demo-picker", "port": {"number": 9002}}
            terminal.types(patch.replace("demo-picker", "old"))
            assert picker_of(release)["name"] == "old", "the way back that the notes speak of"
        if mode.startswith("gke"):
            (described,) = (out for line, out in said.items() if "describe healthcheckpolicy" in line)
            assert "Kind:         HealthCheckPolicy" in described
        release.uninstall()


def pools(release: Release) -> str:
    return f"/apis/inference.networking.k8s.io/v1/namespaces/{release.namespace}/inferencepools"


def their_pool(port: int) -> dict[str, Any]:
    return {
        "apiVersion": "inference.networking.k8s.io/v1",
        "kind": "InferencePool",
        "metadata": {"name": "theirs"},
        "spec": {
            "selector": {"matchLabels": {"app": "vllm"}},
            "targetPorts": [{"number": port}],
            "endpointPickerRef": {"name": "old", "port": {"number": 9002}},
        },
    }


def picker_of(release: Release) -> dict[str, Any]:
    """What the pool that existed before names as its picker, but for what the API server fills in."""
    pool = release.get("inference.networking.k8s.io/v1/inferencepools", "theirs")
    return {key: pool["spec"]["endpointPickerRef"][key] for key in ("name", "port")}


def add_gateway(release: Release) -> None:
    """As its controller would report it: with an address."""
    request = release.cluster.api.request
    path = f"/apis/gateway.networking.k8s.io/v1/namespaces/{release.namespace}/gateways"
    gateway = {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "Gateway",
        "metadata": {"name": "inference-gateway"},
        "spec": {"gatewayClassName": "any", "listeners": [{"name": "http", "port": 80, "protocol": "HTTP"}]},
    }
    request("POST", path, gateway)
    status = {"addresses": [{"type": "IPAddress", "value": ADDRESS}]}
    request(
        "PATCH", f"{path}/inference-gateway/status", {"status": status}, content_type="application/merge-patch+json"
    )
