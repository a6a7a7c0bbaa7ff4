"""Token counts from responses, without keeping or parsing more than their ends need.

A stream reports usage in its last events (OpenAI chat and completions, Responses), Anthropic's
also in its first; a JSON answer near its end. So the reader keeps the first and the last few
kilobytes and looks once, at the end: a chunk costs one append, and now and then what has gathered is
cut. What is found depends on the bytes alone, never on where chunks begin.
"""

import json
from collections.abc import Iterator

import msgspec

from picker.api.sse import event_data
from picker.outcomes import Usage

HEAD_BYTES_MAX = 2048
TAIL_BYTES_MAX = 4096
_PIECES_MAX = 128
"""Chunks of a few bytes weigh more than they hold."""


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    prompt_tokens_details: _Details | None = None
    input_tokens_details: _Details | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cached_tokens: int | None = None
    """SGLang's own API."""


class _Carrier(msgspec.Struct):
    """Where a usage may stand: at the top, in `response` (Responses), `message` (Anthropic), `meta_info` (SGLang)."""

    usage: _Usage | None = None
    meta_info: _Usage | None = None
    response: "_Carrier | None" = None
    message: "_Carrier | None" = None


_NAMES = (b'"usage"', b'"meta_info"')
_decode = msgspec.json.Decoder(_Carrier).decode
_decode_usage = msgspec.json.Decoder(_Usage).decode


class UsageReader:
    """Feed it a response body chunk by chunk, ask `usage()` at the end."""

    __slots__ = ("_bytes", "_head", "_head_open", "_tail", "_tail_bytes", "sse")

    def __init__(self, *, sse: bool) -> None:
        self.sse = sse
        self._head = b""
        self._head_open = sse
        self._tail: list[bytes] = []
        self._tail_bytes = 0
        self._bytes = 0

    def feed(self, chunk: bytes) -> None:
        """One body chunk, as it passes."""
        if self._head_open:
            self._head = (self._head + chunk)[:HEAD_BYTES_MAX]
            self._head_open = len(self._head) < HEAD_BYTES_MAX
        size = len(chunk)
        self._bytes += size
        self._tail.append(chunk)
        self._tail_bytes += size
        if self._tail_bytes > 2 * TAIL_BYTES_MAX or len(self._tail) > _PIECES_MAX:
            kept = b"".join(self._tail)[-TAIL_BYTES_MAX:]
            self._tail = [kept]
            self._tail_bytes = len(kept)

    def usage(self) -> Usage | None:
        """What the response reported; `None` where it reported nothing."""
        tail = b"".join(self._tail)[-TAIL_BYTES_MAX:]
        if not self.sse:
            if tail.rstrip().endswith(b"]"):  # SGLang, asked several prompts: an answer and its counts for each
                return None
            found = _read(tail) if self._bytes <= TAIL_BYTES_MAX else None
            return _neutral(found or _scan(tail))
        last = next(_usages(reversed(list(event_data(tail)))), None) or _scan(tail)
        if last is None or last.input_tokens is None or last.cache_read_input_tokens is not None:
            first = next(_usages(event_data(self._head)), None)
            last = _merged(first, last)
        return _neutral(last)


def _usages(events: Iterator[bytes]) -> Iterator[_Usage]:
    for data in events:
        if any(name in data for name in _NAMES):
            found = _read(data)
            if found is not None:
                yield found


def _read(data: bytes) -> _Usage | None:
    try:
        carrier = _decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    for each in (carrier, carrier.response, carrier.message):
        if each is not None and each.usage is not None:
            return each.usage
    return carrier.meta_info


def _scan(tail: bytes) -> _Usage | None:
    """The last `"usage": {...}` of a document whose start is not kept."""
    return next((found for name in _NAMES if (found := _scan_for(name, tail)) is not None), None)


def _scan_for(name: bytes, tail: bytes) -> _Usage | None:
    position = len(tail)
    while (position := tail.rfind(name, 0, position)) >= 0:
        rest = tail[position + len(name) :].lstrip()
        if rest[:1] != b":" or tail[position - 1 : position] == b"\\":
            continue
        text = rest[1:].lstrip().decode("utf-8", "replace")
        if not text.startswith("{"):
            continue
        try:
            end = json.JSONDecoder().raw_decode(text)[1]
            return _decode_usage(text[:end])
        except (ValueError, RecursionError):
            continue
    return None


def _merged(first: _Usage | None, last: _Usage | None) -> _Usage | None:
    """Anthropic: input in the first event, output in the last; the last wins where both speak."""
    if first is None or last is None:
        return last or first
    values = msgspec.structs.asdict(first)
    values.update({name: value for name, value in msgspec.structs.asdict(last).items() if value is not None})
    return _Usage(**values)


def _neutral(usage: _Usage | None) -> Usage | None:
    if usage is None:
        return None
    details = usage.prompt_tokens_details or usage.input_tokens_details
    cached = details.cached_tokens if details else usage.cached_tokens
    tokens = usage.prompt_tokens if usage.prompt_tokens is not None else usage.input_tokens
    if usage.cache_read_input_tokens is not None:  # Anthropic counts cached and created apart from the input
        cached = usage.cache_read_input_tokens
        tokens = (tokens or 0) + cached + (usage.cache_creation_input_tokens or 0)
    output = usage.completion_tokens if usage.completion_tokens is not None else usage.output_tokens
    return Usage(_sane(tokens), _sane(output), _sane(cached))


def _sane(value: int | None) -> int | None:
    return value if value is not None and 0 <= value < 2**40 else None
