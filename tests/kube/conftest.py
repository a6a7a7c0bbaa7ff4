"""One real API server for all tests of a run."""

from collections.abc import Iterator

import pytest

from tests.kube.cluster import CRDS, TestCluster
from tests.tools.tool import Missing


@pytest.fixture(scope="session")
def cluster() -> Iterator[TestCluster]:
    """Running, with the CRD of InferencePool. A test works in a namespace of its own."""
    try:
        made = TestCluster()
    except Missing as missing:
        pytest.skip(f"NOT RUN: no real API server: {missing}")
    with made:
        made.apply_crd(CRDS / "inferencepools.yaml")
        yield made
