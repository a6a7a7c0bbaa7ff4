"""The table at the end of `make test`, that a slow test fails alone, and which tests run again."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.printed import to_run
from tests.run import AGAIN, ROOT, Failed, Row, Run, spoken, table

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
FAILS_ONCE = """
from pathlib import Path

def test_fails_once():
    ran = Path("{file}")
    before, _ = ran.exists(), ran.touch()
    assert before

def test_passes(): pass
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
    assert len(found["failed"]) == 5 and "tests/slow/test_slow.py::test_sleeps" in found["failed"]


def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tests: str) -> Run:
    """A run whose tree has that one file of tests in it, tests/envoy/test_one.py."""
    folder = tmp_path / "tests" / "envoy"
    folder.mkdir(parents=True)
    (folder / "test_one.py").write_text(tests)
    (tmp_path / "tests" / "conftest.py").write_text(CONFTEST)
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text("utf-8"))
    monkeypatch.setattr("tests.run.ROOT", tmp_path)
    return Run()


def test_what_fails_among_others_and_passes_alone_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = project(tmp_path, monkeypatch, FAILS_ONCE.format(file=tmp_path / "ran"))
    run.tests("interpreted", "tests")
    (row,) = run.rows
    assert row.counts == Counter(passed=1, failed=1, skipped=0)
    assert run.only_alone == [("interpreted", "tests/envoy/test_one.py::test_fails_once")]
    assert table(run, 1).splitlines()[-2:] == [
        "Failed among others and passed alone; look at what they wait for:",
        "       tests/envoy/test_one.py::test_fails_once (interpreted)",
    ]


@pytest.mark.parametrize(
    "tests",
    [
        pytest.param("def test_fails(): assert False", id="a test that fails alone too"),
        pytest.param("import no_such_module", id="a file that cannot be read"),
        pytest.param("import os\ndef test_dies(): os._exit(1)", id="a test that ends its interpreter"),
        pytest.param(FAILS_ONCE + "\n".join(f"def test_{n}(): assert 0" for n in range(AGAIN)), id="one too many"),
    ],
)
def test_what_is_no_accident_fails_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tests: str) -> None:
    run = project(tmp_path, monkeypatch, tests.format(file=tmp_path / "ran"))
    with pytest.raises(Failed, match="tests, interpreted"):
        run.tests("interpreted", "tests")
    assert run.only_alone == []


def test_the_first_tests_of_a_contributor_are_found() -> None:
    """As CONTRIBUTING.md prints it, collected alone: the tests themselves are of the same run as this one."""
    (command,) = to_run("CONTRIBUTING.md", r"\.venv/bin/python -m pytest ")
    words = [sys.executable, *command.text.split()[1:], "--collect-only", "--quiet"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0 and "tests/unit/scheduling/test_filters.py" in done.stdout, done.stdout[-2000:]


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
