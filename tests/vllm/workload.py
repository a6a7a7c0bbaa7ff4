"""What is asked: documents with many questions each, and conversations, the same ones for the same seed.

Shared documents are asked in a random order over the whole time, so that a server that sees every
document has to hold all of them, and conversations come back turn by turn. Sizes are in tokens of
4 bytes, as everywhere in the simulator; `text_bytes` says how much text that is.
"""

from random import Random

import msgspec

from picker.sim.prompts import BYTES_PER_TOKEN, Role, Segment, Session, Turn, text_of

_TEXTS_OF_A_SEED = 1 << 24


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """How much of what. Times in seconds."""

    documents: int = 10
    document_tokens: int = 2000
    document_tokens_spread: int = 0
    """So many more or fewer: lengths that end anywhere in a block of the picker's, and of the engine's."""
    questions: int = 9
    """A document gets."""
    question_tokens: int = 30
    conversations: int = 12
    system_prompts: int = 3
    system_tokens: int = 300
    turns: int = 4
    turn_tokens: int = 80
    answer_tokens: int = 12
    seconds: float = 50.0
    """Over which questions are spread and conversations begin."""
    pause_seconds: tuple[float, float] = (2.0, 6.0)

    @property
    def requests(self) -> int:
        return self.documents * self.questions + self.conversations * self.turns


def sessions(seed: int, shape: Shape) -> list[Session]:
    """By rising start."""
    rng = Random(f"vllm/{seed}")
    numbers = iter(range((seed + 1) * _TEXTS_OF_A_SEED, (seed + 2) * _TEXTS_OF_A_SEED))

    def text(tokens: int, role: Role = Role.USER) -> Segment:
        return Segment(next(numbers), tokens, role)

    def answer() -> Segment:
        return text(shape.answer_tokens, Role.ASSISTANT)

    def document_tokens() -> int:
        spread = shape.document_tokens_spread
        return shape.document_tokens + (rng.randint(-spread, spread) if spread else 0)

    made = []
    for document in [text(document_tokens()) for _ in range(shape.documents)]:
        for _ in range(shape.questions):
            turn = Turn(segments=(document, text(shape.question_tokens)), answer=answer())
            made.append(Session(id=0, at_seconds=rng.uniform(0, shape.seconds), turns=(turn,)))
    systems = [text(shape.system_tokens, Role.SYSTEM) for _ in range(shape.system_prompts)]
    for number in range(shape.conversations):
        turns = tuple(
            Turn(
                segments=(*(systems[number % len(systems)],) * (not index), text(shape.turn_tokens)),
                answer=answer(),
                pause_seconds=rng.uniform(*shape.pause_seconds) if index else 0.0,
            )
            for index in range(shape.turns)
        )
        made.append(Session(id=0, at_seconds=rng.uniform(0, shape.seconds * 0.6), turns=turns))
    made.sort(key=lambda session: session.at_seconds)
    return [msgspec.structs.replace(session, id=number) for number, session in enumerate(made)]


def text_bytes(made: list[Session]) -> int:
    """Distinct text, each piece once: what a cache would hold that forgets nothing."""
    pieces: dict[int, int] = {}
    for session in made:
        for turn in session.turns:
            for segment in (*turn.segments, turn.answer):
                pieces[segment.id] = max(pieces.get(segment.id, 0), segment.tokens)
    return sum(pieces.values()) * BYTES_PER_TOKEN


def sample_text(made: list[Session]) -> str:
    """Some of it, to count its tokens."""
    first = max((turn.segments[0] for session in made for turn in session.turns), key=lambda segment: segment.tokens)
    return text_of(first.id, first.tokens)
