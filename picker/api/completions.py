"""POST .../completions (OpenAI): text, a list of texts, token ids, or lists of token ids."""

import msgspec

from picker.api.request import InferenceRequest, flatten, token_ids

Prompts = str | list[str | int | list[int]] | None


class _Body(msgspec.Struct):
    prompt: Prompts = None
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


def flatten_prompts(prompts: Prompts) -> tuple[bytes, int, bool]:
    """The first prompt flattened, the bytes of all, and whether they are token ids.

    The chain of the first decides where, the load of all is charged.
    """
    if prompts is None:
        return b"", 0, False
    if isinstance(prompts, str):
        prompt = flatten((prompts,))
        return prompt, len(prompt), False
    first = prompts[0] if prompts else ""
    if isinstance(first, int):
        prompt = token_ids([each for each in prompts if isinstance(each, int)])
        return prompt, len(prompt), True
    if isinstance(first, list):
        total = 4 * sum(len(each) for each in prompts if isinstance(each, list))
        return token_ids(first), total, True
    total = sum(len(flatten((each,))) for each in prompts if isinstance(each, str))
    return flatten((first,)), total, False
