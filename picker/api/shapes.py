"""The JSON that chat bodies are made of, as msgspec decodes it.

Every value is raw until somebody looks at it: so none of another type costs the rest (`fields.py`). The
structs take part in no reference cycle, so the collector need not track them (`gc=False`): a body of
many tiny parts costs a third.
"""

import msgspec

Raw = msgspec.Raw
NO_RAW = Raw()


class Part(msgspec.Struct, gc=False):
    """One content part, whatever its type: text counts, media count by digest, the rest as it stands."""

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

    role: Raw = NO_RAW
    content: Raw = NO_RAW
    tool_calls: Raw = NO_RAW
    reasoning_content: Raw = NO_RAW
    reasoning: Raw = NO_RAW
    """The same in newer engines."""
    images: Raw = NO_RAW
    """Ollama: a list of images in base 64."""


class Locator(msgspec.Struct, gc=False):
    """Where a medium lies, as each API writes it; what stands beside it (detail, format) is not the medium."""

    type: Raw = NO_RAW
    url: Raw = NO_RAW
    data: Raw = NO_RAW
    file_data: Raw = NO_RAW
    file_id: Raw = NO_RAW


class StreamOptions(msgspec.Struct):
    """OpenAI: what a stream shall tell."""

    include_usage: Raw = NO_RAW


def is_object(raw: Raw) -> bool:
    """Whether a value is there, and an object."""
    return bool(raw) and memoryview(raw)[0] == ord("{")


class Named(msgspec.Struct):
    """What may stand in place of a name."""

    id: Raw = NO_RAW


class ChatFields(msgspec.Struct):
    """What chat bodies have beside their messages."""

    model: Raw = NO_RAW
    lora_path: Raw = NO_RAW
    tools: Raw = NO_RAW
    documents: Raw = NO_RAW
    stream: Raw = NO_RAW
    stream_options: Raw = NO_RAW
    max_tokens: Raw = NO_RAW
    max_completion_tokens: Raw = NO_RAW
    cache_salt: Raw = NO_RAW
    extra_key: Raw = NO_RAW
    session_id: Raw = NO_RAW
    n: Raw = NO_RAW
    prompt_logprobs: Raw = NO_RAW
    echo: Raw = NO_RAW
    top_logprobs: Raw = NO_RAW
    cache_prompt: Raw = NO_RAW
    truncate_prompt_tokens: Raw = NO_RAW


class ChatBody(ChatFields, kw_only=True):
    """A chat body as nearly all are: a list of objects."""

    messages: list[Message]


class LooseChatBody(ChatFields):
    """Any other: what its messages are is looked at one by one."""

    messages: Raw = NO_RAW
