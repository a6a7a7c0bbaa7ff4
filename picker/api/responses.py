"""POST .../responses (OpenAI Responses API)."""

import msgspec

from picker.api.document import Document, Pieces
from picker.api.fields import cache_key, flag, number, reads_prompt_cache, text, text_or_id
from picker.api.messages_text import is_list, put_answer, put_messages, put_text, raw_items
from picker.api.request import InferenceRequest
from picker.api.shapes import NO_RAW, Message, Raw


class _Item(Message, gc=False):
    """A message, or an item of another type (a tool's call or answer, reasoning)."""

    arguments: Raw = NO_RAW
    input: Raw = NO_RAW
    action: Raw = NO_RAW
    summary: Raw = NO_RAW
    output: Raw = NO_RAW


class _Body(msgspec.Struct):
    input: Raw = NO_RAW
    instructions: Raw = NO_RAW
    tools: Raw = NO_RAW
    model: Raw = NO_RAW
    stream: Raw = NO_RAW
    max_output_tokens: Raw = NO_RAW
    cache_salt: Raw = NO_RAW
    extra_key: Raw = NO_RAW
    cache_prompt: Raw = NO_RAW
    truncation: Raw = NO_RAW
    previous_response_id: Raw = NO_RAW
    conversation: Raw = NO_RAW


_decode_items = msgspec.json.Decoder(list[_Item]).decode
_decode_item = msgspec.json.Decoder(_Item).decode
_decode = msgspec.json.Decoder(_Body).decode


def parse(document: Document) -> InferenceRequest:
    """Raises `msgspec.ValidationError` where the body is no JSON object."""
    fields = _decode(document.json)
    pieces = Pieces(document)
    if fields.tools:
        put_text(fields.tools, pieces)
    if fields.instructions:
        pieces.append(b"\x00system\n")
        put_text(fields.instructions, pieces)
    has_media = False
    if is_list(fields.input):
        for item in _items(fields.input):
            has_media |= put_messages([item], pieces)
            for raw in (item.arguments, item.input, item.action, item.summary):
                if raw:
                    put_text(raw, pieces)
            has_media |= put_answer(item.output, pieces)
    elif fields.input:
        pieces.append(b"\x00user\n")
        put_text(fields.input, pieces)
    previous = text(document, fields.previous_response_id)
    conversation = text_or_id(document, fields.conversation)
    return InferenceRequest(
        api="responses",
        model=text(document, fields.model),
        pieces=pieces.found,
        prompt_bytes=pieces.bytes,
        has_media=has_media,
        stream=flag(document, fields.stream),
        max_tokens=number(document, fields.max_output_tokens),
        cache_salt=cache_key(document, fields.cache_salt, fields.extra_key),
        previous_response_id=previous,
        conversation_id=conversation,
        reads_cache=reads_prompt_cache(document, fields.cache_prompt),
        # what the server stored is in its counts, and not here; what it leaves out is here, and not in them
        sized=previous is None and conversation is None and text(document, fields.truncation) != "auto",
    )


def _items(raw: Raw) -> list[_Item]:
    """The items of `input`, each for itself where one is unusual."""
    try:
        items: list[_Item] = _decode_items(raw)
    except msgspec.ValidationError:
        items = []
        for each in raw_items(raw):
            try:
                items.append(_decode_item(each))
            except msgspec.ValidationError:  # no object: its text counts as it stands
                items.append(_Item(content=each))
    return items
