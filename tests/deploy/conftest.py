"""Everything rendered once; a loud line where a tool cannot be had."""

from collections.abc import Iterator

import pytest

from tests.deploy.cluster_fixture import ChartCluster
from tests.deploy.tools import Missing, Objects, render, tool
from tests.deploy.values import combinations
from tests.kube.cluster import Missing as MissingCluster

_skipped: set[str] = set()


def skip(reason: str) -> None:
    """Skip, and say why once more at the end of the run."""
    _skipped.add(reason)
    pytest.skip(reason)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for reason in sorted(_skipped):
        terminalreporter.write_line(f"!! chart tests skipped: {reason}", red=True)


@pytest.fixture(scope="session")
def helm() -> None:
    """helm and kubectl are here, or the test is skipped."""
    try:
        tool("helm"), tool("kubectl")
    except Missing as missing:
        skip(str(missing))


@pytest.fixture(scope="session")
def rendered(helm: None) -> Iterator[dict[str, Objects]]:
    """Every combination, by name."""
    yield {name: render(values, release=name) for name, values in combinations().items()}


@pytest.fixture(scope="session")
def cluster(helm: None) -> Iterator[ChartCluster]:
    """A real API server with the CRDs in, or the test is skipped."""
    try:
        started = ChartCluster()
    except (Missing, MissingCluster) as missing:
        skip(str(missing))
        raise AssertionError("unreachable") from missing
    try:
        yield started
    finally:
        started.api.stop()
