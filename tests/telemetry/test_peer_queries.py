"""What the peer's published dashboards, alerts and autoscalers read is on the page, or it is said why not."""

import re
from pathlib import Path

import pytest

from tests.telemetry.peer_facts import NEWER, OLDER, PANELS, REASONS, TARGET_LABELS, PeerPanel

DOCUMENT = (Path(__file__).resolve().parents[2] / "docs" / "telemetry.md").read_text()
SCRAPE_LABELS = {*TARGET_LABELS, "job", "instance"}


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel.shows)
def test_a_panel_is_empty_for_what_is_not_measured_and_for_nothing_else(panel: PeerPanel) -> None:
    known = {**NEWER, **OLDER}
    reasons = {known[name].absent for name in panel.reads}
    if panel.empty == "engine" or not panel.reads:
        assert panel.empty and not panel.reads
    else:
        assert reasons == {panel.empty}
    for name in panel.reads:
        unknown = {*panel.by, *panel.selects} - known[name].labels - SCRAPE_LABELS
        assert not unknown, f"{name} has no label {unknown}"


def test_the_document_lists_every_reason_of_an_empty_panel_and_no_other() -> None:
    table = DOCUMENT.partition("### Panels that stay empty")[2].partition("\n#")[0]
    documented = set(re.findall(r"^\| (\w+) \|", table, re.MULTILINE)) - {"what"}
    assert documented == {panel.empty for panel in PANELS if panel.empty}
    assert documented - {"engine"} <= set(REASONS)
