"""Which event of a stream is the first with generated content: recordings and each API's own events."""

import json
from typing import Any

import pytest

from picker.api.answers import AnswerReader, Framing, framing_of
from picker.api.content import carries_content, error_status


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


def chat(**delta: object) -> dict[str, Any]:
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
    "ollama thinks nothing": {"model": "m", "response": "", "thinking": "", "done": False},
    "anthropic, no text yet": {"type": "content_block_delta", "delta": {"type": "text_delta", "text": ""}},
    "anthropic, no thought yet": {"type": "content_block_delta", "delta": {"type": "thinking_delta", "thinking": ""}},
    "anthropic, a signature": {"type": "content_block_delta", "delta": {"type": "signature_delta", "signature": "Eq"}},
    "cohere, no text yet": {"type": "content-delta", "delta": {"message": {"content": {"text": ""}}}},
    "gemini, no text yet": {"candidates": [{"content": {"parts": [{"text": ""}], "role": "model"}, "index": 0}]},
    "gemini, no parts": {
        "candidates": [{"content": {"role": "model"}, "finishReason": "STOP", "safetyRatings": ["x"]}]
    },
    "gemini, usage": {"usageMetadata": {"promptTokenCount": 3}, "modelVersion": "g"},
    "a tool's call without words": chat(tool_calls=[{"index": 0, "id": "c", "function": {"arguments": ""}}]),
    "a function without a name": chat(function_call={"name": None, "arguments": ""}),
    "an empty part": chat(content=[{"type": "text", "text": ""}]),
    "audio's name": chat(audio={"id": "audio_1", "expires_at": 12345}),
    "part added": {"type": "response.content_part.added", "part": {"type": "output_text", "text": "", "logprobs": []}},
    "reasoning added": {
        "type": "response.output_item.added",
        "item": {"id": "rs_1", "type": "reasoning", "summary": [], "content": None, "status": "in_progress"},
    },
    "tools are listed": {
        "type": "response.output_item.done",
        "item": {"type": "mcp_list_tools", "server_label": "s", "tools": [{"name": "f"}]},
    },
    "responses completed": {"type": "response.completed", "response": {"output": [{"content": [{"text": "x"}]}]}},
    "an error": {"error": {"message": "engine died", "code": 500}},
}
SPEAKING: dict[str, dict[str, Any]] = {
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
    "ollama thinks": {"model": "m", "response": "", "thinking": "hm", "done": False},
    "anthropic thinks in secret": {
        "type": "content_block_start",
        "content_block": {"type": "redacted_thinking", "data": "Eq"},
    },
    "anthropic, arguments": {"type": "content_block_delta", "delta": {"type": "input_json_delta", "partial_json": "{"}},
    "reasoning in parts": chat(reasoning_details=[{"type": "reasoning.text", "text": "hm", "index": 0}]),
    "responses call at once": {
        "type": "response.output_item.added",
        "item": {"type": "function_call", "id": "fc", "call_id": "c", "name": "f", "arguments": ""},
    },
    "responses arguments at once": {"type": "response.function_call_arguments.done", "item_id": "i", "arguments": "{}"},
    "responses image": {"type": "response.image_generation_call.partial_image", "partial_image_b64": "iVBO"},
    "llama.cpp ids": {"index": 0, "content": "", "tokens": [55], "stop": False},
    "tgi, half an emoji": {"index": 1, "token": {"id": 5, "text": "", "logprob": -0.5, "special": False}},
    "gemini calls": {"candidates": [{"content": {"parts": [{"functionCall": {"name": "f", "args": {}}}]}}]},
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
        ("Text/Event-Stream", False, Framing.EVENTS),
        ("Application/JSON", True, Framing.WHOLE),
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


@pytest.mark.parametrize("name", ["a tool's call", "responses call at once"])
def test_an_event_too_long_to_keep_is_content_if_it_is_no_echo_of_the_request(name):
    long = json.dumps({**SPEAKING[name], "pad": "x" * 100_000}).encode()
    assert first_content(b"data: " + long + b"\n\n") is not None
    echo = json.dumps({"response": {"instructions": "x" * 100_000}, "type": "response.created"}).encode()
    start = json.dumps({"type": "message_start", "message": {"type": "message", "pad": "x" * 100_000}}).encode()
    assert first_content(b"data: " + echo + b"\n\ndata: " + start + b"\n\n") is None
    body = b"data: " + echo + b"\n\ndata: " + json.dumps(SPEAKING["responses text"]).encode() + b"\n\n"
    assert first_content(body) == len(body) - 1


@pytest.mark.parametrize("step", [1, 2, 3, 1000])
def test_a_line_end_cut_in_two_is_one_line_end(step):
    """HTML standard, 9.2.6: CRLF is one line end, so an event of two lines of data is one event wherever it is cut."""
    event = b'data: {"choices":\r\ndata: [{"text": "x"}],\r\ndata: "usage": {"prompt_tokens": 3}}\r\n\r\n'
    reader = AnswerReader(Framing.EVENTS, understood=True, count_events=False)
    began = [reader.feed(event[at : at + step]) for at in range(0, len(event), step)]
    assert began.count(True) == 1
    told = reader.usage()
    assert told is not None and told.input_tokens == 3


def test_a_byte_order_mark_before_the_first_event_is_stripped():
    assert first_content(b"\xef\xbb\xbfdata: " + json.dumps(SPEAKING["text"]).encode() + b"\n\n") is not None


@pytest.mark.parametrize(
    ("event", "status"),
    [
        ({"error": {"message": "engine died", "code": 500}}, 500),
        ({"error": {"object": "error", "message": "too long", "type": "BadRequestError", "code": 400}}, 400),
        ({"error": {"message": "x", "type": "invalid_request_error", "code": None}}, 400),
        ({"error": {"message": "x", "type": "server_error", "code": 503}}, 503),
        ({"error": {"code": 429, "status": "RESOURCE_EXHAUSTED"}}, 429),
        ({"error": "Request failed during generation", "error_type": "generation"}, 500),
        ({"error": "input too long", "error_type": "validation"}, 400),
        ({"error": "an ollama model died"}, 500),
        ({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}, 500),
        ({"type": "error", "error": {"type": "invalid_request_error", "message": "x"}}, 400),
        ({"type": "response.failed", "response": {"error": {"code": "server_error", "message": "x"}}}, 500),
        ({"type": "response.failed", "response": {"error": {"code": "rate_limit_exceeded"}}}, 400),
        ({"error": None, "choices": []}, None),
        (chat(content="error"), None),
    ],
)
def test_whose_fault_a_failure_is_its_number_or_kind_says(event, status):
    assert error_status(json.dumps(event).encode()) == status


def test_an_error_in_a_stream_is_a_failure():
    reader = AnswerReader(Framing.EVENTS, understood=True, count_events=False)
    reader.feed(b"data: " + json.dumps(SPEAKING["text"]).encode() + b"\n\n")
    reader.feed(b"data: " + json.dumps(SILENT["an error"]).encode() + b"\n\n")
    assert reader.failure == 500
