"""How much of the index each endpoint gets: its engine's capacity times a factor that follows what is observed.

The index cannot know what an engine really keeps: answers, requests in flight and other clients take
of the same memory, and bytes per token are an estimate. But every answer tells something. Of a prompt
that was predicted to be cached and was not, the engine dropped more than the index: the factor falls.
Of one that the index had dropped (`forgotten`) and that was cached after all, the engine kept
more: it rises. Steady where both balance, which is about the best fixed size in all that was measured
(docs/routing.md).

What is seen of the second kind depends on chance: without a match a request goes to one of those
that may still hold it with the likelihood of their share, so such tokens weigh the inverse of it.

Cached tokens come from `usage`; where an engine does not report them there, from its counters between
two readings, as long as what they count is about what we sent (`counted`).

Not a sign of capacity: what was sent there within the last seconds (a burst of equal prompts misses what
is still being computed); differences below a block and a half (ours are larger than the engine's),
or a fiftieth of the prompt. A restart forgets everything.
"""

from math import exp
from typing import Final

FACTOR_MIN: Final = 0.5
FACTOR_MAX: Final = 2.0
GAIN: Final = 0.5
"""What a whole cache of wrongly predicted tokens changes of the factor's logarithm."""
STEP_MAX: Final = 0.05
"""The same of one observation."""
AGE_SECONDS_MIN: Final = 2.0
"""Younger entries may still be computed."""
FORGOTTEN_WEIGHT: Final = 0.25
"""Of a token that the index had dropped beside one that the engine had: to believe in what is gone costs more."""
LIKELIHOOD_MIN: Final = 1 / 64
"""Of having met a holder: less counts as this."""
SLACK_SHARE: Final = 0.02
APPLY_RATIO: Final = 1.02
"""A smaller change is not worth resizing for."""
COUNTED_MATCH: Final = 0.2
"""Counters are believed while what they count differs from what we sent by at most this share."""
COUNTED_TOKENS_MIN: Final = 20_000.0
"""What a window of counters must hold to say anything."""


class Expected:
    """What a pick was expected to find cached."""

    __slots__ = ("age_seconds", "forgotten", "likelihood", "prompt_tokens", "share", "slack_tokens", "slot")

    def __init__(
        self,
        slot: int,
        prompt_tokens: float,
        share: float,
        slack_tokens: float,
        age_seconds: float,
        forgotten: bool,
        likelihood: float,
    ) -> None:
        self.slot = slot
        self.prompt_tokens = prompt_tokens
        """As estimated."""
        self.share = share
        """Of the prompt's tokens."""
        self.slack_tokens = slack_tokens
        self.age_seconds = age_seconds
        """Since the entry was last used."""
        self.forgotten = forgotten
        """The index held more of it there, and dropped it for lack of room."""
        self.likelihood = likelihood
        """Of going to an endpoint of which that is true."""


class _Counted:
    """A slot's window of counters, and what was sent there in it."""

    __slots__ = ("expected", "forgotten", "hits", "queries", "sent")

    def __init__(self) -> None:
        self.queries: float | None = None
        self.hits: float | None = None
        self.clear()

    def clear(self) -> None:
        self.sent = 0.0
        self.expected = 0.0
        self.forgotten = 0.0


class IndexSizing:
    """A factor by slot. One event loop owns it."""

    def __init__(self) -> None:
        self._factors: dict[int, float] = {}
        self._applied: dict[int, float] = {}
        self._counted: dict[int, _Counted] = {}
        self._reported: set[int] = set()
        """Slots whose answers report cached tokens: their counters are not asked."""

    def factor(self, slot: int) -> float:
        """What to multiply the slot's share with; from now on counts as applied."""
        factor = self._factors.get(slot, 1.0)
        self._applied[slot] = factor
        return factor

    def known(self, slot: int) -> float:
        """The same, just to look."""
        return self._factors.get(slot, 1.0)

    def forget(self, slot: int) -> None:
        """Another endpoint, or an engine that started anew."""
        self._factors.pop(slot, None)
        self._applied.pop(slot, None)
        self._counted.pop(slot, None)
        self._reported.discard(slot)

    def observe(self, expected: Expected, input_tokens: int, cached_tokens: int, capacity_tokens: float) -> bool:
        """A response reported what was cached of its prompt. True if the slot's share is to be resized."""
        slot = expected.slot
        self._reported.add(slot)
        self._counted.pop(slot, None)
        error = cached_tokens - expected.share * input_tokens
        if abs(error) <= expected.slack_tokens + SLACK_SHARE * input_tokens:
            return False
        if error < 0.0:
            return expected.age_seconds >= AGE_SECONDS_MIN and self._move(slot, error / capacity_tokens)
        return expected.forgotten and self._move(slot, error * _chance(expected.likelihood) / capacity_tokens)

    def sent(self, expected: Expected, input_tokens: float) -> None:
        """A response came without cached tokens; the engine's counters may say what was cached."""
        if expected.slot in self._reported:
            return
        counted = self._counted.get(expected.slot)
        if counted is None:
            counted = self._counted[expected.slot] = _Counted()
        counted.sent += input_tokens
        counted.expected += expected.share * input_tokens
        if expected.forgotten:
            counted.forgotten += (1.0 - expected.share) * input_tokens * _chance(expected.likelihood)

    def counted(self, slot: int, queries: float | None, hits: float | None, capacity_tokens: float) -> bool:
        """A reading of the engine's counters, tokens looked up and found. True if the share is to be resized."""
        counted = self._counted.get(slot)
        if counted is None or queries is None or hits is None:
            return False
        if counted.queries is None or counted.hits is None:
            counted.queries, counted.hits = queries, hits
            counted.clear()
            return False
        looked_up, found = queries - counted.queries, hits - counted.hits
        if looked_up < COUNTED_TOKENS_MIN:
            return False
        counted.queries, counted.hits = queries, hits
        sent, expected, forgotten = counted.sent, counted.expected, counted.forgotten
        counted.clear()
        if abs(looked_up - sent) > COUNTED_MATCH * looked_up:
            return False  # others use this engine too, or ours are still under way
        error = found * sent / looked_up - expected
        if error < -SLACK_SHARE * sent:
            return self._move(slot, error / capacity_tokens)
        return forgotten > 0.0 and self._move(slot, min(max(0.0, error), forgotten) / capacity_tokens)

    def _move(self, slot: int, caches: float) -> bool:
        step = min(max(GAIN * caches, -STEP_MAX), STEP_MAX)
        factor = min(max(self._factors.get(slot, 1.0) * exp(step), FACTOR_MIN), FACTOR_MAX)
        self._factors[slot] = factor
        applied = self._applied.get(slot, 1.0)
        return (
            factor > applied * APPLY_RATIO
            or factor < applied / APPLY_RATIO
            or (factor != applied and factor in (FACTOR_MIN, FACTOR_MAX))
        )


def _chance(likelihood: float) -> float:
    return FORGOTTEN_WEIGHT / max(likelihood, LIKELIHOOD_MIN)
