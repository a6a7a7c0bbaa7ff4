"""The model of a request whose prompt is not read: from any JSON body, or from a form's fields.

A pool may have a reranker on one endpoint and speech on another, and each must be asked where it is. Of such a
body nothing but the model is looked at; it routes by load.
"""

import re
from typing import Final
from urllib.parse import parse_qs

import msgspec

from picker.api import chat_completions, completions, embeddings
from picker.api.document import Document
from picker.api.fields import flag, given, text
from picker.api.request import InferenceRequest
from picker.api.shapes import NO_RAW, Raw

FORM_BYTES_MAX: Final = 64 * 1024
"""Of a form, from its beginning and from its end: fields stand before or behind the file."""
_NAME_BYTES_MAX: Final = 512

_PART: Final = re.compile(
    rb'(?:^|\n)content-disposition:[^\r\n]*;[ \t]*name="?model"?[ \t]*(?:;[^\r\n]*)?\r?\n'
    rb"(?:[^\r\n]+\r?\n)*\r?\n([^\r\n]{1,512})(?:\r?\n)--",
    re.IGNORECASE,
)
"""RFC 7578: a part's headers, an empty line, its value, the boundary."""


class _Body(msgspec.Struct):
    model: Raw = NO_RAW
    model_name: Raw = NO_RAW
    stream: Raw = NO_RAW
    messages: Raw = NO_RAW
    prompt: Raw = NO_RAW
    input: Raw = NO_RAW
    input_file_id: Raw = NO_RAW
    """Of a new batch: the file with its prompts, which only the server has that it was uploaded to."""


_decode = msgspec.json.Decoder(_Body).decode


def parse(document: Document) -> InferenceRequest:
    """Any JSON object. Raises `msgspec.ValidationError` where the body is none."""
    fields = _decode(document.json)
    named = (fields.model, fields.model_name)
    model = next((name for raw in named if (name := text(document, raw)) is not None), None)
    return InferenceRequest(
        api="other",
        model=model,
        stream=flag(document, fields.stream),
        sized=False,
        previous_response_id=text(document, fields.input_file_id),
    )


def parse_any(document: Document) -> InferenceRequest:
    """SageMaker's `/invocations`: which API's body it is, its fields tell (as vLLM and SGLang look at it)."""
    fields = _decode(document.json)
    for raw, read in (
        (fields.messages, chat_completions.parse),
        (fields.prompt, completions.parse),
        (fields.input, embeddings.parse),
    ):
        if given(document, raw):
            request = read(document)
            request.api = "invocations"
            return request
    return parse(document)


def in_form(content_type: str, body: bytes | memoryview) -> str | None:
    """The field `model` of a form (RFC 7578, or form-urlencoded), looked for at both ends of it."""
    if content_type.startswith("multipart/form-data"):
        for part in (bytes(body[:FORM_BYTES_MAX]), bytes(body[-FORM_BYTES_MAX:])):
            found = _PART.search(part)
            if found is not None:
                return found[1].decode("utf-8", "replace")
        return None
    if content_type.startswith("application/x-www-form-urlencoded") and len(body) <= FORM_BYTES_MAX:
        try:
            fields = parse_qs(bytes(body).decode("utf-8", "replace"), max_num_fields=256)
        except ValueError:
            return None
        return fields["model"][0][:_NAME_BYTES_MAX] if "model" in fields else None
    return None
