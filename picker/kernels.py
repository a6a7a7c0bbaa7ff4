"""Loops in C, each beside the Python that it stands for: `blocks.py` and `_blocks.c`, and so on; and which build runs.

A kernel that was not built is absent, and its twin does the work. One that is there and does not
load is a broken installation: that is an error, never a reason to be slow in silence.
"""

import importlib
import importlib.util
from importlib.machinery import EXTENSION_SUFFIXES
from types import ModuleType
from typing import Final, NamedTuple

KERNELS: Final = (
    "picker.api._document",
    "picker.edge.grpc.h2._bulk",
    "picker.engines._excerpt",
    "picker.extproc._headers",
    "picker.prefix._blocks",
    "picker.scheduling._fused",
)
COMPILED_MODULE: Final = "picker.director"
"""mypyc compiles all of the hot path (hatch_build.py) or none of it: this module tells."""


class BrokenKernel(ImportError):
    """A kernel that is there and does not load; the text says what to do."""


def kernel(name: str) -> ModuleType | None:
    """The kernel of this name, one of `KERNELS`; `None`: it was not built. Raises `BrokenKernel`."""
    assert name in KERNELS, name
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        return None
    except ImportError as error:
        raise BrokenKernel(f"{name} is there but does not load ({error}): install the picker again") from error


class Build(NamedTuple):
    """Which build runs."""

    compiled: bool
    kernels: tuple[str, ...]
    """By the names of their twins."""

    @property
    def kind(self) -> str:
        """In one word."""
        return "compiled" if self.compiled else "interpreted"


def build() -> Build:
    """Which build runs. Raises `BrokenKernel`."""
    spec = importlib.util.find_spec(COMPILED_MODULE)
    assert spec is not None and spec.origin is not None
    loaded = tuple(name.rpartition("._")[2] for name in KERNELS if kernel(name) is not None)
    return Build(spec.origin.endswith(tuple(EXTENSION_SUFFIXES)), loaded)
