"""grpc-go's client against both transports; built from `goclient/` by `make tools`."""

import subprocess
from pathlib import Path

import pytest

from picker.config import TransportLimits
from tests.conformance.tools import GO_CLIENT
from tests.contracts.serving import Serving
from tests.tools.tool import Missing


@pytest.fixture(scope="session")
def go_client() -> Path:
    try:
        return GO_CLIENT.look("goclient")
    except Missing as missing:
        pytest.skip(f"NOT RUN: no client of grpc-go: {missing}")


@pytest.mark.parametrize("kind", ["h2", "h2 on uvloop", "h2 with small windows", "grpcio"])
def test_grpc_go_is_served(go_client: Path, kind: str) -> None:
    limits = TransportLimits(stream_window_bytes=65_535, connection_window_bytes=65_535) if "small" in kind else None
    with Serving(limits, loop="uvloop" if "uvloop" in kind else "asyncio", kind=kind.partition(" ")[0]) as server:
        ran = subprocess.run(
            [str(go_client), f"127.0.0.1:{server.port}"], capture_output=True, text=True, timeout=100, check=False
        )
        assert ran.stdout == "ok\n", ran.stdout + ran.stderr
        assert server.errors == []
