"""Token counts out of responses: recordings, real SSE framing, chunks cut anywhere, long tails."""

import json
import re
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from picker.api.sse import event_data
from picker.api.usage import HEAD_BYTES_MAX, TAIL_BYTES_MAX, UsageReader
from picker.outcomes import Usage


def usage(body: bytes, cuts: tuple[int, ...] | list[int] = (), *, sse: bool) -> Usage | None:
    """What a reader makes of `body`, cut at `cuts`."""
    reader = UsageReader(sse=sse)
    edges = sorted({0, len(body), *(cut % (len(body) + 1) for cut in cuts)})
    for start, end in pairwise(edges):
        reader.feed(body[start:end])
    return reader.usage()


def sse(*events: object, end: str = "\n") -> bytes:
    lines = [f"data: {event if isinstance(event, str) else json.dumps(event)}{end}{end}" for event in events]
    return "".join(lines).encode()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("chat", Usage(907, 8, 0)),
        ("chat-again", Usage(908, 8, 864)),
        ("chat-stream", Usage(906, 8, 864)),
        ("chat-stream-nousage", None),
        ("completions", Usage(6, 8, 0)),
        ("completions-list", Usage(3, 8, 0)),
        ("completions-ids", Usage(4, 4, 0)),
        ("completions-stream", Usage(4, 6, 0)),
        ("responses", Usage(19, 6, 0)),
        ("responses-stream", Usage(19, 6, 0)),
        ("messages", Usage(29, 6, 0)),
        ("messages-stream", Usage(18, 6, 0)),
        ("tools", Usage(18, 3, 0)),
        ("unknown-model", None),
        ("too-long", None),
    ],
)
def test_recorded_responses_report_what_the_engine_counted(recorded, name, expected):
    body = recorded(f"{name}.response.bin")
    streams = b"text/event-stream" in recorded(f"{name}.headers.txt")
    assert streams == ("stream" in name)
    assert usage(body, sse=streams) == expected
    assert usage(body, range(len(body)), sse=streams) == expected, "byte by byte"


# As sglang/srt/managers/tokenizer_manager.py makes it; each event of a stream counts all that came so far.
META = {
    "id": "f0",
    "finish_reason": {"type": "length", "length": 2},
    "prompt_tokens": 40,
    "reasoning_tokens": 0,
    "completion_tokens": 2,
    "cached_tokens": 32,
    "e2e_latency": 0.25,
}
NATIVE = Usage(40, 2, 32)
RESPONSES_USAGE = {"input_tokens": 30, "input_tokens_details": {"cached_tokens": 16}, "output_tokens": 4}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'data:{"usage":{"prompt_tokens":1,"completion_tokens":2}}\n\n', Usage(1, 2)),
        (b'data: {"usage":{"prompt_tokens":1,"completion_tokens":2}}\r\n\r\ndata: [DONE]\r\n\r\n', Usage(1, 2)),
        (b'data: {"usage":{"prompt_tokens":1,"completion_tokens":2}}\r\rdata: [DONE]\r\r', Usage(1, 2)),
        (b': ping\n\ndata: {"usage":\ndata: {"prompt_tokens":1}}\n\n', Usage(1)),
        (b'id: 1\nevent: x\nretry: 5\ndata: {"usage":{"prompt_tokens":1}}\n\n', Usage(1)),
        (b'data: {"usage":{"prompt_tokens":1}}', Usage(1)),
        (b'data: {"usage":null}\n\ndata: [DONE]\n\n', None),
        (b'data: {"usage":{"prompt_tokens":9}}\n\ndata: {"usage":null}\n\n', Usage(9)),
        (b'data: {"choices":[{"delta":{"content":"\\"usage\\": {\\"prompt_tokens\\": 7}"}}]}\n\n', None),
        (sse({"type": "response.completed", "response": {"usage": RESPONSES_USAGE}}), Usage(30, 4, 16)),
        (sse({"text": "a", "meta_info": META | {"completion_tokens": 1}}, {"text": "ab", "meta_info": META}), NATIVE),
        (sse({"text": "a" * 9000, "output_ids": [1], "meta_info": META}, "[DONE]"), NATIVE),
        (
            sse(
                {"type": "message_start", "message": {"usage": {"input_tokens": 5, "cache_read_input_tokens": 100}}},
                {"type": "message_delta", "usage": {"output_tokens": 3}},
            ),
            Usage(105, 3, 100),
        ),
        (
            sse(
                {"message": {"usage": {"input_tokens": 5, "cache_creation_input_tokens": 7}}},
                {"usage": {"output_tokens": 3, "cache_read_input_tokens": 0}},
            ),
            Usage(12, 3, 0),
        ),
        (sse(*({"usage": {"prompt_tokens": 8, "completion_tokens": n}} for n in range(5))), Usage(8, 4)),
    ],
)
@pytest.mark.parametrize("step", [1, 2, 3, 7, 10_000])
def test_sse_is_framed_as_the_standard_has_it_wherever_chunks_begin(body, expected, step):
    assert usage(body, range(0, len(body), step), sse=True) == expected


LONG = "long answer " * 800
SHAPES = [
    (True, {"choices": [], "usage": {"prompt_tokens": 900, "completion_tokens": 7}}, Usage(900, 7)),
    (
        True,
        {"type": "response.completed", "response": {"output": LONG, "usage": RESPONSES_USAGE, "user": None}},
        Usage(30, 4, 16),
    ),
    (
        False,
        {"choices": [{"message": {"content": LONG}}], "usage": {"prompt_tokens": 5, "completion_tokens": 6}, "x": None},
        Usage(5, 6),
    ),
    (False, {"output": [LONG], "usage": RESPONSES_USAGE, "user": None}, Usage(30, 4, 16)),
    (
        False,
        {"content": LONG, "usage": {"input_tokens": 1, "cache_read_input_tokens": 2, "output_tokens": 3}},
        Usage(3, 3, 2),
    ),
    (False, {"usage": {"prompt_tokens": 5, "completion_tokens": 6}, "choices": "short"}, Usage(5, 6)),
]


@pytest.mark.parametrize(("is_sse", "tree", "expected"), SHAPES)
def test_a_long_answer_before_it_does_not_hide_the_usage(is_sse, tree, expected):
    body = sse({"delta": LONG}, tree, "[DONE]") if is_sse else json.dumps(tree).encode()
    for cuts in ((), range(0, len(body), 1000), [len(body) - 100], range(len(body))):
        assert usage(body, cuts, sse=is_sse) == expected


@pytest.mark.parametrize("tail", [0, 1000, TAIL_BYTES_MAX - 60, TAIL_BYTES_MAX + 60, 3 * TAIL_BYTES_MAX])
def test_behind_a_long_tail_usage_is_unknown_and_never_depends_on_chunks(tail):
    """What follows the usage may be longer than what is kept: then unknown, however the bytes came."""
    body = json.dumps({"x": "y" * 9000, "usage": {"prompt_tokens": 5}, "prompt_token_ids": "0" * tail}).encode()
    seen = {usage(body, cuts, sse=False) for cuts in ((), range(len(body)), [7, 5000, 9000], range(0, len(body), 4095))}
    assert seen == {Usage(5) if tail <= TAIL_BYTES_MAX - 60 else None}


def split_lines(text: bytes) -> list[bytes]:
    """The HTML standard's event stream interpretation, word for word, as a second opinion."""
    found, data = [], []
    for line in re.split(rb"\r\n|\n|\r", text):
        if not line:
            found += [b"\n".join(data)] if data else []
            data = []
            continue
        field, colon, value = line.partition(b":")
        if field == b"data" and colon:
            data.append(value.removeprefix(b" "))
    return found + ([b"\n".join(data)] if data else [])


pieces = st.lists(
    st.sampled_from(
        [b"\r", b"\n", b"\r\n", b"data:", b"data: ", b"data", b":", b"x", b" ", b'{"usage":1}', b"id:", b"\0"]
    )
)


@settings(max_examples=300, deadline=None)
@given(pieces.map(b"".join))
def test_events_are_those_of_the_standard(stream):
    assert list(event_data(stream)) == split_lines(stream)


fragments = st.lists(
    st.sampled_from(
        [
            b'data: {"usage":{"prompt_tokens":12,"completion_tokens":3}}\n\n',
            b'data:{"message":{"usage":{"input_tokens":4,"cache_read_input_tokens":2}}}\r\n\r\n',
            b'event: x\ndata: {"response":{"usage":{"input_tokens":9,"output_tokens":1}}}\n\n',
            b'data: {"choices":[{"delta":{"content":"' + b"words " * 300 + b'"}}]}\n\n',
            b'data: {"choices":[{"delta":{"content":"\\"usage\\":{"}}]}\n\n',
            b'{"usage":{"prompt_tokens":1}}',
            b'"usage" : {"prompt_tokens": 77, "nested": {"a": [1, 2]}}',
            b'"usage":{"prompt_tokens":"x"}',
            b"data: [DONE]\n\n",
            b'"usage":',
            b"\xff\xfe\r",
            b"z" * 1500,
        ]
    ),
    max_size=12,
)


@settings(max_examples=300, deadline=None)
@given(fragments.map(b"".join), st.lists(st.integers(0, 20_000), max_size=30), st.booleans())
def test_chunk_boundaries_anywhere_give_equal_usage(body, cuts, is_sse):
    assert usage(body, cuts, sse=is_sse) == usage(body, sse=is_sse) == usage(body, range(len(body)), sse=is_sse)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300), st.booleans())
def test_any_bytes_give_usage_or_none(body, is_sse):
    assert usage(body + b'"usage":' + body, sse=is_sse) is None or is_sse is not None


@pytest.mark.parametrize("value", ["-1", "1e3", "true", '"7"', "[]", "1099511627776", "NaN", "9" * 5000])
def test_nonsense_counts_are_unknown(value):
    body = b'{"usage":{"prompt_tokens":%b}}' % value.encode()
    found = usage(body, sse=False)
    assert found is None or found.input_tokens is None


def test_what_is_kept_is_bounded_whatever_passes():
    reader = UsageReader(sse=True)
    for _ in range(20_000):
        reader.feed(b"ab")
    for _ in range(100):
        reader.feed(b"x" * 100_000)
    assert len(reader._head) <= HEAD_BYTES_MAX
    assert sum(map(len, reader._tail)) < 2 * TAIL_BYTES_MAX and len(reader._tail) <= TAIL_BYTES_MAX


@pytest.mark.parametrize("words", ["short", "long " * 3000])
def test_sglangs_own_api_counts_in_meta_info(words):
    body = json.dumps({"text": words, "output_ids": [1, 2], "meta_info": META}).encode()
    assert usage(body, sse=False) == usage(body, range(0, len(body), 100), sse=False) == NATIVE


@pytest.mark.parametrize("words", ["a", "a" * 9000])
def test_answers_to_several_prompts_have_no_counts_of_the_request(words):
    """SGLang gives each its own; those of the last are not what the request's bytes came to."""
    body = json.dumps([{"text": words, "meta_info": META}] * 3).encode()
    assert usage(body, sse=False) is None
