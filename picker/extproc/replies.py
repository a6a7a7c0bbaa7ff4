"""What we tell the proxy, as values. The exchange makes them, the wire encodes them.

`told`: dynamic metadata beside the answer, where configuration asks for it.
"""

from typing import Final

from picker.extproc.value import Value
from picker.metering import Told

ECHO_BYTES_MAX: Final = 62_000
"""Largest piece of body in one reply: proxies cap near 64 KB (docs/decisions/0003)."""


Stamp = tuple[str, str]
"""A header for the engine, in lower case, and its value: which request this is, for its KV events."""


class RouteOnHeaders(Value):
    """Answer to the request's headers: this destination. Header and metadata are equal by construction."""

    __slots__ = ("addresses", "stamp", "told")

    def __init__(self, addresses: tuple[str, ...], stamp: Stamp | None = None, told: Told | None = None) -> None:
        self.addresses = addresses
        self.stamp = stamp
        self.told = told


class RouteOnBody(Value):
    """The same, as the answer to a buffered body."""

    __slots__ = ("addresses", "stamp", "told")

    def __init__(self, addresses: tuple[str, ...], stamp: Stamp | None = None, told: Told | None = None) -> None:
        self.addresses = addresses
        self.stamp = stamp
        self.told = told


class RouteOnTrailers(Value):
    """Route a buffered request without a body, which trailers end: by metadata alone (override_host)."""

    __slots__ = ("addresses",)

    def __init__(self, addresses: tuple[str, ...]) -> None:
        self.addresses = addresses


class ContinueRequestHeaders(Value):
    """Go on; the destination comes with the answer to the body."""

    __slots__ = ()


class ContinueRequestBody(Value):
    """Go on, body unchanged (not full-duplex)."""

    __slots__ = ()


class EchoRequestBody(Value):
    """Full-duplex: the body is what we send. At most `ECHO_BYTES_MAX`."""

    __slots__ = ("data", "end_of_stream", "told")

    def __init__(self, data: bytes | memoryview, end_of_stream: bool, told: Told | None = None) -> None:
        self.data = data
        self.end_of_stream = end_of_stream
        self.told = told


class ContinueRequestTrailers(Value):
    """Go on, trailers unchanged."""

    __slots__ = ()


class ContinueResponseHeaders(Value):
    """Go on, headers unchanged but for our own (`x-picker-explain`, where configured)."""

    __slots__ = ("explain", "told")

    def __init__(self, explain: str | None = None, told: Told | None = None) -> None:
        self.explain = explain
        self.told = told


class ContinueResponseBody(Value):
    """Go on, body unchanged (not full-duplex)."""

    __slots__ = ("told",)

    def __init__(self, told: Told | None = None) -> None:
        self.told = told


class EchoResponseBody(Value):
    """Full-duplex: the body is what we send. At most `ECHO_BYTES_MAX`."""

    __slots__ = ("data", "end_of_stream", "told")

    def __init__(self, data: bytes | memoryview, end_of_stream: bool, told: Told | None = None) -> None:
        self.data = data
        self.end_of_stream = end_of_stream
        self.told = told


class ContinueResponseTrailers(Value):
    """Go on, trailers unchanged."""

    __slots__ = ("told",)

    def __init__(self, told: Told | None = None) -> None:
        self.told = told


class Immediate(Value):
    """Our own answer to the client; the request goes nowhere. `details`: for the proxy's access log, one word."""

    __slots__ = ("body", "details", "headers", "status")

    def __init__(self, status: int, headers: tuple[tuple[str, str], ...], body: bytes, details: str) -> None:
        self.status = status
        self.headers = headers
        self.body = body
        self.details = details


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
