"""What a workload asks, without text: sessions of turns, prompts as segments; and how to get ids or text from them.

A segment is a piece of text known by a number: `id` names an endless text, `tokens` says how
much of it is meant. A prompt is a sequence of segments. Two prompts agree as far as their segments
do; where the same id follows the same head with different lengths, as far as the shorter one
goes. Both readings of a segment keep that:

* `Chain` gives the ids of a prompt's blocks, chained: equal id, equal prefix up to and with the block;
* `text_of` gives text of 4 bytes a token, of which a longer one begins with every shorter one.

A session is closed within itself: a turn is asked `pause_seconds` after the answer to the
one before. Its prompt is everything said so far, answers included, and the turn's own segments.
"""

from array import array
from collections.abc import Iterator
from enum import StrEnum
from functools import lru_cache
from hashlib import shake_128
from struct import pack

import msgspec
from xxhash import xxh3_64_intdigest

BYTES_PER_TOKEN = 4
_BASE_MASK = (1 << 63) - 1  # room for base + block number in 64 bits


class Role(StrEnum):
    """The role that says a segment, as in a chat completion's messages."""

    SYSTEM = "system"
    USER = "user"
    TOOL = "tool"
    ASSISTANT = "assistant"


class Segment(msgspec.Struct, frozen=True, gc=False):
    """The first `tokens` tokens of the text `id`."""

    id: int
    tokens: int
    role: Role = Role.USER


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One request: what is said anew, and the answer it gets."""

    segments: tuple[Segment, ...]
    answer: Segment
    """Its `tokens` are the request's output tokens."""
    pause_seconds: float = 0.0
    """After the previous answer's end; of the first turn, after the session's start."""
    streaming: bool = True


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """Turns that follow one another. `at_seconds` counts from the workload's start."""

    id: int
    at_seconds: float
    turns: tuple[Turn, ...]


class Chain:
    """Chained block ids of a growing prompt.

    `ids[i]` stands for the first `(i + 1) * block_tokens` tokens: equal if and only if those
    tokens are, but for collisions of 63-bit hashes. Appending never changes what is there, so a
    session keeps one chain for all its turns. Costs one hash a segment.
    """

    __slots__ = ("_base", "block_tokens", "ids", "tokens")

    def __init__(self, block_tokens: int, seed: int = 0) -> None:
        self.block_tokens = block_tokens
        self.ids: array[int] = array("Q")
        self.tokens = 0
        self._base = seed

    def append(self, segment: Segment) -> None:
        """Continue the prompt."""
        self._base = xxh3_64_intdigest(pack("=QQQ", self._base, self.tokens, segment.id)) & _BASE_MASK
        self.tokens += segment.tokens
        self.ids.extend(range(self._base + len(self.ids), self._base + self.tokens // self.block_tokens))


def prompts(session: Session) -> Iterator[tuple[Turn, list[Segment]]]:
    """Each turn with its whole prompt, as segments. The list is the same, growing one: copy it to keep it."""
    said: list[Segment] = []
    for turn in session.turns:
        said.extend(turn.segments)
        yield turn, said
        said.append(turn.answer)


_LETTERS = b"etaoinshrdlucmfw" * 12 + b" " * 64
"""What each of 256 byte values becomes: lower-case letters, and a space in four."""


def text_of(segment_id: int, tokens: int) -> str:
    """The first `tokens` tokens of a text: 4 ASCII bytes each, the same on every machine."""
    return shake_128(pack("=q", segment_id)).digest(tokens * BYTES_PER_TOKEN).translate(_LETTERS).decode("ascii")


@lru_cache(maxsize=128)
def _text_once(segment_id: int, tokens: int) -> str:
    """A document is said in many sessions: write it once."""
    return text_of(segment_id, tokens)


def say(said: list[dict[str, str]], segment: Segment) -> None:
    """Add a segment to a chat completion's messages: to the last one where the same role goes on.

    A tool's output is a user's message: the `tool` role needs call ids that mean nothing here.
    """
    role = str(Role.USER if segment.role is Role.TOOL else segment.role)
    text = _text_once(segment.id, segment.tokens)
    if said and said[-1]["role"] == role:
        said[-1] = {"role": role, "content": said[-1]["content"] + text}
    else:
        said.append({"role": role, "content": text})
