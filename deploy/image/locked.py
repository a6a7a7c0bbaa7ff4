"""Part of requirements.lock: what some roots need, pins and hashes kept. Standard library only.

    python locked.py requirements.lock --project pyproject.toml --extra tracing    # to run the picker
    python locked.py requirements.lock --root hatchling                           # to build it

The lock holds everything that the project's extras need, tests included; an image must not. Who
needs whom is read from the lock's own `# via` lines.
"""

import argparse
import re
import sys
import tomllib
from pathlib import Path

ENTRY = re.compile(r"^(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)(\[[^\]]*\])?==")


def canonical(name: str) -> str:
    """PEP 503: `Foo_Bar` and `foo-bar` are one project."""
    return re.sub(r"[-_.]+", "-", name).lower()


def entries(text: str) -> dict[str, list[str]]:
    """Project -> its lines."""
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        entry = ENTRY.match(line)
        if entry:
            lines = found.setdefault(canonical(entry["name"]), [])
        lines.append(line)
    return found


def dependents(lines: list[str]) -> set[str]:
    """Who asked for it: the names after `# via`."""
    comments = [line.strip().removeprefix("#").strip() for line in lines if line.strip().startswith("#")]
    words = " ".join(comments).removeprefix("via").split()
    return {canonical(word) for word in words if not word.startswith("(")}


def needed(found: dict[str, list[str]], roots: set[str]) -> set[str]:
    """The roots and all that they pull in."""
    missing = roots - found.keys()
    if missing:
        sys.exit(f"not in the lock: {', '.join(sorted(missing))}; run `make lock`")
    chosen = set(roots)
    grown = True
    while grown:
        more = {name for name, lines in found.items() if name not in chosen and dependents(lines) & chosen}
        chosen |= more
        grown = bool(more)
    return chosen


def project_roots(path: Path, extras: list[str]) -> set[str]:
    """What pyproject.toml asks for, with some extras."""
    project = tomllib.loads(path.read_text())["project"]
    wanted = list(project["dependencies"])
    for extra in extras:
        wanted += project["optional-dependencies"][extra]
    names = (re.match(r"[A-Za-z0-9._-]+", requirement) for requirement in wanted)
    return {canonical(name.group()) for name in names if name}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lock", type=Path)
    parser.add_argument("--project", type=Path)
    parser.add_argument("--extra", action="append", default=[])
    parser.add_argument("--root", action="append", default=[])
    options = parser.parse_args()
    found = entries(options.lock.read_text())
    roots = {canonical(name) for name in options.root}
    if options.project:
        roots |= project_roots(options.project, options.extra)
    for name in sorted(needed(found, roots)):
        print("\n".join(found[name]))


if __name__ == "__main__":
    main()
