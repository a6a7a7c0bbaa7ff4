"""POST .../chat/completions (OpenAI), and vLLM's batch of them.

Cohere's `/v2/chat` is the same to us. vLLM does not read its prefix cache where the log probabilities of the
prompt are asked for (vllm/sampling_params.py, `skip_reading_prefix_cache`): by `prompt_logprobs`, or by `echo`,
which sets them to `top_logprobs`. Those are 0 unless they are given, and 0 asks too; only null does not
(vllm/entrypoints/openai/chat_completion/protocol.py, `to_sampling_params`). llama.cpp does not read its cache where
`cache_prompt` is false (tools/server/server-task.cpp, `params_from_json_cmpl`).
"""

from typing import Final

import msgspec

from picker.api.document import Document, Pieces
from picker.api.fields import (
    asks_for_usage,
    cache_key,
    count,
    flag,
    given,
    is_null,
    model_or_adapter,
    number,
    reads_prompt_cache,
    text,
)
from picker.api.messages_text import loose_messages, put_messages, put_text, raw_items
from picker.api.request import SEQUENCES_MAX, InferenceRequest
from picker.api.shapes import ChatBody, ChatFields, LooseChatBody, Message

_decode: Final = msgspec.json.Decoder(ChatBody).decode
_decode_loosely: Final = msgspec.json.Decoder(LooseChatBody).decode


def parse(document: Document) -> InferenceRequest:
    """Raises `msgspec.ValidationError` where the body is no JSON object."""
    try:
        fields: ChatBody = _decode(document.json)
    except msgspec.ValidationError:
        loose: LooseChatBody = _decode_loosely(document.json)
        return request_of(document, loose, loose_messages(loose.messages))
    return request_of(document, fields, fields.messages)


def parse_batch(document: Document) -> InferenceRequest:
    """vLLM's `/v1/chat/completions/batch`: `messages` is a list of conversations. The first one decides where."""
    fields: LooseChatBody = _decode_loosely(document.json)
    conversations = raw_items(fields.messages)
    first = loose_messages(conversations[0]) if conversations else []
    request = request_of(document, fields, first)
    request.api = "chat_completions_batch"
    others = sum(len(document.view(each)) for each in conversations[1:])
    request.prompt_bytes += others
    request.sequences = min(request.sequences * max(1, len(conversations)), SEQUENCES_MAX)
    request.sized = request.sized and not others
    return request


def request_of(document: Document, fields: ChatFields, messages: list[Message]) -> InferenceRequest:
    """What a chat body asks for."""
    pieces = Pieces(document)
    for before in (fields.tools, fields.documents):
        if before:
            put_text(before, pieces)
    has_media = put_messages(messages, pieces)
    echoes = flag(document, fields.echo) and not is_null(document, fields.top_logprobs)
    reads_cache = not (echoes or given(document, fields.prompt_logprobs))
    most = number(document, fields.max_completion_tokens)
    return InferenceRequest(
        api="chat_completions",
        model=model_or_adapter(document, fields.model, fields.lora_path),
        pieces=pieces.found,
        prompt_bytes=pieces.bytes,
        has_media=has_media,
        stream=flag(document, fields.stream),
        max_tokens=number(document, fields.max_tokens) if most is None else most,
        cache_salt=cache_key(document, fields.cache_salt, fields.extra_key),
        session_id=text(document, fields.session_id) if fields.session_id else None,
        choices=count(document, fields.n, most=SEQUENCES_MAX) if fields.n else 1,
        reports_usage=asks_for_usage(document, fields.stream_options),
        reads_cache=reads_cache and reads_prompt_cache(document, fields.cache_prompt),
        sized=not given(document, fields.truncate_prompt_tokens),
    )
