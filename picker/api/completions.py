"""POST .../completions (OpenAI): text, a list of texts, token ids, or lists of token ids."""

import msgspec

from picker.api.messages_text import NO_RAW, Pieces, Raw, put_text
from picker.api.request import InferenceRequest, token_ids

_decode_ids = msgspec.json.Decoder(list[int]).decode
_decode_many_ids = msgspec.json.Decoder(list[list[int]]).decode
_decode_texts = msgspec.json.Decoder(list[Raw]).decode


class _Body(msgspec.Struct):
    prompt: Raw = NO_RAW
    model: str | None = None
    stream: bool | None = None
    max_tokens: int | None = None
    cache_salt: str | None = None


_decode = msgspec.json.Decoder(_Body).decode


def parse(body: bytes) -> InferenceRequest:
    """Raises `msgspec.ValidationError` where the body is JSON of another shape."""
    fields = _decode(body)
    prompt, total_bytes, exact = flatten_prompts(fields.prompt)
    return InferenceRequest(
        api="completions",
        model=fields.model,
        prompt=prompt,
        prompt_bytes=total_bytes,
        exact_tokens=exact,
        stream=bool(fields.stream),
        max_tokens=fields.max_tokens,
        cache_salt=fields.cache_salt,
    )


def flatten_prompts(prompts: Raw) -> tuple[bytes, int, bool]:
    """The first prompt flattened, the bytes of all, and whether they are token ids.

    The chain of the first decides where, the load of all is charged. Raises `msgspec.ValidationError`.
    """
    if not prompts:
        return b"", 0, False
    start = bytes(memoryview(prompts)[:64]).translate(None, b" \t\r\n")
    if start[:1] != b"[":
        pieces: Pieces = []
        put_text(prompts, pieces)
        prompt = b"".join(pieces)
        return prompt, len(prompt), False
    if start[1:2] in b"-0123456789" and start[1:2]:
        prompt = token_ids(_decode_ids(prompts))
        return prompt, len(prompt), True
    if start[1:2] == b"[":
        lists = _decode_many_ids(prompts)
        return token_ids(lists[0]), 4 * sum(map(len, lists)), True
    texts: Pieces = []
    for text in _decode_texts(prompts):
        put_text(text, texts)
    return (bytes(texts[0]) if texts else b""), sum(map(len, texts)), False
