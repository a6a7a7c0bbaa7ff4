"""POST .../completions (OpenAI): text, a list of texts, token ids, or lists of token ids; vLLM's embeddings of one.

llama.cpp's `/completion` and `/infill` take the same prompts in other words (`n_predict`, `input_prefix`).
"""

import re
from typing import Final

import msgspec
import numpy as np

from picker.api.document import Document, Pieces, Text
from picker.api.fields import (
    asks_for_usage,
    cache_key,
    count,
    flag,
    given,
    model_or_adapter,
    number,
    reads_prompt_cache,
    text,
)
from picker.api.messages_text import put_media, put_text, raw_items
from picker.api.request import SEQUENCES_MAX, InferenceRequest, medium, token_ids
from picker.api.shapes import NO_RAW, Raw, is_object

ITEMS_MAX: Final = 50_000
"""Of a list of texts; each costs a tenth of a microsecond. A longer one is one text."""
IDS_MAX: Final = 400_000
"""Of token ids; each costs some 15 ns. A longer list is a text too."""
COUNTED_BYTES_MIN: Final = 65_536
"""Shorter lists cannot have so many."""

_LIST_START = re.compile(rb"\[[ \t\r\n]*(.)", re.DOTALL)
_NUMBER_STARTS = frozenset(b"%c" % each for each in b"-0123456789")

_decode_ids = msgspec.json.Decoder(list[int]).decode
_decode_many_ids = msgspec.json.Decoder(list[list[int]]).decode


class _Body(msgspec.Struct):
    prompt: Raw = NO_RAW
    prompt_embeds: Raw = NO_RAW
    model: Raw = NO_RAW
    lora_path: Raw = NO_RAW
    stream: Raw = NO_RAW
    stream_options: Raw = NO_RAW
    max_tokens: Raw = NO_RAW
    cache_salt: Raw = NO_RAW
    extra_key: Raw = NO_RAW
    session_id: Raw = NO_RAW
    n: Raw = NO_RAW
    echo: Raw = NO_RAW
    logprobs: Raw = NO_RAW
    prompt_logprobs: Raw = NO_RAW
    cache_prompt: Raw = NO_RAW
    truncate_prompt_tokens: Raw = NO_RAW


class _Multimodal(msgspec.Struct):
    """llama.cpp: a prompt with media (tools/server/server-common.h, `tokenize_input_prompts`)."""

    prompt_string: Raw = NO_RAW
    multimodal_data: Raw = NO_RAW


class _LlamaCppBody(msgspec.Struct):
    prompt: Raw = NO_RAW
    input_prefix: Raw = NO_RAW
    input_suffix: Raw = NO_RAW
    input_extra: Raw = NO_RAW
    model: Raw = NO_RAW
    stream: Raw = NO_RAW
    n_predict: Raw = NO_RAW
    max_tokens: Raw = NO_RAW
    cache_prompt: Raw = NO_RAW
    n: Raw = NO_RAW


_decode = msgspec.json.Decoder(_Body).decode
_decode_llama_cpp = msgspec.json.Decoder(_LlamaCppBody).decode
_decode_multimodal = msgspec.json.Decoder(_Multimodal).decode


class Prompts(msgspec.Struct):
    """The prompts of a request: the first flattened, and what all of them come to."""

    pieces: list[Text]
    total_bytes: int
    exact: bool
    """They are token ids."""
    count: int
    has_media: bool = False


def parse(document: Document) -> InferenceRequest:
    """Raises `msgspec.ValidationError` where the body is no JSON object.

    `echo` with `logprobs` asks for those of the prompt. `best_of` is not looked at: vLLM and SGLang take the word and
    run `n` (vllm/entrypoints/openai/completion/protocol.py, sglang/srt/entrypoints/openai/serving_completions.py).
    """
    fields = _decode(document.json)
    prompts = flatten_prompts(document, fields.prompt)
    has_embeds = given(document, fields.prompt_embeds)
    if has_embeds:  # kilobytes a token, and no text: it stands for itself by its digest, as an image does
        embeddings = medium(document.view(fields.prompt_embeds))
        prompts.pieces = [embeddings, *prompts.pieces]
        prompts.total_bytes += len(embeddings)
        prompts.exact = False
    echoes = flag(document, fields.echo) and given(document, fields.logprobs)
    reads_cache = not (echoes or given(document, fields.prompt_logprobs))
    each = count(document, fields.n, most=SEQUENCES_MAX)
    return InferenceRequest(
        api="completions",
        model=model_or_adapter(document, fields.model, fields.lora_path),
        pieces=prompts.pieces,
        prompt_bytes=prompts.total_bytes,
        exact_tokens=prompts.exact,
        has_media=has_embeds or prompts.has_media,
        stream=flag(document, fields.stream),
        max_tokens=number(document, fields.max_tokens),
        cache_salt=cache_key(document, fields.cache_salt, fields.extra_key),
        session_id=text(document, fields.session_id) if fields.session_id else None,
        choices=each,
        sequences=min(SEQUENCES_MAX, each * max(1, prompts.count)),
        reports_usage=asks_for_usage(document, fields.stream_options),
        reads_cache=reads_cache and reads_prompt_cache(document, fields.cache_prompt),
        sized=not given(document, fields.truncate_prompt_tokens),
    )


def parse_llama_cpp(document: Document) -> InferenceRequest:
    """llama.cpp's own `/completion`, `/infill` and `/embedding` (tools/server/README.md)."""
    fields = _decode_llama_cpp(document.json)
    prompts = flatten_prompts(document, fields.prompt)
    around = Pieces(document)
    for raw in (fields.input_extra, fields.input_prefix, fields.input_suffix):
        if raw:
            put_text(raw, around)
    most = number(document, fields.n_predict)
    each = count(document, fields.n, most=SEQUENCES_MAX)
    return InferenceRequest(
        api="completion",
        model=text(document, fields.model),
        pieces=[*around.found, *prompts.pieces],
        prompt_bytes=around.bytes + prompts.total_bytes,
        exact_tokens=prompts.exact and not around.found,
        has_media=prompts.has_media,
        stream=flag(document, fields.stream),
        max_tokens=number(document, fields.max_tokens) if most is None or most < 0 else most,
        choices=each,
        sequences=min(SEQUENCES_MAX, each * max(1, prompts.count)),
        reads_cache=reads_prompt_cache(document, fields.cache_prompt),
    )


def flatten_prompts(document: Document, raw: Raw) -> Prompts:
    """The chain of the first prompt decides where, the load of all is charged."""
    pieces = Pieces(document)
    if not given(document, raw):
        return Prompts(pieces.found, 0, False, 0)
    shape = _LIST_START.match(memoryview(raw))
    if shape is None:
        has_media = _put_prompt(raw, pieces)
        return Prompts(pieces.found, pieces.bytes, False, 1, has_media)
    first_byte = bytes(shape[1])
    try:
        if first_byte in _NUMBER_STARTS and _commas(raw) <= IDS_MAX:
            pieces.append(token_ids(_decode_ids(raw)))
            return Prompts(pieces.found, pieces.bytes, True, 1)
        if first_byte == b"[" and _commas(raw) <= IDS_MAX:
            lists = _decode_many_ids(raw)
            pieces.append(token_ids(lists[0]))
            return Prompts(pieces.found, 4 * sum(map(len, lists)), True, len(lists))
    except msgspec.ValidationError:
        pass  # texts among the ids (llama.cpp takes that), or no ids at all
    if _commas(raw) > ITEMS_MAX or first_byte in _NUMBER_STARTS:
        put_text(raw, pieces)
        return Prompts(pieces.found, pieces.bytes, False, 1)
    texts = raw_items(raw)
    if first_byte == b"{":
        others = Pieces(document)
        media = [_put_prompt(each, others if number else pieces) for number, each in enumerate(texts)]
        return Prompts(pieces.found, pieces.bytes + others.bytes, False, len(texts), any(media))
    if texts:
        put_text(texts[0], pieces)
    total_bytes = sum(len(document.view(each)) for each in texts)
    return Prompts(pieces.found, max(0, total_bytes - 2 * len(texts)), False, len(texts))  # all but their quotes


def _put_prompt(raw: Raw, pieces: Pieces) -> bool:
    """Append one prompt that is no token ids. True if it has media: they stand before the text, by their digests."""
    found = _decode_multimodal(raw) if is_object(raw) else None
    if found is None or not found.prompt_string:
        put_text(raw, pieces)
        return False
    has_media = put_media(found.multimodal_data, pieces)
    put_text(found.prompt_string, pieces)
    return has_media


def _commas(raw: Raw) -> int:
    """At least as many items there are in a list, less one."""
    view = memoryview(raw)
    if len(view) < COUNTED_BYTES_MIN:
        return 0
    return int(np.count_nonzero(np.frombuffer(view, dtype=np.uint8) == ord(",")))
