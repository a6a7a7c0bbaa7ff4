"""A conversation's next turn starts with the bytes of this one, whatever was said, in every API that has turns."""

import json

import hypothesis.strategies as st
from hypothesis import given, settings

from picker.api import find_api, read_body
from picker.prefix.blocks import block_hashes, chain_seed

texts = st.text(max_size=40) | st.text(alphabet="\x00\n\\\"'{}[]<|>\ud83d\ude00é", max_size=10)
media = st.sampled_from(["https://x/1.png", "data:image/png;base64,QUJD"])
chat_parts = st.lists(
    st.one_of(
        st.builds(lambda text: {"type": "text", "text": text}, texts),
        st.builds(lambda url: {"type": "image_url", "image_url": {"url": url}}, media),
        st.builds(lambda data: {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}, media),
    ),
    max_size=3,
)
calls = st.lists(
    st.builds(
        lambda name, text: {"id": "c", "type": "function", "function": {"name": name, "arguments": text}}, texts, texts
    ),
    max_size=2,
)
chat = st.fixed_dictionaries(
    {
        "role": st.sampled_from(["user", "assistant", "system", "tool", "developer"]),
        "content": texts | chat_parts | st.none(),
    },
    optional={"tool_calls": calls | st.none(), "reasoning_content": texts, "name": texts, "tool_call_id": texts},
)
anthropic_parts = st.lists(
    st.one_of(
        st.builds(lambda text: {"type": "text", "text": text}, texts),
        st.builds(lambda text: {"type": "thinking", "thinking": text, "signature": "s"}, texts),
        st.builds(lambda text: {"type": "tool_use", "id": "t", "name": "f", "input": {"a": text}}, texts),
        st.builds(lambda content: {"type": "tool_result", "tool_use_id": "t", "content": content}, texts | chat_parts),
        st.builds(lambda data: {"type": "image", "source": {"type": "base64", "data": data}}, media),
    ),
    max_size=3,
)
anthropic = st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant"]), "content": texts | anthropic_parts})
items = st.one_of(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant"]), "content": texts | chat_parts}),
    st.builds(lambda text: {"type": "function_call", "call_id": "c", "name": "f", "arguments": text}, texts),
    st.builds(lambda out: {"type": "function_call_output", "call_id": "c", "output": out}, texts | chat_parts),
    st.builds(lambda text: {"type": "reasoning", "summary": [{"type": "summary_text", "text": text}]}, texts),
    st.builds(lambda text: {"type": "custom_tool_call", "call_id": "c", "name": "f", "input": text}, texts),
)
conversations = st.one_of(
    st.tuples(st.just("/v1/chat/completions"), st.just("messages"), st.lists(chat, max_size=8)),
    st.tuples(st.just("/v1/messages"), st.just("messages"), st.lists(anthropic, max_size=8)),
    st.tuples(st.just("/v1/responses"), st.just("input"), st.lists(items, max_size=8)),
)
frames = st.fixed_dictionaries(
    {"model": st.just("m")},
    optional={
        "tools": st.lists(st.dictionaries(texts, texts, max_size=2), max_size=2),
        "system": texts | st.builds(lambda text: [{"type": "text", "text": text}], texts),
        "instructions": texts,
    },
)


@settings(max_examples=500, deadline=None)
@given(conversations, frames, st.booleans(), st.data())
def test_the_next_turn_starts_with_this_one(conversation, frame, as_ascii, data):
    path, field, said = conversation
    turns = data.draw(st.integers(0, len(said)), label="turns so far")

    def read(messages):
        text = json.dumps({**frame, field: messages}, ensure_ascii=as_ascii)
        return read_body(find_api(path), text.encode("utf-8", "surrogatepass"))

    before, after = read(said[:turns]), read(said)
    assert after.prompt.startswith(before.prompt)
    assert after.prompt_bytes == len(after.prompt)
    seed = chain_seed("m", None)
    blocks = block_hashes(seed, before.pieces)
    assert block_hashes(seed, after.pieces)[: len(blocks)] == blocks


@settings(max_examples=200, deadline=None)
@given(st.tuples(st.none() | texts, st.none() | texts), st.tuples(st.none() | texts, st.none() | texts))
def test_different_models_and_salts_never_share_a_chain(one, other):
    assert (chain_seed(*one) == chain_seed(*other)) == (one == other)
