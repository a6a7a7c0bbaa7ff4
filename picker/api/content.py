"""Which event of a stream is the first that carries generated content.

Engines send events before anything is prefilled: vLLM's Responses `response.created` and `response.in_progress`,
Anthropic's `message_start`, a chat's first chunk with a role and nothing else, pings. The prefill is over at the first
event with generated text, a tool's call, reasoning or token ids, in every API's stream and in engines' own.
"""

from typing import Final

import msgspec

from picker.api.shapes import NO_RAW, Raw

_EMPTY: Final = frozenset((b"null", b'""', b"[]", b"{}", b"false"))


class _Delta(msgspec.Struct, gc=False):
    content: Raw = NO_RAW
    reasoning_content: Raw = NO_RAW
    reasoning: Raw = NO_RAW
    tool_calls: Raw = NO_RAW
    function_call: Raw = NO_RAW
    refusal: Raw = NO_RAW
    audio: Raw = NO_RAW
    thinking: Raw = NO_RAW


class _Choice(msgspec.Struct, gc=False):
    delta: Raw = NO_RAW
    text: Raw = NO_RAW
    token_ids: Raw = NO_RAW


class _Block(msgspec.Struct, gc=False):
    type: Raw = NO_RAW
    text: Raw = NO_RAW
    thinking: Raw = NO_RAW


class _Event(msgspec.Struct, gc=False):
    type: Raw = NO_RAW
    choices: Raw = NO_RAW
    delta: Raw = NO_RAW
    content_block: Raw = NO_RAW
    message: Raw = NO_RAW
    error: Raw = NO_RAW
    # Engines' own: SGLang, llama.cpp, TGI, Triton, vLLM, Ollama, Gemini.
    text: Raw = NO_RAW
    output_ids: Raw = NO_RAW
    content: Raw = NO_RAW
    token: Raw = NO_RAW
    generated_text: Raw = NO_RAW
    text_output: Raw = NO_RAW
    token_ids: Raw = NO_RAW
    response: Raw = NO_RAW
    thinking: Raw = NO_RAW
    candidates: Raw = NO_RAW


_OWN: Final = (
    *("text", "output_ids", "content", "token", "generated_text", "text_output", "token_ids", "thinking", "candidates"),
)
_decode: Final = msgspec.json.Decoder(_Event).decode
_decode_choices: Final = msgspec.json.Decoder(list[_Choice]).decode
_decode_delta: Final = msgspec.json.Decoder(_Delta).decode
_decode_block: Final = msgspec.json.Decoder(_Block).decode
_decode_text: Final = msgspec.json.Decoder(str).decode
_DELTA_FIELDS: Final = _Delta.__struct_fields__
_TOOL_BLOCKS: Final = (b'"tool_use"', b'"server_tool_use"', b'"mcp_tool_use"')


def carries_content(data: bytes) -> bool | None:
    """Whether an event carries generated content; `None`: it is no event that we know."""
    try:
        event = _decode(data)
        if event.type:
            return _by_type(event)
        if event.choices:
            return any(_choice_speaks(each) for each in _decode_choices(event.choices))
        if _is_object(event.message):
            return _delta_speaks(event.message)
        if event.response:
            return not _is_object(event.response) and _says(event.response)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    known = [raw for name in _OWN if (raw := getattr(event, name))]
    if known:
        return any(_says(raw) for raw in known)
    return False if event.error else None


def is_error(data: bytes) -> bool:
    """Whether an event, or a whole answer, says that the request failed."""
    try:
        event = _decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return _says(event.error) or bytes(event.type) in (b'"error"', b'"response.failed"')


def _by_type(event: _Event) -> bool | None:
    """Responses, Anthropic and Cohere name their events."""
    try:
        kind = _decode_text(event.type)
    except msgspec.DecodeError:
        return None
    if kind == "content_block_start" and event.content_block:
        block = _decode_block(event.content_block)
        return bytes(block.type) in _TOOL_BLOCKS or _says(block.text) or _says(block.thinking)
    if kind.endswith((".delta", "-delta", "_delta")) and kind != "message_delta":
        return not event.delta or _says(event.delta)
    return kind == "tool-call-start"


def _choice_speaks(choice: _Choice) -> bool:
    return _says(choice.text) or _says(choice.token_ids) or (_is_object(choice.delta) and _delta_speaks(choice.delta))


def _delta_speaks(raw: Raw) -> bool:
    delta = _decode_delta(raw)
    return any(_says(getattr(delta, name)) for name in _DELTA_FIELDS)


def _is_object(raw: Raw) -> bool:
    return bool(raw) and memoryview(raw)[0] == ord("{")


def _says(raw: Raw) -> bool:
    """Whether a value is there and not empty."""
    return bool(raw) and (len(memoryview(raw)) > 5 or bytes(raw) not in _EMPTY)
