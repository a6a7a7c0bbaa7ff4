"""The director's news, gathered beside the decision and told in batches.

What a decision pays is an append, in the index. `batch` is asked for every 50 to 100 ms: it leaves out what was
withdrawn meanwhile, finds for each chain the deepest block that the others have, and states the
whole of our load when it changed, or after `RESTATE_SECONDS`, so that others can tell silence from peace.
News are bounded: what finds no room leaves a gap in the numbering, and who sees it asks for a snapshot.
"""

from typing import Final

from picker.pool.endpoint import Endpoint
from picker.pool.specs import EngineSample
from picker.prefix.index import NEWS_MAX
from picker.sharing.books import Books
from picker.sharing.hashes import written
from picker.sharing.names import Table
from picker.sharing.records import Answer, Aside, Ask, Batch, Chain, Load, Slowness, Sticky, Withdrawn

RESTATE_SECONDS: Final = 0.4
SLOWNESS_SECONDS: Final = 2.0
SLOWNESS_RESTATE_SECONDS: Final = 10.0
SAME_RESTART_SECONDS: Final = 2.5
"""Every picker sees an engine's restart by itself, within a reading or two."""


class Outbox:
    """Where news of the books gather. They are taken, and told, by `batch`."""

    def __init__(self, books: Books) -> None:
        self._books = books
        self._purged: list[tuple[Endpoint, int]] = []
        self._aside: list[tuple[Endpoint, float | None, int]] = []
        self._sticky_news: list[list[tuple[bytes, Endpoint, float]]] = [[] for _ in books.sticky]
        self._load: list[tuple[Endpoint, int, int, int, int, int, int]] = []
        self._load_at = -1e9
        self._slowness: list[tuple[Endpoint, float, float]] = []
        self._slowness_at = -1e9
        self._slowness_looked_at = -1e9
        self.asks: list[tuple[int, int]] = []
        """To go with the next batch: whom, and from which tick on."""
        self.answers: list[tuple[str, int, int, int]] = []
        """Likewise: a snapshot's name, chunks, from which tick on (0: whole), when it was begun (a tick)."""
        books.index.news, books.index.withdrawn = [], []
        books.ejection.news = self._aside
        for holders, news in zip(books.sticky, self._sticky_news, strict=True):
            holders.news = news

    # What the director tells ---------------------------------------------------------------

    def restarted(self, endpoint: Endpoint, sample: EngineSample) -> bool:
        """An engine lost its cache, by this reading. False: another picker told so already, and later picks stand."""
        tick = int(sample.taken_at_seconds * 1e6)
        if tick - self._books.purged.get(endpoint, -(2**62)) < SAME_RESTART_SECONDS * 1e6:
            return False
        self._books.purge(endpoint, tick)
        self._purged.append((endpoint, tick))
        return True

    # A batch -------------------------------------------------------------------------------

    def batch(self, now: float) -> Batch | None:
        """What is to be told now; `None`: nothing, and silence is not yet long."""
        now_us = int(now * 1e6)
        table = Table(self._books.names)
        chains, withdrawn = self._chains(table, now_us), self._withdrawals(table, now_us)
        load, slowness = self._load_state(table, now), self._slowness_state(table, now)
        purged = [(place, now_us - tick) for each, tick in self._purged if (place := table.place(each)) is not None]
        aside: list[Aside] = [
            (place, None if until is None else int((now - until) * 1e6), min(ejections, 1000))
            for each, until, ejections in self._aside
            if (place := table.place(each)) is not None
        ]
        sticky = self._sticky(table, now)
        asks: list[Ask] = [(whom, now_us - tick) for whom, tick in self.asks]
        answers = [
            Answer(name, chunks, now_us - since, now_us - begun, since == 0)
            for name, chunks, since, begun in self.answers
        ]
        for news in (self._purged, self._aside, self.asks, self.answers):
            news.clear()
        for uses in self._sticky_news:
            uses.clear()
        told = (chains, withdrawn, purged, aside, sticky, asks, answers)
        if load is None and slowness is None and not any(told) and not self._books.index.news_missed:
            return None
        self._books.index.news_missed = False
        sent = self._books.counts.sent
        for kind, count in (
            ("chains", len(chains)),
            ("withdrawn", len(withdrawn)),
            ("purged", len(purged)),
            ("load", len(load) if load is not None else 0),
            ("slowness", len(slowness) if slowness is not None else 0),
            ("aside", len(aside)),
            ("sticky", len(sticky)),
            ("asks", len(asks)),
            ("answers", len(answers)),
        ):
            sent[kind] += count
        return Batch(
            endpoints=table.written(),
            chains=chains,
            withdrawn=withdrawn,
            purged=purged,
            load=load,
            slowness=slowness,
            aside=aside,
            sticky=sticky,
            asks=asks,
            answers=answers,
        )

    def _chains(self, table: Table, now_us: int) -> list[Chain]:
        index = self._books.index
        picks = index.news
        if not picks:
            return []
        index.news = []
        gone: set[int] = set()
        if index.withdrawn:
            told = {id(recorded) for _, recorded in picks}
            gone = {id(recorded) for _, recorded in index.withdrawn if id(recorded) in told}
            index.withdrawn = [each for each in index.withdrawn if id(each[1]) not in gone]
        chains: list[Chain] = []
        names, trails = self._books.names, self._books.trails
        for hashes, recorded in picks:
            endpoint, node = names.at(recorded.slot), recorded.node
            place = None if endpoint is None or id(recorded) in gone else table.place(endpoint)
            if place is None or node is None:
                continue
            anchor = trails.anchor(hashes, recorded.known_before)
            mark = recorded.known_before if anchor < recorded.known_before < len(hashes) else 0
            last = hashes[anchor - 1] if anchor else 0
            chains.append((place, now_us - recorded.tick, last, anchor, mark, written(hashes[anchor:])))
            trails.remember(hashes, node, anchor, mark)
        return chains

    def _withdrawals(self, table: Table, now_us: int) -> list[Withdrawn]:
        withdrawn = self._books.index.withdrawn
        if not withdrawn:
            return []
        self._books.index.withdrawn = []
        found: list[Withdrawn] = []
        for hashes, recorded in withdrawn:
            endpoint = self._books.names.at(recorded.slot)
            place = None if endpoint is None else table.place(endpoint)
            if place is not None and hashes:
                found.append((place, now_us - recorded.tick, hashes[-1], len(hashes), recorded.held_before))
        return found

    def _load_state(self, table: Table, now: float) -> list[Load] | None:
        state = [
            (
                endpoint,
                endpoint.in_flight_requests,
                endpoint.in_flight_sequences,
                endpoint.prefilling_requests,
                int(endpoint.prefill_tokens),
                int(endpoint.context_tokens),
                int(endpoint.memory_tokens),
            )
            for endpoint in self._books.datastore.endpoints
            if endpoint.in_flight_requests
        ]
        if state == self._load and now - self._load_at < RESTATE_SECONDS:
            return None
        self._load, self._load_at = state, now
        return [
            (place, requests, sequences, prefilling, prefill, context, memory)
            for endpoint, requests, sequences, prefilling, prefill, context, memory in state
            if (place := table.place(endpoint)) is not None
        ]

    def _slowness_state(self, table: Table, now: float) -> list[Slowness] | None:
        if now - self._slowness_looked_at < SLOWNESS_SECONDS:
            return None
        self._slowness_looked_at = now
        rates = self._books.rates
        state: list[tuple[Endpoint, float, float]] = []
        for endpoint in self._books.datastore.endpoints:
            deviation, samples = rates.measured(endpoint.slot)
            if samples > 0.0:
                state.append((endpoint, round(deviation, 2), min(float(int(samples)), 20.0)))
        if state == self._slowness and now - self._slowness_at < SLOWNESS_RESTATE_SECONDS:
            return None
        if not state and not self._slowness:
            return None
        self._slowness, self._slowness_at = state, now
        return [
            (place, deviation, samples)
            for endpoint, deviation, samples in state
            if (place := table.place(endpoint)) is not None
        ]

    def _sticky(self, table: Table, now: float) -> list[Sticky]:
        found: list[Sticky] = []
        for kind, news in enumerate(self._sticky_news):
            for key, endpoint, used_at in news[-NEWS_MAX:]:
                place = table.place(endpoint)
                if place is not None:
                    found.append((kind, key, place, int((now - used_at) * 1e6)))
        return found
