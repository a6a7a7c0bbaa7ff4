"""Token counts out of responses: recordings, real SSE framing, chunks cut anywhere, long tails."""

import json
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from picker.api.answers import LINE_BYTES_MAX, AnswerReader, Framing
from picker.outcomes import Usage


def usage(body: bytes, cuts: Iterable[int] = (), *, sse: bool) -> Usage | None:
    """What a reader makes of `body`, cut at `cuts`."""
    reader = AnswerReader(Framing.EVENTS if sse else Framing.WHOLE, understood=True, count_events=False)
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


BEHIND = {
    "token ids": json.dumps(list(range(100_000, 103_000))),
    "log probabilities": json.dumps([None, *({"5": {"logprob": -1.0, "decoded_token": '"}{'}} for _ in range(400))]),
    "the prompt": json.dumps('word \\ "usage": {' * 20_000),
    "nothing": "null",
}


@pytest.mark.parametrize("behind", BEHIND)
@pytest.mark.parametrize("before", [0, 200_000])
def test_usage_is_found_whatever_stands_around_it(behind, before):
    counted = '{"prompt_tokens": 5.0, "completion_tokens": 6, "prompt_tokens_details": {"cached_tokens": 3}}'
    body = f'{{"x": "{"y" * before}", "usage": {counted}, "behind": {BEHIND[behind]}}}'.encode()
    for cuts in ((), [7, 5000, before + 30], range(0, len(body), 4095), range(0, len(body), 61)):
        assert usage(body, cuts, sse=False) == Usage(5, 6, 3)


def test_usage_is_found_in_a_long_event():
    event: dict[str, Any] = {
        "type": "response.completed",
        "response": {"instructions": "i" * 90_000, "usage": RESPONSES_USAGE},
    }
    event["response"]["input_messages"] = ["m" * 90_000]
    body = sse({"type": "response.output_text.delta", "delta": "x"}, event)
    for cuts in ((), range(0, len(body), 4095), range(0, len(body), 61)):
        assert usage(body, cuts, sse=True) == Usage(30, 4, 16)


OWN = [
    (
        {"content": "x", "tokens_evaluated": 900, "tokens_predicted": 42, "timings": {"cache_n": 800, "prompt_n": 100}},
        Usage(900, 42, 800),
    ),
    ({"generated_text": "x", "details": {"generated_tokens": 20, "prefill": []}}, Usage(None, 20)),
    ({"message": {"content": "x"}, "done": True, "prompt_eval_count": 900, "eval_count": 42}, Usage(900, 42)),
    (
        {"usage": {"billed_units": {"input_tokens": 5}, "tokens": {"input_tokens": 71, "output_tokens": 4}}},
        Usage(71, 4),
    ),
]
"""llama.cpp tools/server/README.md; TGI's OpenAPI; Ollama docs/api.md; Cohere's reference of v2 chat."""


@pytest.mark.parametrize(("tree", "expected"), OWN)
def test_engines_own_answers_are_counted_whole_and_streamed(tree, expected):
    assert usage(json.dumps(tree).encode(), sse=False) == expected
    assert usage(sse({"content": "a"}, tree), sse=True) == expected


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
@given(st.binary(max_size=300))
def test_any_bytes_before_a_count_change_nothing(body):
    """Of two whole answers the second counts only as an event of its own."""
    plain = body.replace(b"\n", b"").replace(b"\r", b"")
    stream = b'data: %b\n\ndata: {"usage":{"prompt_tokens":7}}\n\n' % plain
    assert usage(stream, sse=True) == Usage(7)
    assert usage(b"\x00" + plain + b'{"usage":{"prompt_tokens":7}}', sse=False) is None


@settings(max_examples=200, deadline=None)
@given(st.integers(-5, 2**25), st.integers(-5, 2**25), st.booleans())
def test_a_count_that_cannot_be_one_is_unknown(prompt, output, is_sse):
    body = b'{"usage":{"prompt_tokens":%d,"completion_tokens":%d}}' % (prompt, output)
    expected = [count if 0 <= count < 2**24 else None for count in (prompt, output)]
    assert usage(b"data: " * is_sse + body, sse=is_sse) == Usage(expected[0], expected[1], None)


@pytest.mark.parametrize("value", ["-1", "true", '"7"', "[]", "1099511627776", "NaN", "9" * 5000])
def test_nonsense_counts_are_unknown(value):
    body = b'{"usage":{"prompt_tokens":%b}}' % value.encode()
    found = usage(body, sse=False)
    assert found is None or found.input_tokens is None


@pytest.mark.parametrize("framing", [Framing.EVENTS, Framing.LINES, Framing.WHOLE])
def test_what_is_kept_is_bounded_whatever_passes(framing):
    reader = AnswerReader(framing, understood=True, count_events=True)
    for _ in range(20_000):
        reader.feed(b"ab")
    for _ in range(100):
        reader.feed(b"x" * 100_000)
    for _ in range(100):
        reader.feed(b'{"usage": {"a": "' + b"x" * 100_000)
    assert len(reader._carry) <= LINE_BYTES_MAX
    assert sum(map(len, reader._whole)) <= LINE_BYTES_MAX + 100_000 and len(reader._whole) <= 129


@pytest.mark.parametrize("words", ["short", "long " * 3000])
def test_sglangs_own_api_counts_in_meta_info(words):
    body = json.dumps({"text": words, "output_ids": [1, 2], "meta_info": META}).encode()
    assert usage(body, sse=False) == usage(body, range(0, len(body), 100), sse=False) == NATIVE


COUNTED = {"prompt_tokens": 40, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 32}}


@pytest.mark.parametrize(
    "odd",
    [
        *({name: value} for name in ("details", "message", "delta", "response") for value in ("x", ["x"], 5, True)),
        *({name: value} for name in ("timings", "meta_info") for value in ("x", ["x"], 5)),
        {"usage": {**COUNTED, "prompt_tokens_details": "x", "cached_tokens": 32}},
        {"usage": {**COUNTED, "input_tokens_details": [], "tokens": "x"}},
    ],
)
def test_an_odd_member_costs_itself(odd):
    assert usage(json.dumps({"usage": COUNTED, **odd}).encode(), sse=False) == NATIVE


@pytest.mark.parametrize(
    "body",
    [
        b'{"logprob": NaN, "usage": %b}',
        b'{"usage": %b, "logprobs": [-Infinity, Infinity]}',
        b'{"text": "\\ud83d", "usage": %b}',
        b'\xef\xbb\xbf{"usage": %b}',
        b'{"text": "\xff", "usage": %b}',
    ],
)
@pytest.mark.parametrize("pad", [0, 100_000])
def test_what_is_no_json_costs_itself(body, pad):
    """Python's `json.dumps` writes NaN and halves of surrogate pairs; clients read past them."""
    body = (body % json.dumps(COUNTED).encode())[:-1] + b', "pad": "%b"}' % (b"x" * pad)
    assert usage(body, sse=False) == NATIVE


@pytest.mark.parametrize("tokens", [1, 2000])
def test_counts_beside_megabytes_of_their_own_neighbours(tokens):
    """SGLang's `meta_info` with `input_token_logprobs`, TGI's `details` with `tokens`, llama.cpp's `timings`."""
    many = [[-0.5, 1234, "word"]] * tokens
    told = {
        "sglang": {"text": "x", "meta_info": {"input_token_logprobs": many, **META, "output_token_logprobs": many}},
        "openai": {"choices": [], "usage": COUNTED, "prompt_logprobs": many},
        "llama.cpp": {"tokens": many, "tokens_evaluated": 40, "tokens_predicted": 2, "timings": {"cache_n": 32}},
    }
    for each in told.values():
        assert usage(json.dumps(each).encode(), sse=False) == NATIVE
    details = {"finish_reason": "length", "generated_tokens": 2, "prefill": many, "tokens": many}
    assert usage(json.dumps({"generated_text": "x", "details": details}).encode(), sse=False) == Usage(None, 2)


def test_tgis_root_answers_with_a_list_of_one():
    """router/src/server.rs, `compat_generate`: `Json(vec![generation])`."""
    body = json.dumps([{"generated_text": "x", "details": {"generated_tokens": 2, "input_length": 40}}]).encode()
    assert usage(body, sse=False) == Usage(40, 2)


def test_gemini_counts_thoughts_apart():
    """ai.google.dev/api/generate-content, UsageMetadata."""
    told = {"promptTokenCount": 40, "candidatesTokenCount": 2, "cachedContentTokenCount": 32, "totalTokenCount": 45}
    answer = {"candidates": [], "usageMetadata": told}
    assert usage(json.dumps(answer).encode(), sse=False) == NATIVE
    thought = {"candidates": [], "usageMetadata": {**told, "thoughtsTokenCount": 3}}
    assert usage(sse(answer, thought), sse=True) == Usage(40, 5, 32)


@pytest.mark.parametrize("words", ["a", "a" * 9000])
def test_answers_to_several_prompts_have_no_counts_of_the_request(words):
    """SGLang gives each its own; those of the last are not what the request's bytes came to."""
    body = json.dumps([{"text": words, "meta_info": META}] * 3).encode()
    assert usage(body, sse=False) is None
