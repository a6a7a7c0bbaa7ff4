"""Of the compiled build only: see _fused.c."""

from collections.abc import Callable

from picker.pool.snapshot import Column
from picker.scheduling.loads import Table

def weigh(
    table: Table,
    capacity_tokens: Column,
    configured: tuple[float, ...],
    numbers: tuple[float, ...],
    holdings: list[tuple[bytes, float, float]],
    /,
) -> Column: ...
def least(
    cost: Column, tie_seconds: float, tie_ratio: float, slots: bytes | None, random: Callable[[], float], /
) -> int: ...
def value(column: Column, slot: int, /) -> float: ...
def renew(
    table: Table,
    slot: int,
    reported_tokens: Column,
    capacity_tokens: Column,
    slowness: Column,
    requests: float,
    context: float,
    memory: float,
    backlog: float,
    /,
) -> float: ...
def copied(table: Table, /) -> Table: ...
