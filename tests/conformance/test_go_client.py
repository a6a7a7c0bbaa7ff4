"""grpc-go's client against both transports; built from `goclient/` where Go is installed."""

import shutil
import subprocess
from pathlib import Path

import pytest

from picker.edge.h2 import H2Limits
from tests.contracts.serving import Serving

SOURCE = Path(__file__).parent / "goclient"
CLIENT = Path(__file__).parent / "bin" / "goclient"


@pytest.fixture(scope="session")
def go_client() -> Path:
    go = shutil.which("go")
    if go is None:
        pytest.skip("NOT RUN: grpc-go's client needs Go to be built; install Go")
    newest = max(path.stat().st_mtime for path in SOURCE.iterdir())
    if not CLIENT.exists() or CLIENT.stat().st_mtime < newest:
        command = [go, "build", "-o", str(CLIENT), "."]
        built = subprocess.run(command, cwd=SOURCE, capture_output=True, text=True, timeout=300, check=False)
        if built.returncode:
            pytest.skip(f"NOT RUN: grpc-go's client could not be built: {built.stderr.strip()[-200:]}")
    return CLIENT


@pytest.mark.timeout(400)
@pytest.mark.parametrize("kind", ["h2", "h2 on uvloop", "h2 with small windows", "grpcio"])
def test_grpc_go_is_served(go_client: Path, kind: str) -> None:
    limits = H2Limits(stream_window_bytes=65_535, connection_window_bytes=65_535) if "small" in kind else None
    with Serving(limits, loop="uvloop" if "uvloop" in kind else "asyncio", kind=kind.partition(" ")[0]) as server:
        ran = subprocess.run(
            [str(go_client), f"127.0.0.1:{server.port}"], capture_output=True, text=True, timeout=100, check=False
        )
        assert ran.stdout == "ok\n", ran.stdout + ran.stderr
        assert server.errors == []
