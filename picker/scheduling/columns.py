"""What scorers see: the pool's columns (one value a slot) and this request's numbers."""

import msgspec
import numpy as np

from picker.config import Routing
from picker.pool.snapshot import Column, Mask, bits_to_slots
from picker.prefix.index import Match

FEW = 8
"""Up to this many slots, walking a bitmask beats looking up its indices."""


class Columns(msgspec.Struct):
    """Input of every scorer; none may change it.

    Tokens are prompt or context tokens; `rate_inverse` is seconds per prefill token.
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
    unmatched_tokens: Column
    """What each endpoint would have to prefill; the shared part at its weight."""
    requests: Column
    backlog_tokens: Column
    foreign_requests: Column | None
    """`None`: none anywhere."""
    step_seconds: Column
    """How long a decode step takes with this request beside those in flight, beyond an empty one."""
    memory_tokens: Column
    """KV cache in use, prefixes held together counted once."""
    new_tokens: Column | float
    """KV cache that this request needs beyond what others hold there with it."""
    capacity_tokens: Column
    waiting_requests: Column
    """NaN: unknown. Only `normalized` scoring reads it."""
    kv_cache_utilization: Column
    rate_inverse: Column
    routing: Routing
    adapter: tuple[Mask, Mask] | None = None
    """Where the request's LoRA adapter is loaded, and where no slot is free; `None`: it names no adapter."""
    gpu_utilization: Column | None = None
    """0..1, NaN: unknown; `None`: of every endpoint."""

    @property
    def matched_share(self) -> Column:
        """Matched blocks over full blocks of the prompt, by slot."""
        share: Column = np.zeros(len(self.requests))
        for bits, blocks in self.match.steps:
            put(share, bits, blocks / self.match.blocks)
        return share


def put(column: Column, bits: int, value: float) -> None:
    """Write `value` for the slots of a bitmask."""
    if bits.bit_count() > FEW:
        column[bits_to_slots(bits, len(column))] = value
        return
    while bits:
        low = bits & -bits
        bits ^= low
        column[low.bit_length() - 1] = value
