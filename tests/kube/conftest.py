"""One real API server for all tests of a run, and one loud line where it cannot be had."""

from collections.abc import Iterator

import pytest

from tests.kube.cluster import CRDS, Missing, TestCluster

_skipped: set[str] = set()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for reason in sorted(_skipped):
        terminalreporter.write_line(f"!! tests against a real API server skipped: {reason}", red=True)


@pytest.fixture(scope="session")
def cluster() -> Iterator[TestCluster]:
    """Running, with the CRD of InferencePool. A test works in a namespace of its own."""
    try:
        made = TestCluster()
    except Missing as missing:
        _skipped.add(str(missing))
        pytest.skip(str(missing))
    with made:
        made.apply_crd(CRDS / "inferencepools.yaml")
        yield made
