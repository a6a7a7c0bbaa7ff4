"""The id of a stored response, from recordings of a real engine, wherever chunks begin."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from picker.api.response_id import HEAD_BYTES_MAX, ResponseIdReader
from tests.unit.api.conftest import EXCHANGES

JSON = (EXCHANGES / "responses.response.bin").read_bytes()
SSE = (EXCHANGES / "responses-stream.response.bin").read_bytes()


def found(*chunks):
    reader = ResponseIdReader()
    names = [name for name in map(reader.feed, chunks) if name is not None]
    assert len(names) <= 1
    return names[0] if names else None


@pytest.mark.parametrize(("body", "name"), [(JSON, "resp_a017a04f37616574"), (SSE, "resp_bdcbfad72d7f86b7")])
def test_recordings_whole_and_by_the_byte(body, name):
    assert found(body) == name
    assert found(*(body[at : at + 1] for at in range(len(body)))) == name


@given(st.lists(st.integers(0, len(SSE)), max_size=8))
def test_chunks_may_begin_anywhere(cuts):
    edges = [0, *sorted(cuts), len(SSE)]
    assert found(*(SSE[a:b] for a, b in itertools.pairwise(edges))) == "resp_bdcbfad72d7f86b7"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b'{"id": null}',
        b'{"id": 5}',
        b'{"id":"resp_cut',
        b'{"id":"white space"}',
        b'{"id":"' + b"x" * 129 + b'"}',
        b" " * HEAD_BYTES_MAX + b'{"id":"resp_late"}',
        bytes(range(256)) * 20,
    ],
)
def test_what_has_no_id_near_its_start_has_none(body):
    assert found(body) is None
    assert found(*(body[at : at + 1] for at in range(len(body)))) is None


def test_it_looks_no_further_and_keeps_no_more_than_the_head():
    reader = ResponseIdReader()
    reader.feed(b"x" * 10**7)
    assert reader.done and len(reader._head) == HEAD_BYTES_MAX
