"""Messages and their content parts as flattened text: what chat, Anthropic messages and Responses share.

Text is taken as the client wrote it, JSON escapes and all: never unescaped, so that a 400 KB
prompt is skipped over rather than decoded (docs/decisions/0004). The same client writes the same
text the same way, and that is what prefixes need.
"""

from typing import Final

import msgspec

from picker.api.document import Document, Pieces
from picker.api.request import medium
from picker.api.shapes import Locator, Message, Part, Raw

MEDIA_MAX: Final = 1_000
"""Of a list of media in base 64."""
MEDIUM_BYTES_MIN: Final = 400
"""Of one in base 64, with its quotes: no picture is that small."""

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

_ROLES: Final = {
    b'"%b"' % name: b"\x00%b\n" % name for name in (b"system", b"user", b"assistant", b"tool", b"developer")
}
"""What stands before a message, by its role as nearly all are written."""
_decode_parts = msgspec.json.Decoder(list[Part]).decode
_decode_raws = msgspec.json.Decoder(list[Raw]).decode
_decode_message = msgspec.json.Decoder(Message).decode
_decode_part = msgspec.json.Decoder(Part).decode
_decode_locator = msgspec.json.Decoder(Locator).decode


def put_messages(messages: list[Message], pieces: Pieces) -> bool:
    """Append messages, each under its role. True if any holds media. Raises `msgspec.ValidationError`."""
    has_media = False
    for message in messages:
        role = _ROLES.get(bytes(message.role))
        pieces.append(b"\x00%b\n" % _role(message.role, pieces.document) if role is None else role)
        if put_content(message.content, pieces):
            has_media = True
        for raw in (message.reasoning_content, message.reasoning, message.tool_calls):
            if raw:
                put_text(raw, pieces)
        if message.images:
            has_media |= put_media(message.images, pieces)
    return has_media


def loose_messages(raw: Raw) -> list[Message]:
    """The messages of a list in which something is unusual, each for itself; no list has none."""
    found = []
    for each in raw_items(raw):
        try:
            found.append(_decode_message(each))
        except msgspec.ValidationError:  # no object: its text counts as it stands
            found.append(Message(content=each))
    return found


def raw_items(raw: Raw) -> list[Raw]:
    """The items of a list as they stand; none of what is no list."""
    if not is_list(raw):
        return []
    items: list[Raw] = _decode_raws(raw)
    return items


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
    for part in parts_of(content):
        if put_part(part, pieces, nested=nested):
            has_media = True
    return has_media


def parts_of(content: Raw) -> "list[Part | Raw]":
    """Of a list: objects as parts; texts, and whatever else a client puts there, as they stand."""
    parts: list[Part | Raw] = []
    try:
        parts += _decode_parts(content)
    except msgspec.ValidationError:
        for each in raw_items(content):
            is_part = memoryview(each)[0] == _OBJECT
            parts.append(_decode_part(each) if is_part else each)
    return parts


def _role(raw: Raw, document: Document) -> bytes:
    """As the client wrote it; nothing where it is no text."""
    if not raw:
        return b""
    view = document.view(raw)
    return bytes(view[1:-1]) if view[0] == _QUOTE else b""


def put_media(media: Raw, pieces: Pieces) -> bool:
    """Append a list of media in base 64. True if it has any.

    What is too short to be one, and a list that is too long, stand for themselves: nobody's few bytes shall become
    thousands here.
    """
    found = raw_items(media)
    if len(found) > MEDIA_MAX:
        put_text(media, pieces)
        return True
    for each in found:
        view = pieces.document.view(each)
        pieces.append(medium(view) if len(view) >= MEDIUM_BYTES_MIN else view)
    return bool(found)


def put_answer(answer: Raw, pieces: Pieces) -> bool:
    """Append what a tool answered: a text, parts, or one part alone. True if it holds media (a screenshot)."""
    if answer and memoryview(answer)[0] == _OBJECT:
        return put_part(_decode_part(answer), pieces, nested=True)
    return put_content(answer, pieces, nested=True)


def put_part(part: "Part | Raw", pieces: Pieces, *, nested: bool = False) -> bool:
    """Append one part. True if it holds media."""
    if not isinstance(part, Part):
        put_text(part, pieces)
        return False
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
        if is_source and locator.type and bytes(memoryview(locator.type)) == b'"text"':
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


def put_text(raw: Raw, pieces: Pieces) -> None:
    """Append JSON as the client wrote it; a string without its quotes, null as nothing."""
    view = pieces.document.view(raw)
    if view[0] == _QUOTE:
        pieces.append(view[1:-1])
    elif bytes(view[:4]) != b"null":
        pieces.append(view)
