"""Messages and their content parts as flattened text: what chat, Anthropic messages and Responses share."""

from typing import Any

import msgspec

from picker.api.request import medium

Raw = msgspec.Raw
_NO_RAW = Raw()


class Part(msgspec.Struct):
    """One content part, whatever its type: text counts, media count by digest, the rest as it stands."""

    type: str = ""
    text: str | None = None
    image_url: Raw = _NO_RAW
    input_audio: Raw = _NO_RAW
    audio_url: Raw = _NO_RAW
    video_url: Raw = _NO_RAW
    file: Raw = _NO_RAW
    file_data: Raw = _NO_RAW
    source: Raw = _NO_RAW
    content: Raw = _NO_RAW
    """Anthropic: what a tool answered (`tool_result`)."""
    input: Raw = _NO_RAW
    """Anthropic: what a tool is asked (`tool_use`)."""
    thinking: str | None = None


Content = str | list[Part | str] | None


class Message(msgspec.Struct):
    """One turn."""

    role: str = ""
    content: Content = None
    tool_calls: Raw = _NO_RAW
    reasoning_content: str | None = None
    reasoning: Any = None


_MEDIA = ("image_url", "input_audio", "audio_url", "video_url", "file", "file_data", "source")


def put_content(content: Content, pieces: list[str]) -> bool:
    """Append a content's text to `pieces`. True if it holds media."""
    if content is None:
        return False
    if type(content) is str:
        pieces.append(content)
        return False
    has_media = False
    for part in content:
        if type(part) is str:
            pieces.append(part)
            continue
        assert isinstance(part, Part)
        if part.text is not None:
            pieces.append(part.text)
            continue
        if part.thinking is not None:
            pieces.append(part.thinking)
        for name in _MEDIA:
            raw = getattr(part, name)
            if raw is not _NO_RAW:
                pieces.append(medium(bytes(raw)))
                has_media = True
        for raw in (part.input, part.content):
            put_raw(raw, pieces)
    return has_media


def put_messages(messages: list[Message], pieces: list[str]) -> bool:
    """Append messages, each under its role. True if any holds media."""
    has_media = False
    for message in messages:
        pieces.append("\x00")
        pieces.append(message.role)
        pieces.append("\n")
        content = message.content
        if type(content) is str:
            pieces.append(content)
        elif content is not None and put_content(content, pieces):
            has_media = True
        if message.reasoning_content is not None:
            pieces.append(message.reasoning_content)
        put_raw(message.tool_calls, pieces)
    return has_media


def put_raw(raw: Raw, pieces: list[str]) -> None:
    """Append JSON as the client wrote it (tools, tool calls)."""
    if raw is not _NO_RAW:
        pieces.append(str(bytes(raw), "utf-8"))


NO_RAW = _NO_RAW
