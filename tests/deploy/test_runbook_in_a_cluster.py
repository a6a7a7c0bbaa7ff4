"""What docs/runbook.md has an operator type in a cluster: kubectl and curl, on an installed picker whose pods run.

Its `picker` commands and its queries are run by tests/telemetry/test_runbook.py, its look at the store by
tests/sharing/test_store_faults.py.
"""

import re
from collections.abc import Iterator

import pytest

from tests.deploy.cluster_fixture import ChartCluster
from tests.deploy.node import Node
from tests.deploy.terminal import Terminal
from tests.deploy.test_rights_of_a_picker import add_pod
from tests.envoy.picker_process import wait_until
from tests.envoy.upstream import Upstream
from tests.printed import to_run

pytestmark = pytest.mark.usefixtures("helm")


@pytest.fixture(scope="module")
def terminal(cluster: ChartCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:
    """Of an operator who opened the port, as the page's head says."""
    folder = tmp_path_factory.mktemp("operator")
    namespace = cluster.namespace()
    (forward,) = to_run("docs/runbook.md", r"kubectl -n NAMESPACE port-forward ")
    with Upstream() as engine:
        words = {"NAMESPACE": namespace, "NAME": "llm-picker", r"10\.0\.0\.7:8000": engine.address}
        add_pod(cluster, namespace, "vllm-2", "127.0.0.2")
        with Terminal(cluster, namespace, folder, words) as opened:
            opened.types(
                "helm install llm deploy/chart --set modelServers.matchLabels.app=vllm --set discovery=selector"
            )
            with Node(cluster, namespace, folder):
                opened.types(forward.text)
                yield opened


def test_the_picker_says_that_it_is_ready(terminal: Terminal) -> None:
    (line,) = to_run("docs/runbook.md", r"curl -s http://127\.0\.0\.1:9090/readyz")
    assert terminal.types(line.text).strip() == "ready"


def test_its_last_words_are_read(terminal: Terminal) -> None:
    for line in to_run("docs/runbook.md", r"kubectl -n NAMESPACE logs "):
        said = terminal.types(line.text).splitlines()
        assert 0 < len(said) <= 20 and all(each.startswith("{") for each in said)


def test_the_pods_of_the_pool_are_listed(terminal: Terminal) -> None:
    (line,) = to_run("docs/runbook.md", r"kubectl get pods ")
    assert re.search(r"^vllm-2 .*Running .*127\.0\.0\.2", terminal.types(line.text), re.MULTILINE)


def test_the_page_opens_as_telemetry_says(terminal: Terminal) -> None:
    (line,) = to_run("docs/telemetry.md", r"kubectl port-forward ")
    terminal.types(line.text)
    assert "<title>" in terminal.types("curl -s http://127.0.0.1:9090/")


def test_an_engine_shows_its_metrics(terminal: Terminal) -> None:
    (line,) = to_run("docs/runbook.md", r"curl -s http://10\.0\.0\.7:8000/metrics")
    wait_until(lambda: "vllm:num_requests_running" in terminal.types(line.text), "a page of vLLM's")
