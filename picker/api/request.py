"""What the client asked for, in one neutral form for all API paths.

The flattened prompt puts text in the order an engine's template does: tools and system first,
then messages, each under its role, so that a conversation's next turn starts with the bytes of
this one. It keeps the client's JSON escapes. It is for hashing only: never sent, stored or logged.

A medium (image, audio, video) stands in it as the digest of its URL or data, repeated to
`MEDIUM_BYTES`: it weighs what its tokens weigh, and equal media match.
"""

import sys
from array import array
from typing import Final

from xxhash import xxh3_128_digest

BYTES_PER_TOKEN_ID: Final = 4.0
"""A token id in the flattened prompt: little-endian int32."""

SEQUENCES_MAX: Final = 1024
"""Of one request: engines run no more at a time (vLLM's `max_num_seqs`)."""

MEDIUM_BYTES: Final = 4000
"""1,000 tokens at 4 bytes each: about what a vision encoder makes of a 720p image."""


class InferenceRequest:
    """One request, understood. `pieces` may be empty: then only load counts.

    Made with `pieces`, or with a whole `prompt`.
    """

    __slots__ = (
        "api",
        "block_hashes",
        "cache_salt",
        "choices",
        "computes",
        "conversation_id",
        "exact_tokens",
        "has_media",
        "max_tokens",
        "model",
        "pieces",
        "previous_response_id",
        "prompt_bytes",
        "reads_cache",
        "reports_usage",
        "sequences",
        "session_id",
        "sized",
        "stream",
    )

    api: str
    """The API's name: a bounded label."""
    model: str | None
    pieces: list[bytes | memoryview]
    """The flattened first prompt, in pieces: views of the body where it is text. None of them is empty."""
    block_hashes: "array[int] | None"
    """Its chained block hashes where they are known and the text is not: recorded and simulated requests."""
    prompt_bytes: int
    """Bytes of all prompts together, flattened. Where the body was not parsed, an estimate from its size."""
    exact_tokens: bool
    """The prompt came as token ids: 4 bytes a token exactly."""
    has_media: bool
    stream: bool
    max_tokens: float | None
    """As the client wrote it: `10`, `10.0` and `1e1` are all valid, and so is nonsense below 0."""
    cache_salt: str | None
    previous_response_id: str | None
    """The stored response that this one continues, or the file that it reads: only the server that has it can."""
    conversation_id: str | None
    session_id: str | None
    """The client's own name for its session, in the body or the header that engines read: they echo it in KV events."""
    choices: int
    """Answers to each prompt (`n`)."""
    sequences: int
    """How many are decoded at a time: choices x prompts."""
    reports_usage: bool
    """Whether the answer is known to tell its counts, also as a stream."""
    reads_cache: bool
    """Whether the engine looks up its prefix cache for it; what the request leaves there serves others all the same."""
    sized: bool
    """Whether `prompt_bytes` are those of all the tokens that a usage counts as its input."""
    computes: bool
    """Whether it makes the engine compute. A listing that is answered does not say that the engine lives."""

    def __init__(
        self,
        *,
        api: str,
        model: str | None = None,
        prompt: bytes = b"",
        pieces: list[bytes | memoryview] | None = None,
        block_hashes: "array[int] | None" = None,
        prompt_bytes: int = 0,
        exact_tokens: bool = False,
        has_media: bool = False,
        stream: bool = False,
        max_tokens: float | None = None,
        cache_salt: str | None = None,
        previous_response_id: str | None = None,
        conversation_id: str | None = None,
        session_id: str | None = None,
        choices: int = 1,
        sequences: int | None = None,
        reports_usage: bool = True,
        reads_cache: bool = True,
        sized: bool = True,
        computes: bool = True,
    ) -> None:
        self.api = api
        self.model = model
        self.pieces = pieces if pieces is not None else [prompt] if prompt else []
        self.block_hashes = block_hashes
        self.prompt_bytes = prompt_bytes
        self.exact_tokens = exact_tokens
        self.has_media = has_media
        self.stream = stream
        self.max_tokens = max_tokens
        self.cache_salt = cache_salt
        self.previous_response_id = previous_response_id
        self.conversation_id = conversation_id
        self.session_id = session_id
        self.choices = choices
        self.sequences = choices if sequences is None else sequences
        self.reports_usage = reports_usage
        self.reads_cache = reads_cache
        self.sized = sized
        self.computes = computes

    @property
    def prompt(self) -> bytes:
        """The flattened first prompt, whole. Nothing that runs for each request needs it so."""
        return b"".join(self.pieces)


class InvalidBody(ValueError):
    """The body is not JSON. The text says where, never what it contains."""


def medium(raw: bytes | memoryview) -> bytes:
    """The place-holder of a medium in a flattened prompt: `MEDIUM_BYTES` bytes of its digest."""
    digest = xxh3_128_digest(raw)
    return (digest * (MEDIUM_BYTES // len(digest) + 1))[:MEDIUM_BYTES]


def token_ids(ids: list[int]) -> bytes:
    """Token ids as the flattened prompt of `exact_tokens`: little-endian, 4 bytes each."""
    try:
        words = array("I", ids)
    except OverflowError:  # no tokenizer's ids; they need only be told apart
        words = array("I", [each & 0xFFFFFFFF for each in ids])
    if sys.byteorder == "big":
        words.byteswap()
    return words.tobytes()
