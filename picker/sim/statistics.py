"""What a run measured, and its figures: percentiles, hit rate, spread over replicas. Plain values that become JSON.

Unknown is `None`: a percentile of nothing, a hit rate where no answer reported cached tokens.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np


class Sample(msgspec.Struct, kw_only=True):
    """One request as its client saw it. Times in seconds; `due_seconds` counts from the run's start."""

    session: int
    turn: int
    due_seconds: float
    """When its workload wanted it sent."""
    late_seconds: float = 0.0
    """How much later it was sent: the client's own delay, not the server's."""
    ttft_seconds: float | None = None
    """To the first token in a body. Only a streamed answer has one that a client can see."""
    e2e_seconds: float | None = None
    status: int | None = None
    """`None`: no answer."""
    error: str | None = None
    """What went wrong, in a few words; `None` when everything the request asked for came."""
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    endpoint: str | None = None


class Percentiles(msgspec.Struct, frozen=True, kw_only=True):
    """Percentiles of a time in seconds, interpolated between the two nearest values, as numpy's default does."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """How evenly something lies over the replicas: 0 and 1 when it is even."""

    variation: float
    """Standard deviation over mean (population)."""
    max_over_mean: float


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one run."""

    requests: int
    errors: int
    duration_seconds: float
    hit_rate: float | None
    """Cached tokens over prompt tokens, all requests together."""
    ttft: Percentiles | None
    e2e: Percentiles | None
    spread_requests: Spread | None
    spread_tokens: Spread | None
    """The spread of prompt and output tokens over replicas."""
    late_p99_seconds: float | None
    requests_by_endpoint: dict[str, int]


def percentiles(values: Iterable[float]) -> Percentiles | None:
    """`None` for no values."""
    column = np.fromiter(values, dtype=float)
    if not column.size:
        return None
    p50, p90, p95, p99 = (float(value) for value in np.percentile(column, (50, 90, 95, 99)))
    return Percentiles(mean=float(column.mean()), p50=p50, p90=p90, p95=p95, p99=p99)


def spread(amounts: Sequence[float]) -> Spread | None:
    """Over all replicas, idle ones included. `None` when there is nothing to spread."""
    column = np.asarray(amounts, dtype=float)
    if not column.size or not column.any():
        return None
    mean = column.mean()
    return Spread(variation=float(column.std() / mean), max_over_mean=float(column.max() / mean))


def hit_rate(samples: Iterable[Sample]) -> float | None:
    """Weighted by tokens, over the requests that reported both counts."""
    prompt = cached = 0
    for sample in samples:
        if sample.prompt_tokens is not None and sample.cached_tokens is not None:
            prompt += sample.prompt_tokens
            cached += sample.cached_tokens
    return cached / prompt if prompt else None


def summarize(samples: Sequence[Sample], endpoints: Sequence[str], duration_seconds: float) -> Summary:
    """The figures of a run over `endpoints`. Failed requests count as errors and in nothing else."""
    good = [sample for sample in samples if sample.error is None]
    requests: Counter[str] = Counter(dict.fromkeys(endpoints, 0))
    tokens: Counter[str] = Counter(dict.fromkeys(endpoints, 0))
    for sample in good:
        if sample.endpoint is not None:
            requests[sample.endpoint] += 1
            tokens[sample.endpoint] += (sample.prompt_tokens or 0) + (sample.output_tokens or 0)
    late = percentiles(sample.late_seconds for sample in samples)
    return Summary(
        requests=len(samples),
        errors=len(samples) - len(good),
        duration_seconds=duration_seconds,
        hit_rate=hit_rate(good),
        ttft=percentiles(sample.ttft_seconds for sample in good if sample.ttft_seconds is not None),
        e2e=percentiles(sample.e2e_seconds for sample in good if sample.e2e_seconds is not None),
        spread_requests=spread(list(requests.values())),
        spread_tokens=spread(list(tokens.values())),
        late_p99_seconds=None if late is None else late.p99,
        requests_by_endpoint=dict(requests),
    )
