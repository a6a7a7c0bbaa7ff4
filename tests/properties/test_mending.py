"""A mended body is to Python what the body is, less halves of emojis, NaN and infinities; msgspec takes it."""

import json

import hypothesis.strategies as st
import msgspec
from hypothesis import given, settings

from picker.api.mending import mend
from tests.unit.api.test_mending import plain

texts = st.text(st.sampled_from('\ud83d\ude00\udbff\ud800\udfff"\\nuNaIfityd8x -é\U0001f600'), max_size=12)
values = st.recursive(
    texts | st.sampled_from([float("nan"), float("inf"), -float("inf"), 1.5, None, "NaN", "-Infinity", "\\"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["a", "NaN", '"', "\\"]), inner),
    max_leaves=12,
)


@settings(max_examples=500, deadline=None)
@given(values, st.sampled_from([None, 1]), st.booleans())
def test_any_value_that_python_writes(value, indent, upper):
    text = json.dumps(value, indent=indent)
    if upper:
        text = text.replace("\\ud", "\\uD").replace("\\\\uD", "\\\\ud")
    mended = mend(text.encode())
    assert mended is not None and len(mended) == len(text)
    assert msgspec.json.decode(mended) == json.loads(mended) == plain(json.loads(text))


pieces = st.sampled_from(
    ["\\", "\\u", "d83d", "\\ud83d", "\\uDE00", '"', "NaN", "-", "Infinity", ",", "[", "]", "{", ":", " "]
)


@settings(max_examples=1_000, deadline=None)
@given(st.lists(pieces, max_size=12).map("".join))
def test_what_python_refuses_stays_refused(text):
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        mended = mend(text.encode())
        assert mended is not None
        try:
            msgspec.json.decode(mended)
        except msgspec.DecodeError:
            return
        raise AssertionError(text) from None
    mended = mend(text.encode())
    assert mended is not None and msgspec.json.decode(mended) == plain(value)
