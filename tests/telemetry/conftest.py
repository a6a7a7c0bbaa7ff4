"""Prometheus and its tool, as `make tools` found or made them."""

from pathlib import Path

import pytest

from tests.telemetry.prometheus import PROMETHEUS
from tests.tools.tool import Missing


def _found(name: str) -> Path:
    try:
        return PROMETHEUS.look(name)
    except Missing as missing:
        pytest.skip(f"NOT RUN: {missing}")


@pytest.fixture(scope="session")
def promtool() -> Path:
    return _found("promtool")


@pytest.fixture(scope="session")
def prometheus() -> Path:
    return _found("prometheus")
