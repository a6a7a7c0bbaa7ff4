"""What we tell the proxy, as values. The exchange makes them, the wire encodes them."""

from typing import Final

import msgspec

ECHO_BYTES_MAX: Final = 62_000
"""Largest piece of body in one reply: proxies cap near 64 KB (docs/decisions/0003)."""


class RouteOnHeaders(msgspec.Struct, frozen=True):
    """Answer to the request's headers: this destination. Header and metadata are equal by construction."""

    addresses: tuple[str, ...]


class RouteOnBody(msgspec.Struct, frozen=True):
    """The same, as the answer to a buffered body."""

    addresses: tuple[str, ...]


class RouteOnTrailers(msgspec.Struct, frozen=True):
    """The same where trailers end a buffered request without a body: by metadata alone (override_host)."""

    addresses: tuple[str, ...]


class ContinueRequestHeaders(msgspec.Struct, frozen=True):
    """Go on; the destination comes with the answer to the body."""


class ContinueRequestBody(msgspec.Struct, frozen=True):
    """Go on, body unchanged (not full-duplex)."""


class EchoRequestBody(msgspec.Struct, frozen=True):
    """Full-duplex: the body is what we send. At most `ECHO_BYTES_MAX`."""

    data: bytes | memoryview
    end_of_stream: bool


class ContinueRequestTrailers(msgspec.Struct, frozen=True):
    """Go on, trailers unchanged."""


class ContinueResponseHeaders(msgspec.Struct, frozen=True):
    """Go on, headers unchanged but for our own (`x-picker-explain`, where configured)."""

    explain: str | None = None


class ContinueResponseBody(msgspec.Struct, frozen=True):
    """Go on, body unchanged (not full-duplex)."""


class EchoResponseBody(msgspec.Struct, frozen=True):
    """Full-duplex: the body is what we send. At most `ECHO_BYTES_MAX`."""

    data: bytes | memoryview
    end_of_stream: bool


class ContinueResponseTrailers(msgspec.Struct, frozen=True):
    """Go on, trailers unchanged."""


class Immediate(msgspec.Struct, frozen=True):
    """Our own answer to the client; the request goes nowhere."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes
    details: str
    """For the proxy's access log: one word."""


Reply = (
    RouteOnHeaders
    | RouteOnBody
    | RouteOnTrailers
    | ContinueRequestHeaders
    | ContinueRequestBody
    | EchoRequestBody
    | ContinueRequestTrailers
    | ContinueResponseHeaders
    | ContinueResponseBody
    | EchoResponseBody
    | ContinueResponseTrailers
    | Immediate
)
