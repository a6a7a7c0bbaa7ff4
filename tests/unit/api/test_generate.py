"""The engines' own generate API (SGLang, vLLM, TGI, Triton), and embeddings in place of a prompt."""

import base64

import pytest

from picker.api.request import MEDIUM_BYTES


@pytest.mark.parametrize(
    ("path", "body", "prompt", "output"),
    [
        ("/generate", {"text": "one", "sampling_params": {"max_new_tokens": 7, "temperature": 0}}, b"one", 7),
        ("/generate", {"text": ["one", "more"], "sampling_params": [{"max_new_tokens": 7}, {}]}, b"one", 7),
        ("/generate", {"inputs": "one", "parameters": {"max_new_tokens": 7}}, b"one", 7),
        ("/generate_stream", {"inputs": "one"}, b"one", None),
        ("/v2/models/m/generate", {"text_input": "one", "max_tokens": 7}, b"one", 7),
        ("/inference/v1/generate", {"token_ids": [1, 2], "sampling_params": {"max_tokens": 7}}, b"\1\0\0\0\2\0\0\0", 7),
        ("/generate", {"input_ids": [[1], [2, 3]]}, b"\1\0\0\0", None),
        ("/generate", {"text": None, "input_ids": [1]}, b"\1\0\0\0", None),
        ("/generate", {}, b"", None),
    ],
)
def test_each_engines_words(read, path, body, prompt, output):
    request = read(path, **body)
    assert (request.prompt, request.max_tokens) == (prompt, output)
    assert request.exact_tokens is (prompt[1:2] == b"\0")
    assert request.stream is path.endswith("_stream")


def test_the_load_is_that_of_all_prompts(read):
    assert read("/generate", text=["one", "more"]).prompt_bytes == 7
    assert read("/generate", input_ids=[[1], [2, 3]]).prompt_bytes == 12


@pytest.mark.parametrize(
    ("fields", "model"),
    [
        ({"lora_path": "sql"}, "sql"),
        ({"lora_path": ["sql", None]}, "sql"),
        ({"lora_path": [None, "sql"], "model": "m"}, "m"),
        ({"lora_path": None, "model": "m"}, "m"),
        ({"lora_path": []}, None),
        ({}, None),
    ],
)
def test_sglangs_adapter_is_the_model(read, fields, model):
    assert read("/generate", text="x", **fields).model == model


@pytest.mark.parametrize(
    ("fields", "key"),
    [
        ({"extra_key": "k"}, "k"),
        ({"cache_salt": "s", "extra_key": "k"}, "sk"),
        ({"extra_key": ["k", "l"], "cache_salt": ["s", "t"]}, "sk"),
    ],
)
def test_sglangs_extra_key_keeps_caches_apart(read, fields, key):
    assert read("/generate", text=["x", "y"], **fields).cache_salt == key
    assert read("/vertex_generate", instances=[{"text": "x"}], parameters=fields).cache_salt == key


def test_vertex_parameters_are_the_fields_of_generate(read):
    """`GenerateReqInput(**inputs, image_data=..., **parameters)`: of an instance, the prompt and its image alone."""
    parameters = {"stream": True, "lora_path": "sql", "sampling_params": {"max_new_tokens": 7, "n": 3}}
    instances = [{"text": "one", "stream": False, "lora_path": "not-this"}, {"text": "two"}]
    request = read("/vertex_generate", instances=instances, parameters=parameters)
    assert (request.stream, request.model, request.max_tokens, request.sequences) == (True, "sql", 7, 6)
    assert request.prompt == b"one"
    plain = read("/vertex_generate", instances=instances, parameters=5)
    assert (plain.stream, plain.model, plain.max_tokens, plain.prompt) == (False, None, None, b"one")


@pytest.mark.parametrize(
    ("vectors", "tokens", "sequences"),
    [
        ([[0.5, -1.5e-3], [0.25, 2.0], [0.0, 0.0]], 3, 1),
        ([[[0.5, 1.0]], [[0.5, 1.0], [0.25, 2.0]]], 3, 2),
        ([], 0, 1),
        ("x", 0, 1),
    ],
)
def test_vectors_in_place_of_a_prompt_count_as_a_token_each(read, vectors, tokens, sequences):
    """SGLang: a list of vectors, or one for each prompt of a batch; they have no prefix that is cached."""
    request = read("/generate", input_embeds=vectors)
    assert (request.prompt, request.prompt_bytes, request.sequences) == (b"", 4 * tokens, sequences)
    assert read("/vertex_generate", instances=[{"input_embeds": vectors}]).prompt_bytes == 4 * tokens
    assert read("/generate", text="x", input_embeds=vectors).prompt_bytes == 1, "text goes before vectors"


def test_ollamas_context_stands_before_the_prompt(read):
    """`GenerateHandler` writes the detokenized context, and behind it what it renders."""
    request = read("/api/generate", model="m", system="S", prompt="again", context=[1, 2])
    assert request.prompt == b"\1\0\0\0\2\0\0\0Sagain"
    assert request.prompt_bytes == len(request.prompt) and not request.exact_tokens
    for other in ("ids", {"a": 1}, None, [], ["1"], 7):
        assert read("/api/generate", prompt="again", context=other).prompt == b"again"


def test_another_image_is_another_prompt(read):
    one, two, again = (read("/generate", text="what is this", image_data=image) for image in ("AAAA", "BBBB", "AAAA"))
    assert one.has_media and one.prompt == again.prompt != two.prompt
    assert one.prompt_bytes == MEDIUM_BYTES + len("what is this")


@pytest.mark.parametrize(
    ("path", "body", "prompt"),
    [
        ("/generate", {"text": 5}, b"5"),
        ("/generate", {"text": [1.5, {}]}, b"[1.5,{}]"),
        ("/generate", {"sampling_params": 3}, b""),
        ("/generate", {"text": "x", "lora_path": 3, "sampling_params": []}, b"x"),
        ("/generate_stream", {"prompt": {"a": 1}}, b'{"a":1}'),
        ("/v1/completions", {"prompt": {"a": 1}}, b'{"a":1}'),
        ("/v1/completions", {"text": 5}, b""),
        ("/v1/completions", {"sampling_params": 3}, b""),
    ],
)
def test_a_field_of_another_kind_is_its_own_bytes_or_nothing(read, path, body, prompt):
    request = read(path, **body)
    assert (request.prompt, request.prompt_bytes, request.exact_tokens) == (prompt, len(prompt), False)
    assert (request.model, request.max_tokens) == (None, None)


def test_embeddings_stand_for_a_prompt_by_their_digest(read):
    """vLLM's `prompt_embeds`: kilobytes a token, and no text; equal ones match."""
    data = base64.b64encode(bytes(range(256)) * 4096).decode()
    one, again, two = (read("/v1/completions", model="m", prompt_embeds=each) for each in (data, data, data[4:]))
    assert one.prompt == again.prompt != two.prompt
    assert one.prompt_bytes == MEDIUM_BYTES and one.has_media and not one.exact_tokens
    assert read("/v1/completions", model="m", prompt_embeds=None, prompt="x").prompt == b"x"


def test_a_conversation_is_named_by_its_id_or_as_an_object(read):
    assert read("/v1/responses", input="x", conversation="conv_1").conversation_id == "conv_1"
    assert read("/v1/responses", input="x", conversation={"id": "conv_1"}).conversation_id == "conv_1"
    assert read("/v1/responses", input="x", conversation=None).conversation_id is None
    assert read("/v1/responses", input="x", previous_response_id="resp_1").previous_response_id == "resp_1"


@pytest.mark.parametrize("path", ["/completion", "/v1/completions", "/v1/embeddings"])
def test_llama_cpps_media_weigh_as_media_do_and_equal_ones_match(read, path):
    """A prompt is `{"prompt_string": ..., "multimodal_data": [base64]}`, or a list of such."""

    def ask(*data, text="what is <__media__>"):
        return {"prompt_string": text, "multimodal_data": list(data)}

    field = "input" if path.endswith("embeddings") else "prompt"
    large, other = "A" * 100_000, "B" * 100_000
    one, again, two = (read(path, **{field: ask(each)}) for each in (large, large, other))
    assert one.has_media and one.prompt == again.prompt != two.prompt
    assert one.prompt_bytes == MEDIUM_BYTES + len("what is <__media__>") == len(one.prompt)
    both = read(path, **{field: [ask(large), ask(other, large), "text"]})
    assert both.prompt == one.prompt and both.prompt_bytes == 3 * MEDIUM_BYTES + 2 * len("what is <__media__>") + 4
    plain = read(path, **{field: ask(text="plain")})
    assert (plain.prompt, plain.has_media) == (b"plain", False)


@pytest.mark.parametrize("count", [900, 50_000])
def test_many_crumbs_are_no_media(read, count):
    """A medium weighs `MEDIUM_BYTES`; a crumb that weighed so would make a gigabyte of a megabyte."""
    crumbs = ["a"] * count
    asked = read("/completion", prompt={"prompt_string": "x", "multimodal_data": crumbs})
    shown = read("/api/chat", messages=[{"role": "user", "content": "x", "images": crumbs}])
    for request in (asked, shown):
        assert request.has_media and request.prompt_bytes < 5 * count
