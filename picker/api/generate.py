"""POST .../generate: the engines' own API. Text or token ids, in the words of SGLang, vLLM, TGI, Triton and Ollama.

SGLang writes `text` or `input_ids` and `lora_path` (docs.sglang.ai, native API), and wraps them for Vertex
(`/vertex_generate`: `instances`); vLLM's `/inference/v1/generate` takes `token_ids`; TGI `inputs` (also at `/`);
Triton's generate extension `text_input`, with the model in the path; Ollama `prompt` with `system` and
`options.num_predict`, and streams unless it is told not to.
"""

import msgspec

from picker.api.completions import flatten_prompts
from picker.api.document import Document, Pieces
from picker.api.fields import count, flag, given, number, scalar_text, text
from picker.api.messages_text import is_list, loose_messages, put_messages, put_text, raw_items
from picker.api.request import SEQUENCES_MAX, InferenceRequest, medium
from picker.api.shapes import NO_RAW, Raw


class _Sampling(msgspec.Struct):
    max_new_tokens: Raw = NO_RAW
    max_tokens: Raw = NO_RAW
    num_predict: Raw = NO_RAW
    n: Raw = NO_RAW
    best_of: Raw = NO_RAW
    prompt_logprobs: Raw = NO_RAW
    decoder_input_details: Raw = NO_RAW
    sampling_params: Raw = NO_RAW
    """Vertex: the parameters hold them."""


class _Body(msgspec.Struct):
    text: Raw = NO_RAW
    input_ids: Raw = NO_RAW
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
    image_data: Raw = NO_RAW
    images: Raw = NO_RAW
    return_logprob: Raw = NO_RAW
    logprob_start_len: Raw = NO_RAW


class _Vertex(msgspec.Struct):
    instances: Raw = NO_RAW
    parameters: Raw = NO_RAW


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
    """Ollama's `/api/generate` and `/api/chat` (docs/api.md there): they stream unless `stream` is false."""
    return _request(document, _decode(document.json), "ollama", streams=True)


def parse_vertex(document: Document) -> InferenceRequest:
    """SGLang's `/vertex_generate`: the first instance decides where, the load of all is charged."""
    wrapped = _decode_vertex(document.json)
    instances = raw_items(wrapped.instances)
    try:
        fields = _decode(instances[0]) if instances else _Body()
    except msgspec.ValidationError:  # no object
        fields = _Body(text=instances[0])
    fields.parameters = wrapped.parameters
    request = _request(document, fields, "vertex_generate", streams=False)
    others = sum(len(document.view(each)) for each in instances[1:])
    request.prompt_bytes += others
    request.sized = request.sized and not others
    request.sequences = min(SEQUENCES_MAX, request.sequences * max(1, len(instances)))
    return request


def _request(document: Document, fields: _Body, api: str, *, streams: bool) -> InferenceRequest:
    named = (fields.text, fields.input_ids, fields.token_ids, fields.prompt, fields.inputs, fields.text_input)
    prompts = flatten_prompts(document, next((each for each in named if given(document, each)), NO_RAW))
    before = Pieces(document)
    for raw in (fields.tools, fields.system):
        if given(document, raw):
            put_text(raw, before)
    has_media = put_messages(loose_messages(fields.messages), before)
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
        model=_adapter(document, fields.lora_path) or text(document, fields.model),
        pieces=[*before.found, *prompts.pieces],
        prompt_bytes=before.bytes + prompts.total_bytes,
        exact_tokens=prompts.exact,
        has_media=has_media,
        stream=flag(document, fields.stream, default=streams),
        max_tokens=most if most is None or most >= 0 else None,  # Ollama: -1 has no limit
        cache_salt=scalar_text(document, fields.cache_salt),
        choices=each,
        sequences=min(SEQUENCES_MAX, each * max(1, prompts.count)),
        reports_usage=False,  # most engines' own streams do, at their end; what they say goes before what is counted
        reads_cache=not _reads_all_logprobs(document, fields, sampling),
    )


def _reads_all_logprobs(document: Document, fields: _Body, sampling: _Sampling) -> bool:
    """The engine computes the whole prompt for its log probabilities, whatever it holds.

    vLLM: `prompt_logprobs` (vllm/v1/request.py); TGI: `decoder_input_details`; SGLang: `return_logprob` from a
    `logprob_start_len` on, which is the end unless it is given.
    """
    if given(document, sampling.prompt_logprobs) or given(document, sampling.decoder_input_details):
        return True
    start = number(document, fields.logprob_start_len)
    return given(document, fields.return_logprob) and start is not None and start >= 0


def _adapter(document: Document, lora_path: Raw) -> str | None:
    """The first request's adapter: each of a list may have its own."""
    items = raw_items(lora_path)
    return text(document, items[0] if items else lora_path)


def _sampling(fields: _Body) -> _Sampling:
    for raw in (fields.sampling_params, fields.parameters, fields.options):
        if not raw:
            continue
        try:
            found: _Sampling = _decode_sampling(raw_items(raw)[0] if is_list(raw) else raw)
            return _decode_sampling(found.sampling_params) if found.sampling_params else found
        except (msgspec.ValidationError, IndexError):
            continue
    return _Sampling()
