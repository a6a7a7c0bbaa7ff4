"""POST .../completions (OpenAI): text, a list of texts, token ids, or lists of token ids; vLLM's embeddings of one."""

import re

import msgspec

from picker.api.document import Document, Pieces, Text
from picker.api.messages_text import given, put_text
from picker.api.request import InferenceRequest, medium, token_ids
from picker.api.shapes import NO_RAW, Raw

_LIST_START = re.compile(rb"\[[ \t\r\n]*(.)", re.DOTALL)
_NUMBER_STARTS = frozenset(b"%c" % each for each in b"-0123456789")

_decode_ids = msgspec.json.Decoder(list[int]).decode
_decode_many_ids = msgspec.json.Decoder(list[list[int]]).decode
_decode_texts = msgspec.json.Decoder(list[Raw]).decode


class _Body(msgspec.Struct):
    prompt: Raw = NO_RAW
    prompt_embeds: Raw = NO_RAW
    model: str | None = None
    stream: bool | None = None
    max_tokens: float | None = None
    cache_salt: str | None = None


_decode = msgspec.json.Decoder(_Body).decode


def parse(document: Document) -> InferenceRequest:
    """Raises `msgspec.ValidationError` where the body is JSON of another shape."""
    fields = _decode(document.json)
    pieces, total_bytes, exact = flatten_prompts(document, fields.prompt)
    has_media = given(fields.prompt_embeds)
    if has_media:  # kilobytes a token, and no text: it stands for itself by its digest, as an image does
        embeddings = medium(document.view(fields.prompt_embeds))
        pieces, total_bytes, exact = [embeddings, *pieces], total_bytes + len(embeddings), False
    return InferenceRequest(
        api="completions",
        model=fields.model,
        pieces=pieces,
        prompt_bytes=total_bytes,
        exact_tokens=exact,
        has_media=has_media,
        stream=bool(fields.stream),
        max_tokens=fields.max_tokens,
        cache_salt=fields.cache_salt,
    )


def flatten_prompts(document: Document, prompts: Raw) -> tuple[list[Text], int, bool]:
    """The first prompt flattened, the bytes of all, and whether they are token ids.

    The chain of the first decides where, the load of all is charged. Raises `msgspec.ValidationError`.
    """
    pieces = Pieces(document)
    if not prompts:
        return pieces.found, 0, False
    shape = _LIST_START.match(memoryview(prompts))
    if shape is None:
        put_text(prompts, pieces)
        return pieces.found, pieces.bytes, False
    first_byte = bytes(shape[1])
    if first_byte in _NUMBER_STARTS:
        pieces.append(token_ids(_decode_ids(prompts)))
        return pieces.found, pieces.bytes, True
    if first_byte == b"[":
        lists = _decode_many_ids(prompts)
        pieces.append(token_ids(lists[0]))
        return pieces.found, 4 * sum(map(len, lists)), True
    texts = _decode_texts(prompts)
    if texts:
        put_text(texts[0], pieces)
    total_bytes = sum(len(document.view(text)) for text in texts)
    return pieces.found, max(0, total_bytes - 2 * len(texts)), False  # all but their quotes
