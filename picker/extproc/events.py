"""What the proxy tells us, as values. The wire makes them, the exchange receives them."""

from enum import IntEnum

from picker.extproc.value import Value


class BodyMode(IntEnum):
    """ProcessingMode.BodySendMode (envoy/extensions/filters/http/ext_proc/v3/processing_mode.proto)."""

    NONE = 0
    STREAMED = 1
    BUFFERED = 2
    BUFFERED_PARTIAL = 3
    FULL_DUPLEX_STREAMED = 4
    GRPC = 5


class RequestHeaders(Value):
    """The first message of an ordinary exchange.

    `headers`: lower-case names, only those the picker reads. `request_mode` and `response_mode` are
    `None` where the proxy does not tell. `subset`: the endpoints it allows; `None` is all.
    """

    __slots__ = ("end_of_stream", "headers", "request_mode", "response_mode", "subset")

    def __init__(
        self,
        headers: dict[str, str],
        end_of_stream: bool = False,
        request_mode: int | None = None,
        response_mode: int | None = None,
        subset: tuple[str, ...] | None = None,
    ) -> None:
        self.headers = headers
        self.end_of_stream = end_of_stream
        self.request_mode = request_mode
        self.response_mode = response_mode
        self.subset = subset


class RequestBody(Value):
    """A piece of the request's body, a view where it is large."""

    __slots__ = ("data", "end_of_stream", "subset")

    def __init__(
        self, data: bytes | memoryview, end_of_stream: bool = False, subset: tuple[str, ...] | None = None
    ) -> None:
        self.data = data
        self.end_of_stream = end_of_stream
        self.subset = subset


class RequestTrailers(Value):
    """The request ends with trailers, in place of an end of stream on its body."""

    __slots__ = ()


class ResponseHeaders(Value):
    """The response began, or the proxy answers by itself. `served`: who served, if the proxy tells."""

    __slots__ = ("end_of_stream", "headers", "request_mode", "response_mode", "served")

    def __init__(
        self,
        headers: dict[str, str],
        end_of_stream: bool = False,
        served: str | None = None,
        request_mode: int | None = None,
        response_mode: int | None = None,
    ) -> None:
        self.headers = headers
        self.end_of_stream = end_of_stream
        self.served = served
        self.request_mode = request_mode
        self.response_mode = response_mode


class ResponseBody(Value):
    """A piece of the response's body."""

    __slots__ = ("data", "end_of_stream")

    def __init__(self, data: bytes, end_of_stream: bool = False) -> None:
        self.data = data
        self.end_of_stream = end_of_stream


class ResponseTrailers(Value):
    """The response ends with trailers."""

    __slots__ = ()


class Malformed(Value):
    """Bytes that are no message of the protocol, or a message without content."""

    __slots__ = ("why",)

    def __init__(self, why: str) -> None:
        self.why = why


Event = RequestHeaders | RequestBody | RequestTrailers | ResponseHeaders | ResponseBody | ResponseTrailers | Malformed
