"""Of the compiled build only: see kernel.c."""

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
def lowest(cost: Column, tie_seconds: float, tie_ratio: float, slots: bytes | None, /) -> tuple[int, int]: ...
def tied(cost: Column, tie_seconds: float, tie_ratio: float, slots: bytes | None, number: int, /) -> int: ...
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
