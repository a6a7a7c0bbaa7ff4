"""A body read without its long strings says what it says read as it is: every field, every hash, every refusal."""

import json
from random import Random
from unittest import mock

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given, settings

from picker.api import PARSERS, document, read_body
from picker.api.document import SHORTENED_BYTES_MIN
from picker.api.request import InvalidBody

pytestmark = pytest.mark.skipif(document._shorten is None, reason="the kernel is of the compiled build")

LONG = 1_024
"""From quote to quote, in the kernel. Bodies are led by blanks, so that each is large enough to be shortened."""

letters = st.sampled_from('a b{}[]:,é\u4e2d"\\\n\t/\x00\x1f\x7f\U0001f600\ud83d\ude00ſ')
lengths = st.sampled_from([0, 1, 30, 62, 63, 64, 65, 900, 1021, 1022, 1023, 1024, 2000])
texts = st.builds(
    lambda ends, size, last: ends * (size // max(1, len(ends))) + last, st.text(letters), lengths, letters
)
raw_strings = st.builds(
    # As no encoder would write them: odd escapes, cut pairs, bytes that are no text.
    lambda unit, size, last: b'"' + unit * (size // max(1, len(unit))) + last + b'"',
    st.lists(
        st.sampled_from(
            [
                *(rb"\n \" \\ \/ \b \u00e9 \ud83d\ude00 \ud83d \ude00 \u12 \x \' a \uD83D\uDE00 \uD83D\n".split()),
                b"\xff",
                b"\n",
            ]
        ),
        max_size=4,
    ).map(b"".join),
    lengths,
    st.sampled_from([b"", b"\\", b"\\\\", b"\\u", b"\\ud83d", b"\x1f", b"\xc3\xa9"]),
)
values = st.recursive(
    texts | st.integers() | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
parts = st.lists(
    st.one_of(
        st.builds(lambda text: {"type": "text", "text": text}, texts),
        st.builds(lambda data: {"type": "image_url", "image_url": {"url": data}}, texts),
        st.builds(lambda data: {"type": "image", "source": {"type": "base64", "data": data}}, texts),
        st.builds(lambda data: {"type": "document", "source": {"type": "text", "data": data}}, texts),
        st.builds(lambda content: {"type": "tool_result", "content": content}, texts),
        texts,
    ),
    max_size=4,
)
messages = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant"]) | texts, "content": texts | parts | values},
        optional={"tool_calls": values, "reasoning_content": texts},
    ),
    max_size=4,
)
fields = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(("model", "cache_salt", "lora_path", "conversation", "previous_response_id"), texts),
        **dict.fromkeys(("extra_key", "cache_prompt", "truncation"), texts | values),
        **dict.fromkeys(("input_embeds", "context", "instances", "parameters"), values | st.lists(values, max_size=2)),
        **dict.fromkeys(("messages",), messages),
        **dict.fromkeys(("prompt", "input", "text", "inputs"), texts | parts | values | st.lists(texts, max_size=3)),
        **dict.fromkeys(("tools", "system", "instructions", "image_data", "prompt_embeds", "other"), values),
    },
)
paths = st.sampled_from(sorted(PARSERS))

FIELDS = (
    *("api", "model", "prompt", "prompt_bytes", "exact_tokens", "has_media", "stream", "max_tokens"),
    *("cache_salt", "previous_response_id", "conversation_id"),
)


def outcome(path: str, body: bytes) -> object:
    api = PARSERS[path]
    try:
        request = read_body(api, body)
    except InvalidBody as error:
        return str(error)
    return {name: getattr(request, name) for name in FIELDS}


def assert_the_same(path: str, body: bytes) -> None:
    shortened = document._KERNEL.shorten(body)
    for way in document._KERNEL.WAYS:
        assert document._KERNEL.shorten_by(way, body) == shortened, way
    found = outcome(path, body)
    with mock.patch.object(document, "_shorten", None):
        assert found == outcome(path, body)


@settings(max_examples=400, deadline=None)
@given(paths, fields, st.booleans(), st.integers(0, 63))
def test_any_fields(path, fields, as_ascii, shift):
    text = json.dumps(fields, ensure_ascii=as_ascii).encode("utf-8", "surrogatepass")
    assert_the_same(path, b" " * (SHORTENED_BYTES_MIN + shift) + text)


@settings(max_examples=400, deadline=None)
@given(paths, raw_strings, raw_strings, st.integers(0, 63))
def test_strings_as_no_encoder_writes_them(path, one, other, shift):
    for frame in (
        b'{"messages": [{"role": "user", "content": %b, "x": %b}], "prompt": %b, "input": %b, "text": %b}',
        b'{"prompt": [%b, %b], "messages": [{"content": [{"type": "text", "text": %b}, %b]}], "tools": [{%b: 1}]}',
        b'{%b: %b, "input": [{"output": %b, "role": "user", "content": [{"text": %b}]}], "inputs": %b}',
    ):
        assert_the_same(path, b" " * (SHORTENED_BYTES_MIN + shift) + frame % (one, other, one, other, one))


@settings(max_examples=300, deadline=None)
@given(paths, fields, st.integers(0, 2**32))
def test_bodies_cut_and_bent(path, fields, seed):
    rng = Random(seed)
    text = bytearray(
        b" " * SHORTENED_BYTES_MIN + json.dumps(fields, ensure_ascii=False).encode("utf-8", "surrogatepass")
    )
    for _ in range(rng.randrange(4)):
        text[rng.randrange(SHORTENED_BYTES_MIN, len(text))] = rng.choice(b'"\\u{}[]:, \x00\xff0d')
    assert_the_same(path, bytes(text[: rng.choice((len(text), rng.randrange(len(text))))]))


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.text(st.sampled_from('ab\\"\n\té\U0001f600'), max_size=9), lengths), max_size=8),
    st.booleans(),
)
def test_long_strings_are_cut_out_and_found_again(drawn, as_ascii):
    texts = [unit * (size // max(1, len(unit))) for unit, size in drawn]
    written = [json.dumps(text, ensure_ascii=as_ascii).encode() for text in texts]
    body = b'{"model": "m", "pad": [' + b"0," * 8_192 + b'0], "prompt": [' + b", ".join(written) + b"]}"
    found = document.shortened(memoryview(body))
    if not any(len(each) >= LONG for each in written):
        assert found is None
        return
    assert found is not None
    assert found.json == body.replace(
        b", ".join(written), b", ".join(b'"\xff"' if len(w) >= LONG else w for w in written)
    )
    raws = msgspec.json.decode(found.json, type=dict[str, msgspec.Raw])
    assert bytes(found.view(raws["prompt"])) == b"[" + b", ".join(written) + b"]"
    each = msgspec.json.decode(raws["prompt"], type=list[msgspec.Raw])
    assert [bytes(found.view(raw)) for raw in each] == written
    assert found.view(each[0]).obj is body


edges = st.lists(
    st.sampled_from(
        [rb"\\", rb"\"", b'"', rb"\n", rb"\u00e9", rb"\ud83d\ude00", b"\x1f", b"\x20", b"\x7f", b"\xa0", b"\xff"]
    )
    | st.integers(0, 255).map(lambda byte: bytes([byte])),
    max_size=12,
).map(b"".join)


@settings(max_examples=1_000)
@given(st.lists(st.tuples(st.integers(0, 130), edges), max_size=6), st.booleans())
def test_each_way_cuts_the_same_of_any_bytes(drawn, framed):
    """Whatever stands at whatever place of a block of 64."""
    body = b"".join(b"x" * count + edge for count, edge in drawn)
    body = b'["' + b"a" * LONG + b'", "' + body + b'"]' if framed else body
    kernel = document._KERNEL
    assert kernel.WAYS[-1] == "plain" and len(kernel.WAYS) > 1
    assert len({kernel.shorten_by(way, body) for way in kernel.WAYS}) == 1


def test_each_way_finds_each_control_and_escape_wherever_it_stands():
    kernel = document._KERNEL
    for byte in range(256):
        escape, plain = b"\\" + bytes([byte]), bytes([byte])
        for at in range(64):
            for piece, is_text in ((escape, byte in b'"\\/bfnrt'), (plain, byte >= 32 and byte not in b'"\\')):
                body = b'"' + b"x" * (LONG + at) + piece + b"x" * 70 + b'"'
                for way in kernel.WAYS:
                    assert (kernel.shorten_by(way, body) is not None) is is_text, (way, piece, at)


def test_a_part_of_something_else_is_refused():
    body = b"[" + b" " * SHORTENED_BYTES_MIN + b'"%b"]' % (b"a" * LONG)
    found = document.shortened(body)
    assert found is not None
    with pytest.raises(ValueError, match="not a part"):
        found.view(msgspec.Raw(b"[]"))


@pytest.mark.parametrize(
    "arguments", [(), (b"",), (b"", b"", b"", b""), ("", b"", b"", memoryview(b"")), (b"", "", b"", memoryview(b""))]
)
def test_the_kernel_refuses_what_it_cannot_read(arguments):
    with pytest.raises(TypeError):
        document._KERNEL.whole(*arguments)
    with pytest.raises(TypeError):
        document._KERNEL.shorten("text")
    for wrong in ((), ("plain",), (b"plain", b""), ("plain", "text")):
        with pytest.raises(TypeError):
            document._KERNEL.shorten_by(*wrong)
    with pytest.raises(ValueError, match="no way 'mmx'"):
        document._KERNEL.shorten_by("mmx", b"")
