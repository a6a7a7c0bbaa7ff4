"""What scorers see: the pool's loads (a row a quantity, a column a slot) and this request's numbers."""

from collections.abc import Sequence

import msgspec
import numpy as np

from picker.config import Routing
from picker.pool.snapshot import Column, Mask, bits_to_slots
from picker.prefix.blocks import BLOCK_BYTES
from picker.prefix.index import Match
from picker.scheduling import loads
from picker.scheduling.loads import Table

FEW = 8
"""Up to this many slots, walking a bitmask beats looking up its indices."""


class Columns(msgspec.Struct):
    """Input of every scorer; none may change it. Tokens are prompt or context tokens.

    The table is a copy of its moment, so that a decision can be explained later; the properties
    make columns of it when they are read.
    """

    prompt_tokens: float
    bytes_per_token: float
    """Of this prompt."""
    output_tokens: float
    """Of this request."""
    mean_output_tokens: float
    """Of the model's requests."""
    mean_uncached_tokens: float
    match: Match
    """Who is thought to hold how much of this prompt."""
    shared: Sequence[tuple[float, float]]
    """`(tokens from the start, weight)` of the stretches that many prompts share, in rising order."""
    table: Table
    """Of `loads.Loads`."""
    rate_inverse_range: tuple[float, float]
    """All of them lie within."""
    ready_bits: int
    capacity_tokens: Column
    waiting_requests: Column
    """NaN: unknown. Only `normalized` scoring reads it."""
    kv_cache_utilization: Column
    """The same."""
    routing: Routing
    adapter: tuple[Mask, Mask] | None = None
    """Where the request's LoRA adapter is loaded, and where no slot is free; `None`: it names no adapter."""
    gpu_utilization: Column | None = None
    """0..1, NaN: unknown; `None`: of every endpoint."""

    @property
    def width(self) -> int:
        """Slots."""
        return int(self.table.shape[1])

    @property
    def rate_inverse(self) -> Column:
        """Seconds per token to prefill."""
        return _row(self.table, loads.RATE_INVERSE)

    @property
    def requests(self) -> Column:
        """Of ours in flight."""
        return _row(self.table, loads.REQUESTS)

    @property
    def backlog_seconds(self) -> Column:
        """What is to be prefilled before this one: ours, and what the engine reports beyond it."""
        foreign = _row(self.table, loads.FOREIGN) * self.mean_uncached_tokens
        return foreign + _row(self.table, loads.BACKLOG_SECONDS)

    @property
    def step_seconds(self) -> Column:
        """How long a decode step takes with this request beside those in flight, beyond an empty one."""
        routing = self.routing
        context = _row(self.table, loads.CONTEXT_TOKENS) + self.prompt_tokens
        return routing.decode_seconds_per_sequence * (self.requests + 1) + routing.decode_seconds_per_token * context

    @property
    def over_tokens(self) -> Column:
        """KV cache that is in use beyond the capacity; below 0 there is room."""
        return _row(self.table, loads.OVER_TOKENS)

    @property
    def unmatched_tokens(self) -> Column:
        """What each endpoint would have to prefill; the shared part at its weight."""
        column: Column = np.full(self.width, self.unmatched(0.0))
        for bits, blocks in self.match.steps:
            put(column, bits, self.unmatched(self.held_tokens(blocks)))
        return column

    @property
    def new_tokens(self) -> Column:
        """KV cache that this request needs beyond what others hold there with it."""
        column: Column = np.full(self.width, self.prompt_tokens)
        for bits, blocks in self.match.steps if self.shared else ():
            put(column, bits, self.new(self.held_tokens(blocks)))
        return column

    @property
    def matched_share(self) -> Column:
        """Matched blocks over full blocks of the prompt, by slot."""
        column: Column = np.zeros(self.width)
        for bits, blocks in self.match.steps:
            put(column, bits, blocks / self.match.blocks)
        return column

    def held_tokens(self, blocks: int) -> float:
        """Of so many matched blocks, at most the prompt's."""
        tokens = blocks * BLOCK_BYTES / self.bytes_per_token
        return tokens if tokens < self.prompt_tokens else self.prompt_tokens

    def unmatched(self, held_tokens: float) -> float:
        """u_r of who holds this much; what many prompts share counts less: a copy of it serves the next ones too."""
        unmatched = self.prompt_tokens - held_tokens
        start = 0.0
        for end, weight in self.shared:
            if held_tokens < end:
                unmatched -= min(end - held_tokens, end - start) * (1.0 - weight)
            start = end
        return unmatched

    def new(self, held_tokens: float) -> float:
        """n_r of who holds this much: only what many share is held there by others at the same time."""
        return self.prompt_tokens - min(held_tokens, self.shared[-1][0]) if self.shared else self.prompt_tokens


def put(column: Column, bits: int, value: float) -> None:
    """Write `value` for the slots of a bitmask."""
    if bits.bit_count() > FEW:
        column[bits_to_slots(bits, len(column))] = value
        return
    while bits:
        low = bits & -bits
        bits ^= low
        column[low.bit_length() - 1] = value


def _row(table: Table, number: int) -> Column:
    row: Column = table[number]
    return row
