"""POST .../chat/completions (OpenAI)."""

import msgspec

from picker.api.messages_text import NO_RAW, Message, Pieces, Raw, put_messages, put_text
from picker.api.request import InferenceRequest


class _Body(msgspec.Struct):
    messages: list[Message]
    model: str | None = None
    tools: Raw = NO_RAW
    stream: bool | None = None
    max_tokens: float | None = None
    max_completion_tokens: float | None = None
    cache_salt: str | None = None


_decode = msgspec.json.Decoder(_Body).decode


def parse(body: bytes) -> InferenceRequest:
    """Raises `msgspec.ValidationError` where the body is JSON of another shape."""
    fields = _decode(body)
    pieces: Pieces = []
    if fields.tools:
        put_text(fields.tools, pieces)
    has_media = put_messages(fields.messages, pieces)
    prompt = b"".join(pieces)
    return InferenceRequest(
        api="chat_completions",
        model=fields.model,
        prompt=prompt,
        prompt_bytes=len(prompt),
        has_media=has_media,
        stream=bool(fields.stream),
        max_tokens=fields.max_completion_tokens or fields.max_tokens,
        cache_salt=fields.cache_salt,
    )
