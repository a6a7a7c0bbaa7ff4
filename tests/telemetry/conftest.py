"""A loud line where Prometheus cannot be had."""

from pathlib import Path

import pytest

from tests.telemetry.prometheus import Missing, binary

_skipped: set[str] = set()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for reason in sorted(_skipped):
        terminalreporter.write_line(f"!! dashboard and alert tests skipped: {reason}", red=True)


def _found(name: str) -> Path:
    try:
        return binary(name)
    except Missing as missing:
        _skipped.add(str(missing))
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def promtool() -> Path:
    return _found("promtool")


@pytest.fixture(scope="session")
def prometheus() -> Path:
    return _found("prometheus")
