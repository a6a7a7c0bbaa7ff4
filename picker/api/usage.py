"""Token counts of an answer, in one neutral form for all engines.

What stands where: OpenAI `usage` (in a stream's last event), Responses `response.usage`, Anthropic `usage` in the
first and last events (`message.usage`), SGLang `meta_info`, llama.cpp `tokens_evaluated`, `tokens_predicted` and
`timings.cache_n`, Ollama `prompt_eval_count` and `eval_count`, TGI `details`, Cohere `usage.tokens`.
"""

from typing import Final

import msgspec

from picker.outcomes import Usage

TOKENS_MAX: Final = 2**24
"""No context is that long: a larger count is nonsense, and nonsense teaches nothing."""

MARKS: Final = (b'_tokens"', b'eval_count"', b'tokens_evaluated"')
"""One of these stands wherever a count does: `"usage":null`, which engines put into every event, has none."""
NAMES: Final = frozenset(
    (
        *(b"usage", b"meta_info", b"timings", b"details", b"error"),
        *(b"prompt_eval_count", b"eval_count", b"tokens_evaluated", b"tokens_predicted"),
    )
)
"""Members at the top of an answer that tell something."""


class _Details(msgspec.Struct):
    cached_tokens: float | None = None


class _CohereTokens(msgspec.Struct):
    input_tokens: float | None = None
    output_tokens: float | None = None


class Counts(msgspec.Struct):
    """`usage` in all its dialects."""

    prompt_tokens: float | None = None
    completion_tokens: float | None = None
    input_tokens: float | None = None
    output_tokens: float | None = None
    prompt_tokens_details: _Details | None = None
    input_tokens_details: _Details | None = None
    cache_read_input_tokens: float | None = None
    cache_creation_input_tokens: float | None = None
    cached_tokens: float | None = None
    """SGLang's own API."""
    tokens: _CohereTokens | None = None


class _Timings(msgspec.Struct):
    cache_n: float | None = None


class _TgiDetails(msgspec.Struct):
    generated_tokens: float | None = None
    input_length: float | None = None


class _Within(msgspec.Struct):
    usage: Counts | None = None


class Carrier(msgspec.Struct):
    """A whole answer, or one event of a stream."""

    usage: Counts | None = None
    meta_info: Counts | None = None
    response: "_Within | str | None" = None
    message: "_Within | None" = None
    delta: "_Within | str | None" = None
    prompt_eval_count: float | None = None
    eval_count: float | None = None
    tokens_evaluated: float | None = None
    tokens_predicted: float | None = None
    timings: _Timings | None = None
    details: _TgiDetails | None = None


_decode: Final = msgspec.json.Decoder(Carrier).decode


def counts(data: bytes) -> Counts | None:
    """What a whole answer or an event counts; `None`: nothing, or no JSON object."""
    try:
        carrier = _decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if carrier.usage is not None:
        return carrier.usage
    for each in (carrier.response, carrier.message, carrier.delta):
        if isinstance(each, _Within) and each.usage is not None:
            return each.usage
    if carrier.meta_info is not None:
        return carrier.meta_info
    if carrier.prompt_eval_count is not None or carrier.eval_count is not None:
        return Counts(prompt_tokens=carrier.prompt_eval_count, completion_tokens=carrier.eval_count)
    if carrier.tokens_evaluated is not None or carrier.tokens_predicted is not None:
        return Counts(
            prompt_tokens=carrier.tokens_evaluated,
            completion_tokens=carrier.tokens_predicted,
            cached_tokens=None if carrier.timings is None else carrier.timings.cache_n,
        )
    if carrier.details is not None and carrier.details.generated_tokens is not None:
        return Counts(prompt_tokens=carrier.details.input_length, completion_tokens=carrier.details.generated_tokens)
    return None


def merged(first: Counts | None, last: Counts | None) -> Counts | None:
    """Anthropic: input in the first event, output in the last; the last wins where both speak."""
    if first is None or last is None:
        return last or first
    values = msgspec.structs.asdict(first)
    values.update({name: value for name, value in msgspec.structs.asdict(last).items() if value is not None})
    return Counts(**values)


def neutral(found: Counts | None) -> Usage | None:
    """In the picker's words; `None` where nothing was counted."""
    if found is None:
        return None
    details = found.prompt_tokens_details or found.input_tokens_details
    cached = details.cached_tokens if details else found.cached_tokens
    tokens = found.prompt_tokens if found.prompt_tokens is not None else found.input_tokens
    output = found.completion_tokens if found.completion_tokens is not None else found.output_tokens
    if found.tokens is not None:
        tokens, output = found.tokens.input_tokens, found.tokens.output_tokens
    if found.cache_read_input_tokens is not None:  # Anthropic counts cached and created apart from the input
        cached = found.cache_read_input_tokens
        tokens = (tokens or 0) + cached + (found.cache_creation_input_tokens or 0)
    prompt, hits = _sane(tokens), _sane(cached)
    if prompt is not None and hits is not None and hits > prompt:
        hits = None
    return Usage(prompt, _sane(output), hits)


def _sane(value: float | None) -> int | None:
    return int(value) if value is not None and 0 <= value < TOKENS_MAX else None
