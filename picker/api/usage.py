"""Token counts of an answer, in one neutral form for all engines.

What stands where: OpenAI `usage` (in a stream's last event), Responses `response.usage`, Anthropic `usage` in the
first and last events (`message.usage`), SGLang `meta_info`, llama.cpp `tokens_evaluated`, `tokens_predicted` and
`timings.cache_n`, Ollama `prompt_eval_count` and `eval_count`, TGI `details`, Cohere `usage.tokens`, Gemini
`usageMetadata`. TGI's `/` answers with a list of one.

Each member is read by itself: one of another type, or JSON that is none (`NaN` among log probabilities), costs itself.
"""

from typing import Final

import msgspec

from picker.api.json_answer import TopMembers
from picker.api.shapes import NO_RAW, Raw, is_object
from picker.outcomes import Usage

TOKENS_MAX: Final = 2**24
"""No context is that long: a larger count is nonsense, and nonsense teaches nothing."""

MARKS: Final = (b'_tokens"', b'eval_count"', b'tokens_evaluated"', b'TokenCount"')
"""One of these stands wherever a count does: `"usage":null`, which engines put into every event, has none."""
WITHIN: Final = frozenset((b"response", b"message", b"meta_info", b"details", b"timings"))
"""Members of an answer whose own members tell something; among the counts there may be megabytes of others."""
NAMES: Final = frozenset(
    (
        *(b"usage", b"usageMetadata", b"error", b"error_type"),
        *(b"prompt_eval_count", b"eval_count", b"tokens_evaluated", b"tokens_predicted"),
        *(b"prompt_tokens", b"completion_tokens", b"cached_tokens", b"generated_tokens", b"input_length", b"cache_n"),
    )
)
"""Members at the top of an answer, or within one of `WITHIN`, that tell something."""
_BOM: Final = b"\xef\xbb\xbf"


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
    cached: float | None = None
    """Of the input, from its details."""
    cache_read_input_tokens: float | None = None
    cache_creation_input_tokens: float | None = None
    cached_tokens: float | None = None
    """SGLang's own API."""


class _Usage(msgspec.Struct):
    prompt_tokens: Raw = NO_RAW
    completion_tokens: Raw = NO_RAW
    input_tokens: Raw = NO_RAW
    output_tokens: Raw = NO_RAW
    prompt_tokens_details: Raw = NO_RAW
    input_tokens_details: Raw = NO_RAW
    cache_read_input_tokens: Raw = NO_RAW
    cache_creation_input_tokens: Raw = NO_RAW
    cached_tokens: Raw = NO_RAW
    tokens: Raw = NO_RAW


class _Gemini(msgspec.Struct, rename="camel"):
    prompt_token_count: Raw = NO_RAW
    candidates_token_count: Raw = NO_RAW
    thoughts_token_count: Raw = NO_RAW
    cached_content_token_count: Raw = NO_RAW


class _Carrier(msgspec.Struct):
    """A whole answer, or one event of a stream; of a long one, the members that were found."""

    usage: Raw = NO_RAW
    usage_metadata: Raw = msgspec.field(name="usageMetadata", default=NO_RAW)
    meta_info: Raw = NO_RAW
    response: Raw = NO_RAW
    message: Raw = NO_RAW
    delta: Raw = NO_RAW
    prompt_eval_count: Raw = NO_RAW
    eval_count: Raw = NO_RAW
    tokens_evaluated: Raw = NO_RAW
    tokens_predicted: Raw = NO_RAW
    timings: Raw = NO_RAW
    details: Raw = NO_RAW
    # Of a long answer these stand without what they stood in.
    prompt_tokens: Raw = NO_RAW
    completion_tokens: Raw = NO_RAW
    cached_tokens: Raw = NO_RAW
    generated_tokens: Raw = NO_RAW
    input_length: Raw = NO_RAW
    cache_n: Raw = NO_RAW


_decode: Final = msgspec.json.Decoder(_Carrier).decode
_decode_list: Final = msgspec.json.Decoder(list[Raw]).decode
_decode_usage: Final = msgspec.json.Decoder(_Usage).decode
_decode_details: Final = msgspec.json.Decoder(_Details).decode
_decode_cohere: Final = msgspec.json.Decoder(_CohereTokens).decode
_decode_gemini: Final = msgspec.json.Decoder(_Gemini).decode
_decode_number: Final = msgspec.json.Decoder(float).decode
_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def counts(data: bytes) -> Counts | None:
    """What a whole answer or an event counts; `None`: nothing, or several answers, which may share their prompt."""
    data = data.removeprefix(_BOM).lstrip()
    try:
        if data[:1] == b"[":
            each = _decode_list(data)
            return _of_one(_decode(each[0])) if len(each) == 1 else None
        return _of_one(_decode(data))
    except msgspec.ValidationError:
        return None
    except _UNREADABLE:
        if data[:1] != b"{":
            return None
    members = TopMembers(NAMES, WITHIN)
    members.feed(data)
    try:
        return _of_one(_decode(members.document()))
    except _UNREADABLE:
        return None


def _of_one(carrier: _Carrier) -> Counts | None:
    if (found := _usage(carrier.usage)) is not None:
        return found
    for raw in (carrier.response, carrier.message, carrier.delta):
        if is_object(raw) and (found := _usage(_decode(raw).usage)) is not None:
            return found
    if (found := _usage(carrier.meta_info)) is not None:
        return found
    prompt, output = _number(carrier.prompt_eval_count), _number(carrier.eval_count)
    if prompt is not None or output is not None:
        return Counts(prompt_tokens=prompt, completion_tokens=output)
    prompt, output = _number(carrier.tokens_evaluated), _number(carrier.tokens_predicted)
    if prompt is not None or output is not None:
        cached = _number(carrier.cache_n)
        if is_object(carrier.timings):
            cached = _number(_decode(carrier.timings).cache_n)
        return Counts(prompt_tokens=prompt, completion_tokens=output, cached_tokens=cached)
    details = _decode(carrier.details) if is_object(carrier.details) else carrier
    output = _number(details.generated_tokens)
    if output is not None:
        return Counts(prompt_tokens=_number(details.input_length), completion_tokens=output)
    if (found := _gemini(carrier.usage_metadata)) is not None:
        return found
    prompt, output = _number(carrier.prompt_tokens), _number(carrier.completion_tokens)
    if prompt is not None or output is not None:
        cached = _number(carrier.cached_tokens)
        return Counts(prompt_tokens=prompt, completion_tokens=output, cached_tokens=cached)
    return None


def _usage(raw: Raw) -> Counts | None:
    if not is_object(raw):
        return None
    found = _decode_usage(raw)
    counted = Counts(
        prompt_tokens=_number(found.prompt_tokens),
        completion_tokens=_number(found.completion_tokens),
        input_tokens=_number(found.input_tokens),
        output_tokens=_number(found.output_tokens),
        cache_read_input_tokens=_number(found.cache_read_input_tokens),
        cache_creation_input_tokens=_number(found.cache_creation_input_tokens),
        cached_tokens=_number(found.cached_tokens),
    )
    for details in (found.input_tokens_details, found.prompt_tokens_details):
        if is_object(details):
            try:
                counted.cached = _decode_details(details).cached_tokens
            except msgspec.ValidationError:
                continue
    if is_object(found.tokens):
        try:
            cohere = _decode_cohere(found.tokens)
        except msgspec.ValidationError:
            return counted
        counted.prompt_tokens, counted.completion_tokens = cohere.input_tokens, cohere.output_tokens
    return counted


def _gemini(raw: Raw) -> Counts | None:
    """UsageMetadata (ai.google.dev/api/generate-content): thoughts are counted apart from the candidates."""
    if not is_object(raw):
        return None
    found = _decode_gemini(raw)
    output = [_number(each) for each in (found.candidates_token_count, found.thoughts_token_count)]
    told = [each for each in output if each is not None]
    return Counts(
        prompt_tokens=_number(found.prompt_token_count),
        completion_tokens=sum(told) if told else None,
        cached_tokens=_number(found.cached_content_token_count),
    )


def _number(raw: Raw) -> float | None:
    if not raw:
        return None
    try:
        return _decode_number(raw)
    except msgspec.DecodeError:
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
    cached = found.cached if found.cached is not None else found.cached_tokens
    tokens = found.prompt_tokens if found.prompt_tokens is not None else found.input_tokens
    output = found.completion_tokens if found.completion_tokens is not None else found.output_tokens
    if found.cache_read_input_tokens is not None:  # Anthropic counts cached and created apart from the input
        cached = found.cache_read_input_tokens
        tokens = (tokens or 0) + cached + (found.cache_creation_input_tokens or 0)
    prompt, hits = _sane(tokens), _sane(cached)
    if prompt is not None and hits is not None and hits > prompt:
        hits = None
    return Usage(prompt, _sane(output), hits)


def _sane(value: float | None) -> int | None:
    return int(value) if value is not None and 0 <= value < TOKENS_MAX else None
