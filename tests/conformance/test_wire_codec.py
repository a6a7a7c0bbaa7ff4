"""Our protobuf definitions and an independent codec read each other's bytes to equal values.

`envoy-data-plane` is generated from Envoy's own definitions and uses another protobuf runtime
(betterproto2), so it shares neither our `.proto` nor our library. Each pair below writes
the same message down twice, once with each codec. A last test walks our descriptors, so that a
field added to `protos/` without a pair here fails.
"""

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.struct_pb2 import Struct

from picker.extproc import replies
from picker.extproc.wire import encode
from picker.generated import ext_proc_pb2 as ours

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its generated code uses what pydantic is about to drop
    from envoy_data_plane.envoy.config.core import v3 as core
    from envoy_data_plane.envoy.extensions.filters.http.ext_proc import v3 as ext_proc
    from envoy_data_plane.envoy.service.ext_proc import v3 as theirs
    from envoy_data_plane.envoy.type import v3 as envoy_type
    from envoy_data_plane.google import protobuf as well_known

DESTINATION = "x-gateway-destination-endpoint"
MODE = ext_proc.ProcessingModeBodySendMode


def our_struct(**values: Any) -> Struct:
    struct = Struct()
    struct.update(values)
    return struct


def their_struct(**values: Any) -> well_known.Struct:
    def value(item: Any) -> well_known.Value:
        match item:
            case str():
                return well_known.Value(string_value=item)
            case bool():
                return well_known.Value(bool_value=item)
            case int() | float():
                return well_known.Value(number_value=item)
            case list():
                return well_known.Value(list_value=well_known.ListValue(values=[value(part) for part in item]))
            case dict():
                return well_known.Value(struct_value=their_struct(**item))
        raise AssertionError(item)

    return well_known.Struct(fields={key: value(item) for key, item in values.items()})


def our_headers(*pairs: tuple[str, bytes]) -> ours.HeaderMap:
    return ours.HeaderMap(headers=[ours.HeaderValue(key=key, raw_value=value) for key, value in pairs])


def their_headers(*pairs: tuple[str, bytes]) -> core.HeaderMap:
    return core.HeaderMap(headers=[core.HeaderValue(key=key, raw_value=value) for key, value in pairs])


PATH = ((":method", b"POST"), (":path", b"/v1/chat/completions?a=\xc3\xa9"), ("x-bytes", b"\xff\x00\xfe"))
SUBSET = {"x-gateway-destination-endpoint-subset": ["10.0.0.1:8000", "[fd00::1]:8000"]}
SERVED = {"x-gateway-destination-endpoint-served": "10.0.0.1:8000"}

REQUESTS: dict[str, tuple[ours.ProcessingRequest, theirs.ProcessingRequest]] = {
    "request headers, with everything beside them": (
        ours.ProcessingRequest(
            request_headers=ours.HttpHeaders(headers=our_headers(*PATH), end_of_stream=True),
            metadata_context=ours.Metadata(
                filter_metadata={"envoy.lb.subset_hint": our_struct(**SUBSET), "envoy.lb": our_struct(n=1.5, yes=True)}
            ),
            attributes={"envoy.filters.http.ext_proc": our_struct(**{"request.id": "abc", "deep": {"a": [1, 2]}})},
            observability_mode=True,
            protocol_config=ours.ProtocolConfiguration(
                request_body_mode=4, response_body_mode=1, send_body_without_waiting_for_header_response=True
            ),
        ),
        theirs.ProcessingRequest(
            request_headers=theirs.HttpHeaders(headers=their_headers(*PATH), end_of_stream=True),
            metadata_context=core.Metadata(
                filter_metadata={
                    "envoy.lb.subset_hint": their_struct(**SUBSET),
                    "envoy.lb": their_struct(n=1.5, yes=True),
                }
            ),
            attributes={"envoy.filters.http.ext_proc": their_struct(**{"request.id": "abc", "deep": {"a": [1, 2]}})},
            observability_mode=True,
            protocol_config=theirs.ProtocolConfiguration(
                request_body_mode=MODE.FULL_DUPLEX_STREAMED,
                response_body_mode=MODE.STREAMED,
                send_body_without_waiting_for_header_response=True,
            ),
        ),
    ),
    "a header in `value`, as some proxies send it": (
        ours.ProcessingRequest(
            request_headers=ours.HttpHeaders(
                headers=ours.HeaderMap(headers=[ours.HeaderValue(key=":path", value="/v1/models")])
            )
        ),
        theirs.ProcessingRequest(
            request_headers=theirs.HttpHeaders(
                headers=core.HeaderMap(headers=[core.HeaderValue(key=":path", value="/v1/models")])
            )
        ),
    ),
    "request body": (
        ours.ProcessingRequest(request_body=ours.HttpBody(body=bytes(range(256)), end_of_stream=False)),
        theirs.ProcessingRequest(request_body=theirs.HttpBody(body=bytes(range(256)), end_of_stream=False)),
    ),
    "an empty last chunk": (
        ours.ProcessingRequest(request_body=ours.HttpBody(body=b"", end_of_stream=True)),
        theirs.ProcessingRequest(request_body=theirs.HttpBody(body=b"", end_of_stream=True)),
    ),
    "request trailers": (
        ours.ProcessingRequest(request_trailers=ours.HttpTrailers(trailers=our_headers(("x-checksum", b"1")))),
        theirs.ProcessingRequest(request_trailers=theirs.HttpTrailers(trailers=their_headers(("x-checksum", b"1")))),
    ),
    "response headers, with the endpoint that served": (
        ours.ProcessingRequest(
            response_headers=ours.HttpHeaders(headers=our_headers((":status", b"200"))),
            metadata_context=ours.Metadata(filter_metadata={"envoy.lb": our_struct(**SERVED)}),
        ),
        theirs.ProcessingRequest(
            response_headers=theirs.HttpHeaders(headers=their_headers((":status", b"200"))),
            metadata_context=core.Metadata(filter_metadata={"envoy.lb": their_struct(**SERVED)}),
        ),
    ),
    "response body": (
        ours.ProcessingRequest(response_body=ours.HttpBody(body=b"data: [DONE]\n\n", end_of_stream=True)),
        theirs.ProcessingRequest(response_body=theirs.HttpBody(body=b"data: [DONE]\n\n", end_of_stream=True)),
    ),
    "response trailers": (
        ours.ProcessingRequest(response_trailers=ours.HttpTrailers(trailers=our_headers(("grpc-status", b"0")))),
        theirs.ProcessingRequest(response_trailers=theirs.HttpTrailers(trailers=their_headers(("grpc-status", b"0")))),
    ),
}


def our_set(key: str, value: bytes) -> ours.HeaderMutation:
    option = ours.HeaderValueOption(header=ours.HeaderValue(key=key, raw_value=value))
    return ours.HeaderMutation(set_headers=[option], remove_headers=["x-gone", "x-too"])


def their_set(key: str, value: bytes) -> theirs.HeaderMutation:
    option = core.HeaderValueOption(header=core.HeaderValue(key=key, raw_value=value))
    return theirs.HeaderMutation(set_headers=[option], remove_headers=["x-gone", "x-too"])


def our_body(mutation: ours.BodyMutation) -> ours.BodyResponse:
    return ours.BodyResponse(response=ours.CommonResponse(body_mutation=mutation))


def their_body(mutation: theirs.BodyMutation) -> theirs.BodyResponse:
    return theirs.BodyResponse(response=theirs.CommonResponse(body_mutation=mutation))


PICK = {"envoy.lb": {DESTINATION: "10.0.0.1:8000,10.0.0.2:8000"}}
REPLACE = theirs.CommonResponseResponseStatus.CONTINUE_AND_REPLACE

RESPONSES: dict[str, tuple[ours.ProcessingResponse, theirs.ProcessingResponse]] = {
    "the pick": (
        ours.ProcessingResponse(
            request_headers=ours.HeadersResponse(
                response=ours.CommonResponse(
                    status=1, header_mutation=our_set(DESTINATION, b"10.0.0.1:8000"), clear_route_cache=True
                )
            ),
            dynamic_metadata=our_struct(**PICK),
        ),
        theirs.ProcessingResponse(
            request_headers=theirs.HeadersResponse(
                response=theirs.CommonResponse(
                    status=REPLACE, header_mutation=their_set(DESTINATION, b"10.0.0.1:8000"), clear_route_cache=True
                )
            ),
            dynamic_metadata=their_struct(**PICK),
        ),
    ),
    "response headers untouched": (
        ours.ProcessingResponse(response_headers=ours.HeadersResponse()),
        theirs.ProcessingResponse(response_headers=theirs.HeadersResponse()),
    ),
    "a request chunk echoed in full duplex": (
        ours.ProcessingResponse(
            request_body=our_body(
                ours.BodyMutation(streamed_response=ours.StreamedBodyResponse(body=b"\x00a", end_of_stream=True))
            )
        ),
        theirs.ProcessingResponse(
            request_body=their_body(
                theirs.BodyMutation(streamed_response=theirs.StreamedBodyResponse(body=b"\x00a", end_of_stream=True))
            )
        ),
    ),
    "a response body replaced": (
        ours.ProcessingResponse(response_body=our_body(ours.BodyMutation(body=b"{}"))),
        theirs.ProcessingResponse(response_body=their_body(theirs.BodyMutation(body=b"{}"))),
    ),
    "a body cleared": (
        ours.ProcessingResponse(request_body=our_body(ours.BodyMutation(clear_body=True))),
        theirs.ProcessingResponse(request_body=their_body(theirs.BodyMutation(clear_body=True))),
    ),
    "request trailers changed": (
        ours.ProcessingResponse(request_trailers=ours.TrailersResponse(header_mutation=our_set("x-t", b"1"))),
        theirs.ProcessingResponse(request_trailers=theirs.TrailersResponse(header_mutation=their_set("x-t", b"1"))),
    ),
    "response trailers untouched": (
        ours.ProcessingResponse(response_trailers=ours.TrailersResponse()),
        theirs.ProcessingResponse(response_trailers=theirs.TrailersResponse()),
    ),
    "an answer of our own": (
        ours.ProcessingResponse(
            immediate_response=ours.ImmediateResponse(
                status=ours.HttpStatus(code=429), headers=our_set("retry-after", b"1"), body=b"{}", details="saturated"
            )
        ),
        theirs.ProcessingResponse(
            immediate_response=theirs.ImmediateResponse(
                status=envoy_type.HttpStatus(code=envoy_type.StatusCode.TooManyRequests),
                headers=their_set("retry-after", b"1"),
                body=b"{}",
                details="saturated",
            )
        ),
    ),
}

PAIRS: dict[str, tuple[Any, Any]] = {**REQUESTS, **RESPONSES}
assert len(PAIRS) == len(REQUESTS) + len(RESPONSES)
EACH_PAIR = pytest.mark.parametrize("name", PAIRS)


@EACH_PAIR
def test_they_read_our_bytes(name: str) -> None:
    our_message, their_message = PAIRS[name]
    assert type(their_message).parse(our_message.SerializeToString()) == their_message


@EACH_PAIR
def test_we_read_their_bytes(name: str) -> None:
    our_message, their_message = PAIRS[name]
    assert type(our_message).FromString(bytes(their_message)) == our_message


def test_what_the_proxy_is_told_stands_beside_every_reply_that_may_carry_it() -> None:
    """And changes nothing else of it: read by the other codec, with and without."""
    told = ("ours", (("reason", "load"), ("total_tokens", 42.0), ("tenant", "a\ud800")))
    expected = {"ours": {"reason": "load", "total_tokens": 42.0, "tenant": "a?"}}
    route = {"envoy.lb": {DESTINATION: "10.0.0.1:8000"}}
    stamp = ("x-session-id", "p0123456789-12345")
    addresses = ("10.0.0.1:8000",)
    for plain, telling, more in (
        (replies.EchoResponseBody(b"x" * 300, True), replies.EchoResponseBody(b"x" * 300, True, told), {}),
        (replies.ContinueResponseBody(), replies.ContinueResponseBody(told), {}),
        (replies.ContinueResponseTrailers(), replies.ContinueResponseTrailers(told), {}),
        (replies.ContinueResponseHeaders(), replies.ContinueResponseHeaders(None, told), {}),
        (replies.ContinueResponseHeaders("why"), replies.ContinueResponseHeaders("why", told), {}),
        (replies.RouteOnHeaders(addresses), replies.RouteOnHeaders(addresses, None, told), route),
        (replies.RouteOnBody(addresses), replies.RouteOnBody(addresses, None, told), route),
        (replies.RouteOnBody(addresses, stamp), replies.RouteOnBody(addresses, stamp, told), route),
    ):
        without, with_it = (theirs.ProcessingResponse.parse(b"".join(encode(each))) for each in (plain, telling))
        assert with_it.dynamic_metadata == their_struct(**expected, **more)
        with_it.dynamic_metadata = without.dynamic_metadata
        assert with_it == without


def test_an_unknown_field_is_skipped() -> None:
    """`mode_override` and `override_message_timeout` are not in our definitions."""
    full = theirs.ProcessingResponse(
        request_headers=theirs.HeadersResponse(),
        mode_override=ext_proc.ProcessingMode(request_body_mode=MODE.BUFFERED),
    )
    assert ours.ProcessingResponse.FromString(bytes(full)).WhichOneof("response") == "request_headers"


def test_an_unknown_body_mode_survives() -> None:
    """Modes are numbers to us: one that Envoy invents later must not fail to parse."""
    message = ours.ProtocolConfiguration(request_body_mode=77)
    assert ours.ProtocolConfiguration.FromString(message.SerializeToString()).request_body_mode == 77


@pytest.mark.parametrize(
    ("mode", "number"),
    [("NONE", 0), ("STREAMED", 1), ("BUFFERED", 2), ("BUFFERED_PARTIAL", 3), ("FULL_DUPLEX_STREAMED", 4), ("GRPC", 5)],
)
def test_body_mode_numbers_are_envoys(mode: str, number: int) -> None:
    assert MODE[mode].value == number


def test_every_field_of_our_definitions_is_in_a_pair() -> None:
    used = {field.full_name for message, _ in PAIRS.values() for field in fields_set(message)}
    declared = {
        field.full_name
        for root in (ours.ProcessingRequest.DESCRIPTOR, ours.ProcessingResponse.DESCRIPTOR)
        for field in fields_declared(root, set())  # type: ignore[arg-type]
    }
    assert declared - used == set()


def fields_set(message: Message) -> Iterator[FieldDescriptor]:
    """Every field of our package that holds a value, at any depth."""
    for field, value in message.ListFields():
        yield field
        if field.message_type is None or is_map(field):
            continue
        for part in value if field.is_repeated else [value]:
            if field.message_type.file.package == "picker.ext_proc":
                yield from fields_set(part)


def fields_declared(descriptor: Descriptor, seen: set[str]) -> Iterator[FieldDescriptor]:
    if descriptor.full_name in seen or descriptor.file.package != "picker.ext_proc":
        return
    seen.add(descriptor.full_name)
    for field in descriptor.fields:
        yield field
        if field.message_type is not None and not is_map(field):
            yield from fields_declared(field.message_type, seen)


def is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry
