"""h2spec, the public HTTP/2 conformance suite, against the h2 transport: 145 tests, none may fail.

`make tools` builds it from source where Go is installed.
"""

import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from picker.edge.grpc.tls import self_signed, server_context
from tests.conformance.tools import H2SPEC
from tests.contracts.serving import Serving
from tests.tools.tool import Missing

ALLOWED: dict[str, str] = {}
"""Failures that we accept: the test's description -> why. There is none."""


@pytest.fixture(scope="session")
def h2spec() -> Path:
    try:
        return H2SPEC.look("h2spec")
    except Missing as missing:
        pytest.skip(f"NOT RUN: no h2spec (HTTP/2 conformance): {missing}")


@pytest.mark.parametrize("mode", ["asyncio", "uvloop", "TLS"])
def test_h2spec_finds_nothing(h2spec: Path, tmp_path: Path, mode: str) -> None:
    report = tmp_path / "report.xml"
    tls = server_context(self_signed()) if mode == "TLS" else None
    with Serving(tls=tls, loop="uvloop" if mode == "uvloop" else "asyncio") as server:
        command = [str(h2spec), "-h", "127.0.0.1", "-p", str(server.port), "-o", "3", "-j", str(report)]
        ran = subprocess.run(
            command + ["-t", "-k"] * (tls is not None), capture_output=True, text=True, timeout=110, check=False
        )
    cases = ET.parse(report).getroot().findall(".//testcase")
    failed = {
        case.get("classname") for case in cases if case.find("failure") is not None or case.find("error") is not None
    }
    skipped = [case.get("classname") for case in cases if case.find("skipped") is not None]
    assert len(cases) == 145, ran.stdout[-2000:]
    assert failed <= set(ALLOWED), ran.stdout[-4000:]
    assert skipped == []
    assert server.errors == []
