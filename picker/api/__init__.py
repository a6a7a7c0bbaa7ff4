"""What the client asked for: which API a path names, and how its body is read.

A new path: one file with `parse`, one line in `PARSERS`. Everything else routes by load (`paths.py`).
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec
import numpy as np

from picker.api import chat_completions, completions, embeddings, generate, messages, responses
from picker.api.document import Document, shortened
from picker.api.request import InferenceRequest, InvalidBody


class Api(NamedTuple):
    """One API path whose body we read."""

    name: str
    parse: Callable[[Document], InferenceRequest]
    anthropic_errors: bool = False


PARSERS: Mapping[str, Api] = {
    "/chat/completions": Api("chat_completions", chat_completions.parse),
    "/completions": Api("completions", completions.parse),
    "/responses": Api("responses", responses.parse),
    "/messages": Api("messages", messages.parse, anthropic_errors=True),
    "/embeddings": Api("embeddings", embeddings.parse),
    "/generate": Api("generate", generate.parse),
    "/generate_stream": Api("generate_stream", generate.parse_stream),
}
"""By the path's last one or two segments."""


def find_api(path: str) -> Api | None:
    """The API of a request path: matched by its end, without query and trailing slash."""
    bare = path.partition("?")[0].rstrip("/")
    pieces = bare.rsplit("/", 2)
    if len(pieces) == 3:
        found = PARSERS.get(f"/{pieces[1]}/{pieces[2]}")
        if found is not None:
            return found
    return PARSERS.get(f"/{pieces[-1]}")


SURE_BYTES = 512 * 1024
"""Up to this size any body is read within milliseconds, whatever is in it."""
CONTAINERS_MAX = 100_000
"""Objects and arrays in a larger body; each costs about a microsecond. Prompts have one in hundreds of bytes."""
SECOND_READING_BYTES_MAX = 256 * 1024
"""Python's own reader takes up to 0.2 us a byte of such bodies as are made for it."""
MEND_BYTES_MAX = 1024 * 1024
"""Finding lone surrogates takes up to 0.1 us a byte of such bodies as are made for it."""

_HIGH = rb"\\u[dD][89abAB][0-9a-fA-F]{2}"
_LOW = rb"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_LONE_SURROGATE = re.compile(
    rb"(?<!\\)((?:\\\\)*)%b(?!%b)" % (_HIGH, _LOW)  # behind an even number of backslashes an escape begins
    + rb"|(?<!\\)((?:\\\\)+)%b" % _LOW
    + rb"|(?<!\\)(?<!%b)%b" % (_HIGH, _LOW)
)


def read_body(api: Api, body: bytes | memoryview) -> InferenceRequest:
    """Understand a body. JSON of another shape is a request without a prompt: it routes by load.

    Raises `InvalidBody` where it is no JSON at all. What Python's own reader accepts (NaN, lone
    surrogates) engines accept too, so only what neither reader takes is invalid. The cost is
    bounded: a body that would take long to understand routes by load, and the engine decides.
    """
    if len(body) > SURE_BYTES and _containers(body) > CONTAINERS_MAX:
        return unparsed(api.name, len(body))
    document = shortened(body)
    if document is not None:
        try:
            return api.parse(document)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass  # it asks for the text of a long string, or is no such body: read as it is, which says
    try:
        return api.parse(Document(body))
    except msgspec.ValidationError:
        return unparsed(api.name, len(body))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _second_reading(api, bytes(body))


def _second_reading(api: Api, body: bytes) -> InferenceRequest:
    """What msgspec refused: a text cut inside a surrogate pair (an emoji), else valid for Python or for nobody."""
    whole, cuts = _LONE_SURROGATE.subn(rb"\1\2\\ufffd", body) if len(body) <= MEND_BYTES_MAX else (body, 0)
    if cuts:
        try:
            return api.parse(Document(whole))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass
    if len(body) > SECOND_READING_BYTES_MAX:
        return unparsed(api.name, len(body))
    try:
        json.loads(body)
    except json.JSONDecodeError as error:
        raise InvalidBody(f"{error.msg}: line {error.lineno} column {error.colno} (char {error.pos})") from None
    except UnicodeDecodeError as error:
        raise InvalidBody(f"not UTF-8 at byte {error.start}") from None
    except (RecursionError, ValueError):
        pass  # nested too deep, or a number too long, to look further: the engine decides
    return unparsed(api.name, len(body))


def _containers(body: bytes | memoryview) -> int:
    """How many `{` and `[` there are: they differ in one bit."""
    return int(np.count_nonzero((np.frombuffer(body, dtype=np.uint8) | 0x20) == ord("{")))


def unparsed(name: str, body_bytes: int) -> InferenceRequest:
    """A request of which only the size is known."""
    return InferenceRequest(api=name, prompt_bytes=body_bytes)
