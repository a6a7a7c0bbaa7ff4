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
    """The load as a share of the knee. `None`: the rate was given."""
    hit_rate: float
    """Cached prompt tokens over prompt tokens."""
    ceiling_hit_rate: float
    """The hit rate of one pooled LRU cache as large as all replicas' together."""
    ttft: Percentiles | None
    """`None`: nothing was answered."""
    long_ttft: Percentiles | None
    """TTFT of prompts of `LONG_PROMPT_TOKENS` and more. Where they are few, the other percentiles hide them."""
    e2e: Percentiles | None
    token_seconds: float
    """Mean time per output token after the first."""
    request_spread: Spread | None
    token_spread: Spread | None
    """The spread of the work over replicas: uncached prompt tokens and output tokens."""
    output_tokens_per_second: float
    preemptions: int
    autoscale: str | None
    """The signal and its target, `wanted@0.8`; `None`: nothing scaled."""
    replica_seconds: float
    """What the replicas cost, from the wish for each until it was gone."""
    duration_seconds: float
    wall_seconds: float
    """What the simulation took, in real time: the only value that differs from run to run."""

    @property
    def label(self) -> str:
        """The policy, and what scaled."""
        return self.policy if self.autoscale is None else f"{self.policy} {self.autoscale}"


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
        replica_seconds=records.replica_seconds,
        duration_seconds=records.ended_at,
        **facts,
    )
