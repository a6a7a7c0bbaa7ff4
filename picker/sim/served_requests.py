"""What a simulated model server understands of a request: tokens, block ids, how the answer is wanted.

A token is 4 bytes of the flattened prompt (an integer where the prompt is token ids). Blocks of
16 tokens are hashed in a chain from the model's name and `cache_salt`, as an engine does. The
template is this server's own, on purpose: a router that guesses an engine's template must cope
with a different one. Tools come first, then messages in order, then the cue for the answer, which
the answer follows: the next turn's prompt begins with this turn's prompt and answer.
"""

from array import array
from typing import Any

import msgspec
from xxhash import xxh3_64_intdigest

from picker.sim.prompts import BYTES_PER_TOKEN, text_of

BLOCK_BYTES = 16 * BYTES_PER_TOKEN
OUTPUT_TOKENS_DEFAULT = 128
"""Where a request names no limit, the answer ends by itself after so many."""


class BadRequest(ValueError):
    """A request that the server refuses: status, vLLM's error type and the parameter at fault."""

    def __init__(self, status: int, kind: str, message: str, param: str | None) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.param = param


class ServedPart(msgspec.Struct):
    """A content part; what is no text counts as its JSON."""

    type: str = "text"
    text: str | None = None


class ServedMessage(msgspec.Struct):
    role: str
    content: str | list[ServedPart] | None = None


class ServedStreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class _Common(msgspec.Struct):
    model: str | None = None
    stream: bool | None = None
    stream_options: ServedStreamOptions | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    cache_salt: str | None = None


class ServedChatBody(_Common):
    """`/v1/chat/completions`."""

    messages: list[ServedMessage] = []
    tools: msgspec.Raw = msgspec.Raw()


class CompletionBody(_Common):
    """`/v1/completions`."""

    prompt: str | list[str | int | list[int]] | None = None


class ServedSequence(msgspec.Struct):
    """One prompt to run, and its answer."""

    prompt_tokens: int
    ids: Any
    """`array('Q')`: block ids of the prompt and of the answer behind it."""
    answer: str


class ServedRequest(msgspec.Struct):
    """A whole request: one sequence a prompt."""

    chat: bool
    model: str
    sequences: list[ServedSequence]
    output_tokens: int
    finish_reason: str
    stream: bool
    include_usage: bool


_chat_decoder = msgspec.json.Decoder(ServedChatBody)
_completion_decoder = msgspec.json.Decoder(CompletionBody)


def parse(chat: bool, raw: bytes, models: tuple[str, ...], context_tokens_max: int) -> ServedRequest:
    """What `raw` asks for. Raises `BadRequest`."""
    body = _decode(chat, raw)
    model = _model(body, models)
    limit = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
    if limit is not None and limit < 1:
        raise BadRequest(400, "BadRequestError", f"max_tokens must be at least 1, got {limit}.", "max_tokens")
    if limit is not None and limit > context_tokens_max:
        message = f"max_tokens={limit} cannot be greater than max_model_len={context_tokens_max}."
        raise BadRequest(400, "BadRequestError", message, "max_tokens")
    output_tokens = OUTPUT_TOKENS_DEFAULT if limit is None else limit
    prompts = _prompts(body)
    for prompt in prompts:
        tokens = -(-len(prompt) // BYTES_PER_TOKEN)
        if tokens + output_tokens > context_tokens_max:
            message = (
                f"This model's maximum context length is {context_tokens_max} tokens. However, you requested "
                f"{output_tokens} output tokens and your prompt contains {tokens} input tokens."
            )
            raise BadRequest(400, "BadRequestError", message, "input_tokens")
    seed = _chain_seed(model, body.cache_salt)
    return ServedRequest(
        chat=chat,
        model=model,
        sequences=[_sequence(prompt, seed, output_tokens) for prompt in prompts],
        output_tokens=output_tokens,
        finish_reason="stop" if limit is None else "length",
        stream=bool(body.stream),
        include_usage=body.stream_options is not None and bool(body.stream_options.include_usage),
    )


def token_ids(chat: bool, raw: bytes, models: tuple[str, ...]) -> list[list[int]]:
    """The tokens of each prompt that `raw` asks for, as numbers: the last one filled up with zero bytes.

    A completion of these numbers is one of the same prompt. Raises `BadRequest`.
    """
    body = _decode(chat, raw)
    _model(body, models)
    return [list(array("I", prompt + bytes(-len(prompt) % BYTES_PER_TOKEN))) for prompt in _prompts(body)]


def _model(body: ServedChatBody | CompletionBody, models: tuple[str, ...]) -> str:
    model = models[0] if body.model is None else body.model
    if model not in models:
        message = f"The model `{model}` does not exist. Valid aliases: {', '.join(models)}."
        raise BadRequest(404, "NotFoundError", message, "model")
    return model


def _prompts(body: ServedChatBody | CompletionBody) -> list[bytes]:
    return [_chat_prompt(body)] if isinstance(body, ServedChatBody) else _completion_prompts(body)


def _decode(chat: bool, raw: bytes) -> ServedChatBody | CompletionBody:
    try:
        return _chat_decoder.decode(raw) if chat else _completion_decoder.decode(raw)
    except msgspec.ValidationError as error:
        raise BadRequest(400, "Bad Request", f"1 validation error:\n  {error}", "body") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(400, "Bad Request", f"1 validation error:\n  JSON decode error: {error}", "body") from error


def _chat_prompt(body: ServedChatBody) -> bytes:
    if not body.messages:
        raise BadRequest(400, "BadRequestError", "messages must not be empty", "messages")
    pieces = [f"<|tools|>\n{bytes(body.tools).decode()}\n"] if body.tools else []
    for message in body.messages:
        pieces.append(f"<|{message.role}|>\n")
        if isinstance(message.content, str):
            pieces.append(message.content)
        else:
            pieces.extend(part.text or f"<|{part.type}|>" for part in message.content or ())
        pieces.append("\n")
    pieces.append("<|assistant|>\n")
    return "".join(pieces).encode("utf-8", "surrogatepass")


def _completion_prompts(body: CompletionBody) -> list[bytes]:
    prompt = body.prompt
    if not prompt:
        raise BadRequest(400, "BadRequestError", "prompt must not be empty", "prompt")
    if isinstance(prompt, str):
        return [prompt.encode("utf-8", "surrogatepass")]
    if isinstance(prompt[0], int):
        return [_tokens_as_bytes(prompt)]
    return [one.encode("utf-8", "surrogatepass") if isinstance(one, str) else _tokens_as_bytes(one) for one in prompt]


def _tokens_as_bytes(tokens: Any) -> bytes:
    try:
        return array("I", tokens).tobytes()
    except (OverflowError, TypeError) as error:
        raise BadRequest(400, "BadRequestError", "a token id is out of range", "prompt") from error


def _chain_seed(model: str, cache_salt: str | None) -> int:
    return xxh3_64_intdigest(f"{len(model)}:{model}/{cache_salt!r}".encode())


def _sequence(prompt: bytes, seed: int, output_tokens: int) -> ServedSequence:
    prompt_tokens = max(1, -(-len(prompt) // BYTES_PER_TOKEN))
    # The same prompt gets the same answer on every replica.
    answer = text_of(xxh3_64_intdigest(prompt, seed) >> 1, output_tokens)
    return ServedSequence(prompt_tokens=prompt_tokens, ids=block_ids(prompt + answer.encode(), seed), answer=answer)


def block_ids(text: bytes, seed: int) -> "array[int]":
    """Chained ids of the full 16-token blocks of `text`."""
    view = memoryview(text)
    digest = xxh3_64_intdigest
    link = seed
    ids = array("Q")
    append = ids.append
    for start in range(0, len(text) - BLOCK_BYTES + 1, BLOCK_BYTES):
        link = digest(view[start : start + BLOCK_BYTES], link)
        append(link)
    return ids
