"""POST .../generate: the engines' own API. Text or token ids, in the words of SGLang, vLLM, TGI, Triton and Ollama.

SGLang writes `text`, `input_ids` or `input_embeds` and `lora_path` (docs.sglang.ai, native API), and wraps them for
Vertex (`/vertex_generate`: `instances`); vLLM's `/inference/v1/generate` takes `token_ids`; TGI `inputs` (also at `/`);
Triton's generate extension `text_input`, with the model in the path; Ollama `prompt` with `system` and
`options.num_predict`, and streams unless it is told not to.
"""

import re
from typing import Final

import msgspec

from picker.api.completions import Prompts, flatten_prompts
from picker.api.document import Document, Pieces
from picker.api.fields import cache_key, count, first_item, flag, given, is_null, number, text
from picker.api.messages_text import is_list, loose_messages, put_messages, put_text, raw_items
from picker.api.request import BYTES_PER_TOKEN_ID, SEQUENCES_MAX, InferenceRequest, medium
from picker.api.shapes import NO_RAW, Raw


class _Sampling(msgspec.Struct):
    max_new_tokens: Raw = NO_RAW
    max_tokens: Raw = NO_RAW
    num_predict: Raw = NO_RAW
    n: Raw = NO_RAW
    best_of: Raw = NO_RAW
    prompt_logprobs: Raw = NO_RAW
    prompt_logprob_token_ids: Raw = NO_RAW
    skip_reading_prefix_cache: Raw = NO_RAW
    decoder_input_details: Raw = NO_RAW
    truncate: Raw = NO_RAW


class _Body(msgspec.Struct):
    text: Raw = NO_RAW
    input_ids: Raw = NO_RAW
    input_embeds: Raw = NO_RAW
    token_ids: Raw = NO_RAW
    prompt: Raw = NO_RAW
    inputs: Raw = NO_RAW
    text_input: Raw = NO_RAW
    system: Raw = NO_RAW
    messages: Raw = NO_RAW
    tools: Raw = NO_RAW
    model: Raw = NO_RAW
    lora_path: Raw = NO_RAW
    stream: Raw = NO_RAW
    sampling_params: Raw = NO_RAW
    parameters: Raw = NO_RAW
    options: Raw = NO_RAW
    max_tokens: Raw = NO_RAW
    cache_salt: Raw = NO_RAW
    extra_key: Raw = NO_RAW
    image_data: Raw = NO_RAW
    images: Raw = NO_RAW
    return_logprob: Raw = NO_RAW
    logprob_start_len: Raw = NO_RAW
    context: Raw = NO_RAW
    """Ollama: the token ids of the turns before."""


class _Vertex(msgspec.Struct):
    instances: Raw = NO_RAW
    parameters: Raw = NO_RAW


_OF_INSTANCES: Final = ("text", "input_ids", "input_embeds", "image_data")
"""What SGLang takes of Vertex' instances; anything else stands in the parameters (`vertex_generate`)."""
_BATCH_OF_VECTORS: Final = re.compile(rb"\[[ \t\r\n]*\[[ \t\r\n]*\[")

_decode = msgspec.json.Decoder(_Body).decode
_decode_vertex = msgspec.json.Decoder(_Vertex).decode
_decode_sampling = msgspec.json.Decoder(_Sampling).decode


def parse(document: Document) -> InferenceRequest:
    """Raises `msgspec.ValidationError` where the body is no JSON object."""
    return _request(document, _decode(document.json), "generate", streams=False)


def parse_stream(document: Document) -> InferenceRequest:
    """`/generate_stream` (TGI, Triton): the same, and the answer streams whatever the body says."""
    request = _request(document, _decode(document.json), "generate_stream", streams=True)
    request.stream = True
    return request


def parse_ollama(document: Document) -> InferenceRequest:
    """Ollama's `/api/generate` and `/api/chat` (docs/api.md there): they stream unless `stream` is false.

    The turns before, where they are given as the ids of `context`, stand before all else (server/routes.go,
    `GenerateHandler`).
    """
    fields = _decode(document.json)
    request = _request(document, fields, "ollama", streams=True)
    before = flatten_prompts(document, fields.context)
    if before.exact:
        request.pieces = [*before.pieces, *request.pieces]
        request.prompt_bytes += before.total_bytes
        request.sized = False  # ids and text in one prompt
    return request


def parse_vertex(document: Document) -> InferenceRequest:
    """SGLang's `/vertex_generate`: the first instance decides where, the load of all is charged.

    `parameters` are the fields of `/generate` (sglang/srt/entrypoints/http_server.py, `vertex_generate`).
    """
    wrapped = _decode_vertex(document.json)
    instances = raw_items(wrapped.instances)
    try:
        fields = _decode(wrapped.parameters) if wrapped.parameters else _Body()
    except msgspec.ValidationError:  # no object
        fields = _Body()
    try:
        instance = _decode(instances[0]) if instances else _Body()
    except msgspec.ValidationError:
        instance = _Body(text=instances[0])
    for name in _OF_INSTANCES:
        setattr(fields, name, getattr(instance, name))
    request = _request(document, fields, "vertex_generate", streams=False)
    others = sum(len(document.view(each)) for each in instances[1:])
    request.prompt_bytes += others
    request.sized = request.sized and not others
    request.sequences = min(SEQUENCES_MAX, request.sequences * max(1, len(instances)))
    return request


def _request(document: Document, fields: _Body, api: str, *, streams: bool) -> InferenceRequest:
    named = (fields.text, fields.input_ids, fields.token_ids, fields.prompt, fields.inputs, fields.text_input)
    prompt = next((each for each in named if given(document, each)), NO_RAW)
    prompts = flatten_prompts(document, prompt) if prompt else _vectors(document, fields.input_embeds)
    before = Pieces(document)
    for raw in (fields.tools, fields.system):
        if given(document, raw):
            put_text(raw, before)
    has_media = put_messages(loose_messages(fields.messages), before) or prompts.has_media
    for images in (fields.image_data, fields.images):
        if given(document, images):  # before the text: where in it an image belongs, only the engine's template knows
            before.append(medium(document.view(images)))
            has_media = True
    sampling = _sampling(fields)
    limits = (sampling.max_new_tokens, sampling.max_tokens, sampling.num_predict, fields.max_tokens)
    most = next((value for raw in limits if (value := number(document, raw)) is not None), None)
    each = max(count(document, raw, most=SEQUENCES_MAX) for raw in (sampling.n, sampling.best_of))
    return InferenceRequest(
        api=api,
        model=text(document, first_item(fields.lora_path)) or text(document, fields.model),
        pieces=[*before.found, *prompts.pieces],
        prompt_bytes=before.bytes + prompts.total_bytes,
        exact_tokens=prompts.exact,
        has_media=has_media,
        stream=flag(document, fields.stream, default=streams),
        max_tokens=most if most is None or most >= 0 else None,  # Ollama: -1 has no limit
        cache_salt=cache_key(document, fields.cache_salt, fields.extra_key),
        choices=each,
        sequences=min(SEQUENCES_MAX, each * max(1, prompts.count)),
        reports_usage=False,  # most engines' own streams do, at their end; what they say goes before what is counted
        reads_cache=_reads_cache(document, fields, sampling),
        sized=not given(document, sampling.truncate),
    )


def _reads_cache(document: Document, fields: _Body, sampling: _Sampling) -> bool:
    """Not where the engine computes the whole prompt for its log probabilities, whatever it holds.

    vLLM: `skip_reading_prefix_cache`, which is `prompt_logprobs` or `prompt_logprob_token_ids` unless it is given
    (vllm/sampling_params.py); TGI: `decoder_input_details`; SGLang: `return_logprob` from a `logprob_start_len` on,
    which is the end unless it is given (sglang/srt/managers/schedule_batch.py, `_compute_max_prefix_len`).
    """
    skips = sampling.skip_reading_prefix_cache
    if skips and not is_null(document, skips):
        return not flag(document, skips)
    asked = (sampling.prompt_logprobs, sampling.prompt_logprob_token_ids, sampling.decoder_input_details)
    if any(given(document, each) for each in asked):
        return False
    start = number(document, first_item(fields.logprob_start_len))
    return not (flag(document, first_item(fields.return_logprob)) and start is not None and start >= 0)


def _vectors(document: Document, raw: Raw) -> Prompts:
    """SGLang's `input_embeds`: kilobytes a token, so they count by their number.

    A server that takes them has no prefix cache (sglang/srt/managers/tokenizer_manager.py, `_tokenize_one_request`).
    """
    if not is_list(raw):
        return Prompts([], 0, False, 0)
    batch = raw_items(raw) if _BATCH_OF_VECTORS.match(memoryview(raw)) else []
    tokens = bytes(document.view(raw)).count(b"[") - 1 - len(batch)  # each vector is a list
    return Prompts([], int(BYTES_PER_TOKEN_ID) * max(0, tokens), True, max(1, len(batch)))


def _sampling(fields: _Body) -> _Sampling:
    for raw in (fields.sampling_params, fields.parameters, fields.options):
        item = first_item(raw)
        if not item:
            continue
        try:
            found: _Sampling = _decode_sampling(item)
        except msgspec.ValidationError:  # no object
            continue
        return found
    return _Sampling()
