"""What the fleet plays: scripts of requests, each with the block ids that engines and routers need.

A script is a session: requests that follow one another, the next one a pause after the answer to
the one before. Prompts are known by chained ids only, in two sizes: the engine's 16-token blocks
and the picker's of 1,024 bytes, 256 tokens at the simulator's 4 bytes a token.
"""

from array import array
from typing import Protocol

from picker.prefix.blocks import BLOCK_BYTES
from picker.sim.profiles import BLOCK_TOKENS
from picker.sim.prompts import BYTES_PER_TOKEN, Chain, Session

PICKER_BLOCK_TOKENS = BLOCK_BYTES // BYTES_PER_TOKEN
"""Tokens in a block of the picker's index."""


class SimRequest:
    """One request on its way to a replica.

    `ids`: the session's chain of 16-token blocks; it may go on beyond this prompt, whose full
    blocks are the first `prompt_blocks`. `block_hashes`: those of the picker, of this prompt alone.
    """

    __slots__ = (
        "block_hashes",
        "ids",
        "measured",
        "model",
        "number",
        "output_tokens",
        "prompt_tokens",
        "session",
        "streaming",
    )

    def __init__(
        self,
        *,
        number: int,
        session: int,
        model: str,
        prompt_tokens: int,
        output_tokens: int,
        ids: "array[int]",
        block_hashes: "array[int]",
        streaming: bool,
        measured: bool = True,
    ) -> None:
        self.number = number
        self.session = session
        self.model = model
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.ids = ids
        self.block_hashes = block_hashes
        self.streaming = streaming
        self.measured = measured

    @property
    def prompt_blocks(self) -> int:
        """Full 16-token blocks of the prompt."""
        return min(self.prompt_tokens // BLOCK_TOKENS, len(self.ids))


class Script(Protocol):
    """A session as the fleet plays it."""

    at_seconds: float
    """When its first request arrives, from the run's start."""

    def request(self, number: int) -> SimRequest:
        """The next request, as the fleet's `number`-th."""

    def pause_seconds(self) -> float | None:
        """From the last answer to the next request; `None`: the session is over."""


class SessionScript:
    """A generated or traced session."""

    __slots__ = ("_coarse", "_fine", "_next", "_session", "_warm_turns", "at_seconds")

    def __init__(self, session: Session, warm_turns: int = 0) -> None:
        """Its first `warm_turns` turns are not measured."""
        self._warm_turns = warm_turns
        self.at_seconds = session.at_seconds
        self._session = session
        self._next = 0
        self._fine = Chain(BLOCK_TOKENS)
        self._coarse = Chain(PICKER_BLOCK_TOKENS)

    def request(self, number: int) -> SimRequest:
        """The next turn: all that was said, and its own segments."""
        turn = self._session.turns[self._next]
        self._next += 1
        fine, coarse = self._fine, self._coarse
        for segment in turn.segments:
            fine.append(segment)
            coarse.append(segment)
        prompt_tokens = fine.tokens
        hashes = coarse.ids[:]
        fine.append(turn.answer)  # what the engine will have cached behind the prompt
        coarse.append(turn.answer)
        return SimRequest(
            number=number,
            session=self._session.id,
            model="simulated",
            prompt_tokens=prompt_tokens,
            output_tokens=turn.answer.tokens,
            ids=fine.ids,
            block_hashes=hashes,
            streaming=turn.streaming,
            measured=self._next > self._warm_turns,
        )

    def pause_seconds(self) -> float | None:
        """Before the next turn."""
        turns = self._session.turns
        return turns[self._next].pause_seconds if self._next < len(turns) else None
