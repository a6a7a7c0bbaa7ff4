"""Messages made to hurt: to take apart what is made of crumbs costs more than it is worth to anybody honest."""

import pytest

from picker.extproc import headers as reading
from picker.extproc.crumbs import BESIDE_BYTES_MAX
from picker.extproc.events import Malformed, RequestBody, RequestHeaders, ResponseHeaders
from picker.extproc.headers import HEADERS_MAX
from picker.extproc.wire import SUBSET_KEY, SUBSET_NAMESPACE, decode, decode_any
from picker.generated import ext_proc_pb2 as pb

MIB = 1024 * 1024


def with_headers(count, *, response=False) -> pb.ProcessingRequest:
    made = pb.ProcessingRequest()
    part = made.response_headers if response else made.request_headers
    part.headers.headers.add(key=":status" if response else ":path", raw_value=b"200")
    for _ in range(count - 1):
        part.headers.headers.add(key="a", raw_value=b"b")
    return made


@pytest.mark.parametrize("response", [False, True])
@pytest.mark.parametrize("spelling", ["usual", "unusual"])
def test_as_many_headers_as_any_proxy_sends_and_no_more(response, spelling):
    """However they are written, by whichever reader."""
    for count, expected in ((HEADERS_MAX, (RequestHeaders, ResponseHeaders)), (HEADERS_MAX + 1, Malformed)):
        made = with_headers(count, response=response)
        message = made.SerializeToString()
        if spelling == "unusual":
            message = b"\x52\x00" + message  # another field first
        assert isinstance(decode(message), expected)
        assert isinstance(decode_any(message, frozenset()), expected)


def test_both_readers_of_headers_stop_at_the_same_number():
    names = reading.HeaderNames(frozenset({":path"}))
    for count in (HEADERS_MAX, HEADERS_MAX + 1):
        message = with_headers(count).SerializeToString()
        assert reading.by_pair(message, names) == reading.read_headers(message, names)


@pytest.mark.parametrize(
    "message",
    [
        b"\x20\x01" * (8 * MIB),
        b"\x12\x00" * (8 * MIB),
        b"\x22\x00" * (8 * MIB),
        b"\x52\x00" * (8 * MIB),
        b"\x22\x80\x80\x80\x04" + b"\x10\x01" * (4 * MIB),
    ],
    ids=["unknown fields", "empty headers", "empty bodies", "empty attributes", "a body of flags"],
)
def test_a_message_of_crumbs_is_not_taken_apart(message):
    event = decode(message)
    assert isinstance(event, Malformed) and "beside a body" in event.why


def test_a_subset_of_tens_of_thousands_is_read_and_of_a_million_is_not():
    for count, expected in ((20_000, RequestHeaders), (1_000_000, Malformed)):
        made = with_headers(1)
        hint = made.metadata_context.filter_metadata[SUBSET_NAMESPACE].fields[SUBSET_KEY]
        for number in range(count):
            hint.list_value.values.add(string_value=f"10.0.{number // 250 % 250}.{number % 250}:8000")
        event = decode(made.SerializeToString())
        assert isinstance(event, expected)
        if isinstance(event, RequestHeaders):
            assert event.subset is not None and len(event.subset) == count


@pytest.mark.parametrize("before", [b"", b"\x52\x00", b"\x58\x01"])
def test_a_body_of_16_mb_is_read_whatever_stands_beside_it(before):
    made = pb.ProcessingRequest()
    made.request_body.body = b"x" * (15 * MIB)
    made.request_body.end_of_stream = True
    made.metadata_context.filter_metadata["other"].fields["a"].string_value = "b" * (BESIDE_BYTES_MAX // 2)
    event = decode(before + made.SerializeToString())
    assert isinstance(event, RequestBody) and len(event.data) == 15 * MIB and event.end_of_stream
