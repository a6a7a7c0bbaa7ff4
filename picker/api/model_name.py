"""The model of a request whose prompt is not read: from any JSON body, or from a form's fields.

A pool may have a reranker on one endpoint and speech on another, and each must be asked where it is. Of such a
body nothing but the model is looked at; it routes by load.
"""

import re
from typing import Final
from urllib.parse import parse_qs

import msgspec

from picker.api import chat_completions, completions, embeddings, generate
from picker.api.document import Document, Text
from picker.api.fields import flag, given, text, text_or_id
from picker.api.request import InferenceRequest
from picker.api.shapes import NO_RAW, Raw

FORM_BYTES_MAX: Final = 64 * 1024
"""Of a form-urlencoded body; of any other form, from its beginning and from its end: fields stand before or behind the
file, however their names are written."""
BEGINNING_BYTES_MAX: Final = 64 * 1024
"""Of a body that is too large to be read whole."""
URL_ENCODED: Final = "application/x-www-form-urlencoded"
FORMS: Final = ("multipart/form-data", URL_ENCODED)
_JSON: Final = ("application/json", "text/json")
_NAME_BYTES_MAX: Final = 512
_NAMED: Final = b'name="model"'
"""As every client writes it: looked for between files."""
_NAMED_MAX: Final = 100
_HEADERS_BYTES_MAX: Final = 1024
"""Of a part that is found so, before its name and behind it."""

_PART: Final = re.compile(
    rb'(?:^|\n)content-disposition:[^\r\n]*;[ \t]*name="?model"?[ \t]*(?:;[^\r\n]*)?\r?\n'
    rb"(?:[^\r\n]++\r?\n){0,8}+\r?\n([^\r\n]{1,512})\r?\n--",
    re.IGNORECASE,
)
"""RFC 7578: a part's headers, an empty line, its value, the boundary."""

_TEXT: Final = rb'"(?:[^"\\]++|\\.)*+"'
_FIRST_FIELDS: Final = re.compile(
    rb'\s*+\{\s*+(?:(?!"model")%b\s*+:\s*+(?:%b|[^"\[\]{},]++)\s*+,\s*+)*+"model"\s*+:\s*+("[^"\\]{1,512}")'
    % (_TEXT, _TEXT),
    re.DOTALL,
)
"""Of a JSON object: texts and numbers before its model, and the model."""


class _Body(msgspec.Struct):
    model: Raw = NO_RAW
    model_name: Raw = NO_RAW
    stream: Raw = NO_RAW
    messages: Raw = NO_RAW
    prompt: Raw = NO_RAW
    input: Raw = NO_RAW
    previous_response_id: Raw = NO_RAW
    conversation: Raw = NO_RAW
    inputs: Raw = NO_RAW
    text: Raw = NO_RAW
    input_file_id: Raw = NO_RAW
    """Of a new batch: the file with its prompts, which only the server has that it was uploaded to."""
    training_file: Raw = NO_RAW
    """Of a new fine-tuning job, the same."""


_decode = msgspec.json.Decoder(_Body).decode
_decode_text = msgspec.json.Decoder(str).decode


def parse(document: Document) -> InferenceRequest:
    """Any JSON object, by its outermost fields alone. Raises `msgspec.ValidationError` where the body is none."""
    fields = _decode(document.json)
    return InferenceRequest(
        api="other",
        model=_first_text(document, fields.model, fields.model_name),
        stream=flag(document, fields.stream),
        sized=False,
        previous_response_id=_first_text(
            document, fields.previous_response_id, fields.input_file_id, fields.training_file
        ),
        conversation_id=text_or_id(document, fields.conversation),
    )


def parse_any(document: Document) -> InferenceRequest:
    """SageMaker's `/invocations`: which API's body it is, its fields tell (as vLLM, SGLang and TGI look at it)."""
    fields = _decode(document.json)
    for raw, read in (
        (fields.messages, chat_completions.parse),
        (fields.prompt, completions.parse),
        (fields.input, embeddings.parse),
        (fields.inputs, generate.parse),
        (fields.text, generate.parse),
    ):
        if given(document, raw):
            request = read(document)
            request.api = "invocations"
            return request
    return parse(document)


def _first_text(document: Document, *values: Raw) -> str | None:
    return next((found for raw in values if (found := text(document, raw)) is not None), None)


def is_json(content_type: str) -> bool:
    """Whether it says so. `content_type`: in lower case, here and below (RFC 9110, 8.3.1)."""
    media_type = content_type.partition(";")[0].strip()
    return media_type in _JSON or media_type.endswith("+json")


def is_form(content_type: str, body: Text) -> bool:
    """Whether a body is a form. `curl -d` says so of JSON too."""
    if content_type.startswith(URL_ENCODED):
        return not bytes(body[:64]).lstrip().startswith(b"{")
    return content_type.startswith(FORMS)


def in_form(content_type: str, body: Text) -> str | None:
    """The field `model` of a form (RFC 7578, or form-urlencoded)."""
    if content_type.startswith("multipart/form-data"):
        whole = bytes(body)
        found = _PART.search(whole, 0, FORM_BYTES_MAX) or _PART.search(whole[-FORM_BYTES_MAX:]) or _between(whole)
        return found[1].decode("utf-8", "replace") if found is not None else None
    if content_type.startswith(URL_ENCODED) and len(body) <= FORM_BYTES_MAX:
        try:
            fields = parse_qs(bytes(body).decode("utf-8", "replace"), max_num_fields=256)
        except ValueError:
            return None
        return fields["model"][0][:_NAME_BYTES_MAX] if "model" in fields else None
    return None


def _between(form: bytes) -> re.Match[bytes] | None:
    """A part that stands between two files."""
    at, end = FORM_BYTES_MAX - _HEADERS_BYTES_MAX, len(form) - FORM_BYTES_MAX + _HEADERS_BYTES_MAX
    for _ in range(_NAMED_MAX):
        at = form.find(_NAMED, at, end)
        if at < 0:
            return None
        found = _PART.search(form, max(0, at - _HEADERS_BYTES_MAX), at + _HEADERS_BYTES_MAX)
        if found is not None:
            return found
        at += len(_NAMED)
    return None


def in_beginning(body: Text) -> str | None:
    """The model of JSON whose end is not here, where it stands before anything but texts and numbers."""
    found = _FIRST_FIELDS.match(bytes(body[:BEGINNING_BYTES_MAX]))
    try:
        return None if found is None else _decode_text(found[1])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
