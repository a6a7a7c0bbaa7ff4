"""What `picker top` shows, from wherever it was read. Unknown is `None`."""

import msgspec


class EndpointReading(msgspec.Struct, frozen=True, kw_only=True):
    """One endpoint. Shares are 0..1."""

    name: str
    address: str
    in_flight: int | None = None
    """Requests that the picker sent there and that are not over."""
    running: int | None = None
    waiting: int | None = None
    """Both as the engine reports."""
    backlog_seconds: float | None = None
    kv_share: float | None = None
    hit_share: float | None = None
    slowness: float | None = None
    is_ejected: bool = False
    is_closed: bool = False
    age_seconds: float | None = None
    """Of the engine's own figures."""


class DecisionReading(msgspec.Struct, frozen=True, kw_only=True):
    """One pick."""

    at: str
    """RFC 3339, UTC."""
    request_id: str | None = None
    model: str | None = None
    endpoint: str = ""
    reason: str = ""
    matched_share: float | None = None
    predicted_ttft_seconds: float | None = None


class PoolReading(msgspec.Struct, frozen=True, kw_only=True):
    """The pool over the last minute, or as much of it as was seen; `in_flight` and what follows: now."""

    requests_per_second: float | None = None
    shed_per_second: float | None = None
    hit_share: float | None = None
    expected_hit_share: float | None = None
    ttft_p50_seconds: float | None = None
    ttft_p95_seconds: float | None = None
    in_flight: int | None = None
    saturation: float | None = None
    ejected: int | None = None


class TopReading(msgspec.Struct, frozen=True, kw_only=True):
    """One frame. `source`: where it was read, in a word."""

    source: str
    version: str
    pool: PoolReading
    endpoints: list[EndpointReading]
    decisions: list[DecisionReading]
    """The newest first."""
