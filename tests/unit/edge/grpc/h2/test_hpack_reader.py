"""HPACK decoding against RFC 7541's own examples, and against hpack for anything else."""

import string

import hpack
import pytest
from hpack.huffman import HuffmanEncoder
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH
from hypothesis import given, settings
from hypothesis import strategies as st

from picker.edge.grpc.h2 import huffman
from picker.edge.grpc.h2.hpack_reader import HpackError, HpackReader, ListTooLong

ENCODER = HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH)


def reader(list_bytes_max: int = 16_384) -> HpackReader:
    return HpackReader(list_bytes_max, lambda _name, _value: True)


def pairs(found: HpackReader, block: bytes) -> list[tuple[bytes, bytes]]:
    return [(name, value) for name, value, _, _ in found.decode(block)]


FIRST = [(b":method", b"GET"), (b":scheme", b"http"), (b":path", b"/"), (b":authority", b"www.example.com")]
SECOND = [*FIRST, (b"cache-control", b"no-cache")]
THIRD = [
    (b":method", b"GET"),
    (b":scheme", b"https"),
    (b":path", b"/index.html"),
    (b":authority", b"www.example.com"),
    (b"custom-key", b"custom-value"),
]
PLAIN = (  # appendix C.3
    "828684410f7777772e6578616d706c652e636f6d",
    "828684be58086e6f2d6361636865",
    "828785bf400a637573746f6d2d6b65790c637573746f6d2d76616c7565",
)
HUFFMAN = (  # appendix C.4
    "828684418cf1e3c2e5f23a6ba0ab90f4ff",
    "828684be5886a8eb10649cbf",
    "828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf",
)


@pytest.mark.parametrize("blocks", [PLAIN, HUFFMAN])
def test_the_requests_of_appendix_c(blocks: tuple[str, str, str]) -> None:
    found = reader()
    assert [pairs(found, bytes.fromhex(block)) for block in blocks] == [FIRST, SECOND, THIRD]
    assert [(name, value) for name, value, _, _ in found._entries] == [
        (b"custom-key", b"custom-value"),
        (b"cache-control", b"no-cache"),
        (b":authority", b"www.example.com"),
    ]
    assert found._size == 164


@pytest.mark.parametrize(
    ("block", "field", "indexed"),
    [
        ("400a637573746f6d2d6b65790d637573746f6d2d686561646572", (b"custom-key", b"custom-header"), True),  # C.2.1
        ("040c2f73616d706c652f70617468", (b":path", b"/sample/path"), False),  # C.2.2
        ("100870617373776f726406736563726574", (b"password", b"secret"), False),  # C.2.3
        ("82", (b":method", b"GET"), False),  # C.2.4
    ],
)
def test_the_representations_of_appendix_c(block: str, field: tuple[bytes, bytes], indexed: bool) -> None:
    found = reader()
    assert pairs(found, bytes.fromhex(block)) == [field]
    assert found.changes == len(found._entries) == int(indexed)


def test_the_integers_of_appendix_c() -> None:
    """C.1.2: 1337 in a 5-bit prefix is 1f 9a 0a; as a table size it is accepted."""
    found = reader()
    found.decode(bytes.fromhex("3f9a0a"))
    assert found._size_max == 1337


def test_entries_leave_the_table_oldest_first() -> None:
    found = reader(100_000)
    encoder = hpack.Encoder()
    for number in range(200):
        found.decode(encoder.encode([(f"x-{number}", "y" * number)]))
        assert found._size == sum(entry[3] for entry in found._entries) <= 4_096
    twin = [(bytes(name), bytes(value)) for name, value in encoder.header_table.dynamic_entries]
    assert [(name, value) for name, value, _, _ in found._entries] == twin


def test_an_entry_larger_than_the_table_empties_it() -> None:
    found = reader()
    found.decode(b"\x40\x01a\x01b")
    assert found._size == 34
    found.decode(b"\x40\x01a\x7f\xd2\x1f" + b"b" * (127 + 0x52 + (0x1F << 7)))
    assert (found._entries, found._size) == ([], 0)


@pytest.mark.parametrize(
    "block",
    [
        "80",  # index 0
        "be",  # beyond an empty table
        "ff",  # an integer that does not end
        "ffffffffffffffff7f",  # an integer without end
        "ff8080808010",  # 2^32 with room to spare
        "3fe21f",  # a table of 4097 bytes
        "8220",  # a size update after a field
        "40",  # a literal without its name
        "400161",  # without its value
        "40016105616263",  # with half of it
        "7e00",  # a name beyond the table
        "0001618400000000",  # Huffman: fine bits, then a broken end
        "000161843fffffff",  # EOS inside
        "00016182ffff",  # 16 bits of padding
    ],
)
def test_what_is_not_hpack_is_refused(block: str) -> None:
    with pytest.raises(HpackError):
        reader().decode(bytes.fromhex(block))
    with pytest.raises((hpack.HPACKError, IndexError)):
        hpack.Decoder().decode(bytes.fromhex(block), raw=True)


def test_a_long_list_is_told_apart() -> None:
    with pytest.raises(ListTooLong):
        reader(100).decode(b"\x82\x82\x82")
    assert len(reader(42 * 3).decode(b"\x82\x82\x82")) == 3


def test_each_literal_is_judged_once() -> None:
    judged: list[tuple[bytes, bytes]] = []

    def judge(name: bytes, value: bytes) -> bool:
        judged.append((name, value))
        return value != b"bad"

    found = HpackReader(10_000, judge)
    block = b"\x40\x01a\x03bad"
    assert [field[2] for field in found.decode(block + b"\xbe\xbe\x82")] == [False, False, False, True]
    assert judged == [(b"a", b"bad")]


@given(st.binary(max_size=80))
def test_huffman_goes_there_and_back(data: bytes) -> None:
    assert huffman.decode(ENCODER.encode(data)) == data


@settings(max_examples=500)
@given(st.binary(max_size=12))
def test_huffman_of_anything_is_what_hpack_makes_of_it(data: bytes) -> None:
    from hpack.huffman_table import decode_huffman

    try:
        expected = decode_huffman(data)
    except hpack.HPACKError:
        expected = None
    try:
        found = huffman.decode(data)
    except huffman.HuffmanError:
        found = None
    assert found == expected


names = st.text(string.ascii_lowercase + "-", min_size=1, max_size=12) | st.sampled_from([":path", "accept", "te"])
values = st.text(string.printable[:94], max_size=60)
lists = st.lists(st.tuples(names, values, st.booleans()), max_size=8)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(lists, st.booleans(), st.none() | st.integers(0, 4_096)), max_size=8))
def test_whatever_hpack_encodes_is_decoded(blocks: list[tuple[list[tuple[str, str, bool]], bool, int | None]]) -> None:
    encoder, found = hpack.Encoder(), reader(1_000_000)
    for fields, squeezed, size in blocks:
        if size is not None:
            encoder.header_table_size = size
        tuples = [
            hpack.NeverIndexedHeaderTuple(name, value) if never else hpack.HeaderTuple(name, value)
            for name, value, never in fields
        ]
        decoded = pairs(found, encoder.encode(tuples, huffman=squeezed))
        assert decoded == [(name.encode(), value.encode()) for name, value, _ in fields]
    twin = [(bytes(name), bytes(value)) for name, value in encoder.header_table.dynamic_entries]
    assert [(name, value) for name, value, _, _ in found._entries] == twin


pieces = st.binary(max_size=8) | st.sampled_from(
    [
        bytes.fromhex(each)
        for each in (*PLAIN, *HUFFMAN, "20", "3f00", "3fe11f", "be", "bf", "c0", "7e0161", "400161026262")
    ]
)


@settings(max_examples=1_500, deadline=None)
@given(st.lists(st.lists(pieces, max_size=5).map(b"".join), max_size=5))
def test_any_blocks_mean_what_hpack_says_or_nothing(blocks: list[bytes]) -> None:
    theirs, ours = hpack.Decoder(max_header_list_size=5_000), reader(5_000)
    for block in blocks:
        try:
            expected = [(bytes(name), bytes(value)) for name, value in theirs.decode(block, raw=True)]
        except (hpack.HPACKError, IndexError):
            expected = None
        try:
            found = pairs(ours, block)
        except HpackError:
            found = None
        assert found == expected
        if found is None:
            return
