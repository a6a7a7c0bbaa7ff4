"""Seconds until this request's prefill begins: what was sent there before it, and room for it.

    (Q_r + foreign_r * mean uncached tokens) / R_r
    + g * max(0, M_r + d_r * E / 2 + n_r - C_r) * E * (t0 + step_r) / C_r

Q_r is our own books and current to the request; foreign_r is what the engine reports waiting
beyond them, from clients that do not pass here. What does not fit into the capacity C_r waits
until answers of E tokens have ended: a cache of C_r tokens turns over once in E decode steps.
A prefix that requests there hold together is in M_r once, and n_r is what this one adds to it.
"""

import numpy as np

from picker.pool.snapshot import Column
from picker.scheduling.columns import Columns


def seconds(columns: Columns) -> Column:
    """One value a slot."""
    output = columns.mean_output_tokens
    backlog: Column
    if columns.foreign_requests is None:
        backlog = columns.backlog_tokens * columns.rate_inverse
    else:
        backlog = columns.foreign_requests * columns.mean_uncached_tokens
        backlog += columns.backlog_tokens
        backlog *= columns.rate_inverse
    overflow: Column = columns.requests * (output / 2)
    overflow += columns.memory_tokens
    overflow += columns.new_tokens
    overflow -= columns.capacity_tokens
    if overflow.item(overflow.argmax()) > 0.0:  # else nobody is full, which is the rule
        routing = columns.routing
        np.maximum(overflow, 0.0, out=overflow)
        overflow /= columns.capacity_tokens
        overflow *= output * routing.overflow_wait
        overflow *= columns.step_seconds + routing.decode_step_seconds
        backlog += overflow
    return backlog
