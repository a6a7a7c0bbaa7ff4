"""Which event of a stream is the first that carries generated content, and which says that the request failed.

Engines send events before anything is prefilled: vLLM's Responses `response.created` and `response.in_progress`,
Anthropic's `message_start`, a chat's first chunk with a role and nothing else, pings. The prefill is over at the first
event with generated text, a tool's call, reasoning or token ids, in every API's stream and in engines' own.
"""

import re
from typing import Any, Final

import msgspec

from picker.api.shapes import NO_RAW, Raw, is_object

_EMPTY: Final = frozenset((b"null", b'""', b"[]", b"{}", b"false"))
_BOOKKEEPING: Final = frozenset(
    (
        *("type", "object", "id", "item_id", "call_id", "event_id", "response_id", "role", "status", "phase"),
        *("index", "sequence_number", "signature", "obfuscation", "finish_reason", "finishReason", "stop_reason"),
        *("safetyRatings", "groundingMetadata", "usage", "logprobs", "annotations", "citations", "encrypted_content"),
        *("server_label", "tools"),
    )
)
"""Members that say something about content, and are none."""
NOTHING_YET: Final = frozenset(
    f'"{kind}"'.encode()
    for kind in (
        *("response.created", "response.queued", "response.in_progress", "response.completed", "response.incomplete"),
        *("response.failed", "message_start", "message", "message_delta", "message_stop", "ping", "error"),
    )
)
"""Kinds of events that carry none, however long they are: some repeat the request."""


class _Delta(msgspec.Struct, gc=False):
    content: Raw = NO_RAW
    reasoning_content: Raw = NO_RAW
    reasoning: Raw = NO_RAW
    reasoning_details: Raw = NO_RAW
    tool_calls: Raw = NO_RAW
    function_call: Raw = NO_RAW
    refusal: Raw = NO_RAW
    audio: Raw = NO_RAW
    thinking: Raw = NO_RAW
    thinking_blocks: Raw = NO_RAW
    images: Raw = NO_RAW


class _Choice(msgspec.Struct, gc=False):
    delta: Raw = NO_RAW
    text: Raw = NO_RAW
    token_ids: Raw = NO_RAW


class _Event(msgspec.Struct, gc=False):
    type: Raw = NO_RAW
    choices: Raw = NO_RAW
    delta: Raw = NO_RAW
    content_block: Raw = NO_RAW
    message: Raw = NO_RAW
    error: Raw = NO_RAW
    usage: Raw = NO_RAW
    usage_metadata: Raw = msgspec.field(name="usageMetadata", default=NO_RAW)
    # Engines' own: SGLang, llama.cpp, TGI, Triton, vLLM, Ollama, Gemini.
    text: Raw = NO_RAW
    output_ids: Raw = NO_RAW
    content: Raw = NO_RAW
    token: Raw = NO_RAW
    tokens: Raw = NO_RAW
    generated_text: Raw = NO_RAW
    text_output: Raw = NO_RAW
    token_ids: Raw = NO_RAW
    response: Raw = NO_RAW
    thinking: Raw = NO_RAW
    candidates: Raw = NO_RAW


class _Error(msgspec.Struct, gc=False):
    code: Raw = NO_RAW
    status: Raw = NO_RAW
    status_code: Raw = NO_RAW
    type: Raw = NO_RAW
    error: Raw = NO_RAW
    error_type: Raw = NO_RAW
    response: Raw = NO_RAW


_OWN: Final = (
    *("text", "output_ids", "content", "token", "tokens", "generated_text", "text_output", "token_ids", "thinking"),
    "candidates",
)
_decode: Final = msgspec.json.Decoder(_Event).decode
_decode_choices: Final = msgspec.json.Decoder(list[_Choice]).decode
_decode_delta: Final = msgspec.json.Decoder(_Delta).decode
_decode_error: Final = msgspec.json.Decoder(_Error).decode
_decode_any: Final = msgspec.json.Decoder().decode
_DELTA_FIELDS: Final = _Delta.__struct_fields__
_CLIENTS_FAULT: Final = re.compile(
    "invalid|bad.?request|validation|rate.?limit|quota|not.?found|not.?supported|unsupported|permission|"
    'unauthorized|authentication|too.?large|exceed|unprocessable|content.?filter|policy|"overloaded"',
    re.IGNORECASE,
)
"""Kinds of errors for which the server is not to blame, where no number says so."""


def carries_content(data: bytes) -> bool | None:
    """Whether an event carries generated content; `None`: it is no event that we know."""
    try:
        event = _decode(data)
        if event.type:
            return _by_type(event, data)
        if event.choices:
            return any(_choice_speaks(each) for each in _decode_choices(event.choices))
        if is_object(event.message):
            return _delta_speaks(event.message)
        if event.response:
            return (not is_object(event.response) and _says(event.response)) or _says(event.thinking)
        known = [raw for name in _OWN if (raw := getattr(event, name))]
        if known:  # TGI: a token may have no text yet, half of an emoji
            return _given(event.token) or any(_says(raw) for raw in known)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return False if event.error or event.usage or event.usage_metadata else None


def error_status(data: bytes) -> int | None:
    """The HTTP status that an event, or a whole answer, would have had; `None`: it says of no failure.

    From the error's own number (vLLM, SGLang, llama.cpp, Gemini), else from its kind (OpenAI, Anthropic, TGI):
    400 where the request is to blame, 500 for all others.
    """
    try:
        event = _decode(data)
        failed = bytes(event.type) in (b'"error"', b'"response.failed"')
        if not (failed or _given(event.error)):
            return None
        return _status(_decode_error(data))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _status(outer: _Error) -> int:
    inner = outer.error
    if not inner and is_object(outer.response):  # Responses: `response.failed`
        inner = _decode_error(outer.response).error
    error = _decode_error(inner) if is_object(inner) else _Error()
    for raw in (error.code, error.status_code, error.status, outer.code, outer.status_code, outer.status):
        text = bytes(raw).strip(b'"')
        if len(text) == 3 and text.isdigit():
            return int(text)
    kinds = (error.type, error.code, error.status, outer.error_type)
    return 400 if any(_CLIENTS_FAULT.search(bytes(raw).decode("utf-8", "replace")) for raw in kinds) else 500


def _by_type(event: _Event, data: bytes) -> bool | None:
    """Responses, Anthropic and Cohere name their events."""
    kind = bytes(event.type)
    if kind[:1] != b'"':
        return None
    if kind in NOTHING_YET:
        return False
    if kind.startswith(b'"response.'):
        return _item_speaks(_decode_any(data))
    if kind == b'"content_block_start"':
        return _says(event.content_block)
    if kind.endswith((b'.delta"', b'-delta"', b'_delta"')):
        return not event.delta or _says(event.delta)
    return kind == b'"tool-call-start"'


def _item_speaks(event: dict[str, Any]) -> bool:
    """Of the Responses API: words, or a call that begins."""
    item = event.get("item")
    calls = isinstance(item, dict) and str(item.get("type")).endswith("_call")
    return calls or _content({name: value for name, value in event.items() if name != "response"})


def _choice_speaks(choice: _Choice) -> bool:
    return _says(choice.text) or _says(choice.token_ids) or (is_object(choice.delta) and _delta_speaks(choice.delta))


def _delta_speaks(raw: Raw) -> bool:
    delta = _decode_delta(raw)
    return any(_says(getattr(delta, name)) for name in _DELTA_FIELDS)


def _given(raw: Raw) -> bool:
    return bool(raw) and bytes(raw) not in _EMPTY


def _says(raw: Raw) -> bool:
    """Whether a value is there, and something in it is content."""
    return bool(raw) and _content(_decode_any(raw))


def _content(value: Any) -> bool:
    if isinstance(value, dict):
        return any(name not in _BOOKKEEPING and _content(each) for name, each in value.items())
    if isinstance(value, list):
        return any(_is_number(each) or _content(each) for each in value)
    return isinstance(value, str) and bool(value)


def _is_number(value: Any) -> bool:
    """Of a list: a token's id."""
    return isinstance(value, int) and not isinstance(value, bool)
