"""Bodies made to hurt: each is understood, refused or routed by load, at a bounded cost.

Cost is counted, not timed: bytes allocated at the peak, and what the reader is never given.
"""

import json
import tracemalloc

import pytest

from picker import api as apis
from picker.api import PARSERS, find_api, read_body
from picker.api.request import InvalidBody

CHAT = "/v1/chat/completions"
MIB = 1024 * 1024


@pytest.mark.parametrize(
    ("body", "where"),
    [
        (b"{", "char 1"),
        (b'{"messages":[}', "char 13"),
        (b'{"messages":[]}x', "char 15"),
        (b'{"messages":[],}', "char 15"),
        (b"\x00", "char 0"),
        (b" ", "char 1"),
        (b"hello", "char 0"),
        (b"\xff\xff", "byte 0"),
        (b'{"model":"\xff"}', "byte 10"),
    ],
)
def test_what_is_no_json_is_refused_with_its_position_and_nothing_else(read, body, where):
    with pytest.raises(InvalidBody, match=where) as refused:
        read(CHAT, body)
    assert "hello" not in str(refused.value) and "model" not in str(refused.value)


@pytest.mark.parametrize(
    "body",
    [
        b"5",
        b"null",
        b'"text"',
        b"[]",
        b"{}",
        b'{"messages":5}',
        b'{"messages":[5]}',
        b'{"messages":[{"role":"user","content":[5]}]}',
        b'{"messages":[{"role":{},"content":"x"}]}',
        b'{"messages":[],"model":7}',
        b'{"messages":[],"max_tokens":"many"}',
        b'{"messages":[],"temperature":NaN}',
        b'{"messages":[],"temperature":-Infinity}',
        b'\xef\xbb\xbf{"messages":[]}',
        '{"messages":[]}'.encode("utf-16"),
        b'{"a":' * 100_000,
        b"[" * 1_000_000,
        b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b',"messages":[]}',
        b'{"max_tokens":1e999,"messages":[]}',
    ],
)
@pytest.mark.parametrize("path", list(PARSERS))
def test_json_of_another_shape_routes_by_load(read, path, body):
    request = read(path, body)
    assert request.prompt == b"" or path != "/chat/completions"
    assert request.prompt_bytes >= 0


@pytest.mark.parametrize(
    "body",
    [
        b'{"n":' + b"9" * MIB + b',"messages":[{"role":"u","content":"x"}]}',
        b'{"max_tokens":' + b"9" * 40 + b',"messages":[{"role":"u","content":"x"}]}',
        b'{"messages":[],"messages":[{"role":"u","content":"x"}]}',
        b'{"messages":[{"role":"u","content":"y","content":"x"}]}',
        b'{"messages":[{"role":"u","content":"x"}],"zzz":"\xff\xfe"}',
        b'\n\t {"messages" : [ { "role" : "u" , "content" : "x" } ] } \r\n',
        b'{"messages":[{"role":"u","content":"x","unknown":[[[[{"a":[]}]]]]}]}',
    ],
)
def test_oddities_that_engines_accept_keep_their_prompt(read, body):
    assert read(CHAT, body).prompt == b"\x00u\nx"


@pytest.mark.parametrize(
    "text",
    [
        r"a\ud83d",
        r"\ude00b",
        r"\ud83d\ud83d\ude00",
        r"\ud83dA",
        r"\\\\ \ud83d\ude00\ud83d",
        r"\uD83D\u0041",
        r"\\\ud83d",
        r"\\\\\ude00",
        r"\\ud83d \ude00",
    ],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/embeddings"])
def test_a_text_cut_inside_an_emoji_keeps_its_conversation_together(read, path, text):
    """Languages with UTF-16 strings cut so; Python's reader and engines take it."""
    head = "x" * 3000
    template = '{"messages":[{"role":"user","content":"%s%s%s"}]}'
    first, second = (read(path, (template % (head, text, tail)).encode()).prompt for tail in ("", " and more"))
    json.loads((template % (head, text, "")).encode())
    assert len(first) > 3000 and second.startswith(first)


@pytest.mark.parametrize(
    "body",
    [
        b'{"messages":[' + b"{}," * (5 * MIB) + b"{}]}",
        b'{"messages":[{"content":[' + b"{}," * (5 * MIB) + b"{}]}]}",
        b'{"messages":[],"temperature":NaN,"x":[' + b"[]," * (5 * MIB) + b"1]}",
        b'{"messages":' + b"[" * (15 * MIB),
        b'{"messages":[],"x":' + b'{"a":' * (3 * MIB),
    ],
    ids=["messages", "parts", "second reading", "deep", "deep objects"],
)
def test_16_mb_of_structure_is_not_even_built(read, body):
    tracemalloc.start()
    request = read(CHAT, body)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (request.prompt, request.prompt_bytes) == (b"", len(body))
    assert peak < 3 * len(body), "numpy's passes over the bytes, not millions of objects"


def test_16_mb_of_text_is_read_and_its_memory_is_the_texts(read):
    body = b'{"messages":[{"role":"user","content":"' + b"lorem " * (16 * MIB // 6) + b'"}]}'
    tracemalloc.start()
    request = read(CHAT, body)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert request.prompt_bytes > 16 * MIB - 100
    assert peak < 4 * len(body)


def test_a_large_prompt_full_of_braces_is_still_a_prompt(read):
    """Code and JSON in a text are no containers worth fearing: a brace every 20 bytes in 1 MB passes."""
    text = '{ "key": [1, 2] }  \n' * (MIB // 20 // 2)
    assert read(CHAT, messages=[{"role": "user", "content": text}]).prompt_bytes > MIB // 2


@pytest.mark.parametrize("depth", [1, 2, 50, 400])
def test_a_part_within_a_part_is_opened_once_and_then_counts_as_it_stands(read, monkeypatch, depth):
    opened = []
    from picker.api import messages_text

    real = messages_text._decode_parts
    monkeypatch.setattr(messages_text, "_decode_parts", lambda raw: opened.append(len(bytes(raw))) or real(raw))
    body = b'{"messages":[{"content":' + b'[{"content":' * depth + b'"hello"' + b"}]" * depth + b"}]}"
    request = read("/v1/messages", body)
    assert request.prompt.endswith(b"hello" if depth <= 2 else b"}]" * (depth - 2)) and len(opened) <= 2


def test_limits_are_the_documented_ones():
    assert (apis.SURE_BYTES, apis.CONTAINERS_MAX) == (512 * 1024, 100_000)
    api = find_api(CHAT)
    below = b'{"messages":[' + b"{}," * 99_000 + b'{"content":"' + b"x" * apis.SURE_BYTES + b'"}]}'
    assert read_body(api, below).prompt.startswith(b"\x00\n\x00\n")
