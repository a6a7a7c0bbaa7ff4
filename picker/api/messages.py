"""POST .../messages (Anthropic)."""

import msgspec

from picker.api.document import Document, Pieces
from picker.api.messages_text import put_content, put_messages, put_text
from picker.api.request import InferenceRequest
from picker.api.shapes import NO_RAW, Message, Raw


class _Body(msgspec.Struct):
    messages: list[Message]
    system: Raw = NO_RAW
    tools: Raw = NO_RAW
    model: str | None = None
    stream: bool | None = None
    max_tokens: float | None = None
    cache_salt: str | None = None


_decode = msgspec.json.Decoder(_Body).decode


def parse(document: Document) -> InferenceRequest:
    """Raises `msgspec.ValidationError` where the body is JSON of another shape."""
    fields = _decode(document.json)
    pieces = Pieces(document)
    if fields.tools:
        put_text(fields.tools, pieces)
    has_media = False
    if fields.system:
        pieces.append(b"\x00system\n")
        has_media = put_content(fields.system, pieces)
    has_media = put_messages(fields.messages, pieces) or has_media
    return InferenceRequest(
        api="messages",
        model=fields.model,
        pieces=pieces.found,
        prompt_bytes=pieces.bytes,
        has_media=has_media,
        stream=bool(fields.stream),
        max_tokens=fields.max_tokens,
        cache_salt=fields.cache_salt,
    )
