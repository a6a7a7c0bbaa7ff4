"""POST .../messages (Anthropic)."""

import msgspec

from picker.api.messages_text import Pieces, put_content, put_messages, put_text
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


def parse(body: bytes) -> InferenceRequest:
    """Raises `msgspec.ValidationError` where the body is JSON of another shape."""
    fields = _decode(body)
    pieces: Pieces = []
    if fields.tools:
        put_text(fields.tools, pieces)
    has_media = False
    if fields.system:
        pieces.append(b"\x00system\n")
        has_media = put_content(fields.system, pieces)
    has_media = put_messages(fields.messages, pieces) or has_media
    prompt = b"".join(pieces)
    return InferenceRequest(
        api="messages",
        model=fields.model,
        prompt=prompt,
        prompt_bytes=len(prompt),
        has_media=has_media,
        stream=bool(fields.stream),
        max_tokens=fields.max_tokens,
        cache_salt=fields.cache_salt,
    )
