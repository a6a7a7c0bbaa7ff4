"""What the picker decides and what becomes of a request, as values.

    Decision = Picked | Shed | Unavailable
    Booking  = a pick's entries in the books, until its request is over
    Finished = how one exchange ended, emitted exactly once by the exchange

A decision carries what its explanation needs; `explain()` computes the words when read,
so that a decision that is never asked about costs nothing.
"""

from array import array
from collections.abc import Callable

from picker.outcomes import Explanation, Metered, Outcome, Reason, Shed, Unavailable, Usage
from picker.pool.endpoint import Endpoint
from picker.pool.inflight import Charge
from picker.prefix.matches import Recorded
from picker.scheduling.sizing import Expected
from picker.scheduling.stickiness import Stuck


class Booking:
    """A decision's entries in the books: what the end of its request must undo or learn from. One a pick."""

    __slots__ = (
        "adapter",
        "charge",
        "computes",
        "ended_at_seconds",
        "expected",
        "fallbacks",
        "finished",
        "hashes",
        "model",
        "output_seconds",
        "predicted_ttft_seconds",
        "prompt_bytes",
        "recorded",
        "request_key",
        "sequences",
        "session_id",
        "stuck",
    )

    charge: Charge
    hashes: "array[int]"
    recorded: Recorded | None
    model: str | None
    prompt_bytes: int | None
    """Of what a usage counts as its input; `None` where they are not the same."""
    predicted_ttft_seconds: float
    output_seconds: float
    """What decoding was expected to take."""
    sequences: int
    request_key: int
    """Equal for a request that is sent again. 0: nothing is known of its prompt."""
    computes: bool
    """Whether it made the engine compute: only then its success says that the engine works, and its counts teach."""

    def __init__(
        self,
        charge: Charge,
        hashes: "array[int]",
        recorded: Recorded | None,
        model: str | None,
        prompt_bytes: int | None,
        predicted_ttft_seconds: float = 0.0,
        output_seconds: float = 0.0,
        sequences: int = 1,
        request_key: int = 0,
        computes: bool = True,
    ) -> None:
        self.charge = charge
        self.hashes = hashes
        self.recorded = recorded
        self.model = model
        self.prompt_bytes = prompt_bytes
        self.predicted_ttft_seconds = predicted_ttft_seconds
        self.output_seconds = output_seconds
        self.sequences = sequences
        self.request_key = request_key
        self.computes = computes
        self.adapter: str | None = None
        self.stuck: Stuck | None = None
        self.fallbacks: tuple[str, ...] = ()
        """Where else the proxy may go, as we told it."""
        self.session_id: str | None = None
        """What its engine's KV events call it."""
        self.expected: Expected | None = None
        """What was expected to be cached where it was sent; `None`: there is nothing to compare."""
        self.finished = False
        self.ended_at_seconds = 0.0
        """When its answer was whole; 0: it is not."""

    @property
    def endpoint(self) -> Endpoint:
        """Where the request went, as far as is known."""
        return self.charge.endpoint


class Picked:
    """Send it to `addresses[0]`; the rest is the ordered fallback list."""

    __slots__ = (
        "addresses",
        "booking",
        "cached_share",
        "endpoint_name",
        "explain",
        "matched_share",
        "predicted_ttft_seconds",
        "prompt_tokens",
        "reason",
        "session_id",
    )

    addresses: tuple[str, ...]
    reason: Reason
    matched_share: float | None
    booking: Booking
    """Undone exactly once, by the director's `finish`."""
    explain: Callable[[], Explanation]
    predicted_ttft_seconds: float | None
    endpoint_name: str | None
    """The name of the endpoint at `addresses[0]`."""
    prompt_tokens: float | None
    """Tokens of all prompts together, as estimated."""
    cached_share: float | None
    """The share of these tokens expected in the cache of `addresses[0]`: of full blocks, so under `matched_share`."""
    session_id: str | None
    """What the request is to be called to its engine, so that the engine's KV events say it; `None`: nothing."""

    def __init__(
        self,
        addresses: tuple[str, ...],
        reason: Reason,
        matched_share: float | None,
        booking: Booking,
        explain: Callable[[], Explanation],
        predicted_ttft_seconds: float | None = None,
        endpoint_name: str | None = None,
        prompt_tokens: float | None = None,
        cached_share: float | None = None,
    ) -> None:
        self.addresses = addresses
        self.reason = reason
        self.matched_share = matched_share
        self.booking = booking
        self.explain = explain
        self.predicted_ttft_seconds = predicted_ttft_seconds
        self.endpoint_name = endpoint_name
        self.prompt_tokens = prompt_tokens
        self.cached_share = cached_share
        self.session_id = None


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
        "charged",
        "decision_seconds",
        "duration_seconds",
        "endpoint_name",
        "engine_seconds",
        "matched_share",
        "metered",
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
        "served_address",
        "status",
        "streaming",
        "tenant",
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
    served_address: str | None
    """Who served, where the proxy tells; `address` follows it if it is one of the pool."""
    tenant: str | None
    """Whose request it is, as a header of it says."""
    metered: Metered
    charged: Usage | None
    """What is charged to the tenant, and how well it is known. `None`: nothing is."""
    engine_seconds: float | None
    """Seconds of an engine's work that this was, by the cost model."""
    block_hashes: "array[int] | None"
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
        served_address: str | None = None,
        block_hashes: "array[int] | None" = None,
        tenant: str | None = None,
        metered: Metered = Metered.NONE,
        charged: Usage | None = None,
        engine_seconds: float | None = None,
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
        self.served_address = served_address
        self.block_hashes = block_hashes
        self.tenant = tenant
        self.metered = metered
        self.charged = charged
        self.engine_seconds = engine_seconds
