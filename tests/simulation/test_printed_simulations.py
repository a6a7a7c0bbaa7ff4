"""Each `picker simulate` that a page prints: it runs, and says something of each policy that it names.

With fifty requests, or a minute's day: as printed they take up to a quarter of an hour. So few short chats cannot load
the servers, so those get a rate in place of a load.
"""

import re
import shlex
import subprocess
import sys

import pytest

from tests.printed import ROOT, Command, to_run

PRINTED = [
    *to_run("README.md", r"picker simulate "),
    *to_run("docs/telemetry.md", r"picker simulate "),
    *to_run("docs/benchmarks.md", r"(\.venv/bin/)?picker simulate "),
]


@pytest.mark.parametrize("command", PRINTED, ids=lambda command: f"{command.page}:{command.line}")
def test_it_runs(command: Command) -> None:
    _, *arguments = shlex.split(command.text)
    shorter = ["--day", "60"] if "--day" in arguments else ["--requests", "50"]
    if "chat" in arguments and "--rate" not in arguments:
        place = arguments.index("--load") if "--load" in arguments else len(arguments)
        arguments[place : place + 2] = ["--rate", "5"]
    shown = [sys.executable, "-m", "picker", *arguments, *shorter, "--seed", "1"]
    done = subprocess.run(shown, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    said = done.stdout
    for policy in arguments[arguments.index("--policy") + 1].split(","):
        assert re.search(rf"\b{re.escape(policy)}\b", said)
    if "--autoscale" in arguments:
        for signal in arguments[arguments.index("--autoscale") + 1].split(","):
            assert signal.partition("@")[0] in said
