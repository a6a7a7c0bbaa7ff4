"""What the client asked for: which API a path names, and how its body is read.

A new path: one file with `parse`, one line in `PARSERS`. Everything else routes by load.
"""

import json
from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec

from picker.api import chat_completions, completions, embeddings, messages, responses
from picker.api.request import InferenceRequest, InvalidBody


class Api(NamedTuple):
    """One API path whose body we read."""

    name: str
    parse: Callable[[bytes], InferenceRequest]
    anthropic_errors: bool = False


PARSERS: Mapping[str, Api] = {
    "/chat/completions": Api("chat_completions", chat_completions.parse),
    "/completions": Api("completions", completions.parse),
    "/responses": Api("responses", responses.parse),
    "/messages": Api("messages", messages.parse, anthropic_errors=True),
    "/embeddings": Api("embeddings", embeddings.parse),
}
"""By the path's last one or two segments."""

OTHER = "other"


def find_api(path: str) -> Api | None:
    """The API of a request path: matched by its end, without query and trailing slash."""
    bare = path.partition("?")[0].rstrip("/")
    pieces = bare.rsplit("/", 2)
    if len(pieces) == 3:
        found = PARSERS.get(f"/{pieces[1]}/{pieces[2]}")
        if found is not None:
            return found
    return PARSERS.get(f"/{pieces[-1]}")


def read_body(api: Api, body: bytes) -> InferenceRequest:
    """Understand a body. JSON of another shape is a request without a prompt: it routes by load.

    Raises `InvalidBody` where it is no JSON at all. What Python's own reader accepts (NaN, lone
    surrogates) engines accept too, so only what neither reader takes is invalid.
    """
    try:
        return api.parse(body)
    except msgspec.ValidationError:
        return unparsed(api.name, len(body))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:
        json.loads(body)
    except json.JSONDecodeError as error:
        raise InvalidBody(f"{error.msg}: line {error.lineno} column {error.colno} (char {error.pos})") from None
    except UnicodeDecodeError as error:
        raise InvalidBody(f"not UTF-8 at byte {error.start}") from None
    except (RecursionError, ValueError):
        pass  # nested too deep, or a number too long, to look further: the engine decides
    return unparsed(api.name, len(body))


def unparsed(name: str, body_bytes: int) -> InferenceRequest:
    """A request of which only the size is known."""
    return InferenceRequest(api=name, prompt_bytes=body_bytes)
