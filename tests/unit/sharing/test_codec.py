"""Any bytes give a batch or a refusal that says why."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from picker.sharing.codec import VERSION, BatchHead, Refused, decode, encode
from picker.sharing.records import Answer, Batch

HEAD = BatchHead(2**63, 7, 123_456_789, 1_700_000_000_000, True)
BATCH = Batch(
    endpoints=bytes(range(16)),
    chains=[(0, 5, 2**64 - 1, 9, 3, b"12345678"), (1, -5, 0, 0, 0, b"")],
    withdrawn=[(1, 5, 77, 9, 3)],
    purged=[(0, 12)],
    load=[(0, 1, 2, 1, 100, 200, 300)],
    slowness=[(0, 0.25, 20.0)],
    aside=[(0, -5_000_000, 1), (1, None, 0)],
    sticky=[(1, b"0123456789abcdef", 1, 5)],
    asks=[(0, 0), (5, 100)],
    answers=[Answer("name", 3, 10, 5, True)],
    runs=[(0, 0, b"12345678" * 2, [(0, 1), (1, 2)])],
)


def test_what_is_written_is_read():
    assert decode(encode(HEAD, BATCH)) == (HEAD, BATCH)
    assert decode(encode(HEAD, Batch())) == (HEAD, Batch())


@given(st.binary(max_size=200))
def test_any_bytes_are_a_batch_or_refused(data):
    for each in (data, encode(HEAD, BATCH)[:49] + data):
        try:
            decode(each)
        except Refused as error:
            assert str(error)


@given(st.integers(0, len(encode(HEAD, BATCH)) - 1), st.integers(0, 255))
def test_a_broken_byte_breaks_nothing(place, value):
    data = bytearray(encode(HEAD, BATCH))
    data[place] = value
    try:
        decode(bytes(data))
    except Refused:
        pass


@given(st.integers(0, len(encode(HEAD, BATCH)) - 1))
def test_a_part_of_a_batch_is_refused(length):
    with pytest.raises(Refused):
        decode(encode(HEAD, BATCH)[:length])


def test_another_version_is_refused_and_both_are_named():
    data = bytearray(encode(HEAD, BATCH))
    data[3] = VERSION + 1
    with pytest.raises(Refused, match=f"version {VERSION + 1}, and this picker speaks {VERSION}"):
        decode(bytes(data))


@pytest.mark.parametrize(
    ("place", "bytes_there", "said"),
    [
        (4, b"sha256\0\0", "hash sha256, blocks of 1024 bytes.* and this picker has hash xxh3-64"),
        (12, (512).to_bytes(4, "little"), "blocks of 512 bytes.* and this picker has .* blocks of 1024 bytes"),
        (16, bytes(8), "seed 0{16}, and this picker has .* seed [0-9a-f]{16}"),
    ],
)
def test_another_hash_is_refused_and_both_are_named(place, bytes_there, said):
    data = bytearray(encode(HEAD, BATCH))
    data[place : place + len(bytes_there)] = bytes_there
    with pytest.raises(Refused, match=said):
        decode(bytes(data))


@pytest.mark.parametrize(
    "changes",
    [
        {"endpoints": b"1234567"},
        {"endpoints": b"", "chains": []},
        {"chains": [(2, 0, 0, 0, 0, b"")]},
        {"chains": [(0, 0, 0, 0, 0, b"1234567")]},
        {"chains": [(-1, 0, 0, 0, 0, b"")]},
        {"chains": [(0, 0, 0, 2**24, 0, b"")]},
        {"sticky": [(1, b"short", 0, 0)]},
        {"slowness": [(0, float("nan"), 1.0)]},
        {"load": [(0, -1, 0, 0, 0, 0, 0)]},
        {"runs": [(0, 0, b"", [(0, 0)])]},
        {"runs": [(0, 0, b"12345678", [(2, 0)])]},
    ],
)
def test_what_types_do_not_say_is_refused(changes):
    with pytest.raises(Refused):
        decode(encode(HEAD, msgspec.structs.replace(BATCH, **changes)))
