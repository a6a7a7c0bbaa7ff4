"""docs/runbook.md: each query has an answer of a real Prometheus on a real page, each `picker` command runs."""

import datetime
import math
import re
import shlex
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import yaml

from picker import cli
from picker.edge.telemetry.decision_page import decision_routes
from picker.edge.telemetry.decisions import DecisionRing
from picker.edge.telemetry.page import Telemetry
from picker.edge.telemetry.view import KvEventCounts
from tests.kept_decisions import A, B, C, decided
from tests.printed import to_run
from tests.telemetry.prometheus import RunningPrometheus, running
from tests.telemetry.steady import metrics_server
from tests.telemetry.test_dashboard import DEPLOY, VIEW, traffic
from tests.tidy.test_documents import anchors

ROOT = DEPLOY.parent
BOOK = ROOT / "docs" / "runbook.md"
TEXT = BOOK.read_text("utf-8")
HEAD, *SECTIONS = re.split(r"^## ", TEXT, flags=re.MULTILINE)
TITLES = [section.partition("\n")[0] for section in SECTIONS]
QUERIES = [
    (title, query.strip())
    for title, section in zip(TITLES, SECTIONS, strict=True)
    for query in re.findall(r"```promql\n(.*?)```", section, re.DOTALL)
]
OURS = {
    each.text: each
    for each in (
        *to_run("docs/runbook.md", r"picker "),
        *to_run("docs/clients.md", r"picker explain "),
        *to_run("README.md", r"picker (explain|top)$"),
    )
}
"""Here, and on the pages whose commands ask the same running picker."""
EVERYTHING = msgspec.structs.replace(
    VIEW,
    leader=True,
    memory_bytes={"index": 100, "bodies": 10},
    memory_bytes_max=1000,
    kv_events=KvEventCounts(
        events={"stored": 1}, gaps=1, replayed_batches=0, malformed=0, unmatched_blocks=0, lag_seconds=0.1,
        endpoints=3, whole_endpoints=2, confirmed_blocks=5,
    ),
)  # fmt: skip
"""A picker with a store, an API server, KV events and an election."""


ASKED_FOR = datetime.datetime(2026, 1, 31, 14, 2, tzinfo=datetime.UTC)
"""Within the five minutes that docs/clients.md asks about."""


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """A metrics server with decisions, under steady traffic."""
    ring = DecisionRing()
    ring.clock = ASKED_FOR.timestamp
    ring.add(*decided(A, "an older request", tenant="acme"))
    ring.clock = time.time
    for address in (A, B, C):
        ring.add(*decided(address, f"request of {address}", tenant="red"))
    view = EVERYTHING
    telemetry = Telemetry(lambda: view)

    def step(number: int) -> None:
        nonlocal view
        view = msgspec.structs.replace(
            EVERYTHING, served_told=10 * number, served_another=number, served_unknown=number
        )
        traffic(telemetry, number)
        telemetry.loop_lagged(0.001)

    with metrics_server(telemetry, step, routes=decision_routes(ring)) as port:
        yield port


@pytest.fixture(scope="module")
def live(prometheus: Path, port: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningPrometheus]:
    with running(prometheus, tmp_path_factory.mktemp("runbook"), port, DEPLOY / "alerts" / "picker.yaml") as server:
        server.wait_for("rate(inference_objective_request_ttft_seconds_count[5m]) > 0")
        server.wait_for("rate(picker_loop_lag_seconds_count[5m]) > 0")
        server.wait_for("rate(picker_served_total[5m]) > 0")
        yield server


@pytest.mark.parametrize(("title", "query"), QUERIES, ids=[f"{n} {title}" for n, (title, _) in enumerate(QUERIES)])
def test_a_query_has_an_answer(live: RunningPrometheus, title: str, query: str) -> None:
    found = live.query(query)
    assert found, f"{title}: {query} returns nothing"
    assert all(math.isfinite(float(one["value"][1])) for one in found)


def test_every_metric_that_the_page_speaks_of_exists(live: RunningPrometheus) -> None:
    known = set(live.api("label/__name__/values"))
    named = set(re.findall(r"\b(?:picker|inference|process)_[a-z_]+\b", TEXT))
    assert len(named) > 30
    assert named - known == set()


@pytest.mark.parametrize("command", sorted(OURS))
def test_a_command_runs(
    command: str, port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Against a running picker, where it asks one."""
    (tmp_path / "picker.yaml").write_text("epsilon: 0.02\n")
    monkeypatch.chdir(tmp_path)
    _, *arguments = shlex.split(command)
    if arguments[0] in ("explain", "top"):
        arguments += ["--address", f"127.0.0.1:{port}"]
    if arguments == ["--version"]:
        with pytest.raises(SystemExit) as ended:
            cli.main(arguments)
        assert ended.value.code == 0
    else:
        assert cli.main(arguments) == 0, capsys.readouterr().err
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize("section", SECTIONS, ids=TITLES)
def test_a_symptom_has_a_query_a_command_a_cause_and_a_remedy(section: str) -> None:
    order = ["```promql\n", "```sh\n", "\n**Usual cause.** ", "\n**Remedy.** "]
    places = [section.find(each) for each in order]
    assert -1 not in places
    assert places == sorted(places)


def test_the_table_at_the_head_names_every_symptom_in_order() -> None:
    listed = re.findall(r"^\| \[[^\]]+\]\(#([^)]+)\) \|", HEAD, re.MULTILINE)
    assert len(listed) >= 10
    assert [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in TITLES] == listed


def test_alerts_and_symptoms_name_each_other() -> None:
    rules = yaml.safe_load((DEPLOY / "alerts" / "picker.yaml").read_text())
    told = {
        rule["alert"]: re.findall(r"See: docs/runbook\.md#(\S+)", rule["annotations"]["runbook"])
        for group in rules["groups"]
        for rule in group["rules"]
    }
    rows = re.findall(r"^\| \[[^\]]+\]\(#([^)]+)\) \| (.*) \|$", HEAD, re.MULTILINE)
    listed = {alert: [anchor] for anchor, cell in rows for alert in re.findall(r"`(\w+)`", cell)}
    assert told == listed
    assert {anchor for each in told.values() for anchor in each} <= anchors(BOOK)
