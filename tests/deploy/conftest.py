"""Everything rendered once; a real API server with the CRDs in; a model server and a picker before it."""

from collections.abc import Iterator

import pytest

from tests.deploy.cluster_fixture import ChartCluster
from tests.deploy.tools import Objects, render, tool
from tests.deploy.values import combinations
from tests.envoy.picker_process import PickerProcess
from tests.envoy.upstream import Upstream
from tests.tools.tool import Missing


@pytest.fixture(scope="session")
def helm() -> None:
    """helm and kubectl are here, or the test is skipped."""
    try:
        tool("helm"), tool("kubectl")
    except Missing as missing:
        pytest.skip(f"NOT RUN: no helm and kubectl: {missing}")


@pytest.fixture(scope="session")
def rendered(helm: None) -> Iterator[dict[str, Objects]]:
    """Every combination, by name."""
    yield {name: render(values, release=name) for name, values in combinations().items()}


@pytest.fixture(scope="session")
def cluster(helm: None) -> Iterator[ChartCluster]:
    """A real API server with the CRDs in, or the test is skipped."""
    try:
        started = ChartCluster()
    except Missing as missing:
        pytest.skip(f"NOT RUN: no real API server: {missing}")
    try:
        yield started
    finally:
        started.api.stop()


@pytest.fixture(scope="module")
def upstream() -> Iterator[Upstream]:
    """A model server that records."""
    with Upstream() as started:
        yield started


@pytest.fixture(scope="module")
def picker(upstream: Upstream) -> Iterator[PickerProcess]:
    """Before it, with TLS, as the chart's Envoy speaks to it."""
    with PickerProcess([upstream.address], insecure=False) as started:
        yield started
