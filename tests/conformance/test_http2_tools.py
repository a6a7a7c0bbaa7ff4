"""Other people's HTTP/2 programs against the h2 transport: curl, nghttp and h2load (Debian: nghttp2-client)."""

import re
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from picker.edge.grpc.tls import self_signed, server_context
from tests.contracts.serving import Serving

GRPC = ["-H", "content-type: application/grpc", "-H", "te: trailers"]


def run(*command: str) -> str:
    """A program's output. Skips, loudly, where it is not installed."""
    if shutil.which(command[0]) is None:
        pytest.skip(f"NOT RUN: {command[0]} is not installed (Debian: apt-get install curl nghttp2-client)")
    ran = subprocess.run(command, capture_output=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return (ran.stdout + ran.stderr).decode("latin-1")


@pytest.fixture
def body(tmp_path: Path) -> Path:
    """A gRPC message of 5,000 bytes, ready to post."""
    path = tmp_path / "body.bin"
    path.write_bytes(struct.pack(">BL", 0, 5_000) + b"m" * 5_000)
    return path


def test_curl_makes_a_grpc_call(body: Path, tmp_path: Path) -> None:
    answer = tmp_path / "answer.bin"
    with Serving() as server:
        url = f"http://127.0.0.1:{server.port}/test.Echo/Echo"
        said = run("curl", "-sv", "--http2-prior-knowledge", *GRPC, "--data-binary", f"@{body}", "-o", str(answer), url)
    assert "HTTP/2 200" in said
    assert "grpc-status: 0" in said
    assert answer.read_bytes() == body.read_bytes()


def test_curl_finds_alpn_h2_over_tls(body: Path, tmp_path: Path) -> None:
    made = self_signed()
    root, answer = tmp_path / "root.pem", tmp_path / "answer.bin"
    root.write_bytes(made.chain_pem)
    with Serving(tls=server_context(made)) as server:
        url = f"https://localhost:{server.port}/test.Echo/Echo"
        data = ["--data-binary", f"@{body}", "-o", str(answer)]
        said = run("curl", "-sv", "--http2", "-4", "--cacert", str(root), *GRPC, *data, url)
    assert re.search(r"ALPN[:,].*h2", said)
    assert "grpc-status: 0" in said
    assert answer.read_bytes() == body.read_bytes()


def test_a_person_with_curl_is_told_what_this_port_is() -> None:
    with Serving() as server:
        url = f"http://127.0.0.1:{server.port}/"
        assert "this port speaks gRPC" in run("curl", "-si", "--http2-prior-knowledge", url)
        assert run("curl", "-si", "--http1.1", url).startswith("HTTP/1.1 505 ")


def test_nghttp_makes_many_calls_with_priorities_and_small_windows(body: Path) -> None:
    with Serving() as server:
        url = f"http://127.0.0.1:{server.port}/test.Echo/Echo"
        # -w and -W: windows of 2^14-1; -m: the same request so often; nghttp sends PRIORITY frames of its own.
        said = run("nghttp", "-nv", "-m20", "-w14", "-W14", *GRPC, "-d", str(body), url)
    assert said.count("grpc-status: 0") == 20
    assert "GOAWAY frame" not in said.replace("send GOAWAY", "")


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_h2load_finds_every_answer(body: Path, loop: str) -> None:
    with Serving(loop=loop) as server:
        url = f"http://127.0.0.1:{server.port}/test.Echo/Echo"
        said = run("h2load", "-n", "5000", "-c", "4", "-m", "50", *GRPC, "-d", str(body), url)
        assert server.errors == []
    assert "5000 succeeded, 0 failed, 0 errored, 0 timeout" in said
    assert "status codes: 5000 2xx" in said
