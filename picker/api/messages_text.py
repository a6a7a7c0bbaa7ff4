"""Messages and their content parts as flattened text: what chat, Anthropic messages and Responses share.

Text is taken as the client wrote it, JSON escapes and all: never unescaped, so that a 400 KB
prompt is skipped over rather than decoded (docs/decisions/0004). The same client writes the same
text the same way, and that is what prefixes need.
"""

import msgspec

from picker.api.request import medium

Raw = msgspec.Raw
NO_RAW = Raw()

Pieces = list[bytes | memoryview]

_QUOTE = ord('"')
_LIST = ord("[")


class Part(msgspec.Struct):
    """One content part, whatever its type: text counts, media count by digest, the rest as it stands."""

    type: str = ""
    text: Raw = NO_RAW
    thinking: Raw = NO_RAW
    image_url: Raw = NO_RAW
    input_audio: Raw = NO_RAW
    audio_url: Raw = NO_RAW
    video_url: Raw = NO_RAW
    file: Raw = NO_RAW
    file_data: Raw = NO_RAW
    source: Raw = NO_RAW
    content: Raw = NO_RAW
    """Anthropic: what a tool answered (`tool_result`)."""
    input: Raw = NO_RAW
    """Anthropic: what a tool is asked (`tool_use`)."""


class Message(msgspec.Struct):
    """One turn. `content` is a string, a list of parts, or null."""

    role: str = ""
    content: Raw = NO_RAW
    tool_calls: Raw = NO_RAW
    reasoning_content: Raw = NO_RAW


_TEXTS = ("text", "thinking", "input")
_MEDIA = ("image_url", "input_audio", "audio_url", "video_url", "file", "file_data", "source")

_decode_parts = msgspec.json.Decoder(list[Part | str]).decode


def put_messages(messages: list[Message], pieces: Pieces) -> bool:
    """Append messages, each under its role. True if any holds media. Raises `msgspec.ValidationError`."""
    has_media = False
    for message in messages:
        pieces.append(b"\x00%b\n" % message.role.encode("utf-8", "surrogatepass"))
        if put_content(message.content, pieces):
            has_media = True
        if message.reasoning_content:
            put_text(message.reasoning_content, pieces)
        if message.tool_calls:
            put_text(message.tool_calls, pieces)
    return has_media


def put_content(content: Raw, pieces: Pieces) -> bool:
    """Append a content's text to `pieces`. True if it holds media. Raises `msgspec.ValidationError`."""
    if not content:
        return False
    if not is_list(content):
        put_text(content, pieces)
        return False
    has_media = False
    for part in _decode_parts(content):
        if isinstance(part, str):
            pieces.append(msgspec.json.encode(part)[1:-1])
            continue
        for name in _TEXTS:
            raw = getattr(part, name)
            if raw:
                put_text(raw, pieces)
        for name in _MEDIA:
            raw = getattr(part, name)
            if raw:
                pieces.append(medium(bytes(raw)))
                has_media = True
        if put_content(part.content, pieces):
            has_media = True
    return has_media


def is_list(raw: Raw) -> bool:
    """Whether a JSON list stands there."""
    return bool(raw) and memoryview(raw)[0] == _LIST


def put_text(raw: Raw, pieces: Pieces) -> None:
    """Append JSON as the client wrote it; a string without its quotes, null as nothing."""
    view = memoryview(raw)
    if view[0] == _QUOTE:
        pieces.append(view[1:-1])
    elif bytes(view[:4]) != b"null":
        pieces.append(view)
