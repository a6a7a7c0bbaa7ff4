"""Seconds of prefill that this request costs here: what is not cached, and the delay of others by it.

    f_r * x_r * (1 + a * d_r * min(1, x_r / T)),   x_r = u_r / R

A prefill runs in the same steps as the decoding of the d_r requests beside it, and those who come
next wait behind it. One that is over in a step or two disturbs nobody; one that takes T or longer
costs each of them the share a of it (docs/routing.md).
"""

import numpy as np

from picker.pool.snapshot import Column
from picker.scheduling.columns import Columns


def seconds(columns: Columns) -> Column:
    """One value a slot."""
    routing = columns.routing
    prefill: Column = columns.unmatched_tokens / routing.prefill_tokens_per_second
    disturbance: Column = prefill * (routing.decode_disturbance / routing.disturbance_seconds)
    np.minimum(disturbance, routing.decode_disturbance, out=disturbance)
    disturbance *= columns.requests
    disturbance += 1.0
    disturbance *= prefill
    disturbance *= columns.slowness
    return disturbance
