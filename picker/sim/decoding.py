"""The sequences of a model server, and those of them that decode: one token each in every step.

A batch that stays as it is needs no work a step. It counts steps, and keeps what it is asked
for in a form that steps do not touch: the blocks that sequences grow into by phase (a
sequence needs one every 16 steps, always in the same residue), ends in a heap by step
number, the context as a sum that grows by the batch's size. What a sequence has is its state
when it joined, and the steps since.
"""

from array import array
from heapq import heapify, heappop, heappush

from picker.sim.block_cache import BlockRun
from picker.sim.profiles import BLOCK_TOKENS

NO_IDS: "array[int]" = array("Q")


class EngineRequest:
    """One request as the engine sees it.

    `ids`: chained ids of the 16-token blocks of the prompt and, as far as anybody may ask for them
    again, of the answer behind it. It may go on beyond both (a session's whole chain); the
    engine reads no further than the tokens it computed, and never writes.
    """

    __slots__ = ("ids", "name", "output_tokens", "prompt_tokens")

    def __init__(self, name: object, prompt_tokens: int, output_tokens: int, ids: "array[int]" = NO_IDS) -> None:
        self.name = name
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.ids = ids


class DecodingSequence:
    """A request in the engine: where its computation stands."""

    __slots__ = (
        "cached_tokens",
        "computed_tokens",
        "decoding_since",
        "end",
        "generated_tokens",
        "held_blocks",
        "order",
        "request",
        "target_tokens",
        "tree_blocks",
    )

    def __init__(self, request: EngineRequest) -> None:
        self.request = request
        self.order = 0  # of its last admission
        self.end: BlockRun | None = None
        self.cached_tokens: int | None = None
        self.target_tokens = request.prompt_tokens  # to compute before the next new token
        self.generated_tokens = 0  # when decoding: as of the step `decoding_since`
        self.computed_tokens = 0
        self.held_blocks = 0  # in runs and private; when decoding: as of the step `decoding_since`
        self.tree_blocks = 0  # of them, the leading ones that stand in runs
        self.decoding_since: int | None = None


class DecodingBatch:
    """As of step number `step`: how many decode, what they attend to, when they need blocks and end."""

    def __init__(self) -> None:
        self.step = 0
        self.size = 0
        self.context_tokens = 0
        self._phases = [0] * BLOCK_TOKENS  # how many need a block in the steps that are the index modulo 16
        self._ends: list[tuple[int, int, DecodingSequence]] = []  # (step after which it has its last token, order, who)

    @property
    def steps_to_next_end(self) -> int:
        """Until somebody has its last token. The batch must not be empty."""
        return self._ends[0][0] - self.step

    @property
    def blocks_for_next_step(self) -> int:
        """Blocks that the next step needs."""
        return self._phases[(self.step + 1) % BLOCK_TOKENS]

    def blocks_for(self, steps: int) -> int:
        """Blocks that the next `steps` steps need."""
        rounds, rest = divmod(steps, BLOCK_TOKENS)
        count = rounds * self.size
        for step in range(self.step + 1, self.step + 1 + rest):
            count += self._phases[step % BLOCK_TOKENS]
        return count

    def steps_that_fit(self, steps: int, free_blocks: int) -> int:
        """At most `steps`, as many as the free blocks allow; at least one. The batch must not be empty."""
        if self.size * (steps // BLOCK_TOKENS + 1) <= free_blocks:
            return steps
        rounds = min(free_blocks // self.size, steps // BLOCK_TOKENS)
        fit = rounds * BLOCK_TOKENS
        need = rounds * self.size
        while fit < steps:
            need += self._phases[(self.step + fit + 1) % BLOCK_TOKENS]
            if need > free_blocks:
                break
            fit += 1
        return max(fit, 1)

    def join(self, sequence: DecodingSequence, steps: int) -> None:
        """Its prompt is computed; it decodes for `steps` steps from the next one on."""
        sequence.decoding_since = self.step
        self.size += 1
        self.context_tokens += sequence.target_tokens
        self._phases[(self.step + 1 - sequence.target_tokens) % BLOCK_TOKENS] += 1
        heappush(self._ends, (self.step + steps, sequence.order, sequence))

    def advance(self, steps: int) -> None:
        """So many steps are computed."""
        self.step += steps
        self.context_tokens += steps * self.size

    def pop_ended(self) -> list[DecodingSequence]:
        """Those that have their last token, off the batch."""
        ended = []
        while self._ends and self._ends[0][0] <= self.step:
            sequence = heappop(self._ends)[2]
            self._leave(sequence)
            ended.append(sequence)
        return ended

    def remove(self, sequence: DecodingSequence) -> None:
        """One that does not get its last token now: preempted or aborted."""
        self._leave(sequence)
        self._ends = [entry for entry in self._ends if entry[2] is not sequence]
        heapify(self._ends)

    def _leave(self, sequence: DecodingSequence) -> None:
        """Its counts become plain numbers again."""
        since = sequence.decoding_since
        assert since is not None
        self.size -= 1
        self._phases[(since + 1 - sequence.target_tokens) % BLOCK_TOKENS] -= 1
        sequence.decoding_since = None
        sequence.generated_tokens += self.step - since
        sequence.computed_tokens += self.step - since
        sequence.held_blocks = -(-sequence.computed_tokens // BLOCK_TOKENS)
        self.context_tokens -= sequence.computed_tokens

    def check(self, sequences: list[DecodingSequence]) -> int:
        """Assert that the counts are those of `sequences`, the decoding ones; returns their blocks outside runs."""
        phases = [0] * BLOCK_TOKENS
        context = private = 0
        for sequence in sequences:
            assert sequence.decoding_since is not None
            computed = sequence.computed_tokens + self.step - sequence.decoding_since
            phases[(self.step + 1 - computed) % BLOCK_TOKENS] += 1
            context += computed
            private += -(-computed // BLOCK_TOKENS) - sequence.tree_blocks
        assert (phases, context, len(sequences)) == (self._phases, self.context_tokens, self.size)
        assert len(self._ends) == self.size
        return private
