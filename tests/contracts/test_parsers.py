"""Every registered API: one shape of parser, total on JSON, exact about sizes, and blind to what it does not know."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from picker.api import PARSERS, find_api, read_body
from picker.api.request import InferenceRequest, InvalidBody

APIS = pytest.mark.parametrize("suffix", list(PARSERS))

_CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}]}
VALID: dict[str, dict[str, Any]] = {
    "/chat/completions": _CHAT,
    "/completions": {"prompt": "hello"},
    "/responses": {"input": "hello"},
    "/messages": {**_CHAT, "max_tokens": 5},
    "/embeddings": {"input": "hello"},
    "/models/{model+}/generate": {"text_input": "hello"},
    "/models/{model+}/generate_stream": {"text_input": "hello"},
    "/models/{model+}/versions/{id}/generate": {"text_input": "hello"},
    "/models/{model+}/versions/{id}/generate_stream": {"text_input": "hello"},
    "/api/generate": {"prompt": "hello"},
    "/api/chat": _CHAT,
    "/api/embed": {"input": ["hello"]},
    "/api/embeddings": {"prompt": "hello"},
    "/vertex_generate": {"instances": [{"text": "hello"}], "parameters": {"sampling_params": {"max_new_tokens": 5}}},
    "/generate": {"text": "hello"},
    "/generate_stream": {"inputs": "hello"},
    "/chat/completions/batch": {"messages": [_CHAT["messages"]]},
    "/v2/chat": _CHAT,
    "/v2/embed": {"texts": ["hello"], "input_type": "search_query"},
    "/v1/embed": {"texts": ["hello"]},
    "/encode": {"text": "hello"},
    "/embedding": {"content": "hello"},
    "/embed": {"inputs": "hello"},
    "/completion": {"prompt": "hello", "n_predict": 5},
    "/infill": {"input_prefix": "def x", "prompt": "hello"},
    "/invocations": _CHAT,
    "^/": {"inputs": "hello"},
}
"""A body of each API, as its reference shows it."""
STREAMS = {shape for shape in VALID if shape.endswith("_stream")} | {"/api/generate", "/api/chat"}


def body(tree: object) -> bytes:
    return json.dumps(tree).encode()


def test_every_api_has_an_example_here():
    assert set(VALID) == set(PARSERS)


@APIS
def test_a_valid_body_is_understood_in_the_neutral_form(suffix):
    path = suffix.replace("{model}", "m").replace("{id}", "1")
    api = find_api(path.removeprefix("^") if path.startswith("^") else f"/prefix{path}")
    assert api == PARSERS[suffix]
    request = read_body(api, body({"model": "m", "cache_salt": "s", **VALID[suffix]}))
    assert isinstance(request, InferenceRequest) and request.api == api.name
    assert request.stream == (suffix in STREAMS)
    assert request.model in ("m", None) and request.cache_salt in ("s", None)
    own = suffix.startswith(("/vertex", "/completion", "/infill"))  # no salt, or instances of their own
    assert (request.model == "m" and request.cache_salt == "s") or (own and suffix != "/completions")
    assert request.prompt.endswith(b"hello") and request.prompt_bytes == len(request.prompt)
    assert not (request.exact_tokens or request.has_media)


@APIS
def test_what_it_does_not_know_changes_nothing(suffix):
    plain = read_body(PARSERS[suffix], body(VALID[suffix]))
    extras = {
        "temperature": 0.5,
        "metadata": {"deep": [[[{}]]]},
        "stop": None,
        "user": "u",
        "top_p": 0.5,
    }
    found = read_body(PARSERS[suffix], body({**extras, **VALID[suffix], "zz": 1}))
    names = [name for name in dir(plain) if not name.startswith("_")]
    assert "prompt" in names and all(getattr(found, name) == getattr(plain, name) for name in names)


@APIS
def test_the_prompt_is_bytes_and_longer_text_is_a_longer_prompt(suffix):
    small, large = (
        read_body(PARSERS[suffix], body(VALID[suffix]).replace(b"hello", b"hello" + b"x" * size)) for size in (0, 5000)
    )
    assert isinstance(small.prompt, bytes) and large.prompt_bytes - small.prompt_bytes == 5000
    assert large.prompt.startswith(small.prompt)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)
fields = st.dictionaries(
    st.sampled_from(
        [
            *(
                "messages",
                "prompt",
                "input",
                "text",
                "inputs",
                "input_ids",
                "image_data",
                "input_embeds",
                "lora_path",
                "sampling_params",
                "parameters",
                "instances",
                "context",
                "extra_key",
                "cache_prompt",
                "return_logprob",
                "logprob_start_len",
                "truncation",
            ),
            *("model", "stream", "max_tokens", "max_completion_tokens", "max_output_tokens", "cache_salt", "tools"),
            *("system", "instructions", "previous_response_id", "role", "content", "type", "image_url", "source"),
        ]
    ),
    json_values,
    max_size=6,
)
items = st.lists(fields, max_size=3)


@settings(max_examples=400, deadline=None)
@given(
    st.sampled_from(sorted(PARSERS)), json_values | fields | st.fixed_dictionaries({"messages": items, "input": items})
)
def test_any_json_is_a_request(suffix, tree):
    request = read_body(PARSERS[suffix], body(tree))
    assert request.api == PARSERS[suffix].name and request.prompt_bytes >= 0


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(PARSERS)), st.binary(max_size=100))
def test_any_bytes_are_a_request_or_refused(suffix, data):
    try:
        assert read_body(PARSERS[suffix], data).prompt_bytes >= 0
    except InvalidBody as error:
        with pytest.raises(ValueError) as refused:
            json.loads(data)
        assert refused
        assert str(error)
