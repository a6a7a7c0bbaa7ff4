"""The JSON that chat bodies are made of, as msgspec decodes it.

Raw fields are decoded when they are looked at. The structs take part in no reference cycle, so the
collector need not track them (`gc=False`): a body of many tiny parts costs a third.
"""

import msgspec

Raw = msgspec.Raw
NO_RAW = Raw()


class Part(msgspec.Struct, gc=False):
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
    file_id: Raw = NO_RAW
    file_url: Raw = NO_RAW
    source: Raw = NO_RAW
    content: Raw = NO_RAW
    """Anthropic: what a tool answered (`tool_result`), or what a search found."""
    input: Raw = NO_RAW
    """Anthropic: what a tool is asked (`tool_use`)."""


class Message(msgspec.Struct, gc=False):
    """One turn. `content` is a string, a list of parts, or null."""

    role: str = ""
    content: Raw = NO_RAW
    tool_calls: Raw = NO_RAW
    reasoning_content: Raw = NO_RAW
    reasoning: Raw = NO_RAW
    """The same in newer engines."""


class Locator(msgspec.Struct, gc=False):
    """Where a medium lies, as each API writes it; what stands beside it (detail, format) is not the medium."""

    type: str = ""
    url: Raw = NO_RAW
    data: Raw = NO_RAW
    file_data: Raw = NO_RAW
    file_id: Raw = NO_RAW


class ChatBody(msgspec.Struct):
    messages: list[Message]
    model: str | None = None
    tools: Raw = NO_RAW
    stream: bool | None = None
    max_tokens: float | None = None
    max_completion_tokens: float | None = None
    cache_salt: str | None = None
