"""How much memory there is: cgroups of both versions as container runtimes show them, and machines without."""

from pathlib import Path

import pytest

from picker.config import Config, load
from picker.edge.process.memory import container_bytes, machine_bytes, plan

GIB = 2**30
MIB = 2**20


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_version_2_as_a_pod_sees_it(tmp_path: Path) -> None:
    write(tmp_path, "proc/self/cgroup", "0::/\n")
    write(tmp_path, "sys/fs/cgroup/memory.max", "2684354560\n")
    assert container_bytes(tmp_path) == 2560 * MIB


def test_version_2_the_smallest_on_the_way_up(tmp_path: Path) -> None:
    write(tmp_path, "proc/self/cgroup", "0::/kubepods/pod1/abc\n")
    write(tmp_path, "sys/fs/cgroup/kubepods/memory.max", str(8 * GIB))
    write(tmp_path, "sys/fs/cgroup/kubepods/pod1/memory.max", str(GIB))
    write(tmp_path, "sys/fs/cgroup/kubepods/pod1/abc/memory.max", "max\n")
    assert container_bytes(tmp_path) == GIB


def test_version_1_where_the_group_is_mounted_at_the_top(tmp_path: Path) -> None:
    """The path is the host's; the container sees its own group at the top."""
    write(tmp_path, "proc/self/cgroup", "5:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc\n0::/\n")
    write(tmp_path, "sys/fs/cgroup/memory/memory.limit_in_bytes", str(GIB))
    assert container_bytes(tmp_path) == GIB


def test_version_1_without_a_limit(tmp_path: Path) -> None:
    write(tmp_path, "proc/self/cgroup", "4:memory:/\n")
    write(tmp_path, "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
    assert container_bytes(tmp_path) is None


@pytest.mark.parametrize("text", ["", "nonsense\n", "0::\n", "1:name=systemd:/x\n", "\xff\xfe"])
def test_what_cannot_be_read_is_no_limit(tmp_path: Path, text: str) -> None:
    write(tmp_path, "proc/self/cgroup", text)
    write(tmp_path, "sys/fs/cgroup/memory.max", "garbage")
    assert container_bytes(tmp_path) is None


def test_the_machine(tmp_path: Path) -> None:
    write(tmp_path, "proc/meminfo", "MemTotal:       16266068 kB\nMemFree:  1 kB\n")
    assert machine_bytes(tmp_path) == 16266068 * 1024
    assert machine_bytes(tmp_path / "none") == 256 * MIB


def limited(root: Path, limit: int) -> Path:
    write(root, "proc/self/cgroup", "0::/\n")
    write(root, "sys/fs/cgroup/memory.max", str(limit))
    return root


@pytest.mark.parametrize("limit", [256 * MIB, 512 * MIB, GIB, 2560 * MIB, 16 * GIB])
def test_all_that_is_counted_fits_the_container_with_room_for_the_process(tmp_path: Path, limit: int) -> None:
    found = plan(Config(), limited(tmp_path, limit))
    assert found.source == "the container's limit"
    assert found.index_bytes_max + found.held_bytes_max <= limit - 128 * MIB
    assert 32 * MIB <= found.index_bytes_max <= GIB
    assert found.held_bytes_max >= found.index_bytes_max


def test_without_a_limit_the_machine_is_not_all_ours(tmp_path: Path) -> None:
    write(tmp_path, "proc/meminfo", f"MemTotal: {2**28} kB\n")
    found = plan(Config(), tmp_path)
    assert (found.index_bytes_max, found.held_bytes_max) == (GIB, GIB)
    assert found.source == "the machine's memory"


def test_what_is_stated_holds(tmp_path: Path) -> None:
    config = load("limits: {memory_bytes_max: 200000000}\n")
    found = plan(config, limited(tmp_path, 16 * GIB))
    assert (found.index_bytes_max, found.held_bytes_max) == (100_000_000, 100_000_000)
    assert found.fit(config).limits.index_bytes_max == 100_000_000
    small = load("limits: {memory_bytes_max: 200000000, index_bytes_max: 1048576}\n")
    assert plan(small, tmp_path).held_bytes_max == 200_000_000 - 1_048_576
    config = load("transport: {buffered_bytes_max: 100000}\n")
    assert plan(config, limited(tmp_path, GIB)).held_bytes_max == 100_000
