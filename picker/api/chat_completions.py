"""POST .../chat/completions (OpenAI)."""

import msgspec

from picker.api.document import Document, Pieces
from picker.api.messages_text import put_messages, put_text
from picker.api.request import InferenceRequest
from picker.api.shapes import ChatBody

_decode = msgspec.json.Decoder(ChatBody).decode


def parse(document: Document) -> InferenceRequest:
    """Raises `msgspec.ValidationError` where the body is JSON of another shape."""
    fields = _decode(document.json)
    pieces = Pieces(document)
    if fields.tools:
        put_text(fields.tools, pieces)
    has_media = put_messages(fields.messages, pieces)
    return InferenceRequest(
        api="chat_completions",
        model=fields.model,
        pieces=pieces.found,
        prompt_bytes=pieces.bytes,
        has_media=has_media,
        stream=bool(fields.stream),
        max_tokens=fields.max_completion_tokens or fields.max_tokens,
        cache_salt=fields.cache_salt,
    )
