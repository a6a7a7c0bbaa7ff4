"""The lines of a metrics page that a reader of certain names can need: some 2 KB of a vLLM's 50.

An engine's page is read once a second, and most of it (histograms, HELP) is for others. One pass leaves it
out, so that `exposition.find` looks through a short text, and pages that tell the same are known by it.

Invariant: of every name whose stem is among those given, `find` reads the same off the excerpt as off the
page. So lines stay whole, and where others stood between them one short line stands, which ends a group as
they did; comments end none, and go. The one exception: what makes `find` give up (thousands of comments, or
places where a name is found and is none) may be gone from the excerpt.

The compiled build does it in C (`_excerpt.c`). The same in Python, line by line, takes longer than it saves,
so the interpreted build reads pages as they are.
"""

from collections.abc import Callable, Iterable
from typing import Final

from picker.engines.exposition import BLANKS_MAX, stem
from picker.kernels import kernel

Stems = tuple[bytes, ...]
"""Sorted, none the beginning of another."""

_excerpt: Final[Callable[[bytes, Stems], bytes] | None] = getattr(kernel("picker.engines._excerpt"), "excerpt", None)

OTHERS: Final = b"-\n"
"""Stands for lines that are not in the excerpt, and is no series."""
_TYPE: Final = b"# TYPE "
_BLANKS: Final = b" \t"
_ENDS_NO_GROUP: Final = (b"#", b"\n")


def stems_of(names: Iterable[bytes]) -> Stems:
    """What lines of these names, and of others that stand in their groups, begin with."""
    kept: list[bytes] = []
    for each in sorted({stem(name) for name in names}):
        if not (kept and each.startswith(kept[-1])):
            kept.append(each)
    return tuple(kept)


def excerpt(page: bytes, stems: Stems) -> bytes:
    """The lines that begin with one of `stems`, after blanks, and their TYPE lines: see the module."""
    if _excerpt is None or b"\r" in page:  # alone it begins a line too: rare, and read as it is
        return page
    return _excerpt(page, stems)


def by_line(page: bytes, stems: Stems) -> bytes:
    """What the kernel does, of pages without a carriage return. For tests."""
    kept: list[bytes] = []
    others = False
    for line in page.splitlines(keepends=True):
        begins = line.lstrip(b" \t") if line[0] in _BLANKS else line
        if begins.startswith(stems) or (begins.startswith(_TYPE) and begins.startswith(stems, len(_TYPE))):
            if others:
                kept.append(OTHERS)
                others = False
            kept.append(line)
        elif not (kept and begins.startswith(_ENDS_NO_GROUP) and len(line) - len(begins) <= BLANKS_MAX):
            others = True
    return b"".join(kept)
