"""Seconds of prefill this request costs here: what is not cached, and whom it delays.

    u_r / R_r * (1 + a * d_r)

A prefill runs in the same steps as the decoding of the d_r requests beside it, so each of them
waits: a is the share of the prefill that one of them loses (docs/routing.md).
"""

from picker.pool.snapshot import Column
from picker.scheduling.columns import Columns


def seconds(columns: Columns) -> Column:
    """One value a slot."""
    disturbance: Column = columns.requests * columns.routing.decode_disturbance
    disturbance += 1.0
    disturbance *= columns.unmatched_tokens
    disturbance *= columns.rate_inverse
    return disturbance
