"""`make mutants`: does a test fail where the code is wrong? cosmic-ray breaks one place at a time, at random places.

Works in a copy of the tree (build/mutants), on a sample by a seed: all of them would take days. A mutant that
every test passes is printed with its diff: either it changes nothing that matters, or a test is missing.
"""

import argparse
import json
import os
import random
import re
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
COPY = ROOT / "build" / "mutants"
TESTS = {
    "prefix": "tests/unit/prefix tests/properties/test_prefix_index.py tests/properties/test_index_order.py",
    "scheduling": "tests/unit/scheduling tests/contracts/test_scorers.py tests/contracts/test_filters.py"
    " tests/unit/test_director.py tests/properties/test_decisions.py",
    "extproc": "tests/unit/extproc tests/properties/test_exchange.py tests/properties/test_wire.py"
    " tests/properties/test_stream.py tests/properties/test_hints.py",
    "kubernetes": "tests/unit/kubernetes tests/properties/test_listwatch.py tests/unit/edge/kubernetes",
}
"""By room: what should notice, quickest first."""
SECONDS_MAX = 120.0
ANNOTATION = re.compile(r"^\s*(def |\) ->|[\w.]+: [\w.\[\], |\"]+( =.*)?$)")
"""A line that holds types: `int | None` is no arithmetic."""


def copy_tree() -> None:
    """What git tracks, as it is here."""
    shutil.rmtree(COPY, ignore_errors=True)
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (COPY / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, COPY / name)


def sampled(session: Path, count: int, dice: random.Random) -> int:
    """Leave so many mutants in the session, each in a place of its own; returns how many places there are."""
    with sqlite3.connect(session) as base:
        rows = base.execute(
            "select job_id, module_path, start_pos_row, start_pos_col, operator_name from mutation_specs"
            " order by module_path, start_pos_row, start_pos_col, operator_name, occurrence"
        ).fetchall()
        places: dict[tuple[str, int, int], list[str]] = {}
        for job, module, row, column, operator in rows:
            line = (COPY / module).read_text("utf-8").splitlines()[row - 1]
            if "BinaryOperator_BitOr" not in operator or not ANNOTATION.match(line):
                places.setdefault((module, row, column), []).append(job)
        chosen = dice.sample(sorted(places), min(count, len(places)))
        kept = [(dice.choice(places[place]),) for place in chosen]
        base.execute("create temp table kept (job_id varchar primary key)")
        base.executemany("insert into kept values (?)", kept)
        for table in ("mutation_specs", "work_items"):
            base.execute(f"delete from {table} where job_id not in (select job_id from kept)")
    return len(places)


def tried(cosmic_ray: str, room: str, count: int, seed: int) -> tuple[int, int, list[dict[str, Any]]]:
    """`(places, mutants tried, those that survived)`."""
    config, session = COPY / f"{room}.toml", COPY / f"{room}.sqlite"
    command = f"{sys.executable} -m pytest -x -p no:randomly {TESTS[room]}"
    config.write_text(
        f'[cosmic-ray]\nmodule-path = "picker/{room}"\ntimeout = {SECONDS_MAX}\nexcluded-modules = []\n'
        f'test-command = "{command}"\n[cosmic-ray.distributor]\nname = "local"\n'
    )
    environment = {**os.environ, "CI": "1", "PYTHONPATH": str(COPY), "PYTHONDONTWRITEBYTECODE": "1"}

    def run(*arguments: str) -> str:
        words = [cosmic_ray, *arguments]
        return subprocess.run(words, cwd=COPY, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout

    if subprocess.run(command.split(), cwd=COPY, env=environment, stdout=subprocess.DEVNULL, check=False).returncode:
        sys.exit(f"the tests of {room} fail without any mutant: mend them first ({command})")
    run("init", config.name, session.name)
    places = sampled(session, count, random.Random(f"{seed} {room}"))
    run("exec", config.name, session.name)
    results = [json.loads(line) for line in run("dump", session.name).splitlines()]
    done = [result for _, result in results if result is not None]
    return places, len(done), [result for result in done if result["test_outcome"] == "survived"]


def main() -> int:
    parser = argparse.ArgumentParser(prog="make mutants", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cosmic-ray", required=True, help="its command")
    parser.add_argument("--each", type=int, default=25, help="mutants a room (default 25)")
    parser.add_argument("--rooms", default=",".join(TESTS), help="comma-separated (default all)")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    copy_tree()
    lines = []
    for room in asked.rooms.split(","):
        places, count, survived = tried(asked.cosmic_ray, room, asked.each, asked.seed)
        for each in survived:
            print(f"== survived in {room}\n{each['diff']}\n", flush=True)
        lines.append(f"{room:12} {count:4} of {places:5} places tried, {count - len(survived):4} noticed")
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
