"""Bytes <-> events and replies. The only core file that knows protobuf.

`decode` never raises: what is no message becomes `Malformed`. Header values are read from
`raw_value`, then `value` (Envoy fills the first, some proxies the second); we write `raw_value`
only, since Envoy sets a header to empty for `value`. Constant replies and routes are encoded
once; pieces of body are framed by hand, because full-duplex sends one a token.
"""

from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final

from google.protobuf.message import DecodeError

from picker.extproc.crumbs import BESIDE_BYTES_MAX, too_much_beside_a_body
from picker.extproc.events import (
    Event,
    Malformed,
    RequestBody,
    RequestHeaders,
    RequestTrailers,
    ResponseBody,
    ResponseHeaders,
    ResponseTrailers,
)
from picker.extproc.headers import HEADERS_MAX, HeaderNames, length, read_headers
from picker.extproc.remembered import remember
from picker.extproc.replies import (
    ContinueRequestBody,
    ContinueRequestHeaders,
    ContinueRequestTrailers,
    ContinueResponseBody,
    ContinueResponseHeaders,
    ContinueResponseTrailers,
    EchoRequestBody,
    EchoResponseBody,
    Immediate,
    Reply,
    RouteOnBody,
    RouteOnHeaders,
    RouteOnTrailers,
    Stamp,
)
from picker.generated import ext_proc_pb2 as pb
from picker.metering import FAIRNESS_HEADERS, Told

DESTINATION: Final = "x-gateway-destination-endpoint"
"""Endpoint Picker Protocol: the header, and the key below `METADATA_NAMESPACE`."""
METADATA_NAMESPACE: Final = "envoy.lb"
SUBSET_NAMESPACE: Final = "envoy.lb.subset_hint"
SUBSET_KEY: Final = "x-gateway-destination-endpoint-subset"
SERVED_KEY: Final = "x-gateway-destination-endpoint-served"

EXPLAIN_HEADER: Final = "x-picker-explain"

REQUEST_HEADERS_READ: Final = frozenset(
    {
        ":path",
        ":method",
        ":protocol",
        "content-type",
        "content-length",
        "content-encoding",
        "upgrade",
        "x-request-id",
        "traceparent",
        "x-gateway-inference-objective",
        "x-llm-d-inference-objective",
        *FAIRNESS_HEADERS,
    }
)
RESPONSE_HEADERS_READ: Final = frozenset({":status", "content-type", "content-encoding", "x-envoy-overloaded"})

_parse: Final = pb.ProcessingRequest.FromString

# ProcessingRequest's fields, wire type 2 (protos/picker/ext_proc.proto).
_IS_REQUEST_HEADERS: Final = 0x12
_IS_RESPONSE_HEADERS: Final = 0x1A
_IS_REQUEST_BODY: Final = 0x22
_IS_RESPONSE_BODY: Final = 0x2A

_METADATA_CONTEXT: Final = 0x42

_VIEW_BYTES_MIN: Final = 16_384
"""A larger piece of body is a view of its message: a copy of it would cost more than all the rest."""
_REST_BYTES_MAX: Final = 512
_RESTS_MAX: Final = 1024
"""What stands beside a message's content is remembered by its bytes up to this length, so many at most."""
_TOO_MANY_HEADERS: Final = Malformed(f"more than {HEADERS_MAX:,} headers")
_TOO_MUCH: Final = Malformed(f"more than {BESIDE_BYTES_MAX:,} bytes beside a body")


class _Rest:
    """What stands beside the content: metadata and the proxy's modes."""

    __slots__ = ("request_mode", "response_mode", "served", "subset")

    def __init__(
        self, subset: tuple[str, ...] | None, served: str | None, request_mode: int | None, response_mode: int | None
    ) -> None:
        self.subset = subset
        self.served = served
        self.request_mode = request_mode
        self.response_mode = response_mode


def decode(message: bytes, *, also_read: frozenset[str] = frozenset()) -> Event:
    """One message of the proxy. `also_read`: more request headers that configuration asks for.

    The four messages that every exchange is made of are read field by field, in the one order in which proxies
    write them; any other shape goes to protobuf's own parser, which costs more and copies a body twice.
    """
    event: Event | None = None
    try:
        kind = message[0]
        if kind in (_IS_REQUEST_BODY, _IS_RESPONSE_BODY):
            event = _body(message, kind)
        elif kind == _IS_REQUEST_HEADERS:
            event = _request_headers(message, _wanted(also_read) if also_read else _REQUEST_NAMES)
        elif kind == _IS_RESPONSE_HEADERS:
            event = _response_headers(message)
    except IndexError:
        pass  # cut short
    return event if event is not None else decode_any(message, also_read)


def decode_any(message: bytes, also_read: frozenset[str]) -> Event:
    """A message of any shape, by protobuf's own parser."""
    if too_much_beside_a_body(message):
        return _TOO_MUCH
    try:
        parsed = _parse(message)
    except DecodeError:
        return Malformed("not a ProcessingRequest")
    which = parsed.WhichOneof("request")
    if which == "response_body":
        body = parsed.response_body
        return ResponseBody(body.body, body.end_of_stream)
    if which == "request_body":
        body = parsed.request_body
        return RequestBody(body.body, body.end_of_stream, _subset(parsed))
    if which == "request_headers":
        part = parsed.request_headers
        if len(part.headers.headers) > HEADERS_MAX:
            return _TOO_MANY_HEADERS
        headers = _headers(part.headers.headers, REQUEST_HEADERS_READ | also_read)
        return RequestHeaders(headers, part.end_of_stream, *_modes(parsed), _subset(parsed))
    if which == "response_headers":
        part = parsed.response_headers
        if len(part.headers.headers) > HEADERS_MAX:
            return _TOO_MANY_HEADERS
        headers = _headers(part.headers.headers, RESPONSE_HEADERS_READ)
        return ResponseHeaders(headers, part.end_of_stream, _served(parsed), *_modes(parsed))
    if which == "request_trailers":
        return RequestTrailers()
    if which == "response_trailers":
        return ResponseTrailers()
    return Malformed("a ProcessingRequest without content")


# Field by field. `None` says: not the usual shape, let protobuf read it. `IndexError` says the same.


def _body(message: bytes, kind: int) -> RequestBody | ResponseBody | None:
    """HttpBody{body = 1, end_of_stream = 2}."""
    # Lengths of one byte and of two are read here: a call would cost as much as the rest.
    size, at = message[1], 2
    if size > 0x7F:
        high = message[2]
        size, at = (size + (high << 7) - 0x80, 3) if high < 0x80 else length(message, 1)
    end = at + size
    stop = at
    if size and message[at] == 0x0A:
        size, at = message[at + 1], at + 2
        if size > 0x7F:
            high = message[at]
            size, at = (size + (high << 7) - 0x80, at + 1) if high < 0x80 else length(message, at - 1)
        stop = at + size
    if stop == end:
        last = False
    elif stop + 2 == end and message[stop] == 0x10 and message[stop + 1] < 2:
        last = message[stop + 1] == 1
    else:
        return None
    rest = _rest_of(message, end)
    if rest is None:
        return None
    if kind == _IS_RESPONSE_BODY:
        return ResponseBody(message[at:stop], last)
    data = message[at:stop] if stop - at < _VIEW_BYTES_MIN else memoryview(message)[at:stop]
    return RequestBody(data, last, rest.subset)


def _request_headers(message: bytes, names: HeaderNames) -> RequestHeaders | None:
    read = read_headers(message, names)
    if read is None:
        return None
    found, end = read
    rest = _rest_of(message, abs(end))
    if rest is None:
        return None
    return RequestHeaders(found, end < 0, rest.request_mode, rest.response_mode, rest.subset)


def _response_headers(message: bytes) -> ResponseHeaders | None:
    read = read_headers(message, _RESPONSE_NAMES)
    if read is None:
        return None
    found, end = read
    rest = _rest_of(message, abs(end))
    if rest is None:
        return None
    return ResponseHeaders(found, end < 0, rest.served, rest.request_mode, rest.response_mode)


def _rest_of(message: bytes, at: int) -> _Rest | None:
    """What stands behind the content."""
    left = len(message) - at
    if left <= 0:
        return _NO_REST if left == 0 else None
    if left > BESIDE_BYTES_MAX:
        return None
    if left == 2 and message[at] == _METADATA_CONTEXT and message[at + 1] == 0:
        return _NO_REST  # empty metadata: what Envoy puts behind most messages
    rest = message[at:]
    found = _rests.get(rest)
    if found is None:
        found = _rest(rest)
        if found is not None and left <= _REST_BYTES_MAX:
            remember(_rests, rest, found, _RESTS_MAX)
    return found


def _rest(rest: bytes) -> _Rest | None:
    try:
        parsed = _parse(rest)
    except DecodeError:
        return None
    if parsed.WhichOneof("request") is not None:
        return None  # content twice: protobuf says which holds
    return _Rest(_subset(parsed), _served(parsed), *_modes(parsed))


_rests: Final[dict[bytes, _Rest]] = {}
_NO_REST: Final = _Rest(None, None, None, None)


@lru_cache(maxsize=8)
def _wanted(also_read: frozenset[str]) -> HeaderNames:
    return HeaderNames(REQUEST_HEADERS_READ | also_read)


_REQUEST_NAMES: Final = HeaderNames(REQUEST_HEADERS_READ)
_RESPONSE_NAMES: Final = HeaderNames(RESPONSE_HEADERS_READ)


Encoded = tuple[bytes, bytes | memoryview]
"""A message in two pieces, the second a body that nobody copies before the socket; empty where there is none."""


def encode(reply: Reply) -> Encoded:
    """One message for the proxy."""
    if isinstance(reply, EchoResponseBody):
        head = _echo_head(_RESPONSE_BODY, len(reply.data), reply.end_of_stream)
        return head if reply.told is None else _metadata(reply.told) + head, reply.data
    if isinstance(reply, EchoRequestBody):
        return _echo_head(_REQUEST_BODY, len(reply.data), reply.end_of_stream), reply.data
    if isinstance(reply, RouteOnHeaders):
        if reply.stamp is not None:
            return _stamped(reply.addresses, "request_headers", reply.told, reply.stamp)
        return _route(reply.addresses, "request_headers", reply.told)
    if isinstance(reply, ContinueResponseHeaders):
        encoded = _CONTINUE_RESPONSE if reply.explain is None else _explained(reply.explain)
        return encoded if reply.told is None else _telling(reply.told, encoded)
    if isinstance(reply, RouteOnBody):
        if reply.stamp is not None:
            return _stamped(reply.addresses, "request_body", reply.told, reply.stamp)
        return _route(reply.addresses, "request_body", reply.told)
    if isinstance(reply, RouteOnTrailers):
        return _route(reply.addresses, "request_trailers", None)
    if isinstance(reply, Immediate):
        return _immediate(reply), b""
    encoded = _CONSTANT[type(reply)]
    if isinstance(reply, ContinueResponseBody | ContinueResponseTrailers) and reply.told is not None:
        return _telling(reply.told, encoded)
    return encoded


def _telling(told: Told, encoded: Encoded) -> Encoded:
    """Fields may stand in any order: what is told goes first, so that a body stays the last."""
    return _metadata(told) + encoded[0], encoded[1]


def _metadata(told: Told) -> bytes:
    """ProcessingResponse.dynamic_metadata alone."""
    answer = pb.ProcessingResponse()
    answer.dynamic_metadata.update(_struct(told))
    return answer.SerializeToString()


def _struct(told: Told) -> dict[str, dict[str, str | float]]:
    """Texts of clients may be no UTF-8, which protobuf's strings must be."""
    namespace, pairs = told
    return {
        namespace: {
            key: value.encode("utf-8", "replace").decode() if isinstance(value, str) else value for key, value in pairs
        }
    }


def _explained(text: str) -> Encoded:
    answer = pb.ProcessingResponse()
    _set_header(answer.response_headers.response.header_mutation, EXPLAIN_HEADER, text)
    return answer.SerializeToString(), b""


def _headers(pairs: Iterable[Any], wanted: frozenset[str]) -> dict[str, str]:
    """The wanted headers, names lower-case; of several, the first.

    HTTP/2 has names in lower case, and so has Envoy: other spellings get a second look, the rest a fast one.
    """
    found: dict[str, str] = {}
    odd = False
    for pair in pairs:
        key = pair.key
        if key in wanted:
            if key not in found:
                raw = pair.raw_value
                found[key] = raw.decode("utf-8", "replace") if raw else pair.value
        elif not key.islower():
            odd = True
    if odd:
        for pair in pairs:
            key = pair.key.lower()
            if key in wanted and key not in found:
                raw = pair.raw_value
                found[key] = raw.decode("utf-8", "replace") if raw else pair.value
    return found


def _modes(parsed: Any) -> tuple[int | None, int | None]:
    if not parsed.HasField("protocol_config"):
        return None, None
    config = parsed.protocol_config
    return config.request_body_mode, config.response_body_mode


def _subset(parsed: Any) -> tuple[str, ...] | None:
    """The subset hint: a list of strings, or one string with commas. `None` where it is absent."""
    if not parsed.HasField("metadata_context"):
        return None
    namespace = parsed.metadata_context.filter_metadata.get(SUBSET_NAMESPACE)
    if namespace is None or SUBSET_KEY not in namespace.fields:
        return None
    value = namespace.fields[SUBSET_KEY]
    if value.WhichOneof("kind") == "list_value":
        entries = [each.string_value for each in value.list_value.values]
    else:
        entries = value.string_value.split(",")
    return tuple(entry.strip() for entry in entries if entry.strip())


def _served(parsed: Any) -> str | None:
    if not parsed.HasField("metadata_context"):
        return None
    namespace = parsed.metadata_context.filter_metadata.get(METADATA_NAMESPACE)
    if namespace is None or SERVED_KEY not in namespace.fields:
        return None
    return namespace.fields[SERVED_KEY].string_value or None


def _set_header(mutation: Any, name: str, value: str) -> None:
    option = mutation.set_headers.add()
    option.header.key = name
    option.header.raw_value = value.encode("ascii", "replace")


def _route(addresses: tuple[str, ...], field: str, told: Told | None) -> Encoded:
    key = (addresses, field, told)
    known = _routes.get(key)
    if known is not None:
        return known
    value = ",".join(addresses)
    answer = pb.ProcessingResponse()
    part = getattr(answer, field)
    part.SetInParent()
    if field != "request_trailers":  # the request's headers are no longer ours to change there
        _set_header(part.response.header_mutation, DESTINATION, value)
    if told is not None:
        answer.dynamic_metadata.update(_struct(told))
    answer.dynamic_metadata.update({METADATA_NAMESPACE: {DESTINATION: value}})
    return remember(_routes, key, (answer.SerializeToString(), b""), _ANSWERS_MAX)


def _stamped(addresses: tuple[str, ...], field: str, told: Told | None, stamp: Stamp) -> Encoded:
    """A route that sets one header more. Values of one length have all else in common, which is encoded once."""
    name, value = stamp
    key = (addresses, field, told, name, len(value))
    known = _stamps.get(key)
    if known is None:
        answer = pb.ProcessingResponse.FromString(_route(addresses, field, told)[0])
        blank = "\x01" * len(value)  # stands nowhere else, once it is long enough
        short = len(value) < _STAMP_CHARS_MIN
        _set_header(getattr(answer, field).response.header_mutation, name, value if short else blank)
        encoded = answer.SerializeToString()
        if short:
            return encoded, b""
        head, _, tail = encoded.partition(blank.encode())
        known = remember(_stamps, key, (head, tail), _ANSWERS_MAX)
    return value.encode("ascii", "replace").join(known), b""


def _immediate(reply: Immediate) -> bytes:
    answer = pb.ProcessingResponse()
    immediate = answer.immediate_response
    immediate.status.code = reply.status
    for name, value in reply.headers:
        _set_header(immediate.headers, name, value)
    immediate.body = reply.body
    immediate.details = reply.details
    return answer.SerializeToString()


def _constant(field: str) -> Encoded:
    answer = pb.ProcessingResponse()
    getattr(answer, field).SetInParent()
    if field.endswith(("headers", "body")):
        getattr(answer, field).response.SetInParent()
    return answer.SerializeToString(), b""


_CONTINUE_RESPONSE: Final = _constant("response_headers")
_CONSTANT: Final[dict[type, Encoded]] = {
    ContinueRequestHeaders: _constant("request_headers"),
    ContinueRequestBody: _constant("request_body"),
    ContinueRequestTrailers: _constant("request_trailers"),
    ContinueResponseBody: _constant("response_body"),
    ContinueResponseTrailers: _constant("response_trailers"),
}

_ANSWERS_MAX: Final = 4096
"""Encoded answers remembered, of each sort."""
_routes: Final[dict[tuple[tuple[str, ...], str, Told | None], Encoded]] = {}
_STAMP_CHARS_MIN: Final = 12
_stamps: Final[dict[tuple[tuple[str, ...], str, Told | None, str, int], tuple[bytes, bytes]]] = {}
_echo_heads: Final[dict[int, bytes]] = {}
"""By size and field, negative with the end flag."""

# ProcessingResponse.request_body = 3, .response_body = 4, wire type 2.
_REQUEST_BODY: Final = b"\x1a"
_RESPONSE_BODY: Final = b"\x22"


def _echo_head(field: bytes, size: int, end_of_stream: bool) -> bytes:
    """BodyResponse{response{body_mutation{streamed_response{body, end_of_stream}}}} up to the body's `size` bytes.

    The body comes last, behind the end flag: fields may stand in any order. Lengths from inside out; chunks of an
    answer are alike, so most heads are known.
    """
    key = size << 8 | field[0]
    if end_of_stream:
        key = -key
    head = _echo_heads.get(key)
    if head is not None:
        return head
    head = b"\x10\x01" if end_of_stream else b""
    if size:
        head += b"\x0a" + _varint(size)
    head = b"\x1a" + _varint(len(head) + size) + head  # BodyMutation.streamed_response = 3
    head = b"\x1a" + _varint(len(head) + size) + head  # CommonResponse.body_mutation = 3
    head = b"\x0a" + _varint(len(head) + size) + head  # BodyResponse.response = 1
    return remember(_echo_heads, key, field + _varint(len(head) + size) + head, _ANSWERS_MAX)


def _varint(value: int) -> bytes:
    if value < 1 << 7:
        return bytes((value,))
    if value < 1 << 14:
        return bytes((value & 0x7F | 0x80, value >> 7))
    pieces = bytearray()
    while value > 0x7F:
        pieces.append(value & 0x7F | 0x80)
        value >>= 7
    pieces.append(value)
    return bytes(pieces)
