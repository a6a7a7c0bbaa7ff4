"""POST .../messages (Anthropic).

Claude Code begins its system prompt with a line that is another in every request
(`x-anthropic-billing-header: ...`). vLLM drops it before it hashes (vllm/entrypoints/anthropic/serving.py; PR 36829),
so the rest of the prompt is a hit there, and is one here: as a block of its own, as the first line of a string, in a
system message.

Such a message stays in its place, as it does in vLLM (PR 44602). vLLM joins them at the front only where the model's
template takes none in the middle (PR 46025, `_detect_merge_inline_system`), and that is not known here.
"""

from typing import Final

import msgspec

from picker.api.document import Document, Pieces
from picker.api.fields import flag, number, scalar_text, text
from picker.api.messages_text import is_list, loose_messages, parts_of, put_content, put_messages, put_part, put_text
from picker.api.request import InferenceRequest
from picker.api.shapes import NO_RAW, Message, Part, Raw

BILLING: Final = b"x-anthropic-billing-header"
_LINE_BYTES_MAX: Final = 4096
"""Of a billing line: what is longer is text."""


class _Fields(msgspec.Struct):
    system: Raw = NO_RAW
    tools: Raw = NO_RAW
    model: Raw = NO_RAW
    stream: Raw = NO_RAW
    max_tokens: Raw = NO_RAW
    cache_salt: Raw = NO_RAW


class _Body(_Fields, kw_only=True):
    messages: list[Message]


class _LooseBody(_Fields):
    messages: Raw = NO_RAW


_decode = msgspec.json.Decoder(_Body).decode
_decode_loosely = msgspec.json.Decoder(_LooseBody).decode


def parse(document: Document) -> InferenceRequest:
    """Raises `msgspec.ValidationError` where the body is no JSON object."""
    fields: _Fields
    try:
        fields = body = _decode(document.json)
        messages = body.messages
    except msgspec.ValidationError:
        fields = loose = _decode_loosely(document.json)
        messages = loose_messages(loose.messages)
    pieces = Pieces(document)
    if fields.tools:
        put_text(fields.tools, pieces)
    has_media = False
    if fields.system:
        pieces.append(b"\x00system\n")
        has_media = _put_system(fields.system, pieces)
    for message in messages:
        if message.role and bytes(document.view(message.role)) == b'"system"':
            pieces.append(b"\x00system\n")
            has_media |= _put_system(message.content, pieces)
        else:
            has_media |= put_messages([message], pieces)
    return InferenceRequest(
        api="messages",
        model=text(document, fields.model),
        pieces=pieces.found,
        prompt_bytes=pieces.bytes,
        has_media=has_media,
        stream=flag(document, fields.stream),
        max_tokens=number(document, fields.max_tokens),
        cache_salt=scalar_text(document, fields.cache_salt),
    )


def _put_system(content: Raw, pieces: Pieces) -> bool:
    """A system prompt without its billing line. True if it holds media."""
    if not content:
        return False
    document = pieces.document
    if not is_list(content):
        view = document.view(content)
        if bytes(view[1 : 1 + len(BILLING)]) != BILLING:
            return put_content(content, pieces)
        line = bytes(view[1:_LINE_BYTES_MAX]).find(b"\\n")
        if line >= 0:
            pieces.append(view[1 + line + 2 : -1])
        elif len(view) > _LINE_BYTES_MAX:
            pieces.append(view[1:-1])
        return False
    has_media = False
    for part in parts_of(content):
        if not _is_billing(part.text if isinstance(part, Part) else part, document):
            has_media |= put_part(part, pieces)
    return has_media


def _is_billing(raw: Raw, document: Document) -> bool:
    return bool(raw) and bytes(document.view(raw)[1 : 1 + len(BILLING)]) == BILLING
