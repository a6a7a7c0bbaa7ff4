"""POST .../generate: the engines' own API. Text or token ids, in the words of SGLang, vLLM, TGI and Triton.

SGLang writes `text` or `input_ids` and `lora_path` (docs.sglang.ai, native API); vLLM's
`/inference/v1/generate` takes `token_ids`; TGI `inputs`; Triton's generate extension `text_input`,
with the model in the path.
"""

import msgspec

from picker.api.completions import flatten_prompts
from picker.api.document import Document
from picker.api.messages_text import given
from picker.api.request import InferenceRequest, medium
from picker.api.shapes import NO_RAW, Raw


class _Sampling(msgspec.Struct):
    max_new_tokens: float | None = None
    max_tokens: float | None = None


class _Body(msgspec.Struct):
    text: Raw = NO_RAW
    input_ids: Raw = NO_RAW
    token_ids: Raw = NO_RAW
    prompt: Raw = NO_RAW
    inputs: Raw = NO_RAW
    text_input: Raw = NO_RAW
    model: str | None = None
    lora_path: Raw = NO_RAW
    stream: bool | None = None
    sampling_params: Raw = NO_RAW
    parameters: Raw = NO_RAW
    max_tokens: float | None = None
    cache_salt: str | None = None
    image_data: Raw = NO_RAW


_decode = msgspec.json.Decoder(_Body).decode
_decode_sampling = msgspec.json.Decoder(_Sampling | list[_Sampling] | None).decode
_decode_adapter = msgspec.json.Decoder(str | list[str | None] | None).decode


def parse(document: Document) -> InferenceRequest:
    """Raises `msgspec.ValidationError` where the body is JSON of another shape."""
    fields = _decode(document.json)
    return _request(document, fields, "generate", stream=bool(fields.stream))


def parse_stream(document: Document) -> InferenceRequest:
    """`/generate_stream` (TGI, Triton): the same, and the answer streams whatever the body says."""
    return _request(document, _decode(document.json), "generate_stream", stream=True)


def _request(document: Document, fields: _Body, api: str, *, stream: bool) -> InferenceRequest:
    prompts = (fields.text, fields.input_ids, fields.token_ids, fields.prompt, fields.inputs, fields.text_input)
    pieces, total_bytes, exact = flatten_prompts(document, next((each for each in prompts if given(each)), NO_RAW))
    has_media = given(fields.image_data)
    if has_media:  # before the text: where in it the image belongs, only the engine's template knows
        image = medium(document.view(fields.image_data))
        pieces, total_bytes = [image, *pieces], total_bytes + len(image)
    return InferenceRequest(
        api=api,
        model=_adapter(fields.lora_path) or fields.model,
        pieces=pieces,
        prompt_bytes=total_bytes,
        exact_tokens=exact,
        has_media=has_media,
        stream=stream,
        max_tokens=_output_tokens(fields),
        cache_salt=fields.cache_salt,
    )


def _adapter(lora_path: Raw) -> str | None:
    """The first request's adapter: each of a list may have its own."""
    named = _decode_adapter(lora_path) if lora_path else None
    return (named[0] if named else None) if isinstance(named, list) else named


def _output_tokens(fields: _Body) -> float | None:
    raw = fields.sampling_params or fields.parameters
    sampling: _Sampling | list[_Sampling] | None = _decode_sampling(raw) if raw else None
    if isinstance(sampling, list):
        sampling = sampling[0] if sampling else None
    if sampling is None:
        return fields.max_tokens
    if sampling.max_new_tokens is not None:
        return sampling.max_new_tokens
    return sampling.max_tokens
