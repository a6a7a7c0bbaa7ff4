"""POST .../embeddings (OpenAI): input as text, texts or token ids; vLLM also takes messages. Nothing is decoded.

Others ask for the same in other words: Cohere and vLLM (`/v2/embed`: `texts`), SGLang (`/encode`: `text`,
`input_ids`), llama.cpp (`/embedding`: `content`), Ollama (`/api/embed`: `input`, `/api/embeddings`: `prompt`).
"""

import re

import msgspec

from picker.api.completions import Prompts, flatten_prompts
from picker.api.document import Document, Pieces
from picker.api.fields import given, scalar_text, text
from picker.api.messages_text import loose_messages, put_messages
from picker.api.request import InferenceRequest
from picker.api.shapes import NO_RAW, Raw


class _Body(msgspec.Struct):
    input: Raw = NO_RAW
    texts: Raw = NO_RAW
    inputs: Raw = NO_RAW
    text: Raw = NO_RAW
    input_ids: Raw = NO_RAW
    content: Raw = NO_RAW
    prompt: Raw = NO_RAW
    messages: Raw = NO_RAW
    images: Raw = NO_RAW
    model: Raw = NO_RAW
    cache_salt: Raw = NO_RAW
    truncate_prompt_tokens: Raw = NO_RAW


_OBJECTS = re.compile(rb"\[[ \t\r\n]*\{")
_decode = msgspec.json.Decoder(_Body).decode


def parse(document: Document) -> InferenceRequest:
    """Raises `msgspec.ValidationError` where the body is no JSON object."""
    fields = _decode(document.json)
    has_media = False
    conversation = fields.messages if given(document, fields.messages) else NO_RAW
    if _OBJECTS.match(memoryview(fields.inputs)):  # Cohere: they have a `content`, as messages do
        conversation = fields.inputs
    if conversation:
        pieces = Pieces(document)
        has_media = put_messages(loose_messages(conversation), pieces)
        prompts = Prompts(pieces.found, pieces.bytes, False, 1)
    else:
        named = (
            fields.input,
            fields.texts,
            fields.inputs,
            fields.text,
            fields.input_ids,
            fields.content,
            fields.prompt,
        )
        prompts = flatten_prompts(document, next((each for each in named if given(document, each)), NO_RAW))
    return InferenceRequest(
        api="embeddings",
        model=text(document, fields.model),
        pieces=prompts.pieces,
        prompt_bytes=prompts.total_bytes,
        exact_tokens=prompts.exact,
        has_media=has_media or prompts.has_media or given(document, fields.images),
        max_tokens=0,  # nothing is decoded
        cache_salt=scalar_text(document, fields.cache_salt),
        sized=not given(document, fields.truncate_prompt_tokens),
    )
