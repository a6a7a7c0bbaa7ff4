"""Messages and their content parts as flattened text: what chat, Anthropic messages and Responses share.

Text is taken as the client wrote it, JSON escapes and all: never unescaped, so that a 400 KB
prompt is skipped over rather than decoded (docs/decisions/0004). The same client writes the same
text the same way, and that is what prefixes need.
"""

from typing import Final

import msgspec

from picker.api.document import Pieces
from picker.api.request import medium
from picker.api.shapes import Locator, Message, Part, Raw

_QUOTE: Final = ord('"')
_LIST: Final = ord("[")
_OBJECT: Final = ord("{")

_TEXTS: Final = ("text", "thinking", "input")
_MEDIA: Final = (
    "image_url",
    "input_audio",
    "audio_url",
    "video_url",
    "file",
    "file_data",
    "file_id",
    "file_url",
    "source",
)
_LOCATIONS: Final = ("url", "data", "file_data", "file_id")

_decode_parts = msgspec.json.Decoder(list[Part | str]).decode
_decode_part = msgspec.json.Decoder(Part).decode
_decode_locator = msgspec.json.Decoder(Locator).decode


def put_messages(messages: list[Message], pieces: Pieces) -> bool:
    """Append messages, each under its role. True if any holds media. Raises `msgspec.ValidationError`."""
    has_media = False
    for message in messages:
        pieces.append(b"\x00%b\n" % message.role.encode("utf-8", "surrogatepass"))
        if put_content(message.content, pieces):
            has_media = True
        for raw in (message.reasoning_content, message.reasoning, message.tool_calls):
            if raw:
                put_text(raw, pieces)
    return has_media


def put_content(content: Raw, pieces: Pieces, *, nested: bool = False) -> bool:
    """Append a content's text to `pieces`. True if it holds media. Raises `msgspec.ValidationError`.

    `nested`: a content within a part (what a tool answered); what lies deeper still counts as it stands.
    """
    if not content:
        return False
    if not is_list(content):
        put_text(content, pieces)
        return False
    has_media = False
    for part in _decode_parts(content):
        if isinstance(part, str):
            pieces.append(msgspec.json.encode(part)[1:-1])
        elif _put_part(part, pieces, nested=nested):
            has_media = True
    return has_media


def put_answer(answer: Raw, pieces: Pieces) -> bool:
    """Append what a tool answered: a text, parts, or one part alone. True if it holds media (a screenshot)."""
    if answer and memoryview(answer)[0] == _OBJECT:
        return _put_part(_decode_part(answer), pieces, nested=True)
    return put_content(answer, pieces, nested=True)


def _put_part(part: Part, pieces: Pieces, *, nested: bool) -> bool:
    has_media = False
    for name in _TEXTS:
        raw = getattr(part, name)
        if raw:
            put_text(raw, pieces)
    for name in _MEDIA:
        raw = getattr(part, name)
        if raw and _put_medium(raw, pieces, is_source=name == "source"):
            has_media = True
    if nested:
        if part.content:
            put_text(part.content, pieces)
    elif put_content(part.content, pieces, nested=True):
        has_media = True
    return has_media


def _put_medium(raw: Raw, pieces: Pieces, *, is_source: bool) -> bool:
    """Append a medium's stand-in. False where it is none: null, or a `source` that is text (Anthropic documents)."""
    first = memoryview(raw)[0]
    where = raw
    if first == _OBJECT:
        locator = _decode_locator(raw)
        where = next((each for name in _LOCATIONS if (each := getattr(locator, name))), raw)
        if is_source and locator.type == "text":
            put_text(where, pieces)
            return False
    elif first != _QUOTE or is_source:
        put_text(raw, pieces)
        return False
    pieces.append(medium(pieces.document.view(where)))
    return True


def is_list(raw: Raw) -> bool:
    """Whether a JSON list stands there."""
    return bool(raw) and memoryview(raw)[0] == _LIST


def given(raw: Raw) -> bool:
    """Whether a field is there and not null."""
    return bool(raw) and bytes(memoryview(raw)[:4]) != b"null"


def put_text(raw: Raw, pieces: Pieces) -> None:
    """Append JSON as the client wrote it; a string without its quotes, null as nothing."""
    view = pieces.document.view(raw)
    if view[0] == _QUOTE:
        pieces.append(view[1:-1])
    elif bytes(view[:4]) != b"null":
        pieces.append(view)
