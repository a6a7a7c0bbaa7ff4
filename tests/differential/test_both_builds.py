"""Both builds answer whole exchanges alike: replies, books and pages, however a body comes (`drive.py`)."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parents[2]
INTERPRETED = next((each for each in HERE.parents if (each / "pyproject.toml").is_file()), None)
"""`make test-compiled` runs in build/compiled of the sources."""


def told(tree: Path) -> list[str]:
    done = subprocess.run(
        [sys.executable, str(HERE / "tests/differential/drive.py"), str(HERE / "tests/fixtures")],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree)},
        capture_output=True,
        text=True,
        timeout=540,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()


@pytest.mark.timeout(600)
def test_every_exchange_is_the_same_in_both_builds_and_has_no_fault():
    if os.environ.get("PICKER_COMPILED") != "1" or INTERPRETED is None:
        pytest.skip("compares the compiled tree with the sources: part of `make test-compiled`")
    compiled, interpreted = told(HERE), told(INTERPRETED)
    assert len(compiled) == len(interpreted) > 500
    for one, other in zip(compiled, interpreted, strict=True):
        assert one == other
    name, books, *_ = json.loads(compiled[-1])
    assert name == "books" and books["faults"] == [] and books["open"] == 0
