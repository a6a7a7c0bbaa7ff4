"""A run in numbers: what the table, the JSON and the report show."""

from typing import Any

import msgspec
import numpy as np

from picker.sim.records import Records, Values


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """A distribution of durations, in seconds."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float

    @classmethod
    def of(cls, values: Values) -> "Times":
        """NaN where there are none."""
        if not values.size:
            return cls(mean=np.nan, p50=np.nan, p90=np.nan, p95=np.nan, p99=np.nan)
        p50, p90, p95, p99 = np.percentile(values, (50, 90, 95, 99)).tolist()
        return cls(mean=float(values.mean()), p50=p50, p90=p90, p95=p95, p99=p99)


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """How evenly a quantity lies over the replicas: 0 and 1 are even."""

    variation: float
    """Standard deviation over mean."""
    peak: float
    """Largest over mean."""

    @classmethod
    def of(cls, values: Values) -> "Spread":
        """Of one value a replica."""
        mean = float(values.mean()) if values.size else 0.0
        if mean <= 0.0:
            return cls(variation=0.0, peak=1.0)
        return cls(variation=float(values.std()) / mean, peak=float(values.max()) / mean)


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """One run. Shares are 0..1, times in seconds, rates a second of simulated time."""

    policy: str
    workload: str
    seed: int
    replicas: int
    profile: str
    requests: int
    """Measured ones: those after the warm-up."""
    failed: int
    rate: float
    """Requests a second (of a trace: its speed) that the run was given."""
    share: float | None
    """Of the knee; `None` where the rate was given."""
    hit_rate: float
    """Cached prompt tokens over prompt tokens."""
    ceiling_hit_rate: float
    """Of one pooled LRU cache as large as all replicas' together."""
    ttft: Times
    e2e: Times
    token_seconds: float
    """Mean time per output token after the first."""
    request_spread: Spread
    token_spread: Spread
    """Of uncached prompt tokens and output tokens: the work."""
    output_tokens_per_second: float
    preemptions: int
    duration_seconds: float
    wall_seconds: float
    """What the simulation took, in real time: the only value that differs from run to run."""


def summarise(records: Records, **facts: Any) -> Result:
    """Numbers of a run; `facts` are the fields that say which run it was."""
    ttft, e2e = records.column("ttft_seconds"), records.column("e2e_seconds")
    prompt, cached = records.column("prompt_tokens"), records.column("cached_tokens")
    output = records.column("output_tokens")
    prompts = float(prompt.sum())
    later = float((output - 1).sum())
    return Result(
        requests=len(ttft) + records.failed,
        failed=records.failed,
        hit_rate=float(cached.sum()) / prompts if prompts else 0.0,
        ceiling_hit_rate=records.ceiling_hit_rate,
        ttft=Times.of(ttft),
        e2e=Times.of(e2e),
        token_seconds=float((e2e - ttft).sum()) / later if later else 0.0,
        request_spread=Spread.of(records.by_replica()),
        token_spread=Spread.of(records.by_replica(prompt - cached + output)),
        output_tokens_per_second=float(output.sum()) / records.ended_at if records.ended_at else 0.0,
        preemptions=records.preemptions,
        duration_seconds=records.ended_at,
        **facts,
    )
