"""What is learned while serving: prefill rates per endpoint, sizes per model.

* prefill rate R_r: the tokens ahead of and in a request, over the time to its first body chunk;
* bytes per token of a model: prompt bytes over the `usage` that responses report;
* output tokens of a model: running mean;
* uncached tokens of a request: running mean over all.

Exponential means with a floor on the sample's size, so that one odd answer moves little. A
uniform error in R changes nothing in a pool of equals (docs/routing.md); what is learned is
their difference. Models are named by clients, so their number is bounded.
"""

from collections import OrderedDict
from typing import NamedTuple

import numpy as np

from picker.config import Routing
from picker.decision import Usage

_STEP = 0.05
"""Weight of a new sample."""
_RATE_SAMPLE_TOKENS_MIN = 1024
"""Below this the time to the first token is mostly a decode step and the network."""
_RATE_SPAN = 30.0
"""A learned rate stays within this factor of the configured one."""
_PROMPT_SAMPLE_BYTES_MIN = 512
_NAME_CHARS_MAX = 256
"""Of a model's name, which a client may make as long as a body."""


class ModelSizes(NamedTuple):
    """What is known of a model's requests."""

    bytes_per_token: float
    output_tokens: float


class Rates:
    """Learned rates. One event loop owns it."""

    def __init__(self, routing: Routing, *, models_max: int) -> None:
        self._routing = routing
        self._models_max = models_max
        self._models: OrderedDict[str, ModelSizes] = OrderedDict()
        self._unknown = ModelSizes(routing.bytes_per_token, routing.output_tokens)
        self.rate_inverse = np.full(8, 1.0 / routing.prefill_tokens_per_second)
        self.mean_uncached_tokens = 512.0

    def reconfigure(self, routing: Routing, *, models_max: int) -> None:
        """Other constants from now on. What was learned stays."""
        if not routing.learn or routing.prefill_tokens_per_second != self._routing.prefill_tokens_per_second:
            self.rate_inverse[:] = 1.0 / routing.prefill_tokens_per_second
        self._routing = routing
        self._unknown = ModelSizes(routing.bytes_per_token, routing.output_tokens)
        self._models_max = models_max

    def adopt(self, slot: int) -> None:
        """A slot begins a new life: nothing is known of it."""
        unknown = 1.0 / self._routing.prefill_tokens_per_second
        if slot >= len(self.rate_inverse):
            column = np.full(max(slot + 1, 2 * len(self.rate_inverse)), unknown)
            column[: len(self.rate_inverse)] = self.rate_inverse
            self.rate_inverse = column
        self.rate_inverse[slot] = unknown

    def model(self, name: str | None) -> ModelSizes:
        """What is known of this model's requests; the configured start where nothing is."""
        found = self._models.get(name or "")
        if found is None and name is not None and len(name) > _NAME_CHARS_MAX:
            found = self._models.get(_key(name))
        return found or self._unknown

    def observe_prefill(self, slot: int, tokens: float, seconds: float) -> None:
        """A streamed answer's first chunk came `seconds` after its pick, with `tokens` to compute until then."""
        if not self._routing.learn or slot < 0 or tokens < _RATE_SAMPLE_TOKENS_MIN or seconds <= 0:
            return
        start = 1.0 / self._routing.prefill_tokens_per_second
        sample = min(max(seconds / tokens, start / _RATE_SPAN), start * _RATE_SPAN)
        self.rate_inverse[slot] += _STEP * (sample - self.rate_inverse[slot])

    def observe_uncached(self, tokens: float) -> None:
        """A request was charged with this many tokens to prefill."""
        self.mean_uncached_tokens += _STEP * (tokens - self.mean_uncached_tokens)

    def observe_usage(self, name: str | None, prompt_bytes: int | None, usage: Usage) -> None:
        """A response reported its usage. `prompt_bytes`: `None` where they say nothing of tokens (media, ids)."""
        if not self._routing.learn:
            return
        bytes_per_token, output = self.model(name)
        if prompt_bytes is not None and usage.input_tokens and prompt_bytes >= _PROMPT_SAMPLE_BYTES_MIN:
            sample = min(max(prompt_bytes / usage.input_tokens, 0.5), 16.0)
            bytes_per_token += _STEP * (sample - bytes_per_token)
        if usage.output_tokens is not None:
            output += _STEP * (usage.output_tokens - output)
        key = _key(name)
        self._models[key] = ModelSizes(bytes_per_token, output)
        self._models.move_to_end(key)
        while len(self._models) > self._models_max:
            self._models.popitem(last=False)


def _key(name: str | None) -> str:
    return name[:_NAME_CHARS_MAX] if name is not None else ""
