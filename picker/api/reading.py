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

from picker.api import model_name
from picker.api.document import Document, Text, shortened
from picker.api.mending import mend
from picker.api.model_name import in_beginning, in_form, is_form
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
OUTLINE_BYTES_MAX: Final = 4 * 1024 * 1024
OUTLINE_CONTAINERS_MAX: Final = 400_000
"""Where a body has more of both, not even its outermost object is read: to step over one takes some 25 ns."""
SECOND_READING_BYTES_MAX: Final = 64 * 1024
"""Python's own reader takes up to 0.2 us a byte of such bodies as are made for it."""
TRANSCODE_BYTES_MAX: Final = 8 * 1024 * 1024
"""UTF-16 and UTF-32 take up to 3 ns a byte."""

_STRING: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
_HALF: Final = ("hex escape", "surrogate")
"""What msgspec says of half an emoji."""
_HIGH_HALF: Final = re.compile(rb"\\u[dD][89abAB]")
_PAIR_BYTES: Final = 12
"""Of an emoji's two escapes: msgspec calls a half that is nearer to the end a truncation."""
_PLACE: Final = re.compile(r" \(byte (\d+)\)$")


def read_body(api: Api, body: Text) -> InferenceRequest:
    """Understand a body. JSON of another shape is a request without a prompt: it routes by load.

    Raises `InvalidBody` where it is no JSON at all.
    """
    try:
        return _first_reading(api, body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return _second_reading(api, bytes(body), error)


def read_model(api: Api, content_type: str, body: Text, *, whole: bool = True) -> InferenceRequest:
    """A body whose prompt is not read: of JSON or a form the model, and what is continued.

    `whole`: else only its beginning is here. `content_type`: in lower case.
    """
    if is_form(content_type, body):
        return unparsed(api.name, 0, in_form(content_type, body))
    if not whole:
        return unparsed(api.name, 0, in_beginning(body))
    try:
        return read_body(api, body)
    except InvalidBody:  # we do not know that it should be JSON: the engine says so
        return unparsed(api.name, 0)


def unparsed(name: str, body_bytes: int, model: str | None = None) -> InferenceRequest:
    """A request of which only the size is known, and the model where the path names it."""
    return InferenceRequest(api=name, model=model, prompt_bytes=body_bytes, sized=False)


def _first_reading(api: Api, body: Text) -> InferenceRequest:
    """Raises `msgspec.DecodeError` or `UnicodeDecodeError` where msgspec does not take it."""
    document = shortened(body)
    if document is not None:
        try:
            if _readable(document.json):
                return _parsed(api, document)
            if _has_outline(document.json):
                return _outlined(api, document, len(body))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass  # it asks for the text of a long string, or is no such body: read as it is, which says
    try:
        if _readable(body):
            return _parsed(api, Document(body))
        if _has_outline(body):
            return _outlined(api, Document(body), len(body))
    except (msgspec.ValidationError, RecursionError):  # nested too deep to look further: the engine decides
        pass
    return unparsed(api.name, len(body))


def _parsed(api: Api, document: Document) -> InferenceRequest:
    request = api.parse(document)
    request.api = api.name
    return request


def _outlined(api: Api, document: Document, body_bytes: int) -> InferenceRequest:
    """Of too many parts to look at each: what names it still counts."""
    request = model_name.parse(document)
    request.api, request.prompt_bytes = api.name, body_bytes
    return request


def _has_outline(body: Text) -> bool:
    """Whether it is stepped over in time."""
    return len(body) <= OUTLINE_BYTES_MAX or _containers(body) <= OUTLINE_CONTAINERS_MAX


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
    encoding = json.detect_encoding(body)
    text = body if encoding == "utf-8" else _as_utf8(body, encoding)
    if text is None:
        return unparsed(api.name, len(body))
    mended = mend(text)
    text = text if mended is None else mended
    if text is not body:
        try:
            return _first_reading(api, text)
        except (msgspec.DecodeError, UnicodeDecodeError) as still:
            error = still
    if len(body) > SECOND_READING_BYTES_MAX:
        return _judged(api, text, error, is_mended=mended is not None)
    try:
        json.loads(body)
    except json.JSONDecodeError as refusal:
        raise InvalidBody(f"{refusal.msg}: line {refusal.lineno} column {refusal.colno} (char {refusal.pos})") from None
    except UnicodeDecodeError as refusal:
        raise InvalidBody(f"not UTF-8 at byte {refusal.start}") from None
    except (RecursionError, ValueError):
        pass  # nested too deep, or a number too long, to look further: the engine decides
    return unparsed(api.name, len(body))


def _judged(api: Api, body: bytes, error: Exception, *, is_mended: bool) -> InferenceRequest:
    """A long body, by what msgspec says of it: invalid, unless what it stumbled on is something that Python reads."""
    text = str(error)
    place = _PLACE.search(text)
    if place is None:
        end = body[-_PAIR_BYTES:].rstrip()
        may_be_half = not is_mended and end.endswith(b"}") and _HIGH_HALF.search(end)
        if "truncated" in text and not may_be_half:
            raise InvalidBody(f"it ends before it is complete (char {len(body)})")
        return unparsed(api.name, len(body))
    at = int(place[1])
    if not is_mended and (body[at : at + 1] in (b"N", b"I") or any(word in text for word in _HALF)):
        return unparsed(api.name, len(body))
    line = body.count(b"\n", 0, at) + 1
    column = at - body.rfind(b"\n", 0, at)
    why = _PLACE.sub("", text).removeprefix("JSON is malformed: ")
    raise InvalidBody(f"{why}: line {line} column {column} (char {at})")


def _as_utf8(body: bytes, encoding: str) -> bytes | None:
    """The body in UTF-8 without a byte order mark (RFC 8259, 8.1); `None`: too long to say. Raises `InvalidBody`."""
    if encoding == "utf-8-sig":
        return body[3:]
    if len(body) > TRANSCODE_BYTES_MAX:
        return None
    is_short = len(body) <= SECOND_READING_BYTES_MAX
    try:  # Python reads a lone surrogate too; each takes half a microsecond
        return body.decode(encoding, "surrogatepass" if is_short else "strict").encode("utf-8", "surrogatepass")
    except UnicodeDecodeError as refusal:
        if is_short:
            raise InvalidBody(f"not {encoding.upper()} at byte {refusal.start}") from None
        return None
