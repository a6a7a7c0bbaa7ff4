"""Bytes <-> events and replies. The only core file that knows protobuf.

`decode` never raises: what is no message becomes `Malformed`. Header values are read from
`raw_value`, then `value` (Envoy fills the first, some proxies the second); we write `raw_value`
only, since Envoy sets a header to empty for `value`. Constant replies and routes are encoded
once; pieces of body are framed by hand, because full-duplex sends one a token.
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from google.protobuf.message import DecodeError

from picker.extproc import events, replies
from picker.generated import ext_proc_pb2 as pb

DESTINATION = "x-gateway-destination-endpoint"
"""Endpoint Picker Protocol: the header, and the key below `METADATA_NAMESPACE`."""
METADATA_NAMESPACE = "envoy.lb"
SUBSET_NAMESPACE = "envoy.lb.subset_hint"
SUBSET_KEY = "x-gateway-destination-endpoint-subset"
SERVED_KEY = "x-gateway-destination-endpoint-served"

EXPLAIN_HEADER = "x-picker-explain"

REQUEST_HEADERS_READ = frozenset(
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
    }
)
RESPONSE_HEADERS_READ = frozenset({":status", "content-type", "content-encoding"})

_parse = pb.ProcessingRequest.FromString


def decode(message: bytes, *, also_read: frozenset[str] = frozenset()) -> events.Event:
    """One message of the proxy. `also_read`: more request headers that configuration asks for."""
    try:
        parsed = _parse(message)
    except DecodeError:
        return events.Malformed("not a ProcessingRequest")
    which = parsed.WhichOneof("request")
    if which == "response_body":
        body = parsed.response_body
        return events.ResponseBody(body.body, body.end_of_stream)
    if which == "request_body":
        body = parsed.request_body
        return events.RequestBody(body.body, body.end_of_stream, _subset(parsed))
    if which == "request_headers":
        part = parsed.request_headers
        wanted = REQUEST_HEADERS_READ | also_read if also_read else REQUEST_HEADERS_READ
        headers = _headers(part.headers.headers, wanted)
        return events.RequestHeaders(headers, part.end_of_stream, *_modes(parsed), _subset(parsed))
    if which == "response_headers":
        part = parsed.response_headers
        headers = _headers(part.headers.headers, RESPONSE_HEADERS_READ)
        return events.ResponseHeaders(headers, part.end_of_stream, _served(parsed), *_modes(parsed))
    if which == "request_trailers":
        return events.RequestTrailers()
    if which == "response_trailers":
        return events.ResponseTrailers()
    return events.Malformed("a ProcessingRequest without content")


def encode(reply: replies.Reply) -> bytes:
    """One message for the proxy."""
    kind = type(reply)
    if kind is replies.EchoResponseBody:
        return _echo(_RESPONSE_BODY, reply.data, reply.end_of_stream)  # type: ignore[union-attr]
    if kind is replies.EchoRequestBody:
        return _echo(_REQUEST_BODY, reply.data, reply.end_of_stream)  # type: ignore[union-attr]
    if isinstance(reply, replies.RouteOnHeaders):
        return _route(reply.addresses, "request_headers")
    if isinstance(reply, replies.RouteOnBody):
        return _route(reply.addresses, "request_body")
    if isinstance(reply, replies.RouteOnTrailers):
        return _route(reply.addresses, "request_trailers")
    if isinstance(reply, replies.Immediate):
        return _immediate(reply)
    if isinstance(reply, replies.ContinueResponseHeaders) and reply.explain is not None:
        answer = pb.ProcessingResponse()
        _set_header(answer.response_headers.response.header_mutation, EXPLAIN_HEADER, reply.explain)
        return answer.SerializeToString()
    return _CONSTANT[kind]


def _headers(pairs: Iterable[Any], wanted: frozenset[str]) -> Mapping[str, str]:
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


@lru_cache(maxsize=4096)
def _route(addresses: tuple[str, ...], field: str) -> bytes:
    value = ",".join(addresses)
    answer = pb.ProcessingResponse()
    part = getattr(answer, field)
    part.SetInParent()
    if field != "request_trailers":  # the request's headers are no longer ours to change there
        _set_header(part.response.header_mutation, DESTINATION, value)
    answer.dynamic_metadata.update({METADATA_NAMESPACE: {DESTINATION: value}})
    return answer.SerializeToString()


def _immediate(reply: replies.Immediate) -> bytes:
    answer = pb.ProcessingResponse()
    immediate = answer.immediate_response
    immediate.status.code = reply.status
    for name, value in reply.headers:
        _set_header(immediate.headers, name, value)
    immediate.body = reply.body
    immediate.details = reply.details
    return answer.SerializeToString()


def _constant(field: str) -> bytes:
    answer = pb.ProcessingResponse()
    getattr(answer, field).SetInParent()
    if field.endswith(("headers", "body")):
        getattr(answer, field).response.SetInParent()
    return answer.SerializeToString()


_CONSTANT: Mapping[type, bytes] = {
    replies.ContinueRequestHeaders: _constant("request_headers"),
    replies.ContinueRequestBody: _constant("request_body"),
    replies.ContinueRequestTrailers: _constant("request_trailers"),
    replies.ContinueResponseHeaders: _constant("response_headers"),
    replies.ContinueResponseBody: _constant("response_body"),
    replies.ContinueResponseTrailers: _constant("response_trailers"),
}

# ProcessingResponse.request_body = 3, .response_body = 4, wire type 2.
_REQUEST_BODY = b"\x1a"
_RESPONSE_BODY = b"\x22"


def _echo(field: bytes, data: bytes | memoryview, end_of_stream: bool) -> bytes:
    """BodyResponse{response{body_mutation{streamed_response{body, end_of_stream}}}}, lengths from inside out."""
    end = b"\x10\x01" if end_of_stream else b""
    size = len(data)
    head = b"\x0a" + _varint(size) if size else b""
    streamed = len(head) + size + len(end)
    head = b"\x1a" + _varint(streamed) + head  # BodyMutation.streamed_response = 3
    mutation = len(head) + size + len(end)
    head = b"\x1a" + _varint(mutation) + head  # CommonResponse.body_mutation = 3
    common = len(head) + size + len(end)
    head = b"\x0a" + _varint(common) + head  # BodyResponse.response = 1
    body = len(head) + size + len(end)
    return b"".join((field, _varint(body), head, data, end))


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
