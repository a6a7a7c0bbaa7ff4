"""What the proxy tells us, as values. The wire makes them, the exchange receives them."""

from collections.abc import Mapping
from enum import IntEnum

import msgspec


class BodyMode(IntEnum):
    """ProcessingMode.BodySendMode (envoy/extensions/filters/http/ext_proc/v3/processing_mode.proto)."""

    NONE = 0
    STREAMED = 1
    BUFFERED = 2
    BUFFERED_PARTIAL = 3
    FULL_DUPLEX_STREAMED = 4
    GRPC = 5


class RequestHeaders(msgspec.Struct, frozen=True):
    """The first message of an ordinary exchange.

    `headers`: lower-case names, only those the picker reads. `request_mode` and `response_mode` are
    `None` where the proxy does not tell. `subset`: the endpoints it allows; `None` is all.
    """

    headers: Mapping[str, str]
    end_of_stream: bool = False
    request_mode: int | None = None
    response_mode: int | None = None
    subset: tuple[str, ...] | None = None


class RequestBody(msgspec.Struct, frozen=True):
    """A piece of the request's body, a view where it is large."""

    data: bytes | memoryview
    end_of_stream: bool = False
    subset: tuple[str, ...] | None = None


class RequestTrailers(msgspec.Struct, frozen=True):
    """The request ends with trailers, in place of an end of stream on its body."""


class ResponseHeaders(msgspec.Struct, frozen=True):
    """The response began, or the proxy answers by itself. `served`: who served, if the proxy tells."""

    headers: Mapping[str, str]
    end_of_stream: bool = False
    served: str | None = None
    request_mode: int | None = None
    response_mode: int | None = None


class ResponseBody(msgspec.Struct, frozen=True):
    """A piece of the response's body."""

    data: bytes
    end_of_stream: bool = False


class ResponseTrailers(msgspec.Struct, frozen=True):
    """The response ends with trailers."""


class Malformed(msgspec.Struct, frozen=True):
    """Bytes that are no message of the protocol, or a message without content."""

    why: str


Event = RequestHeaders | RequestBody | RequestTrailers | ResponseHeaders | ResponseBody | ResponseTrailers | Malformed
