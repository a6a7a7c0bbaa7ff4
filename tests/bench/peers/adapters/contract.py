"""What an adapter is: something that puts a router in front of model servers and says what to charge for it."""

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager

import msgspec


class StartError(RuntimeError):
    """A contestant did not start; one line says why."""


class Running(msgspec.Struct, frozen=True, kw_only=True):
    """A router that answers at `url`. `processes`: what its CPU is charged to, by name; `None`: not known."""

    url: str
    processes: dict[str, int | None]


Start = Callable[[Sequence[str]], AbstractAsyncContextManager[Running]]
"""Given the model servers' `host:port`, a running router until the context ends. Raises `StartError`."""


class Contestant(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the tables."""

    name: str
    """What `--only` takes, and the tables show."""
    flags: str
    """How it was started, as far as that is a choice."""
    start: Start
    version: str | None = None
    environment: str | None = None
    """The environment that must be there first."""
    ours: bool = False
