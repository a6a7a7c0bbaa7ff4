"""POST .../responses (OpenAI Responses API)."""

import msgspec

from picker.api.messages_text import NO_RAW, Message, Raw, put_messages, put_raw
from picker.api.request import InferenceRequest, flatten


class _Item(Message):
    """A message, or an item of another type (a tool's call or answer), which counts as it stands."""

    type: str = ""
    arguments: str | None = None
    output: Raw = NO_RAW


class _Body(msgspec.Struct):
    input: str | list[_Item] | None = None
    instructions: str | None = None
    tools: Raw = NO_RAW
    model: str | None = None
    stream: bool | None = None
    max_output_tokens: int | None = None
    cache_salt: str | None = None
    previous_response_id: str | None = None


_decode = msgspec.json.Decoder(_Body).decode


def parse(body: bytes) -> InferenceRequest:
    """Raises `msgspec.ValidationError` where the body is JSON of another shape."""
    fields = _decode(body)
    pieces: list[str] = []
    put_raw(fields.tools, pieces)
    if fields.instructions is not None:
        pieces += ("\x00system\n", fields.instructions)
    has_media = False
    if isinstance(fields.input, str):
        pieces += ("\x00user\n", fields.input)
    elif fields.input is not None:
        for item in fields.input:
            has_media = put_messages([item], pieces) or has_media
            if item.arguments is not None:
                pieces.append(item.arguments)
            put_raw(item.output, pieces)
    prompt = flatten(pieces)
    return InferenceRequest(
        api="responses",
        model=fields.model,
        prompt=prompt,
        prompt_bytes=len(prompt),
        has_media=has_media,
        stream=bool(fields.stream),
        max_tokens=fields.max_output_tokens,
        cache_salt=fields.cache_salt,
        previous_response_id=fields.previous_response_id,
    )
