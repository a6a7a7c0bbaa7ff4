"""What each API path says: recordings of a real engine, and the rules on the prompt's text."""

import itertools
import json

import pytest
from xxhash import xxh3_128_digest

CHAT, COMPLETIONS, RESPONSES, MESSAGES, EMBEDDINGS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/embeddings",
)
PREAMBLE = "You are a careful assistant that answers questions about pipelines. " * 40


@pytest.mark.parametrize(
    ("path", "name", "prompt", "more"),
    [
        (CHAT, "chat", b"\x00system\n%b\x00user\nFirst question?", {"max_tokens": 8}),
        (CHAT, "chat-again", b"\x00system\n%b\x00user\nSecond question?", {"max_tokens": 8}),
        (CHAT, "chat-stream-nousage", b"\x00user\nFourth?", {"max_tokens": 4, "stream": True}),
        (CHAT, "no-model", b"\x00user\nHello", {"max_tokens": 2, "model": None}),
        (CHAT, "unknown-model", b"\x00user\nHello", {"model": "nope", "max_tokens": None}),
        (COMPLETIONS, "completions", b"Once upon a time", {"max_tokens": 8}),
        (COMPLETIONS, "completions-stream", b"Once upon", {"max_tokens": 6, "stream": True}),
        (COMPLETIONS, "completions-list", b"one", {"max_tokens": 4, "prompt_bytes": 6}),
        (
            COMPLETIONS,
            "completions-ids",
            b"\x05\0\0\0\x06\0\0\0\x07\0\0\0\x08\0\0\0",
            {"max_tokens": 4, "exact_tokens": True, "prompt_bytes": 16},
        ),
        (COMPLETIONS, "too-long", b"hi", {"max_tokens": 100_000}),
        (RESPONSES, "responses", b"\x00user\nTell me more", {"max_tokens": 6}),
        (RESPONSES, "responses-stream", b"\x00user\nTell me more", {"max_tokens": 6, "stream": True}),
        (MESSAGES, "messages", b"\x00system\nBe brief\x00user\nHello", {"max_tokens": 6}),
        (MESSAGES, "messages-stream", b"\x00user\nHello", {"max_tokens": 6, "stream": True}),
        (EMBEDDINGS, "embeddings", b"hello", {"max_tokens": 0}),
    ],
)
def test_recorded_requests_are_understood(recorded, read, *, path, name, prompt, more):
    request = read(path, recorded(f"{name}.request.json"))
    expected = prompt.replace(b"%b", PREAMBLE.encode())
    assert request.prompt == expected
    wanted = {"model": "m", "stream": False, "exact_tokens": False, "has_media": False, "prompt_bytes": len(expected)}
    assert {key: getattr(request, key) for key in wanted | more} == wanted | more


def test_recorded_salt_adapter_and_tools(recorded, read):
    salted = read(COMPLETIONS, recorded("salt.request.json"))
    body = json.loads(recorded("salt.request.json"))
    assert (salted.cache_salt, salted.prompt) == (body["cache_salt"], body["prompt"].encode())
    assert read(COMPLETIONS, recorded("lora.request.json")).model == "sql"
    tools = read(CHAT, recorded("tools.request.json"))
    assert tools.prompt.startswith(b'[{"type":"function"') and tools.prompt.endswith(b"\x00user\nHello")


def _text(text):
    return [{"type": "text", "text": text}]


_IMAGE = {"type": "image_url", "image_url": {"url": "https://x/a.png"}}
_CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "c1", "function": {"name": "f", "arguments": "{}"}}],
}
_CHAT_TURNS = [
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hällo \U0001f600"}],
    [
        {"role": "assistant", "content": "Hi", "reasoning_content": "They greet."},
        {"role": "user", "content": _text("And?")},
    ],
    [
        _CALL,
        {"role": "tool", "tool_call_id": "c1", "content": "42"},
        {"role": "user", "content": [_IMAGE, *_text("this")]},
    ],
    [{"role": "assistant", "content": "A picture.", "tool_calls": None}, {"role": "user", "content": "More"}],
]
_ANTHROPIC_TURNS = [
    [{"role": "user", "content": "Look it up"}],
    [
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "I should.", "signature": "s"},
                {"type": "tool_use", "id": "t1", "name": "look", "input": {"what": "it"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "t1",
                    "content": [
                        {"type": "text", "text": "found"},
                        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "QUJD"}},
                    ],
                }
            ],
        },
    ],
    [{"role": "assistant", "content": "There."}, {"role": "user", "content": _text("Thanks")}],
]
_RESPONSES_TURNS = [
    [{"role": "user", "content": [{"type": "input_text", "text": "Run it"}]}],
    [
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Thinking"}]},
        {"type": "function_call", "call_id": "c", "name": "run", "arguments": '{"a":1}'},
        {"type": "function_call_output", "call_id": "c", "output": "done"},
        {"role": "assistant", "content": [{"type": "output_text", "text": "It ran"}]},
        {"role": "user", "content": [{"type": "input_image", "image_url": "data:image/png;base64,QUJD"}]},
    ],
    [{"role": "assistant", "content": "Seen"}, {"role": "user", "content": "Next"}],
]


@pytest.mark.parametrize(
    ("path", "field", "turns", "fixed"),
    [
        (CHAT, "messages", _CHAT_TURNS, {"tools": [{"type": "function", "function": {"name": "f"}}]}),
        (MESSAGES, "messages", _ANTHROPIC_TURNS, {"system": _text("Be kind."), "tools": [{"name": "look"}]}),
        (
            RESPONSES,
            "input",
            _RESPONSES_TURNS,
            {"instructions": "Be quick.", "tools": [{"type": "function", "name": "run"}]},
        ),
        (EMBEDDINGS, "messages", _CHAT_TURNS, {}),
    ],
)
def test_a_conversations_next_turn_starts_with_the_bytes_of_this_one(read, path, field, turns, fixed):
    said, prompts = [], []
    for turn in turns:
        said = [*said, *turn]
        prompts.append(read(path, **{field: said, "model": "m", **fixed}).prompt)
    assert len(set(map(len, prompts))) == len(turns)
    for before, after in itertools.pairwise(prompts):
        assert after.startswith(before)


@pytest.mark.parametrize(
    ("path", "fields", "order"),
    [
        (
            CHAT,
            {
                "messages": [{"role": "system", "content": "SYS"}, {"role": "user", "content": "USER"}],
                "tools": ["TOOL"],
            },
            [b"TOOL", b"SYS", b"USER"],
        ),
        (
            MESSAGES,
            {"messages": [{"role": "user", "content": "USER"}], "system": "SYS", "tools": ["TOOL"]},
            [b"TOOL", b"SYS", b"USER"],
        ),
        (RESPONSES, {"input": "USER", "instructions": "SYS", "tools": ["TOOL"]}, [b"TOOL", b"SYS", b"USER"]),
    ],
)
def test_tools_and_system_come_first_wherever_they_stand_in_the_body(read, path, fields, order):
    for names in (list(fields), list(reversed(fields))):
        prompt = read(path, **{name: fields[name] for name in names}).prompt
        places = [prompt.index(word) for word in order]
        assert places == sorted(places)


def test_media_count_by_a_digest_of_where_they_lie_and_equal_ones_match(read):
    def prompt(part, path=CHAT, field="messages"):
        return read(path, **{field: [{"role": "user", "content": [part]}]}).prompt.removeprefix(b"\x00user\n")

    url = "https://x/a.png"
    first = prompt({"type": "image_url", "image_url": {"url": url}})
    digest = xxh3_128_digest(f'"{url}"'.encode())
    assert len(first) == 4000 and first == (digest * 250)
    same = [
        {"type": "image_url", "image_url": {"detail": "high", "url": url}},
        {"type": "input_image", "image_url": url, "detail": "low"},
    ]
    assert [prompt(each) for each in same] == [first, first]
    assert prompt(same[1], RESPONSES, "input") == first
    assert prompt({"type": "image_url", "image_url": {"url": url + "2"}}) != first
    data = {"type": "input_audio", "input_audio": {"data": "QUJD", "format": "wav"}}
    assert len(prompt(data)) == 4000 and prompt(data) != prompt(
        {**data, "input_audio": {"data": "QUJE", "format": "wav"}}
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"path": CHAT, "messages": [{"role": "user", "content": [_IMAGE]}]},
        {"path": RESPONSES, "input": [{"role": "user", "content": [{"type": "input_file", "file_id": "f-1"}]}]},
        {
            "path": RESPONSES,
            "input": [{"type": "computer_call_output", "output": {"type": "x", "image_url": "data:Q"}}],
        },
        {
            "path": MESSAGES,
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {"type": "tool_result", "content": [{"type": "image", "source": {"data": "Q" * 90_000}}]}
                    ],
                }
            ],
        },
    ],
)
def test_a_medium_weighs_a_medium_wherever_it_stands(read, fields):
    request = read(**fields)
    assert request.has_media
    assert 4000 <= request.prompt_bytes < 4100


@pytest.mark.parametrize(
    "part",
    [
        {"type": "text", "text": "hello", "image_url": None, "thinking": None},
        {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "hello"}},
        {"type": "tool_result", "content": "hello"},
        {"type": "tool_result", "content": [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]},
        {"type": "thinking", "thinking": "hello"},
        "hello",
    ],
)
def test_text_counts_as_text_whatever_carries_it(read, part):
    request = read(MESSAGES, messages=[{"role": "user", "content": [part]}])
    assert (request.prompt, request.has_media) == (b"\x00user\nhello", False)


def test_null_is_what_is_not_there(read):
    nulls = {"tool_calls": None, "reasoning_content": None, "reasoning": None}
    request = read(CHAT, messages=[{"role": "user", "content": None, **nulls}], tools=None, max_tokens=None, model=None)
    assert request.prompt == b"\x00user\n"


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
def test_reasoning_that_is_sent_back_counts_by_both_its_names(read, field):
    assert read(CHAT, messages=[{"role": "assistant", "content": "a", field: "b"}]).prompt == b"\x00assistant\nab"


@pytest.mark.parametrize(
    ("prompt", "first", "total", "exact"),
    [
        ("text", b"text", 4, False),
        (["one", "three"], b"one", 8, False),
        ([1, 2], b"\1\0\0\0\2\0\0\0", 8, True),
        ([[1], [2, 3]], b"\1\0\0\0", 12, True),
        ([-1, 2**32 + 5, 10**30], None, 12, True),
        ([], b"", 0, False),
        ([[]], b"", 0, True),
        ("", b"", 0, False),
        (None, b"", 0, False),
    ],
)
@pytest.mark.parametrize("space", [",", " , " + " " * 100])
def test_a_list_of_prompts_is_the_chain_of_the_first_and_the_load_of_all(read, prompt, first, total, exact, space):
    body = json.dumps({"prompt": prompt}, separators=(space, ":")).replace("[", "[" + " " * 99).encode()
    request = read(COMPLETIONS, body)
    assert (request.prompt_bytes, request.exact_tokens) == (total, exact)
    assert first is None or request.prompt == first
    assert read(EMBEDDINGS, body.replace(b'"prompt"', b'"input"')).prompt == request.prompt


@pytest.mark.parametrize(
    ("text", "tokens"), [("10", 10), ("10.0", 10), ("1e1", 10), ("-5", -5), ("0", 0), ("null", None)]
)
def test_max_tokens_in_any_spelling_keeps_the_prompt(read, text, tokens):
    body = b'{"messages":[{"role":"user","content":"hi"}],"max_tokens":%b}' % text.encode()
    request = read(CHAT, body)
    assert (request.prompt, request.max_tokens) == (b"\x00user\nhi", tokens)


def test_the_newer_limit_of_chat_wins(read):
    assert read(CHAT, messages=[], max_tokens=5, max_completion_tokens=7).max_tokens == 7


def test_a_previous_response_is_named(read):
    assert read(RESPONSES, input="x", previous_response_id="resp_1").previous_response_id == "resp_1"


@pytest.mark.parametrize(
    ("fields", "key"),
    [
        ({"cache_salt": "s"}, "s"),
        ({"extra_key": "k"}, "k"),
        ({"cache_salt": "s", "extra_key": "k"}, "sk"),
        ({"cache_salt": "s", "extra_key": ""}, "s"),
        ({"cache_salt": "", "extra_key": None}, None),
        ({"extra_key": ["k", "l"]}, "k"),
        ({"cache_salt": ["s", "t"]}, "s"),
        ({"extra_key": []}, None),
    ],
)
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, RESPONSES])
def test_sglangs_extra_key_keeps_caches_apart_as_a_salt_does(read, path, fields, key):
    """`_compute_extra_key` joins both; a list has one for each prompt of a batch."""
    assert read(path, messages=[], prompt="x", input="x", **fields).cache_salt == key


@pytest.mark.parametrize(
    ("fields", "model"),
    [
        ({"model": "m", "lora_path": "sql"}, "sql"),
        ({"lora_path": ["sql", None]}, "sql"),
        ({"model": "m", "lora_path": [None, "sql"]}, "m"),
        ({"model": "m", "lora_path": None}, "m"),
        ({"model": "m:code", "lora_path": "sql"}, "m:code"),
        ({"model": "m:", "lora_path": "sql"}, "sql"),
    ],
)
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_sglangs_adapter_is_the_model_unless_the_model_names_one(read, path, fields, model):
    """`_resolve_lora_path`: the adapter in `model` goes before `lora_path`."""
    assert read(path, messages=[], prompt="x", **fields).model == model
