"""Seconds of decoding here: a step takes longer the more sequences and context share it.

    f_r * E * step_r,   step_r = s * (d_r + 1) + c * (K_r + p)

beyond what a step costs everywhere (reading the weights), which changes no choice.
"""

from picker.pool.snapshot import Column
from picker.scheduling.columns import Columns


def seconds(columns: Columns) -> Column:
    """One value a slot."""
    decoding: Column = columns.step_seconds * columns.output_tokens
    decoding *= columns.slowness
    return decoding
