"""The whole of what is known, in chunks: for who joins, or missed something.

A chunk is a batch whose head has number 0 and whose ages count from the moment the snapshot was
begun. The index may change while it is written: what is recorded meanwhile is told in batches as always, and
merging twice changes nothing. Runs come parents first, each relative to the block before it.
"""

from array import array
from collections.abc import Iterator
from typing import Final

from picker.prefix.nodes import Node
from picker.prefix.walks import chain, find
from picker.sharing.books import Books
from picker.sharing.hashes import read, written
from picker.sharing.names import Table
from picker.sharing.records import Aside, Batch, Run, Sticky

CHUNK_BYTES: Final = 64 * 1024
CHUNK_RECORDS_MAX: Final = 512
"""Runs and their holders, or sessions, in a chunk: it is written, and taken apart, at once."""
SNAPSHOT_BYTES_MAX: Final = 64 * 1024 * 1024
"""Of hashes and holders: what does not fit is left out."""
STEP: Final = 64
"""Runs and their holders, or keys, from one step to the next."""
NODES_STEP: Final = 256
"""Nodes of the index, whatever is told of them."""
DEPTH_STEP: Final = 64
"""So many blocks above a run count like another run, where all of them have to be gone through."""
ENDS_PARTS: Final = 64
_NONE: Final = array("Q")


def chunks(books: Books, since: int, now: float) -> Iterator[Batch | None]:
    """What was used from tick `since` on, and the states beside it. `None` ends a step: let others have a turn."""
    begun = int(now * 1e6)
    table = Table(books.names)
    purged = [(place, begun - tick) for each, tick in books.purged.items() if (place := table.place(each)) is not None]
    aside: list[Aside] = [
        (place, int((now - until) * 1e6), min(ejections, 1000))
        for each, until, ejections in books.ejection.aside(now)
        if (place := table.place(each)) is not None
    ]
    yield Batch(endpoints=table.written(), purged=purged, aside=aside)
    yield from _sticky(books, since, begun)
    table, runs, size, total = Table(books.names), list[Run](), 0, 0
    endpoints = {endpoint.slot: endpoint for endpoint in books.datastore.endpoints}
    records = told = 0
    for found in books.index.holdings(since, NODES_STEP):
        if found is None:
            yield None
            continue
        last, depth, run, uses = found
        holders = []
        for slot, tick in uses:
            endpoint = endpoints.get(slot)
            place = None if endpoint is None else table.place(endpoint)
            if place is not None:
                holders.append((place, begun - tick))
        if holders:
            runs.append((last, depth, written(run), holders))
            size += 8 * len(run) + 16 + 10 * len(holders)
            records += 1 + len(holders)
        told += 1 + len(uses)
        if size >= CHUNK_BYTES or records >= CHUNK_RECORDS_MAX:
            yield Batch(endpoints=table.written(), runs=runs)
            total += size
            table, runs, size, records, told = Table(books.names), list[Run](), 0, 0, 0
            if total > SNAPSHOT_BYTES_MAX:
                return
        elif told >= STEP:
            told = 0
            yield None
    if runs:
        yield Batch(endpoints=table.written(), runs=runs)


def _sticky(books: Books, since: int, begun: int) -> Iterator[Batch | None]:
    table, found = Table(books.names), list[Sticky]()
    for kind, holders in enumerate(books.sticky):
        for count, (key, endpoint, used_at) in enumerate(holders.all()):
            tick = int(used_at * 1e6)
            place = table.place(endpoint) if tick >= since else None
            if place is not None:
                found.append((kind, key, place, begun - tick))
            if len(found) >= CHUNK_RECORDS_MAX:
                yield Batch(endpoints=table.written(), sticky=found)
                table, found = Table(books.names), list[Sticky]()
            elif count % STEP == STEP - 1:
                yield None
    if found:
        yield Batch(endpoints=table.written(), sticky=found)


class Loader:
    """Chunks of one snapshot into the books, in their order."""

    def __init__(self, books: Books) -> None:
        self._books = books
        self._ends: list[dict[int, tuple[Node, int]]] = [{} for _ in range(ENDS_PARTS)]
        """Where each run ended. In parts, by the hash: a dict that grows is written anew at once."""
        self.blocks = 0
        """Taken so far, each once however many hold it."""

    def runs(self, batch: Batch, begun_us: int, now: float) -> Iterator[None]:
        """The runs of a chunk, in steps. `begun_us`: on our clock."""
        books, now_us, work = self._books, int(now * 1e6), 0
        names = read(batch.endpoints)
        for last, depth, raw, uses in batch.runs:
            node: Node | None = None
            end = depth + len(raw) // 8
            for place, age in uses:
                if work >= STEP:
                    work = 0
                    yield
                work += 1
                endpoint = books.names.find(names[place])
                tick = min(begun_us - age, now_us)
                if endpoint is None or tick < books.purged.get(endpoint, tick):
                    continue
                if node is not None and node.end == end:  # an earlier holder has it
                    node = books.index.merge_below(node, _NONE, endpoint.slot, tick)
                else:
                    node = None
                if node is None:
                    node, looked = self._merge(last, depth, raw, endpoint.slot, tick)
                    work += looked
                    if node is None:
                        break  # we have no room for what it builds on
            work += 1
            if node is not None:
                (end_hash,) = read(raw[-8:])
                self._ends[end_hash % ENDS_PARTS][end_hash] = (node, end)
                books.trails.learn(end_hash, node, end)
                self.blocks += len(raw) // 8

    def _merge(self, last: int, depth: int, raw: bytes, slot: int, tick: int) -> tuple[Node | None, int]:
        """One holder's run into the index: its last node, and what that took, in runs."""
        index = self._books.index
        hashes = read(raw)
        if not depth:
            return index.merge(hashes, slot, tick).node, 0
        found = self._ends[last % ENDS_PARTS].get(last)
        ground = None if found is None or found[1] != depth else find(found[0], depth, last)
        if ground is None:
            return None, 0
        node = index.merge_below(ground, hashes, slot, tick) if ground.end == depth else None
        if node is not None:
            return node, 0
        whole = chain(ground, depth, last)
        if whole is None:
            return None, 0
        whole.extend(hashes)
        return index.merge(whole, slot, tick).node, len(whole) // DEPTH_STEP
