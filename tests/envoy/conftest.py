"""Fixtures: the lab once a session, a proxy by body modes."""

import os
from collections.abc import Iterator

import pytest

from picker.lab.envoy import Balancing, BodySendMode, EnvoyProcess
from tests.envoy.children import children_of
from tests.envoy.lab import FD, Lab, mode_params
from tests.envoy.picker_process import wait_until
from tests.envoy.upstream import fresh_id

MATRIX = mode_params((FD, BodySendMode.BUFFERED), (BodySendMode.NONE, BodySendMode.STREAMED, FD))


@pytest.fixture
def nothing_left_behind() -> Iterator[None]:
    """Whatever a test does, the children that it found are the children that it leaves."""
    before = set(children_of(os.getpid()))
    yield
    wait_until(lambda: set(children_of(os.getpid())) <= before, "a child is left behind")


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    """Two recording model servers and a picker."""
    with Lab() as opened:
        yield opened


@pytest.fixture(scope="session", params=MATRIX)
def proxy(request: pytest.FixtureRequest, lab: Lab) -> EnvoyProcess:
    """A real Envoy in each of the twelve modes that people run."""
    request_body, response_body, balancing = request.param
    return lab.envoy(lab.config(request_body=request_body, response_body=response_body, balancing=balancing))


@pytest.fixture(scope="session")
def duplex(lab: Lab) -> EnvoyProcess:
    """Full duplex both ways with override_host: the mode with the most duties."""
    return lab.envoy(lab.config(request_body=FD, response_body=FD, balancing=Balancing.OVERRIDE_HOST))


@pytest.fixture(scope="session")
def buffered(lab: Lab) -> EnvoyProcess:
    """Request buffered, response headers only, ORIGINAL_DST: the mode with the fewest duties."""
    return lab.envoy(lab.config(request_body=BodySendMode.BUFFERED, response_body=BodySendMode.NONE))


@pytest.fixture(params=["duplex", "buffered"])
def either(request: pytest.FixtureRequest) -> EnvoyProcess:
    """The two extremes, for cases that do not depend on the rest."""
    envoy: EnvoyProcess = request.getfixturevalue(request.param)
    return envoy


@pytest.fixture
def rid() -> str:
    """The request's id, by which model servers find what they recorded."""
    return fresh_id()
