"""Books of a director that lack something: what `ablations.py` puts in the place of production's."""

from array import array
from collections.abc import Callable, Mapping

import msgspec
import numpy as np

from picker.director import Director
from picker.outcomes import Usage
from picker.pool.inflight import InflightLedger
from picker.pool.snapshot import Column, Snapshot
from picker.prefix.index import PrefixIndex
from picker.prefix.matches import Match
from picker.scheduling.loads import BACKLOG_TOKENS, CONTEXT_TOKENS, FOREIGN, REQUESTS, Bounds, Loads, Table
from picker.scheduling.rates import Rates


class _NothingSent(InflightLedger):
    """Books in which nothing was ever written."""

    def columns(self, width: int) -> tuple[Column, Column, Column, Column]:
        nothing: Column = np.zeros(width)
        return nothing, nothing, nothing, nothing


class _Scraped(Loads):
    """Load as the engines last reported it, of everybody's requests, and no books of our own."""

    def __init__(self, director: Director) -> None:
        super().__init__(_NothingSent(), director.rates)
        self._samples = director.datastore.samples

    def current(self, snapshot: Snapshot) -> Table:
        self.forget()  # one row brought up to date would have our books in it
        table = super().current(snapshot)
        running: Column = np.zeros(snapshot.width)
        for slot, endpoint in enumerate(snapshot.endpoints):
            sample = self._samples.get(endpoint.spec.uid) if endpoint is not None else None
            if sample is not None and snapshot.fresh_mask[slot]:
                running[slot] = sample.running_requests or 0
        waiting = np.nan_to_num(snapshot.waiting_requests)
        table[REQUESTS] = running + waiting
        table[FOREIGN] = waiting
        self.bounds = Bounds(float(table[REQUESTS].max(initial=0.0)), self.bounds.over_tokens_max)
        return table


class _Counted(Loads):
    """Our own books, but of requests: each counts as the mean one, however long it is."""

    def __init__(self, director: Director) -> None:
        super().__init__(director.ledger, director.rates)
        self._mean_of = director.rates
        self._context_mean = 0.0

    def current(self, snapshot: Snapshot) -> Table:
        table = super().current(snapshot)
        standing = [(slot, endpoint) for slot, endpoint in enumerate(snapshot.endpoints) if endpoint is not None]
        requests = sum(endpoint.in_flight_requests for _, endpoint in standing)
        if requests:
            self._context_mean = sum(endpoint.context_tokens for _, endpoint in standing) / requests
        for slot, endpoint in standing:
            reported = snapshot.reported_context_tokens.item(slot)
            table[BACKLOG_TOKENS, slot] = endpoint.prefilling_requests * self._mean_of.mean_uncached_tokens
            table[CONTEXT_TOKENS, slot] = max(endpoint.in_flight_requests * self._context_mean, reported)
        return table


class _LongMatches(PrefixIndex):
    """Sees no match below the threshold, as rules that only ask who holds enough."""

    threshold = 1.0

    def match(self, hashes: "array[int]", now: float = 0.0) -> Match:
        found = super().match(hashes, now)
        least = self.threshold * found.blocks
        steps = tuple((bits, blocks) for bits, blocks in found.steps if blocks >= least)
        return Match(steps, found.shared, found.blocks)


class _NoSlowness(Rates):
    """All endpoints are equally fast."""

    def observe_prefill(self, slot: int, tokens: float, seconds: float, *, now: float, own_share: float = 1.0) -> None:
        """Not learned."""


class _NoBytesPerToken(Rates):
    """A token has as many bytes as configured."""

    def observe_usage(self, name: str | None, prompt_bytes: int | None, usage: Usage, *, sequences: int = 1) -> None:
        super().observe_usage(name, None, usage, sequences=sequences)


class _NoOutputLength(Rates):
    """Answers are as long as configured."""

    def observe_usage(self, name: str | None, prompt_bytes: int | None, usage: Usage, *, sequences: int = 1) -> None:
        super().observe_usage(name, prompt_bytes, msgspec.structs.replace(usage, output_tokens=None))


def _scraped(director: Director) -> None:
    director.loads = _Scraped(director)


def _counted(director: Director) -> None:
    director.loads = _Counted(director)


def _long_matches(director: Director) -> None:
    index = _LongMatches(
        bytes_max=director.config.limits.index_bytes_max, capacity_blocks=director.index.default_capacity_blocks
    )
    index.threshold = director.config.threshold
    director.index = index


def _learning(rates: type[Rates]) -> Callable[[Director], None]:
    def remove(director: Director) -> None:
        director.rates = rates(director.config.routing, models_max=director.config.limits.models_max)
        director.loads = Loads(director.ledger, director.rates)

    return remove


ABLATIONS: Mapping[str, Callable[[Director], None]] = {
    "in_flight": _scraped,
    "in_flight_tokens": _counted,
    "partial_matches": _long_matches,
    "slowness": _learning(_NoSlowness),
    "bytes_per_token": _learning(_NoBytesPerToken),
    "output_length": _learning(_NoOutputLength),
}
"""By the part that is missing."""
