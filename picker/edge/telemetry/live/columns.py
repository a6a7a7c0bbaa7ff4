"""The endpoints as they stand now: a list a quantity, in the order of the pool's list. `None`: unknown."""

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import Any, Final

from picker.director import Director
from picker.edge.telemetry.live.history import History
from picker.pool.endpoint import Endpoint

STEP_ENDPOINTS: Final = 100

COLUMNS: Final = (
    "in_flight",  # requests that we sent there and that are not over
    "others",  # those of other pickers, as they told
    "running",  # requests, as the engine reports
    "waiting",  # the same
    "backlog_seconds",  # prefill that is to be done before a new request's
    "kv",  # KV cache in use, 0..1
    "hit_expected",  # share of prompt tokens expected in the cache, lately
    "hit_observed",  # the same, found there
    "slowness",  # how many times as long as in the rest of the pool everything takes
    "ejected",  # 1: passed over after failures
    "closed",  # 1: its port refuses connections
    "age_seconds",  # of the reading of its engine's metrics
)


async def endpoint_columns(
    director: Director, history: History, endpoints: Sequence[Endpoint], clock: Callable[[], float]
) -> dict[str, list[Any]]:
    """In steps. An endpoint that left meanwhile is unknown in every column."""
    rows: list[tuple[Any, ...]] = []
    for start in range(0, len(endpoints), STEP_ENDPOINTS):
        if start:
            await asyncio.sleep(0)
        rows += _rows(director, history, endpoints[start : start + STEP_ENDPOINTS], clock())
    return dict(zip(COLUMNS, map(list, zip(*rows, strict=True)), strict=True)) if rows else {n: [] for n in COLUMNS}


def _rows(director: Director, history: History, endpoints: Sequence[Endpoint], now: float) -> list[tuple[Any, ...]]:
    datastore, rates = director.datastore, director.rates
    snapshot = datastore.snapshot(now)
    samples, foreign = datastore.samples, snapshot.foreign_requests
    ejected, closed = set(director.ejection.ejected(now)), datastore.closed_slots
    rows: list[tuple[Any, ...]] = []
    for endpoint in endpoints:
        slot = endpoint.slot
        if not 0 <= slot < snapshot.width:
            rows.append((None,) * len(COLUMNS))
            continue
        sample = samples.get(endpoint.spec.uid)
        tokens = endpoint.prefill_tokens + endpoint.others.prefill_tokens
        if foreign is not None and math.isfinite(waiting := foreign.item(slot)):
            tokens += waiting * rates.mean_uncached_tokens
        expected, observed = history.hits_of(endpoint.spec.uid)
        kv = sample.kv_cache_utilization if sample is not None else None
        rows.append(
            (
                endpoint.in_flight_requests,
                endpoint.others.requests,
                sample.running_requests if sample is not None else None,
                sample.waiting_requests if sample is not None else None,
                round(tokens * rates.rate_inverse.item(slot), 3),
                None if kv is None else round(kv, 3),
                None if expected is None else round(expected, 3),
                None if observed is None else round(observed, 3),
                round(rates.slowness.item(slot), 2),
                int(slot in ejected),
                int(slot in closed),
                round(now - sample.taken_at_seconds, 1) if sample is not None else None,
            )
        )
    return rows
