"""The words of decisions and ends: reasons, outcomes, token counts, refusals."""

from collections.abc import Mapping
from enum import StrEnum

import msgspec


class Reason(StrEnum):
    """Why an endpoint was picked: the label of `picker_decisions_total`."""

    AFFINITY = "affinity"
    """The cheapest of the endpoints that hold the prefix."""
    BREAK = "break"
    """Some endpoints hold the prefix, but another is cheaper by much more than the work that they save."""
    LOAD = "load"
    """No endpoint holds enough of the prefix, so the cheapest of all was picked."""
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
    """The picker itself failed."""
    UNSEEN = "unseen"
    """A local reply of the proxy: no request was shown to us."""


class Metered(StrEnum):
    """How well it is known what a request used: the label `usage` of the tenants' counters."""

    REPORTED = "reported"
    """The answer came whole, and said it."""
    PARTIAL = "partial"
    """What was reported until the answer was cut off, or not all of it; the engine may have done more."""
    ESTIMATED = "estimated"
    """Not reported; estimated because configuration asks for that."""
    UNKNOWN = "unknown"
    """Not reported."""
    NONE = "none"
    """An engine computed nothing: a refusal, an error, a list of models."""


class EndpointView(msgspec.Struct, frozen=True):
    """One endpoint in an explanation. Seconds are engine time as estimated at the decision."""

    address: str
    name: str
    matched_share: float
    seconds: Mapping[str, float]
    cost_seconds: float
    picked: bool
    why: str
    confirmed_share: float | None = None
    """Of the prompt, what the engine's own KV events say that it holds, as far as the index believes it: as they
    stand when the explanation is made. `None`: it publishes none."""


class Explanation(msgspec.Struct, frozen=True):
    """Why this endpoint? It shows the holders, the pick and the three cheapest others."""

    reason: str
    summary: str
    prompt_tokens: int
    prompt_blocks: int
    endpoints: tuple[EndpointView, ...]


class Shed(msgspec.Struct, frozen=True):
    """429: may be refused under load, and the load is there."""

    retry_after_seconds: int
    message: str
    reason_word: str = "saturated"


class Unavailable(msgspec.Struct, frozen=True):
    """503: there is no endpoint to send it to."""

    message: str
    reason_word: str
    retry_after_seconds: int = 1


class Usage(msgspec.Struct, frozen=True):
    """Token counts that a response reported. `None` where it did not say."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
