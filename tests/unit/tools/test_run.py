"""The table at the end of `make test`, and that a slow test fails alone."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.run import ROOT, Row, Run, spoken, table

CONFTEST = (ROOT / "tests" / "conftest.py").read_text("utf-8")
SLOW = """
import asyncio, time, threading
import pytest, uvloop

pytestmark = pytest.mark.timeout(0.3)

def test_sleeps(): time.sleep(60)
def test_waits_for_a_thread(): threading.Event().wait()
def test_waits_in_a_loop(): asyncio.run(asyncio.sleep(60))
def test_waits_in_uvloop(): uvloop.run(asyncio.sleep(60))

@pytest.fixture(scope="session")
def slow_fixture(): time.sleep(60)

def test_has_a_slow_fixture(slow_fixture): pass
def test_is_fast(): pass
def test_cannot(): pytest.skip("no such thing here")
"""


def test_a_slow_test_fails_alone_and_each_tier_is_counted(tmp_path: Path) -> None:
    folder = tmp_path / "tests" / "slow"
    folder.mkdir(parents=True)
    (folder / "test_slow.py").write_text(SLOW)
    (tmp_path / "tests" / "conftest.py").write_text(CONFTEST)
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text("utf-8"))
    report = tmp_path / "tiers.json"
    environment = {**os.environ, "PICKER_TIERS_TO": str(report)}
    command = [sys.executable, "-m", "pytest", "tests"]
    run = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100, check=False
    )
    assert run.returncode == 1, run.stdout
    assert "5 failed" in run.stdout or "4 failed, 1 passed, 1 skipped, 1 error" in run.stdout, run.stdout[-2000:]
    found = json.loads(report.read_text())
    counts = {name: found["tiers"]["slow"][name] for name in ("passed", "failed", "skipped")}
    assert counts == {"passed": 1, "failed": 5, "skipped": 1}
    assert found["tiers"]["slow"]["seconds"] > 1
    assert found["skips"] == [["slow", "no such thing here"]]


def test_the_table_says_what_took_how_long_and_what_was_skipped_and_why() -> None:
    run = Run(rows=[Row("tools", 220.4)])
    run._add(
        "interpreted",
        {
            "tiers": {"unit": {"seconds": 7.2, "passed": 40, "failed": 0, "skipped": 2}},
            "skips": [["unit", "no Go"], ["unit", "no Go"]],
        },
    )
    lines = table(run, 227.6).splitlines()
    assert [line.split() for line in lines[1:5]] == [
        ["passed", "failed", "skipped", "time"],
        ["tools", "3", "min", "40", "s"],
        ["interpreted", "unit", "40", "0", "2", "7", "s"],
        ["on", "the", "clock", "3", "min", "48", "s"],
    ]
    assert lines[6:] == ["Skipped, and why:", "    2  no Go (interpreted unit)"]


def test_seconds_as_people_say_them() -> None:
    assert [spoken(seconds) for seconds in (0.4, 59.6, 60, 3600)] == ["0 s", "1 min 00 s", "1 min 00 s", "60 min 00 s"]
