"""docs/telemetry.md names every series of the page, and none that is not there."""

import re
from pathlib import Path

from picker.edge.telemetry.page import Telemetry
from picker.edge.telemetry.view import KvEventCounts, PoolView
from picker.sharing.status import SharedStatus

DOCUMENT = (Path(__file__).resolve().parents[2] / "docs" / "telemetry.md").read_text()


def test_the_document_and_the_page_name_the_same_series() -> None:
    shared = SharedStatus(
        up=True, warm=True, pickers=1, lag_seconds=0.1, requests_in_flight=1, snapshot_seconds=0.1, bytes_sent=1,
        bytes_received=1, snapshots_written=1, snapshots_read=1, sent={"chains": 1}, received={}, dropped={},
    )  # fmt: skip
    view = PoolView(
        pool_name="pool",
        api_server_up=True,
        leader=True,
        saturation=0.0,
        wanted_replicas=0.0,
        stale_seconds=5.0,
        shared=shared,
        recorded_requests=0,
        recording_lost=0,
        usage_lines=0,
        usage_lost=0,
        kv_events=KvEventCounts(
            events={"stored": 1},
            gaps=0,
            replayed_batches=0,
            malformed=0,
            unmatched_blocks=0,
            lag_seconds=0.1,
            endpoints=1,
            whole_endpoints=1,
            confirmed_blocks=0,
        ),
    )
    telemetry = Telemetry(lambda: view)
    telemetry.config_reloaded(True)
    page = set(re.findall(r"^# TYPE (\S+)", "".join(telemetry.parts()), re.MULTILINE))
    documented = set(re.findall(r"`((?:picker|inference|llm_d_epp)_[a-z0-9_]+)`", DOCUMENT))
    assert documented == page
