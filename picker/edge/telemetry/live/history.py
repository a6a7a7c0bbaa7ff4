"""The pool over the last 15 minutes: a ring of buckets of five seconds, and each endpoint's hits, lately.

Requests pay for none of it: every five seconds the difference of what telemetry counts anyway is taken.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from picker.director import Director
from picker.edge.telemetry import buckets
from picker.edge.telemetry.page import Hits, Telemetry, Totals
from picker.outcomes import Outcome

BUCKET_SECONDS: Final = 5.0
BUCKETS_MAX: Final = 180
STEP_ENDPOINTS: Final = 200
"""Between two turns of the loop: some tenths of a millisecond."""
MEMORY_SECONDS: Final = 120.0
"""How long an endpoint's hits count, on average."""
_KEPT: Final = 2.718281828459045 ** (-BUCKET_SECONDS / MEMORY_SECONDS)
_TOKENS_MIN: Final = 1.0
"""Of an endpoint's lately: below, nothing is known."""

_FAILED: Final = (Outcome.FAILED.value, Outcome.UNAVAILABLE.value)


class Bucket(msgspec.Struct, frozen=True, kw_only=True):
    """Some seconds of the pool. `None`: not known, because nothing told."""

    at: float
    """Its end, Unix time in seconds."""
    seconds: float
    requests: int
    """Exchanges that ended, and how: of them those that were shed, that the client left, that failed (5xx)."""
    shed: int
    aborted: int
    failed: int
    reasons: dict[str, int]
    """Of those that were routed: why that endpoint."""
    hit_expected: float | None
    """Share of the prompt tokens of routed requests that was expected in the picked endpoint's cache."""
    hit_observed: float | None
    """The same as answers' usage told, or else as engines count."""
    ttft_p50_seconds: float | None
    ttft_p95_seconds: float | None
    in_flight: int
    saturation: float | None
    endpoints: int
    ejected: int


class _Lately:
    """An endpoint's hits, fading, and its engine's counters at the last look."""

    __slots__ = ("engine_hits", "engine_queries", "hits_total", "lately", "queries_total")

    def __init__(self) -> None:
        self.lately = Hits()
        self.engine_queries = self.engine_hits = 0.0
        self.queries_total: float | None = None
        self.hits_total: float | None = None

    def engine_counted(self, queries_total: float | None, hits_total: float | None) -> tuple[float, float]:
        """Tokens looked up and found since the last look; counters that fell began anew."""
        before = self.queries_total, self.hits_total
        self.queries_total, self.hits_total = queries_total, hits_total
        if None in before or queries_total is None or hits_total is None:
            return 0.0, 0.0
        queries, hits = queries_total - before[0], hits_total - before[1]  # type: ignore[operator]
        return (queries, hits) if queries >= 0 and hits >= 0 else (0.0, 0.0)

    def fade(self) -> None:
        """Five seconds went by."""
        lately = self.lately
        for name in ("prompt_tokens", "expected_tokens", "input_tokens", "cached_tokens"):
            setattr(lately, name, getattr(lately, name) * _KEPT)
        self.engine_queries *= _KEPT
        self.engine_hits *= _KEPT

    @property
    def expected(self) -> float | None:
        return share(self.lately.expected_tokens, self.lately.prompt_tokens)

    @property
    def observed(self) -> float | None:
        told = share(self.lately.cached_tokens, self.lately.input_tokens)
        return told if told is not None else share(self.engine_hits, self.engine_queries)


class History:
    """`run` samples for ever; the rest is read."""

    def __init__(
        self,
        telemetry: Telemetry,
        director: Director,
        *,
        clock: Callable[[], float],
        wall: Callable[[], float],
        enabled: Callable[[], bool],
        faulted: Callable[[str, BaseException], None],
    ) -> None:
        """`clock`: the director's, in seconds; `wall`: Unix time. `faulted` is told of faults of ours."""
        self.buckets: deque[Bucket] = deque(maxlen=BUCKETS_MAX)
        self.sampled_total = 0
        """Buckets ever made: the number of the newest."""
        self._telemetry = telemetry
        self._director = director
        self._clock = clock
        self._wall = wall
        self._enabled = enabled
        self._faulted = faulted
        self._before: Totals | None = None
        self._before_at = 0.0
        self._lately: dict[str, _Lately] = {}

    async def run(self) -> None:
        """A sample every five seconds, while the page is on."""
        while True:
            try:
                if self._enabled():
                    await self.sample()
                elif self._before is not None:
                    self._forget()
            except Exception as error:  # a fault here costs a bucket, never a request
                self._faulted("telemetry", error)
            await asyncio.sleep(BUCKET_SECONDS)

    def _forget(self) -> None:
        self._telemetry.leave_hits()
        self._before = None
        self._lately.clear()
        self.buckets.clear()

    async def sample(self) -> None:
        """Take what came since the last one."""
        now = self._clock()
        totals, hits = self._telemetry.totals(), self._telemetry.take_hits()
        before, since = self._before, self._before_at
        self._before, self._before_at = totals, now
        queries, found = await self._look_at_endpoints(hits)
        if before is not None:
            self.buckets.append(self._bucket(before, totals, now - since, now, hits, (queries, found)))
            self.sampled_total += 1

    def hits_of(self, uid: str) -> tuple[float | None, float | None]:
        """Shares of an endpoint's prompt tokens lately: expected in its cache, and found there."""
        found = self._lately.get(uid)
        return (None, None) if found is None else (found.expected, found.observed)

    async def _look_at_endpoints(self, hits: dict[str, Hits]) -> tuple[float, float]:
        lately: dict[str, _Lately] = {}
        queries_all = found_all = 0.0
        datastore = self._director.datastore
        for number, endpoint in enumerate(datastore.endpoints):
            uid = endpoint.spec.uid
            one = lately[uid] = self._lately.get(uid) or _Lately()
            one.fade()
            came = hits.get(endpoint.spec.address)
            if came is not None:
                one.lately.add(came, came.requests)
            sample = datastore.samples.get(uid)
            if sample is not None:
                queries, found = one.engine_counted(sample.prefix_queries_total, sample.prefix_hits_total)
                one.engine_queries += queries
                one.engine_hits += found
                queries_all += queries
                found_all += found
            if number % STEP_ENDPOINTS == STEP_ENDPOINTS - 1:
                await asyncio.sleep(0)
        self._lately = lately  # who left is forgotten
        return queries_all, found_all

    def _bucket(
        self,
        before: Totals,
        after: Totals,
        seconds: float,
        now: float,
        hits: dict[str, Hits],
        engines: tuple[float, float],
    ) -> Bucket:
        outcomes = {name: round(count - before.outcomes.get(name, 0.0)) for name, count in after.outcomes.items()}
        unseen = outcomes.get(Outcome.UNSEEN.value, 0)
        told = Hits()
        for each in hits.values():
            told.add(each, each.requests)
        observed = share(told.cached_tokens, told.input_tokens)
        ttft = [late - early for late, early in zip(after.ttft_cells, before.ttft_cells, strict=True)][:-1]
        director = self._director
        return Bucket(
            at=round(self._wall(), 1),
            seconds=round(seconds, 3),
            requests=sum(outcomes.values()) - unseen,
            shed=outcomes.get(Outcome.SHED.value, 0),
            aborted=outcomes.get(Outcome.ABORTED.value, 0),
            failed=max(after.server_errors - before.server_errors, sum(outcomes.get(name, 0) for name in _FAILED)),
            reasons={
                name: count
                for name, total in after.reasons.items()
                if (count := round(total - before.reasons.get(name, 0.0)))
            },
            hit_expected=share(told.expected_tokens, told.prompt_tokens),
            hit_observed=observed if observed is not None else share(engines[1], engines[0]),
            ttft_p50_seconds=quantile(ttft, buckets.TTFT_SECONDS, 0.5),
            ttft_p95_seconds=quantile(ttft, buckets.TTFT_SECONDS, 0.95),
            in_flight=director.ledger.open_charges,
            saturation=rounded(director.saturation(now)),
            endpoints=len(director.datastore.endpoints),
            ejected=len(director.ejection.ejected(now)),
        )


def share(part: float, whole: float) -> float | None:
    """`None` where there is next to nothing to take a share of."""
    return round(min(1.0, part / whole), 4) if whole >= _TOKENS_MIN else None


def rounded(value: float | None, digits: int = 4) -> float | None:
    """For JSON: no more digits than anybody reads."""
    return None if value is None else round(value, digits)


def quantile(counts: Sequence[float], bounds: Sequence[float], wanted: float) -> float | None:
    """Of values counted by bucket (the last count is of those beyond all bounds), linear within a bucket.

    `None`: there are none. What lies beyond the bounds counts as the last of them.
    """
    total = sum(counts)
    if total <= 0:
        return None
    rank, below = wanted * total, 0.0
    for bucket, count in enumerate(counts[: len(bounds)]):
        if count and below + count >= rank:
            low = bounds[bucket - 1] if bucket else 0.0
            return round(low + (bounds[bucket] - low) * (rank - below) / count, 5)
        below += count
    return bounds[-1]
