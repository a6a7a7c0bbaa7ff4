"""What the client asked for: which API a path names (`paths.py`), and how its body is read (`reading.py`).

    paths.py              the table: a row a path
    reading.py            bytes -> InferenceRequest, in bounded time
    mending.py            what Python reads and msgspec does not, so that it does
    request.py            the neutral form
    chat_completions.py, completions.py, embeddings.py, generate.py, messages.py, responses.py    one a family of APIs
    model_name.py         the model where nothing else is read
    messages_text.py      messages and parts as flattened text
    fields.py, shapes.py  single fields; the JSON of chats
    document.py           a body, as it is or less its long strings (`_document.c`)
    hints.py              what headers and path say of where a request belongs
    answers.py            what an answer tells as it passes: first token, usage, errors
    content.py, json_answer.py, usage.py, response_id.py    its pieces

A new path: a row in `paths.py`, and a `parse` where its prompt can be read.
"""

from picker.api.paths import APIS, OTHER, Api, Path, find_path
from picker.api.reading import read_body, read_model, unparsed

PARSERS = APIS
"""By the shape of the path: the APIs whose prompts are understood."""

__all__ = ["APIS", "OTHER", "PARSERS", "Api", "Path", "find_api", "find_path", "read_body", "read_model", "unparsed"]


def find_api(path: str) -> Api | None:
    """The API of a POST to this path, if its prompt is understood."""
    api = find_path(path).api
    return api if api.understood else None
