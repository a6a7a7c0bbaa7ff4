"""Seconds of prefill that a request's new blocks will push out of a cache, to be computed again.

    fill_r * (p - held_r) / R   fill: how full the endpoint's share of the index is, 0..1

Sessions that share a system prompt otherwise all follow it to the one endpoint that holds it, whose cache thrashes
beside an empty one. Only while some endpoints have room: where all are full, what is new evicts everywhere. Not
all that is evicted would have been used again, so the weight is half of a prefix's.
"""

import numpy as np

from picker.pool.snapshot import Column
from picker.scheduling.columns import Columns, put


def seconds(columns: Columns) -> Column | None:
    """One value a slot; `None` where all are alike."""
    if columns.fill is None:
        return None
    column: Column = np.full(columns.width, columns.prompt_tokens)
    for each in columns.holdings:
        put(column, each.bits, columns.prompt_tokens - each.held_tokens)
    column *= columns.fill
    column /= columns.routing.prefill_tokens_per_second
    return column
