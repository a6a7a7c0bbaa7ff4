"""A run in numbers: what the table, the JSON and the report show."""

from typing import Any, Final

import msgspec

from picker.sim.records import Records
from picker.sim.statistics import Percentiles, Spread, percentiles, spread

LONG_PROMPT_TOKENS: Final = 16_384
"""Prompts from here on are told apart: two steps of an engine that computes 8,192 tokens a step."""


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
    """What the run was given: requests a second, or a file's speed."""
    rate_unit: str
    """`/s` or `x`."""
    share: float | None
    """Of the knee; `None` where the rate was given."""
    hit_rate: float
    """Cached prompt tokens over prompt tokens."""
    ceiling_hit_rate: float
    """Of one pooled LRU cache as large as all replicas' together."""
    ttft: Percentiles | None
    """`None`: nothing was answered."""
    long_ttft: Percentiles | None
    """Of prompts of `LONG_PROMPT_TOKENS` and more, which the other percentiles hide where they are few."""
    e2e: Percentiles | None
    token_seconds: float
    """Mean time per output token after the first."""
    request_spread: Spread | None
    token_spread: Spread | None
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
        ttft=percentiles(ttft),
        long_ttft=percentiles(ttft[prompt >= LONG_PROMPT_TOKENS]),
        e2e=percentiles(e2e),
        token_seconds=float((e2e - ttft).sum()) / later if later else 0.0,
        request_spread=spread(records.by_replica().tolist()),
        token_spread=spread(records.by_replica(prompt - cached + output).tolist()),
        output_tokens_per_second=float(output.sum()) / records.ended_at if records.ended_at else 0.0,
        preemptions=records.preemptions,
        duration_seconds=records.ended_at,
        **facts,
    )
