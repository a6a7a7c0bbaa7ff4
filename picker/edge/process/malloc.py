"""glibc's allocator: freed memory is kept for the next large buffer.

By default glibc returns every freed block of 128 KiB or more to the kernel and asks for it again
on the next read: with 400 KB bodies the picker then spends most of its time on page faults. These
settings keep such blocks. The price is address space and, until `Trimmer` has given it back a second
or two after a burst, resident memory.

Does nothing where the C library is not glibc (musl, macOS, Windows), or where the operator has
already chosen with the environment variables that glibc reads (MALLOC_TOP_PAD_ and its kin).
"""

import ctypes
import os
import sys
from collections.abc import Callable
from typing import Final, cast

MMAP_THRESHOLD_BYTES: Final = 32 * 1024 * 1024
"""Blocks up to this size come from the heap; glibc's own upper bound on 64 bits (mallopt(3))."""

TRIM_THRESHOLD_BYTES: Final = 256 * 1024 * 1024
"""Freed memory at the top of the heap that is kept rather than returned."""

TOP_PAD_BYTES: Final = 16 * 1024 * 1024
"""The heap grows by at least this much at a time."""

TRIM_BYTES: Final = 32 * 1024 * 1024
"""A burst: so much less is held than before."""

# malloc.h
_M_TRIM_THRESHOLD: Final = -1
_M_TOP_PAD: Final = -2
_M_MMAP_THRESHOLD: Final = -3

_ENVIRONMENT = ("MALLOC_TOP_PAD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


class Trimmer:
    """Gives what a burst has left back to the kernel, also from between what is in use. `tick` it once a second."""

    def __init__(self, held: Callable[[], int], trim: "Callable[[int], int] | None" = None) -> None:
        """`held()`: the bytes that are accounted for now."""
        self._held = held
        self._trim = trim or _find_trim()
        self._before = 0
        self._most = 0

    def tick(self) -> None:
        """Trim when much less is held than a while ago, and no more is let go."""
        held = self._held()
        self._most = max(self._most, held)
        if self._most - held > TRIM_BYTES and held >= self._before:
            self._most = held
            if self._trim is not None:
                self._trim(TOP_PAD_BYTES)
        self._before = held


def _find_trim() -> Callable[[int], int] | None:
    if not sys.platform.startswith("linux"):
        return None
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version") or not hasattr(library, "malloc_trim"):
        return None
    trim = library.malloc_trim
    trim.argtypes = (ctypes.c_size_t,)
    return cast(Callable[[int], int], trim)


def tune_malloc() -> str:
    """Apply the settings to this process, before it allocates much. Returns what was done, for the start-up log."""
    if not sys.platform.startswith("linux"):
        return "malloc: left alone, not glibc"
    chosen = [name for name in _ENVIRONMENT if name in os.environ]
    if chosen:
        return f"malloc: left alone, the environment sets {', '.join(chosen)}"
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version") or not hasattr(library, "mallopt"):
        return "malloc: left alone, not glibc"
    mallopt = library.mallopt
    mallopt.argtypes = (ctypes.c_int, ctypes.c_int)
    mallopt.restype = ctypes.c_int
    settings = (
        (_M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES, "mmap_threshold"),
        (_M_TRIM_THRESHOLD, TRIM_THRESHOLD_BYTES, "trim_threshold"),
        (_M_TOP_PAD, TOP_PAD_BYTES, "top_pad"),
    )
    done = [f"{name} {value >> 20} MiB" for option, value, name in settings if mallopt(option, value) == 1]
    return f"malloc: {', '.join(done)}" if done else "malloc: left alone, glibc refused"
