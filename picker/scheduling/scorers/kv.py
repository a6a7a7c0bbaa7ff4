"""Seconds of decoding here, and of KV cache that will not fit.

    E * (s * (d_r + 1) + c * (K_r + p)) + g * max(0, K_r + d_r * E / 2 + p - C_r) / R_r

A decode step takes longer with more sequences (s) and more context (c). What exceeds the
capacity C_r will be evicted or preempted, and a share g of it computed again.
"""

import numpy as np

from picker.pool.snapshot import Column
from picker.scheduling.columns import Columns


def seconds(columns: Columns) -> Column:
    """One value a slot."""
    routing = columns.routing
    output, requests = columns.output_tokens, columns.requests
    context: Column = columns.context_tokens + columns.prompt_tokens
    overflow = requests * (output / 2)
    overflow += context
    overflow -= columns.capacity_tokens
    np.maximum(overflow, 0.0, out=overflow)
    overflow *= columns.rate_inverse
    overflow *= routing.overflow_penalty
    context *= output * routing.decode_seconds_per_token
    overflow += context
    sequences = requests + 1.0
    sequences *= output * routing.decode_seconds_per_sequence
    overflow += sequences
    return overflow
