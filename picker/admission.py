"""May it run now? Priorities of the objectives that requests name, and how full the pool is.

Nothing is held back here: a request whose priority is below 0 is refused while every endpoint is
full (429), every other one goes on. Per endpoint: waiting requests, KV cache or our own backlog over
the mark. Unknown is not full: a NaN compares false. Reported gauges count only while they are fresh.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np

from picker.config import Saturation
from picker.pool.snapshot import Column, Mask, Snapshot

OBJECTIVE_HEADERS: Final = ("x-gateway-inference-objective", "x-llm-d-inference-objective")
"""The request header that names an InferenceObjective, and its alias."""

SHEDDABLE_BELOW: Final = 0


def priority(name: str | None, objectives: Mapping[str, int]) -> int:
    """0 where none is named or the name is not known."""
    return objectives.get(name, 0) if name is not None else 0


def is_sheddable(priority_value: int) -> bool:
    """May be refused under load."""
    return priority_value < SHEDDABLE_BELOW


def saturated_mask(snapshot: Snapshot, backlog_seconds: Column, limits: Saturation) -> Mask:
    """Which slots are full. `backlog_seconds`: prefill sent and not yet done, by slot."""
    full: Mask = snapshot.waiting_requests >= limits.waiting_requests
    full |= snapshot.kv_cache_utilization >= limits.kv_cache_utilization
    full |= backlog_seconds >= limits.backlog_seconds
    return full


def all_saturated(snapshot: Snapshot, candidates: Mask, backlog_seconds: Column, limits: Saturation) -> bool:
    """True when every endpoint of `candidates` is full (and there is one)."""
    full = saturated_mask(snapshot, backlog_seconds, limits)
    return bool(candidates.any() and np.all(full[candidates]))


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
