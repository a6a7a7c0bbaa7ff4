"""How much memory there is, and what of it is for whom.

The container's limit is that of its cgroup (version 2: the smallest `memory.max` from the process's own
group to the root; version 1: `memory.limit_in_bytes`). Where there is none the machine's memory
counts, up to `UNLIMITED_BYTES`: who sets no limit has not said that all of it is ours.
"""

from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from picker.config import Config

PROCESS_BYTES: Final = 128 * 1024 * 1024
"""The interpreter, libraries, endpoints and their samples, telemetry."""

SHARE: Final = 0.8
"""Of the limit: bytes that are counted are not all that an allocator takes for them."""

UNLIMITED_BYTES: Final = 2 * 1024 * 1024 * 1024
LEAST_BYTES: Final = 64 * 1024 * 1024
_NO_LIMIT_BYTES: Final = 2**50
"""Version 1 writes a number near 2^63 where there is no limit."""


class MemoryPlan(NamedTuple):
    """What the index may take, what may be held for peers, and where the sum comes from."""

    index_bytes_max: int
    held_bytes_max: int
    source: str

    def fit(self, config: Config) -> Config:
        """The configuration with an index of that size at most."""
        index_bytes_max = min(config.limits.index_bytes_max, self.index_bytes_max)
        return msgspec.structs.replace(
            config, limits=msgspec.structs.replace(config.limits, index_bytes_max=index_bytes_max)
        )


def plan(config: Config, root: Path = Path("/")) -> MemoryPlan:
    """`root`: where /proc and /sys are."""
    stated = config.limits.memory_bytes_max
    if stated is not None:
        total, source = stated, "limits.memory_bytes_max"
    else:
        limit, source = container_bytes(root), "the container's limit"
        if limit is None:
            limit, source = machine_bytes(root), "the machine's memory"
            total = min(int(limit * SHARE) - PROCESS_BYTES, UNLIMITED_BYTES)
        else:
            total = int(limit * SHARE) - PROCESS_BYTES
        total = max(total, LEAST_BYTES)
    index = min(config.limits.index_bytes_max, total // 2)
    return MemoryPlan(index, config.transport.buffered_bytes_max or total - index, source)


def container_bytes(root: Path = Path("/")) -> int | None:
    """The memory limit of the cgroup that the process is in; `None`: no limit."""
    found = []
    for line in _read(root / "proc/self/cgroup").splitlines():
        number, controllers, path = [*line.split(":", 2), "", ""][:3]
        if number == "0" and not controllers:
            base, name = root / "sys/fs/cgroup", "memory.max"
        elif "memory" in controllers.split(","):
            base, name = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        parts = [part for part in path.split("/") if part not in ("", "..")]
        # In a container the path may be the host's, while only the own group is mounted: then only the top is there.
        for depth in range(len(parts), -1, -1):
            text = _read(base.joinpath(*parts[:depth], name)).strip()
            if text.isdigit() and 0 < int(text) < _NO_LIMIT_BYTES:
                found.append(int(text))
    return min(found, default=None)


def machine_bytes(root: Path = Path("/")) -> int:
    """All memory of the machine; a little where it does not tell."""
    for line in _read(root / "proc/meminfo").splitlines():
        name, _, rest = line.partition(":")
        if name == "MemTotal":
            return int(rest.split()[0]) * 1024
    return 4 * LEAST_BYTES


def _read(path: Path) -> str:
    try:
        return path.read_text("ascii", "replace")
    except OSError:
        return ""
