"""What the picker decides and what becomes of a request, as values.

    Decision = Picked | Shed | Unavailable
    Finished = how one exchange ended, emitted exactly once by the exchange

A decision carries what its explanation needs; `explain()` computes the words when read,
so that a decision nobody asks about costs nothing.
"""

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any

import msgspec


class Reason(StrEnum):
    """Why an endpoint was picked: the label of `picker_decisions_total`."""

    AFFINITY = "affinity"
    """The cheapest of those that hold the prefix."""
    BREAK = "break"
    """Some hold the prefix, but another is cheaper by more than the work saved."""
    LOAD = "load"
    """Nobody holds enough of the prefix: the cheapest of all."""
    EXPLORE = "explore"
    """The epsilon draw: a hot prefix gets a second home."""
    HEADERS = "headers"
    """Decided without a prompt: no body to read, an unknown path, or too late to parse."""
    STICKY = "sticky"
    """The server that holds the session or the previous response."""


class Outcome(StrEnum):
    """How an exchange ended: the label of `picker_requests_total`."""

    COMPLETED = "completed"
    """The response ended, whatever its status."""
    ABORTED = "aborted"
    """The client or the proxy went away before the response ended."""
    REJECTED = "rejected"
    """Our own answer to a bad request (400, 413)."""
    SHED = "shed"
    """429: sheddable while the pool was saturated."""
    UNAVAILABLE = "unavailable"
    """503: no endpoint could take it."""
    FAILED = "failed"
    """A fault of ours."""
    UNSEEN = "unseen"
    """A local reply of the proxy: no request was shown to us."""


class EndpointView(msgspec.Struct, frozen=True):
    """One endpoint in an explanation. Seconds are engine time as estimated at the decision."""

    address: str
    name: str
    matched_share: float
    seconds: Mapping[str, float]
    cost_seconds: float
    picked: bool
    why: str


class Explanation(msgspec.Struct, frozen=True):
    """Why this endpoint? Holders, the pick and the three cheapest others."""

    reason: str
    summary: str
    prompt_tokens: int
    prompt_blocks: int
    endpoints: tuple[EndpointView, ...]


class Picked(msgspec.Struct, frozen=True):
    """Send it to `addresses[0]`; the rest is the ordered fallback list."""

    addresses: tuple[str, ...]
    reason: Reason
    matched_share: float | None
    charge: Any
    """`pool.inflight.Charge`: released exactly once, by the director."""
    explain: Callable[[], Explanation]
    predicted_ttft_seconds: float | None = None
    endpoint_name: str | None = None
    """Of `addresses[0]`."""
    prompt_tokens: float | None = None
    """As estimated, of all prompts together."""
    cached_share: float | None = None
    """Of them, those expected in the cache of `addresses[0]`: blocks are full, so less than `matched_share`."""


class Shed(msgspec.Struct, frozen=True):
    """429: may be refused under load, and the load is there."""

    retry_after_seconds: int
    message: str
    reason_word: str = "saturated"


class Unavailable(msgspec.Struct, frozen=True):
    """503: nobody to send it to."""

    message: str
    reason_word: str
    retry_after_seconds: int = 1


Decision = Picked | Shed | Unavailable


class Usage(msgspec.Struct, frozen=True):
    """Token counts that a response reported. `None` where it did not say."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None


class Finished(msgspec.Struct, kw_only=True):
    """The record of one exchange, for telemetry, logs and learning. Never a prompt.

    Times are durations in seconds from the arrival of the request's headers, on the
    picker's monotonic clock; `decision_seconds` is the picker's own work for the decision.
    """

    outcome: Outcome
    path: str = ""
    """The API's name (`chat_completions`, ...), `other` where unknown: a bounded label."""
    model: str | None = None
    objective: str | None = None
    priority: int = 0
    streaming: bool = False
    status: int | None = None
    """HTTP status that the client got, theirs or ours."""
    reject_word: str | None = None
    reason: Reason | None = None
    address: str | None = None
    endpoint_name: str | None = None
    matched_share: float | None = None
    cached_share: float | None = None
    prompt_tokens_estimate: int | None = None
    predicted_ttft_seconds: float | None = None
    decision_seconds: float | None = None
    ttft_seconds: float | None = None
    duration_seconds: float = 0.0
    request_bytes: int = 0
    response_bytes: int = 0
    usage: Usage | None = None
    request_id: str | None = None
    trace_parent: str | None = None
    """The request's `traceparent` header (W3C Trace Context), as it came."""
    explain: Callable[[], Explanation] | None = None
    block_hashes: Any = None
    """`array('Q')`: the prompt's prefix blocks, for a recording; they tell nothing of its words."""
