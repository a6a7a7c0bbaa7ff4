"""Seconds until this request's prefill begins: what was sent there before it.

    (Q_r + foreign_r * mean uncached tokens) / R_r

Q_r is our own books and current to the request; foreign_r is what the engine reports waiting
beyond them, from clients that do not pass here.
"""

from picker.pool.snapshot import Column
from picker.scheduling.columns import Columns


def seconds(columns: Columns) -> Column:
    """One value a slot."""
    backlog: Column = columns.foreign_requests * columns.mean_uncached_tokens
    backlog += columns.backlog_tokens
    backlog *= columns.rate_inverse
    return backlog
