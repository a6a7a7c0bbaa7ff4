"""docs/migrate.md, command for command: from the peer's chart to ours, and back, under traffic that loses nothing.

The old release is what the peer's chart rendered (tests/deploy/peer), installed by helm as a chart of its own.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from picker.lab.envoy import EnvoyProcess
from tests import printed
from tests.deploy.cluster_fixture import ChartCluster
from tests.deploy.node import Node
from tests.deploy.terminal import Terminal
from tests.deploy.test_rights_of_a_picker import add_pod
from tests.deploy.tools import REPOSITORY, home, objects, tool
from tests.deploy.walk import Clients, Controllers
from tests.envoy.clients import Http1Client, post
from tests.envoy.picker_process import wait_until
from tests.envoy.upstream import Upstream, sse_events
from tests.printed import to_run

pytestmark = pytest.mark.usefixtures("helm")

PAGE = REPOSITORY / "docs" / "migrate.md"
PEERS = Path(__file__).parent / "peer"
PEER = PEERS / "llm-d-router-gateway-ebab687.yaml"
STANDALONE = PEERS / "llm-d-router-standalone-ebab687.yaml"
CHAT = "/v1/chat/completions"
BODY = b'{"model":"m","messages":[{"role":"user","content":"hello"}]}'
OLD, POOL, NEW = "vllm-qwen3-epp", "vllm-qwen3", "picker"


def blocks(kind: str) -> list[str]:
    """The page's shell blocks of a kind (the word behind ```sh), as they stand."""
    return [block.text for block in printed.blocks("docs/migrate.md") if block.word == kind]


class Reader:
    """Somebody who pastes the page into a shell, in a namespace of this test's and with its one port."""

    def __init__(self, cluster: ChartCluster, folder: Path, port: int, peer: Path = PEER) -> None:
        self.cluster = cluster
        self.namespace = cluster.namespace()
        self.folder = folder
        self._port = port
        self.forwarded: dict[str, str] = {}
        """What `kubectl port-forward` would have put on this machine: the page's address, and where it is here."""
        (folder / "deploy").symlink_to(REPOSITORY / "deploy")
        programs = folder / "bin"
        programs.mkdir()
        (programs / "picker").write_text(f'#!/bin/sh\nPYTHONPATH={REPOSITORY} exec {sys.executable} -m picker "$@"\n')
        (programs / "picker").chmod(0o755)
        for name in ("helm", "kubectl"):
            (programs / name).symlink_to(tool(name))
        self.theirs = folder / "theirs"
        (self.theirs / "templates").mkdir(parents=True)
        (self.theirs / "Chart.yaml").write_text(f"{{apiVersion: v2, name: {peer.stem}, version: 0.0.0}}\n")
        (self.theirs / "templates" / "all.yaml").write_text(self._here(peer.read_text()))

    def _here(self, text: str) -> str:
        text = re.sub(
            r"((?:-n|--namespace|namespace:|^ *-) )models\b", rf"\g<1>{self.namespace}", text, flags=re.MULTILINE
        )
        text = text.replace("number: 8000", f"number: {self._port}").replace(
            "targetPorts: [8000]", f"targetPorts: [{self._port}]"
        )
        for there, here in self.forwarded.items():
            text = text.replace(there, here)
        return text.replace("THEIR-CHART", str(self.theirs))

    def types(self, script: str) -> str:
        """Run it as bash would. A command that fails ends it, and the test."""
        environment = {**os.environ, **home(), "KUBECONFIG": str(self.cluster.kubeconfig)}
        environment["PATH"] = f"{self.folder / 'bin'}:{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", self._here(script)],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def has(self, kind: str, name: str) -> bool:
        return name in self.types(f"kubectl -n models get {kind} -o name")

    def picker_of_the_pool(self) -> str:
        return self.types(f"kubectl -n models get inferencepool {POOL} -o jsonpath='{{.spec.endpointPickerRef.name}}'")


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    with Upstream() as started:
        yield started


@pytest.fixture
def reader(cluster: ChartCluster, tmp_path: Path, upstream: Upstream) -> Iterator[Reader]:
    """With the old release installed, and a model server."""
    made = Reader(cluster, tmp_path, int(upstream.address.rpartition(":")[2]))
    add_pod(cluster, made.namespace, "vllm-0", "127.0.0.1")
    made.types(f"helm install vllm-qwen3 {made.theirs} --namespace models")
    yield made
    for release in ("vllm-qwen3", "picker"):
        made.types(f"helm uninstall {release} --namespace models --ignore-not-found")


def test_the_page_is_the_walk() -> None:
    """What the tests below run is there, in this order."""
    firsts = [block.split()[0:2] for block in blocks("")]
    assert firsts == [["kubectl", "-n"], ["cat", ">"], ["helm", "install"], ["helm", "upgrade"], ["helm", "uninstall"]]
    assert len(blocks("back")) == len(blocks("helm3")) == 1
    kinds = ("", "look", "back", "helm3", *("standalone", "undo", "later"))  # three by test_migrate_standalone.py
    walked = "".join(text for kind in kinds for text in blocks(kind)).replace("\\\n", "")
    typed = [" ".join(line.split()) for line in walked.splitlines()]
    for command in to_run("docs/migrate.md"):
        assert " ".join(command.text.splitlines()[0].split()) in typed


def test_what_no_fixture_was_walked_of_is_named() -> None:
    """Each fixture is a chart of theirs without a provider, the standalone one with its Envoy in the picker's pod; the
    page claims no more."""
    assert sorted(PEERS.glob("*.yaml")) == [PEER, STANDALONE]
    found = [o for path in (PEER, STANDALONE) for o in objects(path.read_text())]
    assert {o["kind"] for o in found} & {"HealthCheckPolicy", "GCPBackendPolicy", "DestinationRule"} == set()
    assert [o["metadata"]["name"] for o in found if o["kind"] == "Deployment"] == [OLD, OLD]
    not_tried = " ".join(PAGE.read_text().split()).partition("Not tried: ")[2].partition("## The walk")[0]
    for words in ("gke or istio", "`router.proxy.mode` service", "a vendor's gateway", "`kubectl port-forward`"):
        assert words in not_tried


def walk(reader: Reader, upstream: Upstream, steps: list[str], after_hand_over: str) -> list[str | None]:
    """The page's steps under traffic, one answer running from before the first to after the last."""
    folder = reader.folder / "gateway"
    folder.mkdir()

    with (
        Controllers(reader.cluster, reader.namespace, folder, (OLD, NEW), POOL) as controllers,
        EnvoyProcess(controllers.bootstrap()) as envoy,
    ):
        wait_until(lambda: controllers.switches[-1:] == [OLD], "the old picker is never asked", 30)
        wait_until(lambda: post(envoy.port, f"{CHAT}?id=first", BODY).status == 200, "nothing is served", 30)

        def ask(number: int) -> None:
            answer = post(envoy.port, f"{CHAT}?id=walk-{number}", BODY)
            assert answer.status == 200, answer

        with Http1Client(envoy.port) as long, Clients(ask) as clients:
            long.head("POST", f"{CHAT}?id=long&do=sse&n=5&stall=1", [("content-length", str(len(BODY)))])
            long.send(BODY)
            head = long.read_head()
            begun = long.read_chunk()
            for step in steps:
                said = reader.types(step)
                if "--take-ownership" in step:
                    name = NEW if "upgrade picker" in step else OLD
                    wait_until(lambda name=name: controllers.switches[-1] == name, f"{name} is never asked", 30)
                    before = clients.asked
                    wait_until(lambda before=before: clients.asked > before + 20, "the traffic stands still", 30)
                    assert reader.picker_of_the_pool() == name
                if "uninstall" in step:
                    assert after_hand_over in said
                    before = clients.asked
                    wait_until(lambda before=before: clients.asked > before + 20, "the traffic stands still", 30)
            upstream.recorded("long").release.set()
            rest = long.read_body(head)
        assert begun + rest.body == b"".join(sse_events(5)), "the answer that ran all the while"
        assert clients.failed == [] and clients.asked > 60
        return list(controllers.switches)


def test_there(reader: Reader, upstream: Upstream) -> None:
    switches = walk(reader, upstream, blocks(""), after_hand_over="uninstalled")
    assert switches == [OLD, NEW]
    assert reader.picker_of_the_pool() == NEW and reader.has("httproute", POOL)
    assert not reader.has("deployment", OLD) and not reader.has("service", OLD)
    reader.types(
        "helm upgrade picker deploy/chart --namespace models --values values.yaml --set-json config.epsilon=0.02"
    )
    assert reader.picker_of_the_pool() == NEW


def test_the_look_before_the_switch(reader: Reader) -> None:
    folder = reader.folder / "look"
    folder.mkdir()
    with Node(reader.cluster, reader.namespace, folder):
        for step in blocks("")[:3]:
            reader.types(step)
        with Terminal(reader.cluster, "default", folder, {"models": reader.namespace}) as terminal:
            *_, said = [terminal.types(line) for line in blocks("look")[0].splitlines()]
    assert re.fullmatch(r"inference_pool_ready_pods\{.*\} 1(\.0)?\n", said)


def test_and_back(reader: Reader, upstream: Upstream) -> None:
    there = blocks("")[:-1]
    upgrade, uninstall = blocks("back")[0].splitlines()
    switches = walk(reader, upstream, [*there, upgrade, uninstall], after_hand_over="uninstalled")
    assert switches == [OLD, NEW, OLD]
    assert reader.picker_of_the_pool() == OLD and reader.has("httproute", POOL)
    assert not reader.has("deployment", "deployment.apps/picker")


def test_what_helm_3_needs(reader: Reader, upstream: Upstream) -> None:
    """Its commands in place of the last step leave the pool, and no release that could delete it."""
    for step in (*blocks("")[:1], *blocks("")[1:2]):
        reader.types(step)
    reader.types("helm install picker deploy/chart --namespace models --values values.yaml --take-ownership")
    reader.types(blocks("helm3")[0])
    assert reader.picker_of_the_pool() == NEW and reader.has("httproute", POOL)
    assert not reader.has("deployment", OLD) and not reader.has("rolebinding", OLD)
    assert "vllm-qwen3" not in reader.types("helm list --namespace models --short").split()


def test_why_the_pool_is_not_patched(reader: Reader) -> None:
    """The page's warnings are true: the old release then conflicts, and takes the pool along when it goes."""
    patch = '{"spec":{"endpointPickerRef":{"name":"picker"}}}'
    reader.types(f"kubectl -n models patch inferencepool {POOL} --type=merge -p '{patch}'")
    with pytest.raises(AssertionError, match="conflict"):
        reader.types(f"helm upgrade vllm-qwen3 {reader.theirs} --namespace models")
    reader.types(f"kubectl -n models annotate inferencepool {POOL} helm.sh/resource-policy=keep")
    reader.types("helm uninstall vllm-qwen3 --namespace models")
    assert not reader.has("inferencepool", POOL) and not reader.has("httproute", POOL)
