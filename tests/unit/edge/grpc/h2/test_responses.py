"""Response blocks, read back by hpack: right, and without a trace in its table."""

import hpack
import pytest

from picker.edge.grpc.h2 import responses
from picker.edge.grpc.transport import GrpcStatus


def decode(block: bytes) -> list[tuple[str, str]]:
    decoder = hpack.Decoder()
    fields = [(str(name), str(value)) for name, value in decoder.decode(block)]
    assert not decoder.header_table.dynamic_entries
    return fields


def test_response_headers() -> None:
    assert decode(responses.RESPONSE_HEADERS) == [
        (":status", "200"),
        ("content-type", "application/grpc"),
        ("grpc-accept-encoding", "identity"),
    ]


@pytest.mark.parametrize("status", list(GrpcStatus))
def test_trailers(status: GrpcStatus) -> None:
    assert decode(responses.trailers(status)) == [("grpc-status", str(int(status)))]
    assert decode(responses.trailers_only(status, "no"))[-2:] == [
        ("grpc-status", str(int(status))),
        ("grpc-message", "no"),
    ]


@pytest.mark.parametrize(
    ("text", "encoded"),
    [
        ("plain, with: signs!", "plain, with: signs!"),
        ("100 %", "100 %25"),
        ("größer", "gr%C3%B6%C3%9Fer"),
        ("line\r\nbreak", "line%0D%0Abreak"),
        ("x" * 501, "x" * 500),
    ],
)
def test_messages_are_percent_encoded(text: str, encoded: str) -> None:
    """grpc PROTOCOL-HTTP2.md: everything outside 0x20..0x7e, and the percent sign."""
    assert dict(decode(responses.trailers(GrpcStatus.INTERNAL, text)))["grpc-message"] == encoded


@pytest.mark.parametrize("length", [0, 126, 127, 128, 254, 255, 256, 16_510, 16_511])
def test_literals_of_every_length(length: int) -> None:
    assert decode(responses.literal(b"name", b"v" * length)) == [("name", "v" * length)]


def test_plain_answers() -> None:
    for status in (405, 415):
        block, text = responses.http_error(status)
        fields = dict(decode(block))
        assert fields[":status"] == str(status)
        assert int(fields["content-length"]) == len(text)
    assert dict(decode(responses.http_error(405)[0]))["allow"] == "POST"


def test_the_answer_to_http_1_is_consistent() -> None:
    head, _, body = responses.HTTP1_ANSWER.partition(b"\r\n\r\n")
    assert b"Content-Length: %d" % len(body) in head


def test_a_table_emptied_is_understood_by_a_decoder_that_demands_it() -> None:
    decoder = hpack.Decoder()
    decoder.max_allowed_table_size = 0
    with pytest.raises(hpack.HPACKError):
        decoder.decode(responses.RESPONSE_HEADERS)
    decoder = hpack.Decoder()
    decoder.max_allowed_table_size = 0
    assert len(decoder.decode(responses.TABLE_EMPTIED + responses.RESPONSE_HEADERS)) == 3
