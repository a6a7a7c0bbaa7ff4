"""A picker behind Envoy, scraped by a real Prometheus, answers what the peer's published dashboards ask."""

import json
import math
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from picker.lab.child import dying_with_us
from picker.lab.envoy import BodySendMode, EnvoyConfig, EnvoyProcess
from tests.envoy.clients import post
from tests.envoy.lab import CHAT
from tests.envoy.picker_process import PickerProcess, wait_until
from tests.telemetry.peer_facts import PANELS, TARGET_LABELS, PeerPanel
from tests.telemetry.prometheus import RunningPrometheus, running
from tests.telemetry.test_alerts import RULES

WINDOW_SECONDS = 10
ASKED = [panel for panel in PANELS if panel.empty is None]


@pytest.fixture(scope="module")
def servers() -> Iterator[list[str]]:
    """Two simulated vLLMs."""
    command = [sys.executable, "-m", "picker.lab.model_server", "--ports", "0,0", "--speed", "50"]
    with subprocess.Popen(dying_with_us(command), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        line = process.stdout.readline().decode()
        assert line.startswith("listening "), line
        yield line.split()[1].split(",")
        process.terminate()


def ask(port: int, **body: object) -> int:
    """Status of one request."""
    said = [{"role": "user", "content": "word " * 300}]
    return post(port, CHAT, json.dumps({"model": "m", "messages": said, "max_tokens": 4, **body}).encode()).status


@pytest.fixture(scope="module")
def busy(servers: list[str]) -> Iterator[PickerProcess]:
    """A picker under steady traffic: streams and whole answers, and errors of the servers."""
    stop = threading.Event()
    with (
        PickerProcess(servers, "kv_events: {enabled: auto}\n") as picker,
        EnvoyProcess(EnvoyConfig(picker_address=picker.grpc_address, response_body=BodySendMode.STREAMED)) as envoy,
    ):

        def traffic() -> None:
            while not stop.wait(0.05):
                assert ask(envoy.port) == 200
                assert ask(envoy.port, stream=True, stream_options={"include_usage": True}) == 200
                assert ask(envoy.port, model="absent") == 404

        thread = threading.Thread(target=traffic, daemon=True)
        thread.start()
        yield picker
        stop.set()
        thread.join(30)


@pytest.fixture(scope="module")
def live(
    prometheus: Path, busy: PickerProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningPrometheus]:
    port = int(busy.metrics_address.rpartition(":")[2])
    with running(prometheus, tmp_path_factory.mktemp("prometheus"), port, RULES, TARGET_LABELS) as server:
        server.wait_for(f"rate(llm_d_epp_request_error_total[{WINDOW_SECONDS}s]) > 0")
        server.wait_for(f"rate(llm_d_epp_request_streaming_tpot_seconds_count[{WINDOW_SECONDS}s]) > 0")
        server.wait_for("llm_d_epp_average_kv_cache_utilization")
        yield server


@pytest.mark.parametrize("panel", ASKED, ids=[f"{panel.shows}-{n}" for n, panel in enumerate(ASKED)])
def test_a_panel_has_data(live: RunningPrometheus, panel: PeerPanel) -> None:
    for query in panel.queries(WINDOW_SECONDS):
        found = live.query(query)
        assert found, f"{panel.origin}: nothing for {query}"
        for one in found:
            assert math.isfinite(float(one["value"][1])), f"{query}: {one}"
            assert set(one["metric"]) == set(panel.by), f"{query}: a label that is empty"


def test_a_request_counts_once_however_names_tell_it_apart(live: RunningPrometheus) -> None:
    """Both sets of names at one moment. A request may end while a page is written, so not at every moment."""
    queries = (
        "sum(inference_objective_request_duration_seconds_count)",
        "sum(llm_d_epp_request_duration_seconds_count)",
        "sum(llm_d_epp_request_ttft_seconds_count)",
    )
    together = " or ".join(f'label_replace({query}, "which", "{n}", "", "")' for n, query in enumerate(queries))
    counts: list[float] = []

    def agree() -> bool:
        counts[:] = [float(one["value"][1]) for one in live.query(together)]
        return len(counts) == len(queries) and len(set(counts)) == 1

    wait_until(agree, f"the counts differ at each moment: {counts}", 20)
    assert counts[0] > 0
