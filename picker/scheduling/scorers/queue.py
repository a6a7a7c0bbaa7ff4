"""Seconds until this request's prefill begins: what was sent there before it, and room for it.

    f_r * ( (Q_r + foreign_r * mean uncached tokens) / R
            + g * (max(0, M_r + d_r * E / 2 + n_r - C_r) / C_r + [M_r + n_r > C_r] / (d_r + 1)) * E * (t0 + step_r) )

Q_r is our own books and current to the request; foreign_r is what the engine reports waiting
beyond them, from clients that do not pass here. What does not fit into the capacity C_r waits
until answers of E tokens have ended: a cache of C_r tokens turns over once in E decode steps. And where it does not
fit now, somebody has to end first, however little is missing: that takes as long as a share of one takes to turn over.
A prefix that requests there hold together is in M_r once, and n_r is what this one adds to it.
"""

import numpy as np

from picker.pool.snapshot import Column
from picker.scheduling.columns import Columns


def seconds(columns: Columns) -> Column:
    """One value a slot."""
    wait: Column = columns.backlog_tokens / columns.routing.prefill_tokens_per_second
    overflow = overflow_seconds(columns)
    if overflow is not None:
        wait += overflow
    wait *= columns.slowness
    return wait


def overflow_seconds(columns: Columns) -> Column | None:
    """The wait for room alone, before the endpoint's slowness; `None` where everybody has room."""
    routing, output = columns.routing, columns.mean_output_tokens
    over_now: Column = columns.over_tokens + columns.new_tokens
    wait: Column = columns.requests * (output / 2)
    wait += over_now
    if wait.max() <= 0.0:
        return None
    np.maximum(wait, 0.0, out=wait)
    wait += np.where(over_now > 0.0, columns.capacity_tokens / (columns.requests + 1.0), 0.0)
    wait *= output * routing.overflow_wait
    wait *= columns.step_seconds + routing.decode_step_seconds
    wait /= columns.capacity_tokens
    return wait
