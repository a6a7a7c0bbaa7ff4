"""Single fields of a body, each read by itself, as engines read it.

Engines validate with pydantic in its lax mode or coerce by hand, so `"max_tokens": "16"` and `"stream": 1`
are ordinary. A value that cannot be read is an absent one, alone: it costs nothing else of the body.

Names (a model, a salt, a session, an id) have no longest length in engines, and a body has room for 16 MB of them.
To decode, encode and compare so much text takes a tenth of a second. So a long one is never decoded: a stand-in of
its first bytes and its digest takes its place, equal for equal bytes.
"""

from math import isfinite
from typing import Final

import msgspec
from xxhash import xxh3_128_hexdigest

from picker.api.document import Document
from picker.api.shapes import NO_RAW, Named, Raw, StreamOptions, is_object

_QUOTE: Final = ord('"')
_LIST: Final = ord("[")
_CONTAINERS: Final = frozenset(b"[{")
_TRUE: Final = frozenset(("true", "1", "1.0", "t", "on", "y", "yes"))
"""pydantic's lax booleans, in lower case (docs.pydantic.dev, conversion table)."""
_FLAGS: Final = {b"true": True, b"false": False}
_SCALAR_CHARS_MAX: Final = 64
"""Of a number or a boolean that is written as a string."""
NAME_BYTES_MAX: Final = 1024
"""Of a string as the client wrote it, with its quotes: of a longer one only its stand-in is known."""
_STAND_IN_HEAD_BYTES: Final = 64

_decode_text = msgspec.json.Decoder(str).decode
_decode_named = msgspec.json.Decoder(Named).decode
_decode_items = msgspec.json.Decoder(list[Raw]).decode
_decode_options = msgspec.json.Decoder(StreamOptions).decode


def text(document: Document, raw: Raw) -> str | None:
    """A string, or the stand-in of a long one; `None` where there is none, or none that can be decoded."""
    if not raw:
        return None
    view = document.view(raw)
    if view[0] != _QUOTE:
        return None
    if len(view) > NAME_BYTES_MAX:
        return _stand_in(view)
    try:
        return _decode_text(view)
    except (msgspec.DecodeError, UnicodeDecodeError):  # bytes that are not UTF-8, half an emoji
        return None


def _stand_in(view: memoryview) -> str:
    """Of a long string: who wrote the same bytes gets the same, in about a hundred characters."""
    head = bytes(view[1 : 1 + _STAND_IN_HEAD_BYTES]).decode("utf-8", "replace")
    return f"{head}\u2026{xxh3_128_hexdigest(view)}"


def text_or_id(document: Document, raw: Raw) -> str | None:
    """A string, or the `id` of an object: the two ways to name a conversation."""
    return text(document, _decode_named(raw).id if is_object(raw) else raw)


def scalar_text(document: Document, raw: Raw) -> str | None:
    """A string, or a number or boolean as it is written; `None` for null, lists and objects."""
    if not raw:
        return None
    view = document.view(raw)
    if view[0] == _QUOTE:
        return text(document, raw)
    if view[0] in _CONTAINERS or bytes(view[:4]) == b"null" or len(view) > _SCALAR_CHARS_MAX:
        return None
    return bytes(view).decode("ascii", "replace")


def number(document: Document, raw: Raw) -> float | None:
    """A number, or a string that is one. Whatever its sign: who reads it knows what is nonsense."""
    if not raw:
        return None
    digits = bytes(raw)
    if len(digits) < 16 and digits.isdigit():
        return float(digits)
    written = scalar_text(document, raw)
    if written is None or len(written) > _SCALAR_CHARS_MAX:
        return None
    try:
        value = float(written)
    except ValueError:
        return None
    return value if isfinite(value) else None


def flag(document: Document, raw: Raw, *, default: bool = False) -> bool:
    """A boolean, or a number or string that stands for one. Anything else that is there is no yes."""
    if not raw:
        return default
    plain = _FLAGS.get(bytes(raw))
    if plain is not None:
        return plain
    if is_null(document, raw):
        return default
    written = scalar_text(document, raw)
    return written is not None and written.strip().lower() in _TRUE


def count(document: Document, raw: Raw, *, most: int) -> int:
    """How many of something: at least 1, at most `most`, 1 where it is not said."""
    value = number(document, raw)
    return 1 if value is None else int(min(max(value, 1.0), float(most)))


def given(document: Document, raw: Raw) -> bool:
    """Whether a field is there and neither null nor false."""
    return bool(raw) and bytes(document.view(raw)[:5]) not in (b"null", b"false")


def is_null(document: Document, raw: Raw) -> bool:
    """Whether a field is there, and null: some engines' defaults are not."""
    return bool(raw) and bytes(document.view(raw)[:4]) == b"null"


def first_item(raw: Raw) -> Raw:
    """Of a list its first item, of an empty one nothing, of anything else itself.

    SGLang takes a value for each prompt of a batch, or one for all (sglang/srt/managers/io_struct.py,
    `_normalize_batch_inputs`). The first prompt decides where.
    """
    if not raw or memoryview(raw)[0] != _LIST:
        return raw
    items: list[Raw] = _decode_items(raw)
    return items[0] if items else NO_RAW


def cache_key(document: Document, cache_salt: Raw, extra_key: Raw) -> str | None:
    """What keeps a request's blocks apart from those of the same text.

    `cache_salt`, and behind it SGLang's `extra_key` (sglang/srt/entrypoints/openai/serving_base.py,
    `_compute_extra_key`). An empty one is none there; vLLM refuses it.
    """
    salt = scalar_text(document, first_item(cache_salt)) or None
    key = scalar_text(document, first_item(extra_key)) if extra_key else None
    return (salt or "") + key if key else salt


def model_or_adapter(document: Document, model: Raw, lora_path: Raw) -> str | None:
    """The model that is asked for: SGLang's `lora_path` names an adapter of it, unless `model` does (`base:adapter`).

    sglang/srt/entrypoints/openai/serving_base.py, `_resolve_lora_path`.
    """
    named = text(document, model)
    if not lora_path or (named is not None and named.partition(":")[2].strip()):
        return named
    return text(document, first_item(lora_path)) or named


def reads_prompt_cache(document: Document, cache_prompt: Raw) -> bool:
    """llama.cpp's `cache_prompt`: what is no boolean counts as absent (tools/server/server-common.h, `json_value`)."""
    return not cache_prompt or bytes(document.view(cache_prompt)[:6]) != b"false"


def asks_for_usage(document: Document, stream_options: Raw) -> bool:
    """OpenAI: a stream tells its counts where `stream_options.include_usage` is true."""
    if not stream_options:
        return False
    try:
        return flag(document, _decode_options(stream_options).include_usage)
    except msgspec.ValidationError:  # no object
        return False
