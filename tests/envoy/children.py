"""A process's children: who they are, and whether one still runs."""

from pathlib import Path


def children_of(pid: int) -> list[int]:
    """Ids of a process's children and theirs."""
    found = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in path.read_text().split():
            found += [int(child), *children_of(int(child))]
    return found


def is_running(pid: int) -> bool:
    """False for one that ended and waits to be reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
