"""Bytes in any state become an event, and what is framed by hand is what protobuf reads."""

from random import Random

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from picker.extproc import events, headers, replies, wire
from picker.extproc.errors import answer
from picker.generated import ext_proc_pb2 as pb

EVENTS = (
    events.RequestHeaders,
    events.RequestBody,
    events.RequestTrailers,
    events.ResponseHeaders,
    events.ResponseBody,
    events.ResponseTrailers,
    events.Malformed,
)


def request_headers(pairs: dict[str, bytes]) -> pb.ProcessingRequest:
    message = pb.ProcessingRequest()
    for name, value in pairs.items():
        message.request_headers.headers.headers.add(key=name, raw_value=value)
    return message


def messages() -> list[bytes]:
    """One of each kind, with everything a proxy puts in."""
    head = request_headers({":path": b"/v1/chat/completions", ":method": b"POST", "x-request-id": b"\xffid"})
    head.request_headers.end_of_stream = True
    head.protocol_config.request_body_mode = 4
    head.protocol_config.response_body_mode = 1
    hint = head.metadata_context.filter_metadata["envoy.lb.subset_hint"]
    hint.update({"x-gateway-destination-endpoint-subset": ["10.0.0.1:80", "10.0.0.2"]})
    body = pb.ProcessingRequest()
    body.request_body.body = b'{"model":"m"}' * 20
    body.request_body.end_of_stream = True
    response = pb.ProcessingRequest()
    header = response.response_headers.headers.headers.add()
    header.key, header.raw_value = ":status", b"200"
    served = response.metadata_context.filter_metadata["envoy.lb"]
    served.update({"x-gateway-destination-endpoint-served": "10.0.0.1:80"})
    chunk = pb.ProcessingRequest()
    chunk.response_body.body = b"data: {}\n\n"
    trailers = pb.ProcessingRequest()
    trailers.request_trailers.SetInParent()
    ends = pb.ProcessingRequest()
    ends.response_trailers.SetInParent()
    return [each.SerializeToString() for each in (head, body, response, chunk, trailers, ends)]


MESSAGES = messages()


def test_each_kind_of_message_becomes_its_event():
    decoded = [wire.decode(message) for message in MESSAGES]
    assert [type(event) for event in decoded] == [EVENTS[0], EVENTS[1], EVENTS[3], EVENTS[4], EVENTS[2], EVENTS[5]]
    assert decoded[0].subset == ("10.0.0.1:80", "10.0.0.2") and decoded[2].served == "10.0.0.1:80"
    assert decoded[0].headers["x-request-id"] == "\ufffdid"


@pytest.mark.skipif(wire.__file__.endswith(".so"), reason="compiled modules call each other past the test")
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("size", [0, 1, 100, 127, 128, 200, 16_383, 16_384, 20_000, 2_100_000])
def test_the_usual_messages_are_read_without_protobufs_parser_whatever_their_size(monkeypatch, size, last):
    """Falling back gives the same events, so only this tells that the quick way is taken."""
    monkeypatch.setattr(wire, "decode_any", None)
    monkeypatch.setattr(headers, "SCAN", None)
    content = b"x" * size
    body = pb.ProcessingRequest(request_body=pb.HttpBody(body=content, end_of_stream=last))
    event = wire.decode(body.SerializeToString())
    assert (bytes(event.data), event.end_of_stream) == (content, last)
    chunk = pb.ProcessingRequest(response_body=pb.HttpBody(body=content, end_of_stream=last))
    event = wire.decode(chunk.SerializeToString())
    assert (bytes(event.data), event.end_of_stream) == (content, last)
    head = request_headers({":path": b"/v1/" + content, "x-other": content, ":method": b"POST"})
    head.request_headers.end_of_stream = last
    event = wire.decode(head.SerializeToString())
    assert (event.headers[":path"], event.headers[":method"]) == ("/v1/" + content.decode(), "POST")
    assert event.end_of_stream is last


@pytest.mark.parametrize("kind", ["request_body", "response_body", "request_headers", "response_headers"])
@pytest.mark.parametrize("tail", [b"", b"\x10\x00", b"\x10\x01", b"\x10\x02", b"\x18\x00", b"\x18\x01", b"\x18\x02"])
@pytest.mark.parametrize("more", [b"", b"\x10\x01", b"\x18\x01", b"\x20\x01", b"\x20\x00"])
def test_what_stands_behind_the_content_means_what_it_means_to_protobuf(kind, tail, more):
    """Flags as true as 2, fields that nobody knows, one more than usual."""
    whole = pb.ProcessingRequest(**{kind: pb.HttpBody(body=b"xy") if "body" in kind else pb.HttpHeaders()})  # type: ignore[arg-type]
    if "headers" in kind:
        getattr(whole, kind).headers.headers.add(key=":status", raw_value=b"200")
    usual = whole.SerializeToString()
    message = usual[:1] + bytes([usual[1] + len(tail + more)]) + usual[2:] + tail + more
    parsed = getattr(pb.ProcessingRequest.FromString(message), kind)
    event = wire.decode(message)
    assert event.end_of_stream == parsed.end_of_stream
    if "body" in kind:
        assert bytes(event.data) == parsed.body


def test_what_repeats_is_remembered_and_no_secret_is():
    pairs = {
        ":authority": b"gateway.example",
        ":path": b"/v1/responses?key=SECRET",
        "authorization": b"Bearer SECRET",
        "cookie": b"SECRET",
        "x-api-key": b"SECRET",
        "x-request-id": b"SECRET",
        "accept": b"a" * 200,
    }
    data = request_headers(pairs).SerializeToString()
    first, again = wire.decode(data), wire.decode(data)
    assert first == again and first.headers[":path"] == "/v1/responses?key=SECRET"
    names = headers.HeaderNames(wire.REQUEST_HEADERS_READ)
    assert headers.by_pair(data, names) == headers.by_pair(data, names) == headers.read_headers(data, names)
    kept = b"".join(names.seen)
    assert b"gateway.example" in kept and b"SECRET" not in kept and b"a" * 200 not in kept


def test_remembered_headers_are_bounded():
    names = headers.HeaderNames(wire.REQUEST_HEADERS_READ)
    for number in range(3_000):
        headers.by_pair(request_headers({"user-agent": b"%d" % number}).SerializeToString(), names)
    assert 0 < len(names.seen) <= 1024


@settings(max_examples=500, deadline=None)
@given(st.binary(max_size=400))
def test_any_bytes_are_an_event(data):
    assert isinstance(wire.decode(data), EVENTS)


def damaged(message: bytes, seed: int, damages: int) -> bytes:
    """`message` with bits turned, bytes missing, bytes more, an early end, or another message behind it."""
    rng = Random(seed)
    data = bytearray(message)
    for _ in range(damages):
        at = rng.randrange(len(data)) if data else 0
        what = rng.randrange(5)
        if what == 0 and data:
            data[at] ^= 1 << rng.randrange(8)
        elif what == 1:
            del data[at : at + rng.randrange(1, 9)]
        elif what == 2:
            data[at:at] = rng.randbytes(rng.randrange(1, 9))
        elif what == 3:
            data = data[:at]
        else:
            data += rng.choice(MESSAGES)
    return bytes(data)


@settings(max_examples=800, deadline=None)
@given(st.sampled_from(MESSAGES), st.integers(0, 2**32), st.integers(0, 8))
def test_a_message_damaged_anywhere_is_an_event_and_what_protobuf_reads_of_it(message, seed, damages):
    data = damaged(message, seed, damages)
    event, expected = wire.decode(data), wire.decode_any(data, frozenset())
    assert isinstance(event, EVENTS)
    # What protobuf refuses may pass: text of a header that nobody reads is not looked into.
    assert event == expected or isinstance(expected, events.Malformed)


@pytest.mark.skipif(headers.SCAN is None, reason="of the compiled build")
@settings(max_examples=2_000, deadline=None)
@given(st.sampled_from([MESSAGES[0], MESSAGES[2]]), st.integers(0, 2**32), st.integers(0, 4))
def test_one_call_reads_the_headers_that_python_reads_pair_by_pair(message, seed, damages):
    data = damaged(message, seed, damages)
    names = headers.HeaderNames(wire.REQUEST_HEADERS_READ)
    found = headers.SCAN(data, names.wanted)
    if data:
        assert found == headers.by_pair(data, names)
    else:
        assert found is None


@pytest.mark.skipif(headers.SCAN is None, reason="of the compiled build")
@pytest.mark.parametrize(
    "given", [(b"\x12\x00",), ("", ()), (b"", [":path"]), (b"\x12", (b":path",)), (b"", ("a",) * 65)]
)
def test_the_scan_refuses_what_it_cannot_read(given):
    with pytest.raises((TypeError, ValueError)):
        headers.SCAN(*given)


texts = st.text(st.characters(codec="utf-8"), max_size=200)
names = st.sampled_from(sorted(wire.REQUEST_HEADERS_READ | {":status", "x-other", "X-Request-Id", "x" * 130, ""}))


@st.composite
def any_message(draw):
    """What a proxy may send: headers or a body of any size, in any form that the protocol allows."""
    message = pb.ProcessingRequest()
    kind = draw(st.sampled_from(["request_headers", "response_headers", "request_body", "response_body"]))
    part = getattr(message, kind)
    part.SetInParent()
    part.end_of_stream = draw(st.booleans())
    if kind.endswith("headers"):
        for name in draw(st.lists(names, max_size=12)):
            header = part.headers.headers.add(key=name)
            if draw(st.booleans()):
                header.raw_value = draw(st.binary(max_size=300))
            else:
                header.value = draw(texts)
    else:
        part.body = b"\x0a" * draw(st.sampled_from([0, 1, 100, 127, 128, 16_383, 16_384, 2_200_000]))
    if draw(st.booleans()):
        message.protocol_config.request_body_mode = draw(st.integers(0, 5))
        message.protocol_config.response_body_mode = draw(st.integers(0, 5))
    if draw(st.booleans()):
        message.metadata_context.SetInParent()
    if draw(st.booleans()):
        message.metadata_context.filter_metadata["envoy.lb"].update(
            {wire.SERVED_KEY: draw(texts), "more": "x" * draw(st.sampled_from([1, 600]))}
        )
    if draw(st.booleans()):
        message.metadata_context.filter_metadata[wire.SUBSET_NAMESPACE].update({wire.SUBSET_KEY: draw(texts)})
    return message.SerializeToString()


@settings(max_examples=500, deadline=None)
@given(any_message())
def test_reading_field_by_field_is_reading_as_protobuf_does(message):
    assert wire.decode(message) == wire.decode_any(message, frozenset())


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=400))
def test_any_bytes_mean_what_protobuf_reads(data):
    expected = wire.decode_any(data, frozenset())
    assert isinstance(expected, events.Malformed) or wire.decode(data) == expected


def test_nested_beyond_reason_is_malformed():
    """A google.protobuf.Struct in itself, ten thousand deep."""
    inner = b""
    for _ in range(10_000):
        value = b"\x2a" + _length(inner)  # Value.struct_value
        field = b"\x0a\x01a\x12" + _length(value)
        inner = b"\x0a" + _length(field)
    struct = b"\x0a\x08envoy.lb\x12" + _length(inner)
    metadata = b"\x0a" + _length(struct)
    for number in range(1, 16):
        message = bytes([number << 3 | 2]) + _length(metadata)
        assert isinstance(wire.decode(message), EVENTS)


def _length(data: bytes) -> bytes:
    size, out = len(data), bytearray()
    while size > 0x7F:
        out.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes([*out, size]) + data


sizes = st.sampled_from([0, 1, 63, 100, 115, 116, 117, 118, 119, 120, 121, 122, 123, 124, 125, 126, 127, 128, 129])
larger = st.sampled_from([16_360, 16_370, 16_375, 16_376, 16_378, 16_380, 16_383, 16_384, 16_385, 62_000, 3_000_000])


@settings(max_examples=200, deadline=None)
@given(sizes | larger | st.integers(0, 40_000), st.booleans(), st.booleans())
def test_pieces_of_body_are_framed_as_protobuf_frames_them(size, end, request):
    data = b"\x81" * size
    expected = pb.ProcessingResponse()
    part = expected.request_body if request else expected.response_body
    streamed = part.response.body_mutation.streamed_response
    streamed.SetInParent()
    streamed.body, streamed.end_of_stream = data, end
    kind = replies.EchoRequestBody if request else replies.EchoResponseBody
    assert pb.ProcessingResponse.FromString(b"".join(wire.encode(kind(data, end)))) == expected


addresses = st.lists(
    st.tuples(st.sampled_from(["10.0.0.1", "[fd00::1]", "10.255.255.255"]), st.integers(1, 65_535)),
    min_size=1,
    max_size=16,
).map(lambda found: tuple(f"{host}:{port}" for host, port in found))


@settings(max_examples=100, deadline=None)
@given(addresses, st.booleans())
def test_header_and_metadata_of_a_route_are_equal_and_nothing_else_is_set(found, on_body):
    sent = pb.ProcessingResponse.FromString(
        b"".join(wire.encode((replies.RouteOnBody if on_body else replies.RouteOnHeaders)(found)))
    )
    assert sent.WhichOneof("response") == ("request_body" if on_body else "request_headers")
    common = (sent.request_body if on_body else sent.request_headers).response
    (option,) = common.header_mutation.set_headers
    value = ",".join(found)
    assert (option.header.key, option.header.raw_value, option.header.value) == (wire.DESTINATION, value.encode(), "")
    namespaces = sent.dynamic_metadata.fields
    assert list(namespaces) == ["envoy.lb"]
    assert dict(namespaces["envoy.lb"].struct_value.fields.items())[wire.DESTINATION].string_value == value
    assert len(namespaces["envoy.lb"].struct_value.fields) == 1
    assert not common.HasField("body_mutation") and not common.clear_route_cache


@settings(max_examples=50, deadline=None)
@given(st.sampled_from([400, 413, 429, 500, 503]), st.text(max_size=200), st.booleans())
def test_our_own_answers_survive_any_text(status, text, anthropic):
    sent = pb.ProcessingResponse.FromString(
        b"".join(wire.encode(answer(status, text, "word", anthropic=anthropic, retry_after_seconds=3)))
    ).immediate_response
    assert sent.status.code == status
    assert {option.header.key for option in sent.headers.set_headers} == {
        "content-type",
        "x-picker-reason",
        "retry-after",
    }


@settings(max_examples=100, deadline=None)
@given(addresses, st.booleans(), st.text("abcdef0123456789-", min_size=1, max_size=40), st.sampled_from(["x-a", "x-b"]))
def test_a_stamp_is_one_header_more_and_all_else_as_without(found, on_body, value, name):
    kind = replies.RouteOnBody if on_body else replies.RouteOnHeaders
    plain = pb.ProcessingResponse.FromString(b"".join(wire.encode(kind(found))))
    sent = pb.ProcessingResponse.FromString(b"".join(wire.encode(kind(found, (name, value)))))
    mutation = (sent.request_body if on_body else sent.request_headers).response.header_mutation
    stamped = mutation.set_headers.pop()
    assert (stamped.header.key, stamped.header.raw_value, stamped.header.value) == (name, value.encode(), "")
    assert sent == plain
