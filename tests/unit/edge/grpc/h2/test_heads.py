"""Request header blocks: what is a gRPC call, what is malformed, and when bytes alone answer."""

import hpack
import pytest

from picker.edge.grpc.h2 import heads
from picker.edge.grpc.h2.frames import COMPRESSION_ERROR, ENHANCE_YOUR_CALM, ConnectionFault
from picker.edge.grpc.h2.heads import Head, HeadReader

GOOD = [
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/a.B/C"),
    (b":authority", b"epp:9002"),
    (b"content-type", b"application/grpc"),
    (b"te", b"trailers"),
]


def read_head(fields: list[tuple[bytes, bytes]]) -> Head:
    """What the fields say, as if they had been decoded from a block."""
    return heads.read_head([(name, value, heads._valid(name, value), 0) for name, value in fields])


def changed(name: bytes, *values: bytes) -> list[tuple[bytes, bytes]]:
    """GOOD with a field's value replaced, or the field left out, or given more than once."""
    kept = []
    for field in GOOD:
        kept += [(name, value) for value in values] if field[0] == name else [field]
    return kept


def test_a_grpc_call_is_read() -> None:
    head = read_head([*GOOD, (b"grpc-timeout", b"1500m"), (b"grpc-encoding", b"gzip")])
    assert (head.path, head.malformed, head.http_status) == ("/a.B/C", False, 200)
    assert head.timeout_seconds == pytest.approx(1.5)
    assert head.encoding == "gzip"


@pytest.mark.parametrize(
    ("value", "seconds"),
    [(b"1H", 3600), (b"2M", 120), (b"3S", 3), (b"99999999n", 0.099999999), (b"7u", 7e-6), (b"0S", 0)],
)
def test_timeouts_have_the_units_of_the_grpc_specification(value: bytes, seconds: float) -> None:
    assert read_head([*GOOD, (b"grpc-timeout", value)]).timeout_seconds == pytest.approx(seconds)


@pytest.mark.parametrize("value", [b"", b"1", b"S", b"-1S", b"123456789S", b"1 S", b"1s", b"1.5S"])
def test_other_timeouts_are_bad(value: bytes) -> None:
    head = read_head([*GOOD, (b"grpc-timeout", value)])
    assert head.bad_timeout
    assert head.timeout_seconds is None


@pytest.mark.parametrize(
    ("content_type", "status"),
    [
        (b"application/grpc", 200),
        (b"application/grpc+proto", 200),
        (b"application/grpc;charset=utf-8", 200),
        (b"Application/GRPC", 200),
        (b"application/grpc-web", 415),
        (b"application/grpcx", 415),
        (b"application/json", 415),
        (b"", 415),
    ],
)
def test_the_content_type_says_whether_it_is_grpc(content_type: bytes, status: int) -> None:
    assert read_head(changed(b"content-type", content_type)).http_status == status


def test_a_grpc_call_is_a_post() -> None:
    assert read_head(changed(b":method", b"GET")).http_status == 405
    assert read_head(changed(b"content-type")).http_status == 415


@pytest.mark.parametrize(
    "fields",
    [
        changed(b":method"),
        changed(b":scheme"),
        changed(b":path"),
        changed(b":path", b""),
        changed(b":path", b"/a", b"/b"),
        [*GOOD, (b":authority", b"late")],
        [(b":status", b"200"), *GOOD],
        [(b":unknown", b"x"), *GOOD],
        [*GOOD, (b"Upper", b"x")],
        [*GOOD, (b"", b"x")],
        [*GOOD, (b"sp ace", b"x")],
        [*GOOD, (b"connection", b"close")],
        [*GOOD, (b"transfer-encoding", b"chunked")],
        [*GOOD, (b"upgrade", b"h2c")],
        [*GOOD, (b"keep-alive", b"1")],
        [*GOOD, (b"proxy-connection", b"close")],
        changed(b"te", b"gzip"),
        [*GOOD, (b"x", b"a\r\nb: c")],
        [*GOOD, (b"x", b"a\x00b")],
        [*GOOD, (b"x", b" padded ")],
        [*GOOD, (b"content-length", b"-1")],
        [*GOOD, (b"content-length", b"1"), (b"content-length", b"2")],
    ],
)
def test_what_rfc_9113_calls_malformed_is_malformed(fields: list[tuple[bytes, bytes]]) -> None:
    assert read_head(fields).malformed


def test_a_block_is_remembered_once_it_changes_nothing() -> None:
    encoder, reader = hpack.Encoder(), HeadReader(16_384)
    first, second = encoder.encode(GOOD), encoder.encode(GOOD)
    assert first != second
    reader.read(first)
    assert first not in reader.remembered
    head = reader.read(second)
    assert reader.remembered == {second: head}
    assert head.path == "/a.B/C"


def test_remembered_blocks_are_forgotten_when_the_table_changes() -> None:
    """The same bytes may mean something else afterwards: index 62 is whatever came last."""
    encoder, reader = hpack.Encoder(), HeadReader(16_384)
    reader.read(encoder.encode(GOOD))
    block = encoder.encode(GOOD)
    assert reader.read(block).path == "/a.B/C"
    other = changed(b":path", b"/x.Y/Z")
    assert reader.read(encoder.encode(other)).path == "/x.Y/Z"
    assert reader.remembered == {}
    # The old bytes now name other entries; a second decoder that never remembers says what they mean.
    fresh = hpack.Decoder()
    replayed = hpack.Encoder()
    for fields in (GOOD, GOOD, other):
        fresh.decode(replayed.encode(fields), raw=True)
    assert reader.read(block) == read_head(list(fresh.decode(block, raw=True)))


def test_a_smaller_table_forgets_too() -> None:
    encoder, reader = hpack.Encoder(), HeadReader(16_384)
    reader.read(encoder.encode(GOOD))
    block = encoder.encode(GOOD)
    reader.read(block)
    assert block in reader.remembered
    encoder.header_table_size = 0
    reader.read(encoder.encode(GOOD))
    assert block not in reader.remembered
    with pytest.raises(ConnectionFault) as caught:
        reader.read(block)
    assert caught.value.code == COMPRESSION_ERROR


def test_memory_is_bounded() -> None:
    encoder, reader = hpack.Encoder(), HeadReader(16_384)
    for number in range(1_000):
        # Never indexed: each block leaves the table alone and differs.
        block = b"".join(
            encoder.add(field, True) for field in [*GOOD[:2], (b":path", b"/%d" % number), (b"x", b"y" * number)]
        )
        reader.read(block)
    assert len(reader.remembered) <= 64
    assert max(map(len, reader.remembered)) <= 1_024


def test_a_list_above_the_limit_ends_the_connection() -> None:
    """4 KiB in the table, named again and again by one byte each: what is counted is the decoded size."""
    encoder, reader = hpack.Encoder(), HeadReader(16_384)
    reader.read(encoder.encode([*GOOD, (b"big", b"x" * 3_000)]))
    with pytest.raises(ConnectionFault) as caught:
        reader.read(b"\xbe" * 10_000)
    assert caught.value.code == ENHANCE_YOUR_CALM


@pytest.mark.parametrize(
    "block",
    [
        b"\xff\xff\xff\xff\xff\xff\xff\xff\x7f",  # an index beyond the table
        b"\x80",  # index 0
        b"\x00\x7f\xff\xff\xff\xff\x0fa",  # a name longer than the block
        b"\x3f\xff\xff\xff\xff\x0f",  # a table larger than allowed
        b"\x00\x83\xff\xff\xff\x00",  # Huffman EOS
        b"\x40",
    ],
)
def test_what_cannot_be_decoded_ends_the_connection(block: bytes) -> None:
    with pytest.raises(ConnectionFault) as caught:
        HeadReader(16_384).read(block)
    assert caught.value.code == COMPRESSION_ERROR
