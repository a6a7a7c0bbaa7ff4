"""What scorers see: the pool's columns (one value a slot) and this request's numbers."""

import msgspec
import numpy as np

from picker.config import Routing
from picker.pool.snapshot import Column, Mask


class Columns(msgspec.Struct):
    """Input of every scorer; none may change it.

    Tokens are prompt or context tokens; `rate_inverse` is seconds per prefill token.
    """

    prompt_tokens: float
    output_tokens: float
    """Of this request."""
    mean_output_tokens: float
    """Of the model's requests."""
    mean_uncached_tokens: float
    matchable_tokens: float
    """Those in full blocks: only they can match."""
    matched_tokens: Column
    """What each endpoint is thought to hold of this prompt."""
    unmatched_tokens: Column
    """What each endpoint would have to prefill; the shared part at its weight."""
    requests: Column
    backlog_tokens: Column
    foreign_requests: Column
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
        tokens = self.matchable_tokens
        share: Column = np.minimum(self.matched_tokens / tokens, 1.0) if tokens else np.zeros_like(self.matched_tokens)
        return share
