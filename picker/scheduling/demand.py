"""How many replicas the traffic wants: the work that arrives, over the work that a replica does.

Work is in seconds of engine time. A request brings what its pick has to prefill, and its share of the
decode steps that make its answer. What both take is measured:

* prefill: seconds from the pick to the first content, less the decode steps that it ran beside, over the
  tokens computed until then. The median of all samples, for some of them waited;
* decoding: the time of an answer's token, less the prefills that came between, on a line over the load of
  the sequences that decoded there. The line's foot is what a step costs however few it serves; its slope is
  what a sequence adds, as a multiple of the configured constants.

An endpoint that is slow counts as less than one (`slowness`). A replica does less than a second of work a
second, for each step has its foot: `1 - foot / step`, with as many sequences in the step as its KV cache
has room for. With no step larger than that, more work arriving than this has to wait.

A pick costs a few additions; the rest is done at ends of answers and when the number is read. The sums are
small on purpose: no clock, no list. Unknown, until enough answers taught it, is `None`.
"""

from math import exp, expm1, log
from typing import Final

from picker.config import Routing
from picker.pool.endpoint import Endpoint
from picker.pool.inflight import Charge
from picker.pool.snapshot import Column, Snapshot

SMOOTHING_SECONDS: Final = 20.0
"""Time constant of the rate at which work arrives."""
_TURN_SECONDS: Final = 1.0
"""Arrivals are added up for so long before they move the rate."""
_SAMPLES_MIN: Final = 20.0
"""Until so many answers have taught it, nothing is known."""
_MEAN_STEP: Final = 0.02
_SAMPLE_SECONDS: Final = 0.05
"""Of each kind at most one sample in so long: enough, and then a busy pool pays no more for them than a quiet one."""

_MEDIAN_STEP: Final = 0.025
"""Of a logarithm."""
_PREFILL_TOKENS_MIN: Final = 1024.0
_CHUNK_TOKENS: Final = 8192.0
"""A prefill runs beside one decode step for so many of its tokens, and waits half a step before."""
_STEPS_WAITED: Final = 1.5
_WAITED_MAX: Final = 0.8
"""The share of a sample that may be taken off for these."""

_KEPT: Final = 1.0 - 1.0 / 400.0
"""What is left of older samples of decoding after one more."""
_OUTPUT_TOKENS_MIN: Final = 8.0
_PRIOR_SAMPLES: Final = 4.0
"""What the configured constants count at either end of the line."""
_PRIOR_LOAD_SECONDS: Final = 0.01
_OUTLIER: Final = 5.0
"""A token that took longer than this times what was expected (a preemption, say) counts as that."""
_SPAN: Final = 30.0
"""Measured constants stay within this factor of the configured ones."""
_REPLICA_RATE_MIN: Final = 0.5
"""A foot that takes more than half of the largest step was measured wrongly."""
_SEQUENCES_MAX: Final = 1024.0
"""In a step, where the KV cache has room for more."""


class Demand:
    """Work that arrives, and what it is measured against. One event loop owns it."""

    def __init__(self, routing: Routing) -> None:
        self._routing = routing
        # Measured: seconds of a prefill token, foot of a decode step, multiple of the configured slope.
        self.prefill_token_seconds = 1.0 / routing.prefill_tokens_per_second
        self.step_seconds = routing.decode_step_seconds
        self.slope = 1.0
        self._prefill_samples = 0.0
        self._decode_samples = 0.0
        self.prefill_due_at_seconds = self.decode_due_at_seconds = 0.0
        """When the next sample is of use."""
        # Sums of the line's samples, older ones less: weight, x, x squared, y, x y.
        self._weight = self._x = self._xx = self._y = self._xy = 0.0
        self._sequence_seconds = routing.decode_seconds_per_sequence
        self._context_seconds = routing.decode_seconds_per_token
        # Arrivals.
        self._sum = 0.0
        self._turn_at = 0.0
        self._began_at = 0.0
        self._rate = 0.0
        self._seen = 0.0
        """How much of a whole mean `_rate` is yet: 0 at first, then towards 1."""
        self._requests = 0.0
        self._mean_work = 0.0
        self._mean_uncached = 0.0
        self._mean_output = 0.0
        self._mean_context = 0.0
        self._mean_memory = 0.0

    def reconfigure(self, routing: Routing) -> None:
        """Other constants from now on. Where they changed, what was measured against the old ones is forgotten."""
        old, self._routing = self._routing, routing
        if (
            old.learn != routing.learn
            or old.prefill_tokens_per_second != routing.prefill_tokens_per_second
            or old.decode_step_seconds != routing.decode_step_seconds
            or old.decode_seconds_per_sequence != routing.decode_seconds_per_sequence
            or old.decode_seconds_per_token != routing.decode_seconds_per_token
        ):
            self.prefill_token_seconds = 1.0 / routing.prefill_tokens_per_second
            self._prefill_samples = self._decode_samples = 0.0
            self._weight = self._x = self._xx = self._y = self._xy = 0.0
            self._solve()

    # Arrivals ------------------------------------------------------------------------------

    def arrived(
        self,
        uncached_tokens: float,
        context_tokens: float,
        memory_tokens: float,
        output_tokens: float,
        sequences: int,
        now: float,
    ) -> None:
        """A request was picked for: what it has to prefill, its prompts, what of them is new memory, its answer."""
        if now >= self._turn_at:
            self._turn(now)
        output = output_tokens * sequences
        context = context_tokens + output_tokens / 2
        decoding = output * (self._sequence_seconds + self._context_seconds * context)
        work = uncached_tokens * self.prefill_token_seconds + decoding
        self._sum += work
        self._requests += 1.0
        step = _MEAN_STEP if self._requests > 50.0 else 1.0 / self._requests
        self._mean_work += step * (work - self._mean_work)
        self._mean_uncached += step * (uncached_tokens - self._mean_uncached)
        self._mean_output += step * (output - self._mean_output)
        self._mean_context += step * (context - self._mean_context)
        self._mean_memory += step * (memory_tokens + output / 2 - self._mean_memory)

    def turned_away(self, now: float) -> None:
        """A request was refused for want of room or of endpoints: it wanted what a mean one wants."""
        if now >= self._turn_at:
            self._turn(now)
        self._sum += self._mean_work

    def _turn(self, now: float) -> None:
        """What was added up becomes part of the rate."""
        if self._turn_at == 0.0:
            self._began_at = now
        elapsed = now - self._began_at
        if elapsed > 0.0:
            fresh = -expm1(-elapsed / SMOOTHING_SECONDS)
            self._rate += fresh * (self._sum / elapsed - self._rate)
            self._seen += fresh * (1.0 - self._seen)
            self._sum = 0.0
            self._began_at = now
        self._turn_at = now + _TURN_SECONDS

    # What is measured ----------------------------------------------------------------------

    def observe_prefill(
        self,
        charge: Charge,
        tokens: float,
        seconds: float,
        now: float,
        slowness: float,
        own_share: float,
        running: int | None,
    ) -> None:
        """A streamed answer's first content came `seconds` after its pick, with `tokens` to compute until then.

        `own_share`: how much of these were its own. `running`: requests there as its engine reported them.
        """
        if not self._routing.learn or tokens < _PREFILL_TOKENS_MIN or seconds <= 0.0:
            return
        self.prefill_due_at_seconds = now + _SAMPLE_SECONDS
        beside = self._load(charge.beside_sequences, charge.beside_tokens) * _unknown_factor(charge.endpoint, running)
        step = self.step_seconds + self.slope * beside
        waited = slowness * step * (_STEPS_WAITED + tokens / _CHUNK_TOKENS)
        alone = max(seconds - waited, (1.0 - _WAITED_MAX) * seconds)
        configured = 1.0 / self._routing.prefill_tokens_per_second
        sample = min(max(alone / (tokens * slowness), configured / _SPAN), configured * _SPAN)
        self._prefill_samples += own_share
        move = own_share * max(_MEDIAN_STEP, 0.5 / (1.0 + self._prefill_samples / 4.0))
        level = log(self.prefill_token_seconds)
        level += -move if log(sample) < level else move
        self.prefill_token_seconds = exp(level)

    def observe_decode(
        self, charge: Charge, output_tokens: float, now: float, slowness: float, running: int | None
    ) -> None:
        """An answer of so many tokens (of one sequence) is whole. `running`: requests as the engine reported them."""
        since = charge.decoding_since_seconds
        if not self._routing.learn or since < 0.0 or output_tokens < _OUTPUT_TOKENS_MIN or now <= since:
            return
        self.decode_due_at_seconds = now + _SAMPLE_SECONDS
        endpoint = charge.endpoint
        sequences, tokens = endpoint.decoding()
        x = 0.5 * self._load(sequences + charge.beside_sequences, tokens + charge.beside_tokens)
        x *= _unknown_factor(endpoint, running)
        prefilled = (endpoint.prefilled_tokens - charge.prefilled_before_tokens) * self.prefill_token_seconds
        y = max((now - since) / slowness - prefilled, 0.0) / (output_tokens - 1.0)
        y = min(y, _OUTLIER * (self.step_seconds + self.slope * x))
        self._decode_samples += 1.0
        self._weight = _KEPT * self._weight + 1.0
        self._x = _KEPT * self._x + x
        self._xx = _KEPT * self._xx + x * x
        self._y = _KEPT * self._y + y
        self._xy = _KEPT * self._xy + x * y
        self._solve()

    def _load(self, sequences: float, tokens: float) -> float:
        """Seconds that so many sequences add to a decode step, by the configured constants."""
        routing = self._routing
        return routing.decode_seconds_per_sequence * sequences + routing.decode_seconds_per_token * tokens

    def _solve(self) -> None:
        """The line of least squares through the samples and the configured one's ends."""
        routing = self._routing
        foot, load = routing.decode_step_seconds, _PRIOR_LOAD_SECONDS
        weight = self._weight + 2.0 * _PRIOR_SAMPLES
        x = self._x + _PRIOR_SAMPLES * load
        xx = self._xx + _PRIOR_SAMPLES * load * load
        y = self._y + _PRIOR_SAMPLES * (2.0 * foot + load)
        xy = self._xy + _PRIOR_SAMPLES * load * (foot + load)
        slope = (weight * xy - x * y) / (weight * xx - x * x)
        self.slope = slope = min(max(slope, 1.0 / _SPAN), _SPAN)
        self.step_seconds = max((y - slope * x) / weight, 0.0)
        self._sequence_seconds = slope * routing.decode_seconds_per_sequence
        self._context_seconds = slope * routing.decode_seconds_per_token

    # What is asked -------------------------------------------------------------------------

    def work_rate(self, now: float) -> float | None:
        """Seconds of work that arrive a second, smoothed. `None`: nothing was measured yet."""
        if self._prefill_samples + self._decode_samples < _SAMPLES_MIN:
            return None
        if now >= self._turn_at:
            self._turn(now)
        return self._rate / self._seen if self._seen > 0.0 else None

    def replica_rate(self, capacity_tokens: float) -> float:
        """Seconds of work that a replica with so large a KV cache does a second, at most: 0.5..1."""
        sequences = min(capacity_tokens / max(self._mean_memory, 1.0), _SEQUENCES_MAX)
        each = self._sequence_seconds + self._context_seconds * self._mean_context
        each += self.prefill_token_seconds * self._mean_uncached / max(self._mean_output, 1.0)
        load = sequences * each
        return max(load / (self.step_seconds + load), _REPLICA_RATE_MIN) if load > 0.0 else 1.0

    def wanted_replicas(self, now: float, snapshot: Snapshot, slowness: Column) -> float | None:
        """Replicas, like the mean of those that are there, that the work would keep busy all the time."""
        work = self.work_rate(now)
        if work is None:
            return None
        capacity, speed = float(self._routing.kv_capacity_tokens), 1.0
        if snapshot.ready_count:
            ready = snapshot.ready_mask
            capacity = float(snapshot.capacity_tokens[ready].mean())
            speed = float((1.0 / slowness[: snapshot.width][ready]).mean())
        return work / (self.replica_rate(capacity) * speed)


def _unknown_factor(endpoint: Endpoint, running: int | None) -> float:
    """How many times what we know of runs there, as its engine reported: of pickers that tell us nothing."""
    known = endpoint.in_flight_requests + endpoint.others.requests
    return running / known if running is not None and running > known > 0 else 1.0
