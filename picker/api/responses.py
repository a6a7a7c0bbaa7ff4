"""POST .../responses (OpenAI Responses API)."""

import msgspec

from picker.api.document import Document, Pieces
from picker.api.messages_text import is_list, put_answer, put_messages, put_text
from picker.api.request import InferenceRequest
from picker.api.shapes import NO_RAW, Message, Raw


class _Item(Message, gc=False):
    """A message, or an item of another type (a tool's call or answer, reasoning)."""

    arguments: Raw = NO_RAW
    input: Raw = NO_RAW
    action: Raw = NO_RAW
    summary: Raw = NO_RAW
    output: Raw = NO_RAW


class _Conversation(msgspec.Struct):
    id: str


class _Body(msgspec.Struct):
    input: Raw = NO_RAW
    instructions: Raw = NO_RAW
    tools: Raw = NO_RAW
    model: str | None = None
    stream: bool | None = None
    max_output_tokens: float | None = None
    cache_salt: str | None = None
    previous_response_id: str | None = None
    conversation: str | _Conversation | None = None


_decode_items = msgspec.json.Decoder(list[_Item]).decode
_decode = msgspec.json.Decoder(_Body).decode


def parse(document: Document) -> InferenceRequest:
    """Raises `msgspec.ValidationError` where the body is JSON of another shape."""
    fields = _decode(document.json)
    pieces = Pieces(document)
    if fields.tools:
        put_text(fields.tools, pieces)
    if fields.instructions:
        pieces.append(b"\x00system\n")
        put_text(fields.instructions, pieces)
    has_media = False
    if is_list(fields.input):
        for item in _decode_items(fields.input):
            has_media |= put_messages([item], pieces)
            for raw in (item.arguments, item.input, item.action, item.summary):
                if raw:
                    put_text(raw, pieces)
            has_media |= put_answer(item.output, pieces)
    elif fields.input:
        pieces.append(b"\x00user\n")
        put_text(fields.input, pieces)
    conversation = fields.conversation
    return InferenceRequest(
        api="responses",
        model=fields.model,
        pieces=pieces.found,
        prompt_bytes=pieces.bytes,
        has_media=has_media,
        stream=bool(fields.stream),
        max_tokens=fields.max_output_tokens,
        cache_salt=fields.cache_salt,
        previous_response_id=fields.previous_response_id,
        conversation_id=conversation.id if isinstance(conversation, _Conversation) else conversation,
    )
