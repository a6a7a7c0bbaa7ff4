"""A body understood, in bounded time, as the engines understand it.

What Python's own reader accepts engines accept too, so only what it refuses is invalid: a byte order mark, UTF-16,
`NaN` and half an emoji are ordinary. A body that would take long to understand routes by load, and the engine
decides. Whatever is read is read in time: a body of any shape holds other decisions up for some 20 ms at most.
"""

import json
import re
from typing import Final

import msgspec
import numpy as np

from picker.api.document import Document, Text, shortened
from picker.api.paths import Api
from picker.api.request import InferenceRequest, InvalidBody

COUNTED_BYTES_MIN: Final = 32 * 1024
"""Smaller JSON cannot hold too many containers."""
COUNTED_BYTES_MAX: Final = 1024 * 1024
"""At a time, so that counting takes little memory."""
CONTAINERS_MAX: Final = 16_000
"""Objects and arrays in what a parser reads; each costs about a microsecond. Prompts have one in hundreds of bytes."""
STRINGS_BYTES_MAX: Final = 1024 * 1024
"""A regular expression takes up to 16 ns a byte to step over strings that are made for it. Of the compiled build's
bodies only what is left without long strings is looked at so."""
QUOTES_MAX: Final = 200_000
"""Strings are stepped over at a tenth of a microsecond each."""
SECOND_READING_BYTES_MAX: Final = 64 * 1024
"""Python's own reader takes up to 0.2 us a byte of such bodies as are made for it."""
MEND_BYTES_MAX: Final = 128 * 1024
"""Regular expressions take up to 0.1 us a byte of such bodies as are made for them."""
TRANSCODE_BYTES_MAX: Final = 4 * 1024 * 1024
"""UTF-16 and UTF-32 take a nanosecond a byte."""
HALVES_MAX: Final = 4
"""Surrogates without their other half that are looked for in a long body, one after the other."""

_HIGH: Final = rb"\\u[dD][89abAB][0-9a-fA-F]{2}"
_LOW: Final = rb"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_HIGH_HALF: Final = re.compile(_HIGH)
_LONE_SURROGATE: Final = re.compile(
    rb"(?<!\\)((?:\\\\)*)%b(?!%b)" % (_HIGH, _LOW)  # behind an even number of backslashes an escape begins
    + rb"|(?<!\\)((?:\\\\)+)%b" % _LOW
    + rb"|(?<!\\)(?<!%b)%b" % (_HIGH, _LOW)
)
_STRING: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
_NOT_A_NUMBER: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"|-?\b(?:NaN|Infinity)\b', re.DOTALL)
_HALF: Final = ("hex escape", "surrogate")
"""What msgspec says of half an emoji; the place that it names is behind the escape."""
_PLACE: Final = re.compile(r" \(byte (\d+)\)$")


def read_body(api: Api, body: Text) -> InferenceRequest:
    """Understand a body. JSON of another shape is a request without a prompt: it routes by load.

    Raises `InvalidBody` where it is no JSON at all.
    """
    document = shortened(body)
    if document is not None:
        try:
            if _readable(document.json):
                return _parsed(api, document)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass  # it asks for the text of a long string, or is no such body: read as it is, which says
    if not _readable(body):
        return unparsed(api.name, len(body))
    try:
        return _parsed(api, Document(body))
    except msgspec.ValidationError:
        return unparsed(api.name, len(body))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return _second_reading(api, bytes(body), error)
    except RecursionError:  # nested too deep to look further: the engine decides
        return unparsed(api.name, len(body))


def unparsed(name: str, body_bytes: int, model: str | None = None) -> InferenceRequest:
    """A request of which only the size is known, and the model where the path names it."""
    return InferenceRequest(api=name, model=model, prompt_bytes=body_bytes, sized=False)


def _parsed(api: Api, document: Document) -> InferenceRequest:
    request = api.parse(document)
    request.api = api.name
    return request


def _readable(body: Text) -> bool:
    """Whether it is understood in time. Braces in texts (code, JSON) are no containers: many need a second look."""
    if len(body) < COUNTED_BYTES_MIN or _containers(body) <= CONTAINERS_MAX:
        return True
    if len(body) > STRINGS_BYTES_MAX:
        return False
    whole = bytes(body)
    if whole.count(b'"') - whole.count(b'\\"') > QUOTES_MAX:
        return False
    return _containers(_STRING.sub(b"", whole)) <= CONTAINERS_MAX


def _containers(body: Text) -> int:
    """How many `{` and `[` there are: they differ in one bit."""
    view, found = memoryview(body), 0
    for at in range(0, len(view), COUNTED_BYTES_MAX):
        part = np.frombuffer(view[at : at + COUNTED_BYTES_MAX], dtype=np.uint8)
        found += int(np.count_nonzero((part | 0x20) == ord("{")))
    return found


def _second_reading(api: Api, body: bytes, error: Exception) -> InferenceRequest:
    """What msgspec refused: valid for Python and so for engines, or for nobody."""
    mended = _as_utf8(body)
    if mended is not body:
        return read_body(api, mended)
    mended = _without_halves(_without_nan(body))
    if mended is not body:
        try:
            return _parsed(api, Document(mended))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass
    if len(body) > MEND_BYTES_MAX:
        found = _with_halves_mended(api, body) if b"\\u" in body else None
        if found is not None:
            return found
    if len(body) > SECOND_READING_BYTES_MAX:
        return _judged(api, body, error)
    try:
        json.loads(body)
    except json.JSONDecodeError as refusal:
        raise InvalidBody(f"{refusal.msg}: line {refusal.lineno} column {refusal.colno} (char {refusal.pos})") from None
    except UnicodeDecodeError as refusal:
        raise InvalidBody(f"not UTF-8 at byte {refusal.start}") from None
    except (RecursionError, ValueError):
        pass  # nested too deep, or a number too long, to look further: the engine decides
    return unparsed(api.name, len(body))


def _judged(api: Api, body: bytes, error: Exception) -> InferenceRequest:
    """A long body, by what msgspec says of it: invalid, unless what it stumbled on is something that Python reads."""
    text = str(error)
    place = _PLACE.search(text)
    if place is None:
        if "truncated" in text and b"\\u" not in body:
            raise InvalidBody(f"it ends before it is complete (char {len(body)})")
        return unparsed(api.name, len(body))
    at = int(place[1])
    if body[at : at + 1] in (b"N", b"I") or any(word in text for word in _HALF):
        return unparsed(api.name, len(body))
    line = body.count(b"\n", 0, at) + 1
    column = at - body.rfind(b"\n", 0, at)
    why = _PLACE.sub("", text).removeprefix("JSON is malformed: ")
    raise InvalidBody(f"{why}: line {line} column {column} (char {at})")


def _as_utf8(body: bytes) -> bytes:
    """The body in UTF-8 without a byte order mark, where it is in another encoding of Unicode (RFC 8259, 8.1)."""
    encoding = json.detect_encoding(body)
    if encoding == "utf-8":
        return body
    if encoding == "utf-8-sig":
        return body[3:]
    if len(body) > TRANSCODE_BYTES_MAX:
        return body
    try:
        return body.decode(encoding).encode()
    except UnicodeError:
        return body


def _without_nan(body: bytes) -> bytes:
    """`null` in place of NaN and infinities, which Python writes and reads."""
    if len(body) > MEND_BYTES_MAX or not (b"NaN" in body or b"Infinity" in body):
        return body
    return _NOT_A_NUMBER.sub(lambda found: found[0] if found[0].startswith(b'"') else b"null", body)


def _without_halves(body: bytes) -> bytes:
    """U+FFFD in place of a surrogate without its other half: a text that was cut inside an emoji."""
    if b"\\u" not in body or len(body) > MEND_BYTES_MAX:
        return body
    mended, cuts = _LONE_SURROGATE.subn(rb"\1\2\\ufffd", body)
    return mended if cuts else body


def _with_halves_mended(api: Api, body: bytes) -> InferenceRequest | None:
    """The same in a long body, where msgspec stumbles on them; `None`: that is not what is wrong with it."""
    mended = bytearray(body + b" " * 8)  # so that an escape near the end is not called a truncation, which has no place
    for _ in range(HALVES_MAX + 1):
        try:
            return _parsed(api, Document(bytes(mended)))
        except RecursionError:
            return None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            place = _PLACE.search(str(error))
            if place is None or not any(word in str(error) for word in _HALF):
                return None
        at = int(place[1]) - 6
        if _HIGH_HALF.fullmatch(mended, at - 6, at):
            at -= 6  # a high half before an escape that is no low one
        mended[at : at + 6] = b"\\ufffd"
    return None
