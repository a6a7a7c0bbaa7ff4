"""The id of a stored response, from recordings of a real engine, wherever chunks begin."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from picker.api.response_id import HEAD_BYTES_MAX, IDS_MAX, MANY_HEAD_BYTES_MAX, ResponseIdReader, ids_told
from tests.unit.api.conftest import EXCHANGES

JSON = (EXCHANGES / "responses.response.bin").read_bytes()
SSE = (EXCHANGES / "responses-stream.response.bin").read_bytes()


def found(*chunks):
    reader = ResponseIdReader()
    names = [name for chunk in chunks for name in reader.feed(chunk)]
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


# Files and batches, in the shapes of OpenAI's reference: platform.openai.com/docs/api-reference, batch and files

BATCH = b"""{
  "id": "batch_abc123", "object": "batch", "endpoint": "/v1/completions", "errors": null,
  "input_file_id": "file-abc123", "completion_window": "24h", "status": "completed",
  "output_file_id": "file-cvaTdG", "error_file_id": "file-HOWS94", "created_at": 1711471533,
  "request_counts": {"total": 100, "completed": 95, "failed": 5},
  "metadata": {"customer_id": "user_123456789"}
}"""
FILES = b"""{"object": "list", "data": [
  {"id": "file-abc123", "object": "file", "bytes": 175, "filename": "salesOverview.pdf", "purpose": "batch"},
  {"id": "file-def456", "object": "file", "bytes": 140, "filename": "puppy.jsonl", "purpose": "batch_output"}
], "first_id": "file-abc123", "last_id": "file-def456", "has_more": false}"""


def told(path, method, held, *chunks):
    reader = ids_told(path, method, held)
    return None if reader is None else [name for chunk in chunks for name in reader.feed(chunk)]


@pytest.mark.parametrize(
    ("path", "method", "held", "body", "names"),
    [
        ("files", "POST", None, b'{"id": "file-abc123", "object": "file"}', ["file-abc123"]),
        ("files", "GET", None, FILES, ["file-abc123", "file-def456"]),
        ("files", "GET", "file-abc123", FILES, None),  # its content: lines of answers, each with an id of its own
        ("files", "DELETE", "file-abc123", FILES, None),
        ("batches", "POST", None, BATCH, ["batch_abc123", "file-cvaTdG", "file-HOWS94"]),
        ("batches", "GET", "batch_abc123", BATCH, ["batch_abc123", "file-cvaTdG", "file-HOWS94"]),
        ("batches", "POST", "batch_abc123", BATCH, ["batch_abc123", "file-cvaTdG", "file-HOWS94"]),
        ("batches", "DELETE", "batch_abc123", BATCH, None),
        ("responses", "POST", None, JSON, ["resp_a017a04f37616574"]),
        ("responses", "GET", None, JSON, None),
        ("responses", "POST", "resp_a", JSON, None),
        ("conversations", "POST", None, b'{"id": "conv_1"}', ["conv_1"]),
        ("chat_completions", "POST", None, b'{"id": "chatcmpl-1"}', None),
        ("other", "POST", None, b'{"id": "x"}', None),
    ],
)
def test_what_an_answer_tells_of_what_its_server_stores(path, method, held, body, names):
    assert told(path, method, held, body) == names
    if names is not None:
        assert told(path, method, held, *(body[at : at + 1] for at in range(len(body)))) == names


@given(st.lists(st.integers(0, len(BATCH)), max_size=8))
def test_chunks_of_a_batch_may_begin_anywhere(cuts):
    edges = [0, *sorted(cuts), len(BATCH)]
    chunks = [BATCH[a:b] for a, b in itertools.pairwise(edges)]
    assert told("batches", "GET", "b", *chunks) == ["batch_abc123", "file-cvaTdG", "file-HOWS94"]


def test_a_long_list_is_read_in_bounds():
    reader = ResponseIdReader(many=True)
    names = [name for n in range(10_000) for name in reader.feed(b'{"id":"file-%d"},' % n)]
    assert names == [f"file-{n}" for n in range(IDS_MAX)]
    reader = ResponseIdReader(many=True)
    assert not reader.feed(b"x" * 10**7)
    assert reader.done and len(reader._head) <= MANY_HEAD_BYTES_MAX
    reader = ResponseIdReader(many=True)
    assert len(reader.feed(b'{"id":"x"},' * 10**6)) == IDS_MAX
