"""Of the compiled build only: see kernel.c."""

from picker.pool.snapshot import Column
from picker.scheduling.loads import Table

def weigh(
    table: Table, capacity_tokens: Column, numbers: tuple[float, ...], holdings: list[tuple[bytes, float, float]]
) -> Column: ...
def lowest(cost: Column, tie_seconds: float, tie_ratio: float) -> tuple[int, int]: ...
def tied(cost: Column, tie_seconds: float, tie_ratio: float, number: int) -> int: ...
