"""Bodies made to hurt: each is understood, refused or routed by load, at a bounded cost.

Cost is counted, not timed: bytes allocated at the peak, and what the reader is never given.
"""

import json
import sys
import tracemalloc
from typing import Any

import pytest

from picker.api import PARSERS, document, read_body, reading
from picker.api.fields import NAME_BYTES_MAX
from picker.api.request import InvalidBody
from picker.prefix.blocks import chain_seed

CHAT = "/v1/chat/completions"
MIB = 1024 * 1024


@pytest.mark.parametrize(
    ("body", "where"),
    [
        (b"{", "char 1"),
        (b'{"messages":[}', "char 13"),
        (b'{"messages":[]}x', "char 15"),
        (b'{"messages":[],}', "char 15" if sys.version_info < (3, 13) else "char 14"),  # behind the comma, or at it
        (b"\x00", "char 0"),
        (b" ", "char 1"),
        (b"hello", "char 0"),
        (b"\xff\xff", "byte 0"),
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
@pytest.mark.parametrize("path", sorted(PARSERS))
def test_json_of_another_shape_routes_by_load(path, body):
    request = read_body(PARSERS[path], body)
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


@pytest.mark.parametrize(("containers", "prompt"), [(15_900, True), (16_100, False)])
def test_so_many_containers_are_read_and_no_more(read, containers, prompt):
    assert (reading.COUNTED_BYTES_MIN, reading.CONTAINERS_MAX) == (32 * 1024, 16_000)
    body = b'{"messages":[' + b"{}," * containers + b'{"content":"' + b"x" * reading.COUNTED_BYTES_MIN + b'"}]}'
    assert read(CHAT, body).prompt.startswith(b"\x00\n\x00\n") is prompt


ORDINARY = {"model": "m", "messages": [{"role": "system", "content": "s" * 2000}, {"role": "user", "content": "hi"}]}
ODD_FIELDS: dict[str, dict[str, Any]] = {
    "max_tokens as text": {"max_tokens": "16"},
    "stream 0": {"stream": 0},
    "stream as text": {"stream": "false"},
    "stream null": {"stream": None},
    "a salt that is no text": {"cache_salt": None},
    "n as text": {"n": "1"},
    "tools null": {"tools": None},
    "stream_options a list": {"stream_options": []},
    "temperature NaN": {"temperature": float("nan")},
    "infinity deep in a field": {"metadata": {"a": [float("inf"), -float("inf"), "NaN, Infinity"]}},
}


@pytest.mark.parametrize("name", ODD_FIELDS)
@pytest.mark.parametrize("pad", [0, 30_000])
def test_one_odd_field_costs_nothing_else(read, name, pad):
    body = {**ORDINARY, **ODD_FIELDS[name], "zz": "p" * pad}
    found, plain = (read(CHAT, json.dumps(each).encode()) for each in (body, ORDINARY))
    assert (found.prompt, found.model, found.stream) == (plain.prompt, "m", False)
    assert found.max_tokens == (16 if "max_tokens" in body else None)


@pytest.mark.parametrize("coding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-32-be"])
def test_unicode_in_another_coding_is_the_same_body(read, coding):
    text = json.dumps(ORDINARY | {"user": "ü"}, ensure_ascii=False)
    assert read(CHAT, text.encode(coding)).prompt == read(CHAT, json.dumps(ORDINARY).encode()).prompt


@pytest.mark.parametrize(
    ("value", "stream"), [(1, True), ("true", True), ("Yes", True), (1.0, True), ("2", False), ({}, False), (0, False)]
)
def test_booleans_are_read_as_pydantic_reads_them(read, value, stream):
    assert read(CHAT, json.dumps({**ORDINARY, "stream": value}).encode()).stream is stream


def test_a_message_of_another_shape_costs_nothing_but_itself(read):
    odd = [
        5,
        "text",
        None,
        {"role": None, "content": "x"},
        {"role": {}, "content": [5, "y", {"type": None, "text": "z"}]},
    ]
    found = read(CHAT, json.dumps({"messages": [*odd, *ORDINARY["messages"]]}).encode()).prompt
    assert found.endswith(read(CHAT, json.dumps(ORDINARY).encode()).prompt)
    assert b"x" in found and b"y" in found and b"z" in found


@pytest.mark.parametrize("size", [300_000, 5 * MIB])
@pytest.mark.parametrize(
    ("head", "tail", "where"),
    [
        (b'{"messages":[}', b"", "char 13"),
        (b'{"a":1,\n', b"nonsense", "line 2 column 1"),
        (b'{"a":1,}', b"", "char 7"),
        (b'{"messages":[', b"", "ends before it is complete"),
    ],
)
def test_a_long_body_that_is_no_json_is_refused_as_a_short_one_is(read, size, head, tail, where):
    body = head + tail + (b' "' + b"x" * size + b'"')
    with pytest.raises(InvalidBody, match=where.replace("(", r"\(")):
        read(CHAT, body)


@pytest.mark.parametrize("text", [r"a\ud83d", r"\ude00b", r"\ud83dA \ud83d"])
def test_half_an_emoji_in_a_long_body_is_read_too(read, text):
    body = b'{"messages":[{"role":"user","content":"%b%b"}]}' % (b"x" * 300_000, text.encode())
    json.loads(body)
    assert len(read(CHAT, body).prompt) > 300_000


@pytest.mark.parametrize(
    "prompt", [list(range(400_000)), [[1] * 300_000, [2] * 300_000], ["a"] * 300_000, [1, "text", 2]]
)
def test_lists_of_any_length_are_read_in_time_and_weigh(read, prompt):
    request = read("/v1/completions", json.dumps({"prompt": prompt}).encode())
    assert request.prompt and request.prompt_bytes >= 4 * len(prompt)


NAMES = [
    ("/v1/chat/completions", "model", "model"),
    ("/v1/chat/completions", "cache_salt", "cache_salt"),
    ("/v1/chat/completions", "session_id", "session_id"),
    ("/v1/completions", "cache_salt", "cache_salt"),
    ("/v1/messages", "model", "model"),
    ("/v1/responses", "previous_response_id", "previous_response_id"),
    ("/v1/responses", "conversation", "conversation_id"),
    ("/generate", "lora_path", "model"),
    ("/v1/embeddings", "model", "model"),
]


@pytest.mark.parametrize(("path", "field", "attribute"), NAMES)
def test_a_name_as_long_as_a_body_is_never_decoded(read, path, field, attribute):
    """Its stand-in is short, equal for equal names and another for others; nothing of its size is made."""
    rest = b',"messages":[],"prompt":"","input":""}'
    bodies = [
        b'{"%b":"%b%d"' % (field.encode(), "\U0001f600".encode() * (2 * MIB), number) + rest for number in (1, 1, 2)
    ]
    tracemalloc.start()
    first, same, other = (getattr(read(path, body), attribute) for body in bodies)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert first == same != other
    assert first.startswith("\U0001f600" * 16 + "\u2026") and len(first) < 256
    assert peak < 3 * MIB, "a pass over the bytes, by the megabyte, and no copy of them"


def test_a_name_of_a_kilobyte_is_itself(read):
    assert read(CHAT, model="m" * (NAME_BYTES_MAX - 2), messages=[]).model == "m" * (NAME_BYTES_MAX - 2)
    assert read(CHAT, cache_salt="\u00e9", messages=[]).cache_salt == "\u00e9"


def test_a_long_salt_still_keeps_tenants_apart(read):
    """Of two that begin alike each has its own chain."""
    salts = ["s" * 5_000 + tail for tail in ("a", "b")]
    seeds = {chain_seed("m", read(CHAT, model="m", cache_salt=salt, messages=[]).cache_salt) for salt in salts}
    assert len(seeds) == 2


@pytest.mark.parametrize("piece", [b"[", b'[\\"', b"{\\\\"])
def test_brackets_in_long_texts_are_looked_at_twice_up_to_a_megabyte(read, monkeypatch, piece):
    """Without the kernel: code and JSON keep their prompt, megabytes of what looks like structure route by load."""
    monkeypatch.setattr(document, "_shorten", None)
    for size, understood in ((reading.STRINGS_BYTES_MAX // 2, True), (15 * MIB, False)):
        body = b'{"messages":[{"role":"u","content":"' + piece * (size // len(piece)) + b'"}]}'
        request = read(CHAT, body)
        assert bool(request.prompt) == understood
        assert request.sized == understood
