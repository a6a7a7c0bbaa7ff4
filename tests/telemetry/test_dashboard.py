"""Every query of the dashboard returns data from a real Prometheus that scrapes a metrics server."""

import json
import math
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from picker.decision import Finished
from picker.edge.telemetry.page import Telemetry
from picker.edge.telemetry.view import EndpointRow, PoolView
from picker.outcomes import Outcome, Reason, Usage
from picker.sharing.status import SharedStatus
from tests.telemetry.prometheus import RunningPrometheus, running
from tests.telemetry.steady import metrics_server

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
DASHBOARD = json.loads((DEPLOY / "dashboards" / "picker.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
QUERIES = [(panel["title"], target["expr"]) for panel in PANELS for target in panel["targets"]]

ROWS = [
    EndpointRow(
        name=f"vllm-{n}",
        address=f"10.0.0.{n}:8000",
        waiting_requests=n,
        running_requests=n,
        kv_cache_utilization=0.1 * n,
        scrape_age_seconds=0.4,
        in_flight_requests=n,
    )
    for n in (1, 2, 3)
]
VIEW = PoolView(
    recorded_requests=10,
    recording_lost=0,
    usage_lines=0,
    usage_lost=0,
    pool_name="pool",
    endpoints=ROWS,
    synced=True,
    requests_in_flight=6,
    saturation=0.3,
    index_blocks=1000,
    index_bytes=100_000,
    index_bytes_max=1_000_000,
    api_server_up=True,
    shared=SharedStatus(
        up=True, warm=True, pickers=1, lag_seconds=0.1, requests_in_flight=1, snapshot_seconds=0.1, bytes_sent=1,
        bytes_received=1, snapshots_written=1, snapshots_read=1, sent={}, received={}, dropped={"outbox": 1},
    ),
)  # fmt: skip


def traffic(telemetry: Telemetry, number: int) -> None:
    """One request of each kind."""
    telemetry.finished(
        Finished(
            outcome=Outcome.COMPLETED,
            path="chat_completions",
            model="m",
            status=200,
            reason=list(Reason)[number % len(Reason)],
            address=ROWS[number % 3].address,
            matched_share=0.8,
            cached_share=0.75,
            decision_seconds=0.0001,
            predicted_ttft_seconds=0.1,
            ttft_seconds=0.12,
            duration_seconds=1.0,
            streaming=True,
            request_bytes=2000,
            response_bytes=500,
            usage=Usage(500, 20, 380),
        )
    )
    telemetry.finished(
        Finished(outcome=Outcome.SHED, path="completions", model="m", status=429, reject_word="saturated")
    )
    telemetry.scrape_failed()


@pytest.fixture(scope="module")
def metrics_port() -> Iterator[int]:
    telemetry = Telemetry(lambda: VIEW)
    with metrics_server(telemetry, lambda number: traffic(telemetry, number)) as port:
        yield port


@pytest.fixture(scope="module")
def live(prometheus: Path, metrics_port: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningPrometheus]:
    folder = tmp_path_factory.mktemp("prometheus")
    with running(prometheus, folder, metrics_port, DEPLOY / "alerts" / "picker.yaml") as server:
        server.wait_for("rate(inference_objective_request_tpot_seconds_count[2s]) > 0")
        server.wait_for("increase(picker_requests_total[3s]) > 10")
        yield server


@pytest.mark.parametrize(("title", "expression"), QUERIES, ids=[f"{title}-{n}" for n, (title, _) in enumerate(QUERIES)])
def test_a_query_returns_data(live: RunningPrometheus, title: str, expression: str) -> None:
    found = live.query(expression.replace("$__rate_interval", "3s").replace("$job", ".+"))
    assert found, f"{title}: {expression} returns nothing"
    for one in found:
        assert math.isfinite(float(one["value"][1])), f"{title}: {one}"


def test_the_variables_have_values(live: RunningPrometheus) -> None:
    assert live.query("count by (job) (picker_build_info)")[0]["metric"] == {"job": "picker"}


def test_the_rules_evaluate_and_none_fires_in_health(live: RunningPrometheus) -> None:
    end = time.monotonic() + 20
    while True:
        groups: list[dict[str, Any]] = live.api("rules")["groups"]
        rules = [rule for group in groups for rule in group["rules"]]
        if all(rule["health"] == "ok" for rule in rules):
            break
        assert time.monotonic() < end, [rule.get("lastError") for rule in rules]
        time.sleep(0.2)
    assert len(rules) == (DEPLOY / "alerts" / "picker.yaml").read_text().count("- alert:")
    assert not [rule["name"] for rule in rules if rule["state"] == "firing"]


def test_every_name_in_a_rule_is_on_the_page(live: RunningPrometheus) -> None:
    """A renamed series would make an alert silent for ever."""
    known = set(live.api("label/__name__/values"))
    expressions = " ".join(rule["query"] for group in live.api("rules")["groups"] for rule in group["rules"])
    used = set(re.findall(r"\b(?:picker|inference)_[a-z_]+", expressions))
    assert len(used) > 15
    assert used <= known, used - known


def test_the_panels_do_not_overlap_and_have_titles() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    assert all(panel["title"] for panel in DASHBOARD["panels"])
