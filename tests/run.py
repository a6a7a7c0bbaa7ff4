"""`make test` and `make test-quick`: the steps in order, and at the end a table of what each took and what was skipped.

A step that fails ends the run, and the table says so. Files of tests run side by side (pytest-xdist), those of one
file one after the other, so that what a file starts is started once. A few tests that failed among others run again
alone: most start programs and wait for them, and on two busy cores one of seven thousand meets a pause that is no
fault. What passes only then is named under the table.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
COMPILED = ROOT / "build" / "compiled"
COMPILE = (sys.executable, "-m", "tests.compiled_copy")

QUICK = ("tests/unit", "tests/properties", "tests/contracts", "tests/tidy")
COMPILED_TESTS = (
    *("tests/unit", "tests/properties", "tests/contracts", "tests/conformance", "tests/envoy", "tests/soak"),
    "tests/differential",
    *("tests/simulation/test_director_faults.py", "tests/simulation/test_memory.py"),
)
"""What of the tests runs the modules that are compiled."""

WORKERS = min(4, (os.cpu_count() or 1) + 1)
"""Many tests wait for other processes, so one more than there are cores; a file's tests stay together."""

AGAIN = 3
"""More failed tests than this are no accident, and none of them runs again."""


class Failed(Exception):
    """A step ended with a failure; the run ends with its exit code."""

    def __init__(self, step: str, code: int) -> None:
        super().__init__(step)
        self.step = step
        self.code = code


@dataclass
class Row:
    """One line of the table. A step that is no pytest run counts no tests."""

    name: str
    seconds: float
    counts: Counter[str] | None = None


@dataclass
class Run:
    """What was done so far."""

    rows: list[Row] = field(default_factory=list)
    skips: list[tuple[str, str]] = field(default_factory=list)
    only_alone: list[tuple[str, str]] = field(default_factory=list)

    def step(self, name: str, *command: str) -> None:
        """One command. Raises `Failed`."""
        print(f"== {name}", flush=True)
        began = time.monotonic()
        code = subprocess.run(command, cwd=ROOT, check=False).returncode
        self.rows.append(Row(name, time.monotonic() - began))
        if code:
            raise Failed(name, code)

    def tests(self, build: str, *paths: str, python: str = sys.executable) -> None:
        """One pytest run, in the tree of that build, and a second of what failed. Raises `Failed`."""
        tree, environment = ROOT, dict(os.environ)
        if build == "compiled":
            tree = COMPILED
            environment |= {"PICKER_COMPILED": "1", "PYTHONPATH": str(COMPILED)}
        print(f"== {build}: {' '.join(paths)}", flush=True)
        failed: list[str] = []
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder, "tiers.json")
            environment["PICKER_TIERS_TO"] = str(report)
            pytest = [python, "-m", "pytest"]
            crowd = [*pytest, "-n", str(WORKERS), "--dist", "loadfile", *paths]
            code = subprocess.run(crowd, cwd=tree, env=environment, check=False).returncode
            if report.exists():
                found = json.loads(report.read_text("utf-8"))
                self._add(build, found)
                failed = found["failed"]
            if 0 < len(failed) <= AGAIN:
                print(f"== {build}: again, alone: {' '.join(failed)}", flush=True)
                del environment["PICKER_TIERS_TO"]
                code = subprocess.run([*pytest, *failed], cwd=tree, env=environment, check=False).returncode
                self.only_alone += [(build, test) for test in failed if not code]
        if code:
            raise Failed(f"tests, {build}", code)

    def _add(self, build: str, report: dict[str, Any]) -> None:
        for tier, found in report["tiers"].items():
            seconds = found.pop("seconds")
            self.rows.append(Row(f"{build} {tier}", seconds, Counter(found)))
        self.skips += [(f"{build} {tier}", reason) for tier, reason in report["skips"]]


def table(run: Run, clock_seconds: float) -> str:
    """What took how long, and what was skipped and why."""
    lines = ["", f"{'':28}{'passed':>8}{'failed':>8}{'skipped':>9}{'time':>14}"]
    for row in run.rows:
        counts = f"{'':25}"
        if row.counts is not None:
            counts = f"{row.counts['passed']:>8}{row.counts['failed']:>8}{row.counts['skipped']:>9}"
        lines.append(f"{row.name:28}{counts}{spoken(row.seconds):>14}")
    lines.append(f"{'on the clock':28}{'':25}{spoken(clock_seconds):>14}")
    if run.skips:
        lines += ["", "Skipped, and why:"]
        where: dict[str, list[str]] = {}
        for tier, reason in run.skips:
            where.setdefault(reason, []).append(tier)
        for reason, tiers in sorted(where.items(), key=lambda item: -len(item[1])):
            lines.append(f"{len(tiers):>5}  {reason} ({', '.join(dict.fromkeys(tiers))})")
    else:
        lines.append("Nothing was skipped.")
    if run.only_alone:
        lines += ["", "Failed among others and passed alone; look at what they wait for:"]
        lines += [f"       {test} ({build})" for build, test in run.only_alone]
    return "\n".join(lines)


def spoken(seconds: float) -> str:
    """`7 s`, `3 min 40 s`."""
    whole = round(seconds)
    return f"{whole} s" if whole < 60 else f"{whole // 60} min {whole % 60:02} s"


def quick(run: Run) -> None:
    """No Envoy, no cluster, no second build: under a minute."""
    run.tests("interpreted", *QUICK)


def compiled(run: Run) -> None:
    """The same tests on the compiled build, where it can be made."""
    if subprocess.run([*COMPILE, "--check"], cwd=ROOT, check=False).returncode:
        run.skips.append(("compiled", "the compiled build: what it lacks is said above"))
        return
    os.environ["PICKER_COMPILED"] = "1"
    run.step("compile", *COMPILE, "build/compiled")
    run.tests("compiled", *COMPILED_TESTS)


def everything(run: Run) -> None:
    """All that the project can prove on this machine."""
    run.step("tools", sys.executable, "-m", "tests.tools")
    run.step("check", "make", "--no-print-directory", "check")
    run.tests("interpreted", "tests")
    compiled(run)


RUNS = {"quick": quick, "compiled": compiled, "all": everything}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=RUNS)
    what = parser.parse_args().what
    run, began, code = Run(), time.monotonic(), 0
    try:
        RUNS[what](run)
    except Failed as failed:
        code = failed.code
        print(f"\nFAILED: {failed.step}. What comes after it was not run.")
    print(table(run, time.monotonic() - began), flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
