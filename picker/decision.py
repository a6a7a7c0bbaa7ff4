"""What the picker decides and what becomes of a request, as values.

    Decision = Picked | Shed | Unavailable
    Finished = how one exchange ended, emitted exactly once by the exchange

A decision carries what its explanation needs; `explain()` computes the words when read,
so that a decision nobody asks about costs nothing.
"""

from collections.abc import Callable
from typing import Any

from picker.outcomes import Explanation, Outcome, Reason, Shed, Unavailable, Usage


class Picked:
    """Send it to `addresses[0]`; the rest is the ordered fallback list."""

    __slots__ = (
        "addresses",
        "cached_share",
        "charge",
        "endpoint_name",
        "explain",
        "matched_share",
        "predicted_ttft_seconds",
        "prompt_tokens",
        "reason",
    )

    addresses: tuple[str, ...]
    reason: Reason
    matched_share: float | None
    charge: Any
    """`pool.inflight.Charge`: released exactly once, by the director."""
    explain: Callable[[], Explanation]
    predicted_ttft_seconds: float | None
    endpoint_name: str | None
    """Of `addresses[0]`."""
    prompt_tokens: float | None
    """As estimated, of all prompts together."""
    cached_share: float | None
    """Of them, those expected in the cache of `addresses[0]`: blocks are full, so less than `matched_share`."""

    def __init__(
        self,
        addresses: tuple[str, ...],
        reason: Reason,
        matched_share: float | None,
        charge: Any,
        explain: Callable[[], Explanation],
        predicted_ttft_seconds: float | None = None,
        endpoint_name: str | None = None,
        prompt_tokens: float | None = None,
        cached_share: float | None = None,
    ) -> None:
        self.addresses = addresses
        self.reason = reason
        self.matched_share = matched_share
        self.charge = charge
        self.explain = explain
        self.predicted_ttft_seconds = predicted_ttft_seconds
        self.endpoint_name = endpoint_name
        self.prompt_tokens = prompt_tokens
        self.cached_share = cached_share


Decision = Picked | Shed | Unavailable


class Finished:
    """The record of one exchange, for telemetry, logs and learning. Never a prompt.

    Times are durations in seconds from the arrival of the request's headers, on the
    picker's monotonic clock; `decision_seconds` is the picker's own work for the decision.
    """

    __slots__ = (
        "address",
        "block_hashes",
        "cached_share",
        "decision_seconds",
        "duration_seconds",
        "endpoint_name",
        "explain",
        "matched_share",
        "model",
        "objective",
        "outcome",
        "path",
        "predicted_ttft_seconds",
        "priority",
        "prompt_tokens_estimate",
        "reason",
        "reject_word",
        "request_bytes",
        "request_id",
        "response_bytes",
        "status",
        "streaming",
        "trace_parent",
        "ttft_seconds",
        "usage",
    )

    outcome: Outcome
    path: str
    """The API's name (`chat_completions`, ...), `other` where unknown: a bounded label."""
    model: str | None
    objective: str | None
    priority: int
    streaming: bool
    status: int | None
    """HTTP status that the client got, theirs or ours."""
    reject_word: str | None
    reason: Reason | None
    address: str | None
    endpoint_name: str | None
    matched_share: float | None
    cached_share: float | None
    prompt_tokens_estimate: int | None
    predicted_ttft_seconds: float | None
    decision_seconds: float | None
    ttft_seconds: float | None
    duration_seconds: float
    request_bytes: int
    response_bytes: int
    usage: Usage | None
    request_id: str | None
    trace_parent: str | None
    """The request's `traceparent` header (W3C Trace Context), as it came."""
    explain: Callable[[], Explanation] | None
    block_hashes: Any
    """`array('Q')`: the prompt's prefix blocks, for a recording; they tell nothing of its words."""

    def __init__(
        self,
        *,
        outcome: Outcome,
        path: str = "",
        model: str | None = None,
        objective: str | None = None,
        priority: int = 0,
        streaming: bool = False,
        status: int | None = None,
        reject_word: str | None = None,
        reason: Reason | None = None,
        address: str | None = None,
        endpoint_name: str | None = None,
        matched_share: float | None = None,
        cached_share: float | None = None,
        prompt_tokens_estimate: int | None = None,
        predicted_ttft_seconds: float | None = None,
        decision_seconds: float | None = None,
        ttft_seconds: float | None = None,
        duration_seconds: float = 0.0,
        request_bytes: int = 0,
        response_bytes: int = 0,
        usage: Usage | None = None,
        request_id: str | None = None,
        trace_parent: str | None = None,
        explain: Callable[[], Explanation] | None = None,
        block_hashes: Any = None,
    ) -> None:
        self.outcome = outcome
        self.path = path
        self.model = model
        self.objective = objective
        self.priority = priority
        self.streaming = streaming
        self.status = status
        self.reject_word = reject_word
        self.reason = reason
        self.address = address
        self.endpoint_name = endpoint_name
        self.matched_share = matched_share
        self.cached_share = cached_share
        self.prompt_tokens_estimate = prompt_tokens_estimate
        self.predicted_ttft_seconds = predicted_ttft_seconds
        self.decision_seconds = decision_seconds
        self.ttft_seconds = ttft_seconds
        self.duration_seconds = duration_seconds
        self.request_bytes = request_bytes
        self.response_bytes = response_bytes
        self.usage = usage
        self.request_id = request_id
        self.trace_parent = trace_parent
        self.explain = explain
        self.block_hashes = block_hashes
