"""The allocator's settings: applied on glibc, left alone elsewhere and where the operator has chosen."""

import ctypes
import os
import subprocess
import sys

import pytest

from picker.edge.process import malloc

ON_GLIBC = sys.platform.startswith("linux") and "CS_GNU_LIBC_VERSION" in os.confstr_names


def test_other_systems_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert malloc.tune_malloc() == "malloc: left alone, not glibc"


def test_a_c_library_without_mallopt_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(ctypes, "CDLL", lambda _: object())
    for name in malloc._ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)
    assert malloc.tune_malloc() == "malloc: left alone, not glibc"


def test_the_operators_choice_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("MALLOC_TOP_PAD_", "1048576")
    assert malloc.tune_malloc() == "malloc: left alone, the environment sets MALLOC_TOP_PAD_"


PROBE = """
import resource, sys
if sys.argv[1] == "tuned":
    from picker.edge.process.malloc import tune_malloc
    print(tune_malloc(), file=sys.stderr)
def faults(): return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
read = bytes(65_536)
def body(): return b"".join([read[at : at + 16_384] for _ in range(6) for at in range(0, 65_536, 16_384)])
for _ in range(20): body()
before = faults()
for _ in range(200): body()
print(faults() - before)
"""


@pytest.mark.skipif(not ON_GLIBC, reason="not glibc")
def test_large_buffers_no_longer_fault_their_pages_in_each_time() -> None:
    """The point of it, counted by the kernel: page faults of 200 bodies of 400 KB in frames of 16 KB."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("MALLOC_", "GLIBC_"))}

    def run(mode: str) -> tuple[int, str]:
        found = subprocess.run(
            [sys.executable, "-c", PROBE, mode], capture_output=True, text=True, check=True, env=environment, timeout=60
        )
        return int(found.stdout), found.stderr

    plain, _ = run("plain")
    tuned, said = run("tuned")
    assert said.strip() == "malloc: mmap_threshold 32 MiB, trim_threshold 256 MiB, top_pad 16 MiB"
    assert tuned < 1_000
    assert tuned < plain / 10


def test_a_burst_is_given_back_once_it_is_over() -> None:
    held = 0
    trimmed: list[int] = []

    def trim(pad: int) -> int:
        trimmed.append(held)
        return 1

    trimmer = malloc.Trimmer(lambda: held, trim)

    def see(*moments: int) -> list[int]:
        nonlocal held
        for held in moments:  # noqa: B007 - `lambda` reads it
            trimmer.tick()
        return trimmed

    assert see(0, 500_000_000, 900_000_000, 400_000_000, 1_000) == []
    assert see(1_000, 1_000) == [1_000]
    see(20_000_000, 1_000, 1_000, 20_000_000, 1_000, 1_000)
    assert trimmed == [1_000], "small bodies that come and go are no burst"
