"""`make attack`: every attack on both builds, and the table of what became of the honest client."""

import argparse
import json
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.attack.attacks import ATTACKS
from tests.attack.stage import MB, MEMORY_BYTES_MAX, Outcome, Stage
from tests.bench.processes import TREE

DOCUMENT = TREE / "docs/security.md"
BEGIN, END = "<!-- attacks -->\n", "<!-- /attacks -->"
TITLES = ("attack", "build", "asked", "failed", "slowest (typical)", "memory before, peak, after", "right")


def row(outcome: Outcome) -> tuple[str, ...]:
    memory = " / ".join(str(size // MB) for size in (outcome.before_bytes, outcome.peak_bytes, outcome.after_bytes))
    return (
        ATTACKS[outcome.name].says,
        outcome.build,
        f"{outcome.asked:,}",
        f"{outcome.failed:,}",
        f"{1e3 * outcome.slowest_seconds:.0f} ({1e3 * outcome.typical_seconds:.1f}) ms",
        f"{memory} MB",
        "; ".join(outcome.faults) or "yes",
    )


def markdown(outcomes: list[Outcome]) -> str:
    lines = ["| " + " | ".join(TITLES) + " |", "|" + "---|" * len(TITLES)]
    lines += ["| " + " | ".join(row(outcome)) + " |" for outcome in outcomes]
    return "\n".join(lines) + "\n"


def attack(name: str, build: str) -> Outcome:
    about = ATTACKS[name]
    with Stage(
        build,
        config=about.config,
        flags=about.flags,
        tricks=about.tricks,
        files_max=about.files_max,
        envoy=about.envoy,
        tls=about.tls,
        endpoints_file=about.endpoints_file,
    ) as stage:
        return stage.run(name, about.run, patience_seconds=about.patience_seconds)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.attack", description=__doc__)
    parser.add_argument("--build", choices=("compiled", "interpreted", "both"), default="both")
    parser.add_argument("--only", metavar="NAME,...", help=f"of {', '.join(ATTACKS)}")
    parser.add_argument("--json", metavar="FILE", help="write the figures")
    parser.add_argument("--write", action="store_true", help="put the table into docs/security.md")
    options = parser.parse_args()
    names = options.only.split(",") if options.only else list(ATTACKS)
    unknown = [name for name in names if name not in ATTACKS]
    if unknown:
        parser.error(f"no attack is called {', '.join(unknown)}")
    builds = ["compiled", "interpreted"] if options.build == "both" else [options.build]
    if "compiled" in builds and not (TREE / "build/compiled/picker").is_dir():
        print("there is no compiled build: run make compiled, or say --build interpreted", file=sys.stderr)
        return 2
    console = Console()
    outcomes = []
    total = len(names) * len(builds)
    for name in names:
        for build in builds:
            outcome = attack(name, build)
            outcomes.append(outcome)
            said = f"{len(outcomes)} of {total}: {name}, {build}: {'; '.join(outcome.faults) or 'right'}"
            console.print(said, markup=False, highlight=False, soft_wrap=True)
    table = Table(*TITLES, title=f"limits.memory_bytes_max: {MEMORY_BYTES_MAX >> 20} MiB")
    for outcome in outcomes:
        table.add_row(*row(outcome))
    console.print(table)
    if options.json:
        Path(options.json).write_text(json.dumps([outcome._asdict() for outcome in outcomes], indent=1))
    if options.write:
        text = DOCUMENT.read_text("utf-8")
        head, _, rest = text.partition(BEGIN)
        DOCUMENT.write_text(head + BEGIN + markdown(outcomes) + END + rest.partition(END)[2], "utf-8")
    return 1 if any(outcome.faults for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
