"""Which event of a stream is the first with generated content: recordings and each API's own events."""

import json

import pytest

from picker.api.answers import AnswerReader, Framing, framing_of
from picker.api.content import carries_content, is_error


def first_content(body: bytes, framing: Framing = Framing.EVENTS, *, understood: bool = True) -> int | None:
    """Where the first event with content ends, fed byte by byte."""
    reader = AnswerReader(framing, understood=understood, count_events=False)
    return next((at for at in range(len(body)) if reader.feed(body[at : at + 1])), None)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("chat-stream", b'"content":"olute"'),
        ("completions-stream", b'"text":"mar"'),
        ("messages-stream", b'"text_delta","text":"'),
        ("responses-stream", b'"type":"response.output_text.delta"'),
    ],
)
def test_recorded_streams_begin_with_their_first_words(recorded, name, words):
    body = recorded(f"{name}.response.bin")
    at = first_content(body)
    assert at is not None
    event = body[: at + 1].rstrip(b"\n").rpartition(b"\n\n")[2]
    assert words in event, event
    assert body.index(words) < at < body.index(words) + 400


CHUNK = {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {}, "finish_reason": None}]}


def chat(**delta: object) -> dict[str, object]:
    return {**CHUNK, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}


SILENT = {
    "a role": chat(role="assistant", content=""),
    "null": chat(content=None, reasoning_content=None, tool_calls=None),
    "no choices": {**CHUNK, "choices": []},
    "only usage": {"choices": [], "usage": {"prompt_tokens": 3}},
    "prompt ids": {**chat(role="assistant", content=""), "prompt_token_ids": [1, 2]},
    "created": {"type": "response.created", "response": {"output": [], "instructions": "say: text"}},
    "in progress": {"type": "response.in_progress", "response": {"output": []}},
    "item added": {"type": "response.output_item.added", "item": {"type": "message", "content": []}},
    "message start": {"type": "message_start", "message": {"role": "assistant", "content": []}},
    "block start": {"type": "content_block_start", "content_block": {"type": "text", "text": ""}},
    "ping": {"type": "ping"},
    "message delta": {"type": "message_delta", "delta": {"stop_reason": "end_turn"}},
    "cohere start": {"type": "message-start", "delta": {"message": {"role": "assistant"}}},
    "ollama end": {"model": "m", "response": "", "done": True},
    "ollama chat end": {"model": "m", "message": {"role": "assistant", "content": ""}, "done": True},
    "sglang nothing yet": {"text": "", "meta_info": {"prompt_tokens": 3}},
    "an error": {"error": {"message": "engine died", "code": 500}},
}
SPEAKING = {
    "text": chat(content="x"),
    "reasoning": chat(reasoning_content="hm"),
    "newer reasoning": chat(reasoning="hm"),
    "a tool's call": chat(tool_calls=[{"index": 0, "function": {"name": "f", "arguments": ""}}]),
    "a refusal": chat(refusal="no"),
    "ids": {"choices": [{"index": 0, "delta": {}, "token_ids": [5]}]},
    "completion": {"object": "text_completion", "choices": [{"index": 0, "text": " a"}]},
    "second choice": {"choices": [{"index": 0, "text": ""}, {"index": 1, "text": "b"}]},
    "responses text": {"type": "response.output_text.delta", "delta": "x"},
    "responses call": {"type": "response.function_call_arguments.delta", "delta": "{"},
    "responses reasoning": {"type": "response.reasoning_text.delta", "delta": "x"},
    "anthropic text": {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "x"}},
    "anthropic thinking": {"type": "content_block_delta", "delta": {"type": "thinking_delta", "thinking": "x"}},
    "anthropic call": {"type": "content_block_start", "content_block": {"type": "tool_use", "name": "f"}},
    "cohere": {"type": "content-delta", "delta": {"message": {"content": {"text": "x"}}}},
    "sglang": {"text": "x", "meta_info": {}},
    "tgi": {"index": 1, "token": {"id": 5, "text": "x"}, "generated_text": None},
    "triton": {"model_name": "m", "text_output": "x"},
    "llama.cpp": {"content": "x", "stop": False},
    "ollama": {"model": "m", "response": "x", "done": False},
    "ollama chat": {"model": "m", "message": {"role": "assistant", "content": "x"}, "done": False},
    "ollama call": {"message": {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f"}}]}},
    "gemini": {"candidates": [{"content": {"parts": [{"text": "x"}]}}]},
}


@pytest.mark.parametrize("name", SILENT)
def test_what_carries_no_content_is_not_the_first_token(name):
    assert carries_content(json.dumps(SILENT[name]).encode()) is False


@pytest.mark.parametrize("name", SPEAKING)
def test_what_carries_content_is(name):
    data = json.dumps(SPEAKING[name]).encode()
    assert carries_content(data) is True
    stream = b": ping\n\nevent: x\ndata: " + json.dumps(SILENT["a role"]).encode() + b"\n\ndata: " + data + b"\n\n"
    end = first_content(stream)
    assert end is not None and len(stream) - 3 <= end


def test_of_an_unknown_apis_stream_any_event_counts_but_the_last():
    assert first_content(b'data: {"zz": 1}\n\n', understood=False) is not None
    assert first_content(b'data: {"zz": 1}\n\n') is None
    assert first_content(b"data: [DONE]\n\n", understood=False) is None


def test_json_lines_are_a_stream_too():
    lines = b'{"response":"","done":false}\n{"response":"x","done":false}\n'
    assert first_content(lines, Framing.LINES) == len(lines) - 1


@pytest.mark.parametrize(
    ("content_type", "streaming", "framing"),
    [
        ("text/event-stream; charset=utf-8", False, Framing.EVENTS),
        ("application/x-ndjson", False, Framing.LINES),
        ("application/json", True, Framing.WHOLE),
        ("application/json; charset=utf-8", False, Framing.WHOLE),
        ("application/octet-stream", True, Framing.OPAQUE),
        ("", False, Framing.WHOLE),
    ],
)
def test_framing_follows_the_content_type(content_type, streaming, framing):
    assert framing_of(content_type, streaming) is framing


def test_events_with_content_are_counted_once_each():
    events = [SILENT["a role"], *[chat(content=f'\\"content\\": {n}') for n in range(5)], SPEAKING["a tool's call"]]
    stream = b"".join(b"data: " + json.dumps(each).encode() + b"\n\n" for each in [*events, SILENT["null"]])
    for step in (1, 7, 10_000):
        reader = AnswerReader(Framing.EVENTS, understood=True, count_events=True)
        for at in range(0, len(stream), step):
            reader.feed(stream[at : at + step])
        assert reader.content_events == 6


def test_an_error_in_a_stream_is_a_failure():
    assert is_error(json.dumps(SILENT["an error"]).encode())
    assert not is_error(json.dumps(chat(content="error")).encode())
    reader = AnswerReader(Framing.EVENTS, understood=True, count_events=False)
    reader.feed(b"data: " + json.dumps(SPEAKING["text"]).encode() + b"\n\n")
    reader.feed(b"data: " + json.dumps(SILENT["an error"]).encode() + b"\n\n")
    assert reader.failed
