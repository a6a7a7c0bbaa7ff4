"""Seconds that a busy GPU adds to this request's own work: its prefill and its decoding, alone.

    f_r * utilisation * (u_r / R + E * (s + c * p))

A GPU that is busy for a share of the time lets as much of the work wait. Endpoints whose
utilisation is unknown count as the mean of those that are known: neither idle nor busy.
"""

import numpy as np

from picker.pool.snapshot import Column
from picker.scheduling.columns import Columns


def seconds(columns: Columns) -> Column | None:
    """One value a slot; `None` where no endpoint's utilisation is known."""
    reported = columns.gpu_utilization
    if reported is None:
        return None
    unknown = np.isnan(reported)
    if unknown.all():
        return None
    busy = np.where(unknown, reported[~unknown].mean(), reported)
    routing = columns.routing
    step = routing.decode_seconds_per_sequence + routing.decode_seconds_per_token * columns.prompt_tokens
    own: Column = columns.unmatched_tokens / routing.prefill_tokens_per_second
    own += columns.output_tokens * step
    own *= busy
    own *= columns.slowness
    return own
