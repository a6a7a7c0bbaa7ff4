"""Is the pool full? Per endpoint: waiting requests, KV cache or our own backlog over the mark.

Unknown is not full: a NaN compares false. The reported gauges count only while fresh.
"""

import numpy as np

from picker.config import Saturation
from picker.pool.snapshot import Column, Mask, Snapshot


def saturated_mask(snapshot: Snapshot, backlog_seconds: Column, limits: Saturation) -> Mask:
    """Which slots are full. `backlog_seconds`: prefill sent and not yet done, by slot."""
    full: Mask = snapshot.waiting_requests >= limits.waiting_requests
    full |= snapshot.kv_cache_utilization >= limits.kv_cache_utilization
    full |= backlog_seconds >= limits.backlog_seconds
    return full


def all_saturated(snapshot: Snapshot, among: Mask, backlog_seconds: Column, limits: Saturation) -> bool:
    """True when every endpoint of `among` is full (and there is one)."""
    full = saturated_mask(snapshot, backlog_seconds, limits)
    return bool(among.any() and np.all(full[among]))


def pool_saturation(snapshot: Snapshot, backlog_seconds: Column, limits: Saturation) -> float | None:
    """How full the pool is: the mean over endpoints of their fullest measure, 1.0 is full. `None`: no endpoint."""
    if not snapshot.ready_count:
        return None
    fullest: Column = backlog_seconds / max(limits.backlog_seconds, 1e-9)
    fullest = np.fmax(
        fullest, snapshot.waiting_requests / max(limits.waiting_requests, 1e-9)
    )  # fmax passes unknown over
    fullest = np.fmax(fullest, snapshot.kv_cache_utilization / max(limits.kv_cache_utilization, 1e-9))
    return float(fullest[snapshot.ready_mask].mean())
