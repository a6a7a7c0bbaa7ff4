"""`scoring: normalized`: the weighted sum of 0..1 scores over scraped gauges that peers use.

Kept for those who compare (docs/routing.md says why it is not the default). Prefix: matched
share. Queue: (max - waiting) / (max - min) over the endpoints, 1 where all are equal. KV: 1 -
utilisation. Unknown scores half: neither idle nor full. The result is a cost (lower is better),
so that one picker serves both.
"""

import numpy as np

from picker.config import Weights
from picker.pool.snapshot import Column
from picker.scheduling.columns import Columns

_UNKNOWN_SCORE = 0.5


def cost(columns: Columns, weights: Weights) -> tuple[Column, dict[str, Column]]:
    """`(cost, penalties by objective)`; a penalty is 1 - score, times its weight in the cost."""
    penalties = {
        "prefix": 1.0 - columns.matched_share,
        "queue": 1.0 - _less_is_better(columns.waiting_requests),
        "kv": np.nan_to_num(columns.kv_cache_utilization, nan=_UNKNOWN_SCORE),
    }
    total = (
        weights.prefix * penalties["prefix"] + weights.queue * penalties["queue"] + weights.kv * penalties["kv"]
    ) / weights.prefix
    return total, penalties


def _less_is_better(values: Column) -> Column:
    known = values[~np.isnan(values)]
    if not known.size:
        return np.full(values.shape, _UNKNOWN_SCORE)
    low, high = known.min(), known.max()
    if high == low:
        return np.where(np.isnan(values), _UNKNOWN_SCORE, 1.0)
    scores: Column = np.nan_to_num((high - values) / (high - low), nan=_UNKNOWN_SCORE)
    return scores
