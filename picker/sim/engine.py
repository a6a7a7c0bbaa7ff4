"""A model server as a discrete-event model: continuous batching, paged KV cache, prefix caching.

No I/O and no clock: time is passed in, in seconds of whatever clock the caller keeps. The rules
are vLLM's V1 scheduler's (vllm/v1/core/sched/scheduler.py), first come first served:

* a step computes one token for every decoding sequence, and with what is left of the token
  budget the prompt that is partly done, then new ones from the queue: chunked prefill;
* a prompt is admitted when its uncached blocks are free; its full blocks can be hit by others from
  the step on in which they are computed; a hit never covers the prompt's last token;
* the step that computes a prompt's last token yields the first token of the answer;
* where a decoding sequence needs a block and none is free, the sequence admitted last is
  preempted: its blocks become idle, it queues in front and computes prompt and answer again;
* an abort takes effect between two steps.

What a step lasts is the profile's formula. While the batch stays as it is, any number of decode
steps is one event: their times are a closed form, the rest is in `decoding`. So the cost is by
arrivals, prompts' chunks and ends, not by tokens, and nothing is approximated by it.

Use: `submit` and `abort` at a time to which the model was advanced; `next_event_at` says when to
`advance` again. Deviations from vLLM: blocks of a whole prompt are allocated at admission
(vLLM with `scheduler_reserve_full_isl` checks for them all and allocates by chunk), a block
that is not full when its request ends goes to the front of the free queue, not to the back.
"""

from array import array
from collections import deque
from collections.abc import Callable
from enum import Enum
from math import sqrt

from picker.sim.block_cache import BlockCache
from picker.sim.decoding import DecodingBatch, DecodingSequence, EngineRequest
from picker.sim.profiles import BLOCK_TOKENS, Profile

__all__ = ["EngineRequest", "Event", "Kind", "ModelServer"]


class Kind(Enum):
    """What happened to a request."""

    FIRST_TOKEN = "first_token"
    FINISHED = "finished"
    PREEMPTED = "preempted"


class Event:
    """Something that happened to the request `name` at `at`, seconds.

    `cached_tokens`: how much of the prompt was cached at its first admission.
    """

    __slots__ = ("at", "cached_tokens", "kind", "name")

    def __init__(self, at: float, kind: Kind, name: object, cached_tokens: int) -> None:
        self.at = at
        self.kind = kind
        self.name = name
        self.cached_tokens = cached_tokens

    def __repr__(self) -> str:
        return f"<{self.kind.value} {self.name} at {self.at:.6f}>"


def _admission_order(sequence: DecodingSequence) -> int:
    return sequence.order


class ModelServer:
    """One replica."""

    def __init__(self, profile: Profile, now: float = 0.0) -> None:
        self.profile = profile
        self.cache = BlockCache(profile.blocks)
        self.on_stored: Callable[[object, array[int], int, int], None] | None = None
        """Is told the full blocks `start..stop` of a request's ids: what an engine's KV events say."""
        self.prefix_queries_tokens = 0
        self.prefix_hits_tokens = 0
        self.prompt_tokens_total = 0
        self.preemptions_total = 0
        self.busy_seconds = 0.0
        self._generated_total = 0
        self._sequences: dict[object, DecodingSequence] = {}
        self._waiting: deque[DecodingSequence] = deque()
        self._running: dict[DecodingSequence, None] = {}  # in order of admission
        self._partial: DecodingSequence | None = None
        self._aborted: list[DecodingSequence] = []
        self._order = 0
        self._batch = DecodingBatch()
        # What is being computed: `_steps` decode steps, or one mixed step with `_chunks` of prompts.
        self._started_at = now
        self._until: float | None = None
        self._steps = 0
        self._first_step_seconds = 0.0
        self._chunks: list[tuple[DecodingSequence, int]] = []
        self._grown_blocks = 0  # taken already: what the batch grows into in the first of these steps

    # Gauges and counters, as of the last `advance`; those with a time, at that time.

    @property
    def waiting(self) -> int:
        """Requests that wait for admission."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Admitted requests: prefilling and decoding."""
        return len(self._running)

    def utilization(self, now: float) -> float:
        """Share of KV blocks in use, 0..1."""
        growing = self._batch.blocks_for(min(self._steps_done(now) + 1, self._steps)) - self._grown_blocks
        return self.cache.utilization + growing / self.cache.total

    def generation_tokens_total(self, now: float) -> int:
        """Tokens generated so far."""
        return self._generated_total + self._steps_done(now) * self._batch.size

    def generated_tokens(self, name: object, now: float) -> int:
        """Tokens that a request in the engine has so far."""
        sequence = self._sequences[name]
        if sequence.decoding_since is None:
            return sequence.generated_tokens
        return sequence.generated_tokens + self._batch.step + self._steps_done(now) - sequence.decoding_since

    def __contains__(self, name: object) -> bool:
        return name in self._sequences

    # What the caller does.

    def submit(self, now: float, request: EngineRequest) -> None:
        """A request arrives. Raises `ValueError` when it could never fit."""
        if request.prompt_tokens < 1 or request.output_tokens < 1:
            raise ValueError(f"request {request.name}: prompt and output need at least one token each")
        if request.prompt_tokens + request.output_tokens > self.cache.total * BLOCK_TOKENS:
            raise ValueError(
                f"request {request.name}: {request.prompt_tokens} + {request.output_tokens} tokens "
                f"exceed the KV cache of {self.cache.total * BLOCK_TOKENS}"
            )
        sequence = DecodingSequence(request)
        self._sequences[request.name] = sequence
        blocked = bool(self._waiting)
        self._waiting.append(sequence)
        if self._until is None:
            self._plan(now, [])
        elif not blocked and len(self._running) < self.profile.sequences_max:
            self._cut(now)

    def abort(self, now: float, name: object) -> None:
        """The client of a request is gone. Unknown names are fine: it may just have ended."""
        sequence = self._sequences.pop(name, None)
        if sequence is None:
            return
        if sequence in self._running:
            self._aborted.append(sequence)
        else:
            self._waiting.remove(sequence)
        self._cut(now)

    def next_event_at(self) -> float | None:
        """When `advance` has something to do again; `None` while nothing is being computed."""
        return self._until

    def advance(self, now: float) -> list[Event]:
        """Everything that happens up to and with `now`, in order."""
        events: list[Event] = []
        until = self._until
        while until is not None and until <= now:
            self._settle(until, events)
            self._plan(until, events)
            until = self._until
        return events

    # The step in progress.

    def _at(self, steps: int) -> float:
        """When the first `steps` of the planned decode steps are over."""
        growth = self.profile.context_token_seconds * self._batch.size * (steps * (steps - 1) // 2)
        return self._started_at + steps * self._first_step_seconds + growth

    def _steps_done(self, now: float) -> int:
        """Planned decode steps that are over at `now`; 0 within a mixed step and when idle."""
        if self._chunks or self._until is None:
            return 0
        elapsed = now - self._started_at
        if elapsed < self._first_step_seconds:
            return 0
        square = self.profile.context_token_seconds * self._batch.size / 2
        linear = self._first_step_seconds - square
        steps = int(2 * elapsed / (linear + sqrt(linear * linear + 4 * square * elapsed)))
        while self._at(steps + 1) <= now:
            steps += 1
        while steps and self._at(steps) > now:
            steps -= 1
        return min(steps, self._steps)

    def _cut(self, now: float) -> None:
        """Let the batch change at the end of the step in progress, not at the end of all planned."""
        if self._until is not None and not self._chunks:
            steps = self._steps_done(now) + 1
            if steps < self._steps:
                self._steps = steps
                self._until = self._at(steps)

    def _settle(self, at: float, events: list[Event]) -> None:
        """What was planned is computed: count it, emit first tokens and ends."""
        self.busy_seconds += at - self._started_at
        steps = self._steps
        self.cache.take(self._batch.blocks_for(steps) - self._grown_blocks)
        self._generated_total += steps * self._batch.size
        self._batch.advance(steps)
        ended: list[DecodingSequence] = []
        for sequence, tokens in self._chunks:
            sequence.computed_tokens += tokens
            if sequence.computed_tokens == sequence.target_tokens and self._prompt_done(sequence, at, events):
                ended.append(sequence)
        self._chunks = []
        ended += self._batch.pop_ended()
        if len(ended) > 1:
            ended.sort(key=_admission_order)  # who is released first is evicted first
        for sequence in ended:
            self._finish(sequence, at, events)

    def _prompt_done(self, sequence: DecodingSequence, at: float, events: list[Event]) -> bool:
        """Its next token is there. True if that was all it asked for; else it joins the batch."""
        request = sequence.request
        first = not sequence.generated_tokens
        sequence.generated_tokens += 1
        self._generated_total += 1
        if self._partial is sequence:
            self._partial = None
        if first:
            self.prompt_tokens_total += request.prompt_tokens
            if self._sequences.get(request.name) is sequence:
                events.append(Event(at, Kind.FIRST_TOKEN, request.name, sequence.cached_tokens or 0))
        missing = request.output_tokens - sequence.generated_tokens
        if not missing:
            return True
        self._batch.join(sequence, missing)
        return False

    def _finish(self, sequence: DecodingSequence, at: float, events: list[Event]) -> None:
        self._let_go(sequence)
        name = sequence.request.name
        if self._sequences.get(name) is sequence:
            del self._sequences[name]
            events.append(Event(at, Kind.FINISHED, name, sequence.cached_tokens or 0))

    def _let_go(self, sequence: DecodingSequence) -> None:
        """Off the running ones; what it computed stays cached and idle."""
        self._commit(sequence)
        self.cache.release(sequence.end)
        self.cache.give_back(sequence.held_blocks - sequence.tree_blocks)
        sequence.end = None
        sequence.held_blocks = sequence.tree_blocks = 0
        del self._running[sequence]
        if self._partial is sequence:
            self._partial = None

    def _commit(self, sequence: DecodingSequence) -> None:
        """The full blocks of what is computed become cached ones."""
        self._cache_up_to(sequence, sequence.computed_tokens)

    def _cache_up_to(self, sequence: DecodingSequence, tokens: int) -> None:
        ids = sequence.request.ids
        full = min(tokens // BLOCK_TOKENS, len(ids))
        if full > sequence.tree_blocks:
            sequence.end = self.cache.commit(sequence.end, ids, sequence.tree_blocks, full)
            if self.on_stored is not None:
                self.on_stored(sequence.request.name, ids, sequence.tree_blocks, full)
            sequence.tree_blocks = full

    # The next step.

    def _plan(self, at: float, events: list[Event]) -> None:
        """Decide what is computed from `at` on."""
        if self._aborted:
            self._drop_aborted()
        preempted = self._make_room(at, events)
        # Running sequences come first, as in vLLM: what they evict, the queue no longer hits.
        self._grown_blocks = self._batch.blocks_for_next_step
        self.cache.take(self._grown_blocks)
        chunks, pairs = self._fill(admit=not preempted)
        self._started_at = at
        self._chunks = chunks
        profile, batch = self.profile, self._batch
        if chunks:
            self._steps = 1
            duration = profile.duration(
                prefill_tokens=sum(tokens for _, tokens in chunks),
                token_pairs=pairs,
                sequences=batch.size,
                context_tokens=batch.context_tokens,
            )
            self._until = at + duration
        elif batch.size:
            self._first_step_seconds = profile.duration(sequences=batch.size, context_tokens=batch.context_tokens)
            free = self.cache.free + self._grown_blocks
            self._steps = 1 if preempted else batch.steps_that_fit(batch.steps_to_next_end, free)
            self._until = self._at(self._steps)
        else:
            assert not self._running and not self._waiting
            self._steps = 0
            self._until = None

    def _drop_aborted(self) -> None:
        gone = [sequence for sequence in self._aborted if sequence in self._running]
        self._aborted = []
        for sequence in gone:
            self._unschedule(sequence)

    def _unschedule(self, sequence: DecodingSequence) -> None:
        if sequence.decoding_since is not None:
            self._batch.remove(sequence)
        self._let_go(sequence)

    def _make_room(self, at: float, events: list[Event]) -> bool:
        """Preempt until every decoding sequence has a block for its next token."""
        preempted = False
        while self._batch.blocks_for_next_step > self.cache.free:
            victim = next(reversed(self._running))
            self._unschedule(victim)
            victim.target_tokens = victim.request.prompt_tokens + victim.generated_tokens
            victim.computed_tokens = 0
            self._waiting.appendleft(victim)
            self.preemptions_total += 1
            events.append(Event(at, Kind.PREEMPTED, victim.request.name, victim.cached_tokens or 0))
            preempted = True
        return preempted

    def _fill(self, *, admit: bool) -> tuple[list[tuple[DecodingSequence, int]], float]:
        """Prompts' chunks for the next step, and their token pairs."""
        partial = self._partial
        if partial is None and not (admit and self._waiting):
            return [], 0.0
        budget = self.profile.batch_tokens_max - self._batch.size
        chunks: list[tuple[DecodingSequence, int]] = []
        pairs = 0.0
        if partial is not None:
            pairs += self._schedule(partial, budget, chunks)
            budget -= chunks[-1][1]
        while admit and self._waiting and budget > 0 and len(self._running) < self.profile.sequences_max:
            if not self._admit(self._waiting[0]):
                break
            sequence = self._waiting.popleft()
            pairs += self._schedule(sequence, budget, chunks)
            budget -= chunks[-1][1]
        return chunks, pairs

    def _admit(self, sequence: DecodingSequence) -> bool:
        """Hold what is cached and allocate the rest, or leave everything as it is."""
        tokens = sequence.target_tokens
        ids = sequence.request.ids
        match = self.cache.match(ids, min((tokens - 1) // BLOCK_TOKENS, len(ids)))
        blocks = -(-tokens // BLOCK_TOKENS)
        if blocks - match.blocks + match.idle_blocks > self.cache.free:
            return False
        sequence.end = self.cache.hold(match)
        self.cache.take(blocks - match.blocks)
        sequence.held_blocks = blocks
        sequence.tree_blocks = match.blocks
        sequence.computed_tokens = match.blocks * BLOCK_TOKENS
        if sequence.cached_tokens is None:
            sequence.cached_tokens = sequence.computed_tokens
            self.prefix_queries_tokens += tokens
            self.prefix_hits_tokens += sequence.computed_tokens
        self._order += 1
        sequence.order = self._order
        self._running[sequence] = None
        return True

    def _schedule(self, sequence: DecodingSequence, budget: int, chunks: list[tuple[DecodingSequence, int]]) -> float:
        """Put the next chunk of a prompt into the step; returns its token pairs."""
        start = sequence.computed_tokens
        tokens = min(sequence.target_tokens - start, budget)
        chunks.append((sequence, tokens))
        self._partial = sequence if start + tokens < sequence.target_tokens else None
        # Others may hit these blocks from now on, as in vLLM, where they are cached when scheduled.
        self._cache_up_to(sequence, start + tokens)
        return tokens * (start + tokens / 2)

    def check(self) -> None:
        """Assert the invariants. For tests and simulations; costs time."""
        decoding = [sequence for sequence in self._running if sequence.decoding_since is not None]
        private = self._grown_blocks + self._batch.check(decoding)
        for sequence in self._running:
            if sequence.decoding_since is None:
                private += sequence.held_blocks - sequence.tree_blocks
        assert not set(self._running) & set(self._waiting)
        assert len(self._running) <= self.profile.sequences_max
        assert (self._until is None) == (not self._running and not self._waiting)
        self.cache.check(private)
