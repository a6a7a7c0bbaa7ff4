"""docs/telemetry.md names every series of the page, and none that is not there."""

import re
from pathlib import Path

from picker.edge.telemetry import Telemetry
from picker.edge.telemetry_view import PoolView

DOCUMENT = (Path(__file__).resolve().parents[2] / "docs" / "telemetry.md").read_text()


def test_the_document_and_the_page_name_the_same_series() -> None:
    telemetry = Telemetry(lambda: PoolView(pool_name="pool", api_server_up=True, leader=True, saturation=0.0))
    telemetry.config_reloaded(True)
    page = set(re.findall(r"^# TYPE (\S+)", "".join(telemetry.parts()), re.MULTILINE))
    documented = set(re.findall(r"`((?:picker|inference)_[a-z0-9_]+)`", DOCUMENT))
    assert documented == page
