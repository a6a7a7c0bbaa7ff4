"""POST .../embeddings (OpenAI): input as text, texts or token ids; vLLM also takes messages."""

import msgspec

from picker.api.completions import flatten_prompts
from picker.api.document import Document, Pieces
from picker.api.messages_text import put_messages
from picker.api.request import InferenceRequest
from picker.api.shapes import NO_RAW, Message, Raw


class _Body(msgspec.Struct):
    input: Raw = NO_RAW
    messages: list[Message] | None = None
    model: str | None = None
    cache_salt: str | None = None


_decode = msgspec.json.Decoder(_Body).decode


def parse(document: Document) -> InferenceRequest:
    """Raises `msgspec.ValidationError` where the body is JSON of another shape."""
    fields = _decode(document.json)
    has_media = exact = False
    if fields.messages is not None:
        pieces = Pieces(document)
        has_media = put_messages(fields.messages, pieces)
        found, total_bytes = pieces.found, pieces.bytes
    else:
        found, total_bytes, exact = flatten_prompts(document, fields.input)
    return InferenceRequest(
        api="embeddings",
        model=fields.model,
        pieces=found,
        prompt_bytes=total_bytes,
        exact_tokens=exact,
        has_media=has_media,
        max_tokens=0,  # nothing is decoded
        cache_salt=fields.cache_salt,
    )
