"""What scorers see: the pool's loads (a row a quantity, a column a slot) and this request's numbers."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from picker.config import Routing
from picker.pool.snapshot import Column, Mask, bits_to_slots
from picker.prefix.blocks import BLOCK_BYTES
from picker.prefix.matches import Match
from picker.scheduling import loads
from picker.scheduling.loads import Bounds, Table

FEW: Final = 8
"""Up to this many slots, walking a bitmask beats looking up its indices."""


class Holding:
    """Slots that hold equally much of a prompt, and what that leaves to do."""

    __slots__ = ("bits", "blocks", "held_tokens", "new_tokens", "unmatched_tokens")

    bits: int
    blocks: int
    held_tokens: float
    unmatched_tokens: float
    """u_r: to prefill; what many prompts share counts less, as a copy of it serves the next ones too."""
    new_tokens: float
    """n_r: KV cache beyond what others hold there with it. Only what many share is held by others at the same time."""

    def __init__(self, bits: int, blocks: int, held_tokens: float, unmatched_tokens: float, new_tokens: float) -> None:
        self.bits = bits
        self.blocks = blocks
        self.held_tokens = held_tokens
        self.unmatched_tokens = unmatched_tokens
        self.new_tokens = new_tokens


Shares = Sequence[tuple[float, float]]
"""`(tokens from the start, weight)` of the stretches that many prompts share, in rising order."""


def holdings(
    match: Match, ready_bits: int, prompt_tokens: float, bytes_per_token: float, shared: Shares
) -> tuple[list[Holding], Holding]:
    """`(of those who hold some of the prompt, of those who hold nothing)`."""
    found = []
    others = ready_bits
    deepest = shared[-1][0] if shared else 0.0
    for bits, blocks in match.steps:
        held = blocks * BLOCK_BYTES / bytes_per_token
        held = min(held, prompt_tokens)
        unmatched = unmatched_tokens(held, prompt_tokens, shared) if shared else prompt_tokens - held
        found.append(Holding(bits, blocks, held, unmatched, prompt_tokens - (held if held < deepest else deepest)))
        others &= ~bits
    unmatched = unmatched_tokens(0.0, prompt_tokens, shared) if shared else prompt_tokens
    return found, Holding(others, 0, 0.0, unmatched, prompt_tokens)


def unmatched_tokens(held_tokens: float, prompt_tokens: float, shared: Shares) -> float:
    """u_r of who holds so much: each stretch that is missing at its weight."""
    unmatched = prompt_tokens - held_tokens
    start = 0.0
    for end, weight in shared:
        if held_tokens < end:
            unmatched -= min(end - held_tokens, end - start) * (1.0 - weight)
        start = end
    return unmatched


class Columns:
    """Input of every scorer; none may change it. Tokens are prompt or context tokens.

    The table is a copy of its moment, so that a decision can be explained later; the properties
    make columns of it when they are read.
    """

    __slots__ = (
        "adapter",
        "bounds",
        "bytes_per_token",
        "capacity_tokens",
        "fill",
        "gpu_utilization",
        "holdings",
        "kv_cache_utilization",
        "matchable_blocks",
        "mean_output_tokens",
        "mean_uncached_tokens",
        "nothing",
        "output_tokens",
        "prompt_tokens",
        "routing",
        "table",
        "waiting_requests",
    )

    prompt_tokens: float
    bytes_per_token: float
    """Bytes in a token of this prompt."""
    output_tokens: float
    """Answer length expected of this request."""
    mean_output_tokens: float
    """Answer length expected of the model's requests."""
    mean_uncached_tokens: float
    matchable_blocks: int
    """Full blocks of the prompt."""
    holdings: list[Holding]
    """Which slots are believed to hold how much of this prompt. Each slot stands in one holding."""
    nothing: Holding
    """The holding of all other ready slots: nothing."""
    table: Table
    """The rows of `loads.Loads`, a column a slot."""
    bounds: Bounds
    """Upper bounds of the table's rows."""
    capacity_tokens: Column
    waiting_requests: Column
    """NaN: unknown. Only `normalized` scoring reads it."""
    kv_cache_utilization: Column
    """The same."""
    routing: Routing
    adapter: tuple[Mask, Column] | None
    """Where the request's LoRA adapter is loaded, and where no slot is free (0..1); `None`: it names no adapter."""
    gpu_utilization: Column | None
    """0..1, NaN: unknown; `None`: of every endpoint."""
    fill: Column | None
    """How full each endpoint's share of the index is, 0..1; `None`: all of them are full, or none holds anything."""

    def __init__(
        self,
        prompt_tokens: float,
        bytes_per_token: float,
        output_tokens: float,
        mean_output_tokens: float,
        mean_uncached_tokens: float,
        matchable_blocks: int,
        holdings: list[Holding],
        nothing: Holding,
        table: Table,
        bounds: Bounds,
        capacity_tokens: Column,
        waiting_requests: Column,
        kv_cache_utilization: Column,
        routing: Routing,
        adapter: tuple[Mask, Column] | None = None,
        gpu_utilization: Column | None = None,
        fill: Column | None = None,
    ) -> None:
        self.prompt_tokens = prompt_tokens
        self.bytes_per_token = bytes_per_token
        self.output_tokens = output_tokens
        self.mean_output_tokens = mean_output_tokens
        self.mean_uncached_tokens = mean_uncached_tokens
        self.matchable_blocks = matchable_blocks
        self.holdings = holdings
        self.nothing = nothing
        self.table = table
        self.bounds = bounds
        self.capacity_tokens = capacity_tokens
        self.waiting_requests = waiting_requests
        self.kv_cache_utilization = kv_cache_utilization
        self.routing = routing
        self.adapter = adapter
        self.gpu_utilization = gpu_utilization
        self.fill = fill

    @property
    def width(self) -> int:
        """Slots."""
        return int(self.table.shape[1])

    @property
    def slowness(self) -> Column:
        """How many times as long as elsewhere everything takes; seconds are multiplied by it."""
        return _row(self.table, loads.SLOWNESS)

    def slowness_of(self, slot: int) -> float:
        """The same, of one slot."""
        return self.table.item(loads.SLOWNESS, slot)

    @property
    def requests(self) -> Column:
        """Requests of ours in flight, by slot."""
        return _row(self.table, loads.REQUESTS)

    @property
    def backlog_tokens(self) -> Column:
        """What is to be prefilled before this one: ours, and what the engine reports beyond it."""
        foreign = _row(self.table, loads.FOREIGN) * self.mean_uncached_tokens
        return foreign + _row(self.table, loads.BACKLOG_TOKENS)

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
        column: Column = np.full(self.width, self.nothing.unmatched_tokens)
        for each in self.holdings:
            put(column, each.bits, each.unmatched_tokens)
        return column

    @property
    def new_tokens(self) -> Column:
        """KV cache that this request needs beyond what others hold there with it."""
        column: Column = np.full(self.width, self.nothing.new_tokens)
        for each in self.holdings:
            put(column, each.bits, each.new_tokens)
        return column

    @property
    def matched_share(self) -> Column:
        """Matched blocks over full blocks of the prompt, by slot."""
        column: Column = np.zeros(self.width)
        for each in self.holdings:
            put(column, each.bits, each.blocks / self.matchable_blocks)
        return column

    def holding(self, slot: int) -> Holding:
        """What this slot holds."""
        for each in self.holdings:
            if each.bits >> slot & 1:
                return each
        return self.nothing


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
