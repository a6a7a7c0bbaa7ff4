"""What is learned while serving: prefill rates per endpoint, sizes per model.

* seconds a prefill token takes on an endpoint: the time to a request's first body chunk over the
  tokens ahead of and in it; what predictions, timers and saturation read;
* slowness of an endpoint: that time over the pool's; what choices read;
* bytes per token of a model: prompt bytes over the `usage` that responses report;
* output tokens of a model: running mean;
* uncached tokens of a request: running mean over all.

Exponential means with a floor on the sample's size, so that one odd answer moves little. Choices
need the endpoints' differences alone: the balance of waiting and decoding is the configuration's,
and an endpoint slow to prefill is as slow to decode. So each sample is compared with the pool's
level of that moment, which a busy hour lifts for all; an endpoint that is not known yet is like the
others, in its rate as in its slowness; and differences as small as chance and load make them count
for little (docs/routing.md).
Models are named by clients, so their number is bounded.
"""

from collections import OrderedDict
from collections.abc import Sequence
from math import exp, inf, log
from typing import NamedTuple

import numpy as np

from picker.config import Routing
from picker.outcomes import Usage

_STEP = 0.05
"""Weight of a new sample."""
_RATE_SAMPLE_TOKENS_MIN = 1024
"""Below this the time to the first token is mostly a decode step and the network."""
_RATE_SPAN = 30.0
"""A learned rate stays within this factor of the configured one."""
_POOL_STEP = 0.02
"""The same for the pool's level, which all endpoints teach."""
_SAMPLES_MAX = 1 / _STEP
_PRIOR_SAMPLES = 3
"""What the assumption that an endpoint is like the others counts at first."""
_NOTICED = log(2.2)
"""A logarithm: a difference this large counts fully, a smaller one times the square of its share of this."""
_DEVIATION_MAX = log(10.0)
"""Of a sample, so that an endpoint's first one, which may have waited for a compilation, decides nothing."""
FADE_AFTER_SECONDS = 60.0
"""After so long without a sample, what was learned of an endpoint fades: it may have recovered."""
_FADE_SECONDS = 60.0
"""Time constant."""
_FADE_STEP_SECONDS = 10.0
_FADED = 0.01
"""A logarithm: less is nothing."""
_PROMPT_SAMPLE_BYTES_MIN = 512
_BYTES_PER_TOKEN_MIN = 0.5
_BYTES_PER_TOKEN_MAX = 16.0
"""Beyond these bytes and counts are not of the same text: a prompt that the engine cut, a medium."""
_OUTPUT_TOKENS_MAX = 131_072.0
"""Of one answer: what engines say beyond it is nonsense."""
NAME_CHARS_MAX = 256
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
        """Seconds a prefill token takes, by slot."""
        self.slowness = np.ones(8)
        """How many times as long as in the pool as a whole, by slot; 1 where nothing else is known."""
        self._deviations = [0.0] * 8
        """The logarithm of each endpoint's slowness as measured, by slot."""
        self._samples = [0.0] * 8
        """How many taught it, each by its weight."""
        self._taught_at = [0.0] * 8
        """When, last; moved on as it fades."""
        self.fade_due_at_seconds = inf
        """When `fade` has something to do."""
        self._pool_level = 0.0
        """Mean logarithm of the seconds a prefill token takes, over all endpoints' samples."""
        self._pool_samples = 0
        self.mean_uncached_tokens = 512.0
        self._told: dict[int, dict[int, tuple[float, float]]] = {}
        """By slot and picker: what others measured (a logarithm, and how many samples taught it)."""

    def reconfigure(self, routing: Routing, *, models_max: int) -> None:
        """Other constants from now on. What was learned stays."""
        if not routing.learn or routing.prefill_tokens_per_second != self._routing.prefill_tokens_per_second:
            self.rate_inverse[:] = 1.0 / routing.prefill_tokens_per_second
        if not routing.learn:
            for slot in range(len(self.slowness)):
                self._forget_slowness(slot)
        self._routing = routing
        self._unknown = ModelSizes(routing.bytes_per_token, routing.output_tokens)
        self._models_max = models_max

    def adopt(self, slots: Sequence[int]) -> None:
        """Slots begin a new life: nothing is known of them."""
        if not slots:
            return
        for slot in slots:
            self.retire(slot)
        unknown, most = self._usual_rate_inverse(), max(slots)
        if most >= len(self.rate_inverse):
            more = max(most + 1, 2 * len(self.rate_inverse)) - len(self.rate_inverse)
            self.rate_inverse = np.append(self.rate_inverse, np.full(more, unknown))
            self.slowness = np.append(self.slowness, np.ones(more))
            self._deviations += [0.0] * more
            self._samples += [0.0] * more
            self._taught_at += [0.0] * more
        for slot in slots:
            self.rate_inverse[slot] = unknown

    def retire(self, slot: int) -> None:
        """Its endpoint left: it says nothing of the others any more."""
        if slot < len(self._samples):
            self._forget_slowness(slot)

    def model(self, name: str | None) -> ModelSizes:
        """What is known of this model's requests; the configured start where nothing is."""
        found = self._models.get(name or "")
        if found is None and name is not None and len(name) > NAME_CHARS_MAX:
            found = self._models.get(_key(name))
        return found or self._unknown

    def observe_prefill(self, slot: int, tokens: float, seconds: float, *, now: float, own_share: float = 1.0) -> None:
        """A streamed answer's first chunk came `seconds` after its pick, with `tokens` to compute until then.

        `own_share`: how much of these were its own. What was ahead of it is an estimate, so it teaches less.
        """
        if not self._routing.learn or slot < 0 or tokens < _RATE_SAMPLE_TOKENS_MIN or seconds <= 0:
            return
        start = 1.0 / self._routing.prefill_tokens_per_second
        sample = min(max(seconds / tokens, start / _RATE_SPAN), start * _RATE_SPAN)
        self.rate_inverse[slot] += _STEP * (sample - self.rate_inverse[slot])
        self._compare(slot, log(sample), own_share)
        self._taught_at[slot] = now
        if self._deviations[slot] > 0.0:
            self.fade_due_at_seconds = min(self.fade_due_at_seconds, now + FADE_AFTER_SECONDS)

    def fade(self, now: float) -> None:
        """Slow endpoints that get no requests drift back to the others, so that one that recovered is tried again.

        Without it they would stay as they were found: a cost above everybody's gets no request to learn from.
        """
        due = inf
        for slot, deviation in enumerate(self._deviations):
            if deviation <= 0.0:
                continue
            silent = now - self._taught_at[slot]
            if silent >= FADE_AFTER_SECONDS:
                silent -= FADE_AFTER_SECONDS - _FADE_STEP_SECONDS
                deviation *= exp(-silent / _FADE_SECONDS)
                self._deviate(slot, deviation if deviation > _FADED else 0.0)
                self._taught_at[slot] = now - FADE_AFTER_SECONDS + _FADE_STEP_SECONDS
            due = min(due, self._taught_at[slot] + FADE_AFTER_SECONDS)
        self.fade_due_at_seconds = due

    def told(self, by: int, found: dict[int, tuple[float, float]]) -> list[int]:
        """What picker `by` measured, whole: (logarithm, samples) by slot. Returns the slots that changed."""
        changed = [slot for slot, told in self._told.items() if by in told]
        for slot in changed:
            del self._told[slot][by]
            if not self._told[slot]:
                del self._told[slot]
        if self._routing.learn:
            for slot, (deviation, samples) in found.items():
                if 0 <= slot < len(self._samples):
                    limited = min(max(deviation, -_DEVIATION_MAX), _DEVIATION_MAX)
                    self._told.setdefault(slot, {})[by] = (limited, samples)
                    changed.append(slot)
        for slot in changed:
            self._deviate(slot, self._deviations[slot])
        return changed

    def measured(self, slot: int) -> tuple[float, float]:
        """What we measured of it ourselves: a logarithm over the pool's, and the samples that taught it."""
        return self._deviations[slot], self._samples[slot]

    def observe_uncached(self, tokens: float) -> None:
        """A request was charged with this many tokens to prefill."""
        self.mean_uncached_tokens += _STEP * (tokens - self.mean_uncached_tokens)

    def observe_usage(self, name: str | None, prompt_bytes: int | None, usage: Usage, *, sequences: int = 1) -> None:
        """A response reported its usage. `prompt_bytes`: `None` where they say nothing of tokens (media, ids).

        `sequences`: the answers whose tokens it counts together.
        """
        if not self._routing.learn:
            return
        bytes_per_token, output = self.model(name)
        if prompt_bytes is not None and usage.input_tokens and prompt_bytes >= _PROMPT_SAMPLE_BYTES_MIN:
            sample = prompt_bytes / usage.input_tokens
            if _BYTES_PER_TOKEN_MIN <= sample <= _BYTES_PER_TOKEN_MAX:
                bytes_per_token += _STEP * (sample - bytes_per_token)
        if usage.output_tokens is not None:
            sample = min(usage.output_tokens / max(1, sequences), _OUTPUT_TOKENS_MAX)
            output += _STEP * (sample - output)
        key = _key(name)
        self._models[key] = ModelSizes(bytes_per_token, output)
        self._models.move_to_end(key)
        while len(self._models) > self._models_max:
            self._models.popitem(last=False)

    def _compare(self, slot: int, level: float, weight: float) -> None:
        self._pool_samples += 1
        self._pool_level += max(_POOL_STEP, 1 / self._pool_samples) * (level - self._pool_level)
        deviation = min(max(level - self._pool_level, -_DEVIATION_MAX), _DEVIATION_MAX)
        step = weight * max(_STEP, 1 / (1 + self._samples[slot] + _PRIOR_SAMPLES))
        self._samples[slot] += weight
        self._deviate(slot, self._deviations[slot] + step * (deviation - self._deviations[slot]))

    def _deviate(self, slot: int, deviation: float) -> None:
        self._deviations[slot] = deviation
        if self._told:
            deviation = self._with_others(slot, deviation)
        self.slowness[slot] = exp(deviation * min(1.0, (deviation / _NOTICED) ** 2))

    def _with_others(self, slot: int, deviation: float) -> float:
        """The mean over all who measured it, by their samples, of which no more count than a mean remembers."""
        told = self._told.get(slot)
        if told is None:
            return deviation
        weight = min(self._samples[slot], _SAMPLES_MAX)
        total = weight * deviation
        for measured, samples in told.values():
            counted = min(samples, _SAMPLES_MAX)
            weight += counted
            total += counted * measured
        return total / weight if weight > 0.0 else deviation

    def _usual_rate_inverse(self) -> float:
        known = [self.rate_inverse.item(slot) for slot, samples in enumerate(self._samples) if samples > 0.0]
        return sum(known) / len(known) if known else 1.0 / self._routing.prefill_tokens_per_second

    def _forget_slowness(self, slot: int) -> None:
        self._told.pop(slot, None)
        self.slowness[slot] = 1.0
        self._deviations[slot] = 0.0
        self._samples[slot] = 0.0


def _key(name: str | None) -> str:
    return name[:NAME_CHARS_MAX] if name is not None else ""
