"""Others' batches into our books.

Batches come through `receive`, at once; what they hold is applied in steps by `work`, so that a
long batch holds no request up. A chain on top of something that we do not have yet waits a moment:
another picker may have told it, and its batch is on the way. What stays without ground is asked for, as
is what a gap in a picker's numbering says we missed: a snapshot of all that this picker knows since.

Invariants: nothing is applied to an endpoint that left; no use is newer than `now`; what an engine lost
stays lost, also when an older use is told later.
"""

from array import array
from collections import deque
from operator import itemgetter
from typing import Final

from picker.pool.endpoint import Endpoint, Load
from picker.prefix.matches import Recorded
from picker.prefix.nodes import Node
from picker.prefix.walks import chain as follow
from picker.sharing.books import Books
from picker.sharing.codec import BatchHead
from picker.sharing.hashes import read
from picker.sharing.peers import OFFSET_STEP_US, Peer
from picker.sharing.records import Answer, Batch, Chain, Withdrawn

WAITING_MAX: Final = 4_096
WAIT_SECONDS: Final = 1.5
SETTLE_SECONDS: Final = 0.05
QUEUE_BLOCKS_MAX: Final = 8_000_000
"""Of hashes that are received and not yet applied; one is eight bytes."""
ASK_SECONDS: Final = 2.0
ASK_SECONDS_MAX: Final = 300.0
_ASIDE_US_MAX: Final = 86_400_000_000
OLDEST: Final = 0
"""Whom to ask where nobody in particular has it."""


class _Waiting:
    """A chain without ground, of an endpoint by name."""

    __slots__ = ("chain", "name", "offset_us", "peer", "until")

    def __init__(self, chain: Chain, name: int, offset_us: int, peer: int, until: float) -> None:
        self.chain = chain
        self.name = name
        self.offset_us = offset_us
        """From an age in it to a tick of ours, reversed: tick = offset - age."""
        self.peer = peer
        self.until = until


class _Queued:
    """A batch that is being applied."""

    __slots__ = ("at_us", "batch", "done", "endpoints", "names", "peer")

    def __init__(
        self, batch: Batch, names: "array[int]", endpoints: list[Endpoint | None], peer: int, at_us: int
    ) -> None:
        self.batch = batch
        self.names = names
        self.endpoints = endpoints
        """As they were found when it came: one may have left since, or joined."""
        self.peer = peer
        self.at_us = at_us
        self.done = 0


class Inbox:
    """One for a director. `name`: who we are."""

    def __init__(self, books: Books, name: int) -> None:
        self._books = books
        self._name = name
        self._queue: deque[_Queued] = deque()
        self._queued_blocks = 0
        self._waiting: list[_Waiting] = []
        self._settled_at = 0.0
        self.wants: dict[int, int] = {}
        """Snapshots to ask for: of whom, of what was used from which tick on."""
        self.asked: list[tuple[int, int, int]] = []
        """Snapshots that others want: who, of whom (us, or the oldest), from which tick on."""
        self.answers: list[tuple[int, Answer, int]] = []
        """Snapshots that others wrote: who, what, and the answer's time on our clock, in microseconds."""

    # Receiving -----------------------------------------------------------------------------

    def receive(self, head: BatchHead, batch: Batch, *, at: float, now: float) -> None:
        """A batch that was sent at `at`, on our clock."""
        if head.sender == self._name:
            return
        peer = self._books.peers.meet(head.sender)
        if peer is None:
            self._books.counts.dropped["inbox"] += 1
            return
        at_us = self._on_our_clock(peer, head.sent_us, at)
        peer.heard_at = max(peer.heard_at, at)
        peer.lag = max(0.0, now - at)
        peer.started_ms, peer.whole = head.started_ms, head.whole
        if head.sequence > peer.sequence:
            if peer.sequence and head.sequence > peer.sequence + 1:
                self.want(peer.name, peer.told_us)
            peer.sequence, peer.told_us = head.sequence, at_us
        for state, kind in ((batch.load, "load"), (batch.slowness, "slowness")):
            self._books.counts.received[kind] += 0 if state is None else len(state)
        names = read(batch.endpoints)
        endpoints = self._books.names.find_all(names)
        self._states(peer, head.sequence, batch, endpoints, at)
        for whom, since in batch.asks:
            self._books.counts.received["asks"] += 1
            self._books.trails.build_anew()
            self.asked.append((peer.name, whom, at_us - since))
        for answer in batch.answers:
            self._books.counts.received["answers"] += 1
            self.answers.append((peer.name, answer, at_us))
        del self.asked[:-64], self.answers[:-64]
        blocks = sum(map(len, map(itemgetter(5), batch.chains))) // 8
        if self._queued_blocks + blocks > QUEUE_BLOCKS_MAX:
            self._books.counts.dropped["inbox"] += 1
            self.want(peer.name, at_us)
            return
        self._queued_blocks += blocks
        self._queue.append(_Queued(batch, names, endpoints, peer.name, at_us))

    def want(self, whom: int, since: int) -> None:
        """A snapshot of what `whom` knows since that tick is wanted."""
        self.wants[whom] = min(since, self.wants.get(whom, since))

    def asks(self, now: float) -> list[tuple[int, int]]:
        """The wants that are due to be asked for: whom, and from which tick on. Each less often every time."""
        due = []
        for whom, since in list(self.wants.items()):
            peer = self._books.peers.find(whom)
            if whom == OLDEST:
                continue  # the edge asks: it knows who is there
            if peer is None:
                del self.wants[whom]  # it is gone, and what it alone knew with it
            elif now >= peer.ask_after:
                recent = now - peer.ask_after < 4 * peer.ask_wait
                peer.ask_wait = min(2 * peer.ask_wait, ASK_SECONDS_MAX) if recent and peer.ask_wait else ASK_SECONDS
                peer.ask_after = now + peer.ask_wait
                due.append((whom, since))
        return due

    def loaded(self, whom: int, since: int) -> None:
        """A snapshot that `whom` wrote, of what was used from that tick on, is in our books."""
        wanted = self.wants.get(whom)
        if wanted is not None and since <= wanted:
            del self.wants[whom]
        if since <= 0:
            self.wants.pop(OLDEST, None)

    # Applying ------------------------------------------------------------------------------

    def work(self, now: float, records: int = 64) -> bool:
        """Apply about so many records. True while there is more to do at once."""
        self._settle(now)
        now_us = int(now * 1e6)
        while records > 0 and self._queue:
            queued = self._queue[0]
            batch, chains, endpoints = queued.batch, queued.batch.chains, queued.endpoints
            if queued.done == 0:
                records -= self.beside(batch, queued.at_us, now)
            upto = min(len(chains), queued.done + max(1, records))
            for number in range(queued.done, upto):
                chain = chains[number]
                self._queued_blocks -= len(chain[5]) >> 3
                endpoint = endpoints[chain[0]]
                if endpoint is None or endpoint.slot < 0:
                    endpoint = self._books.names.find(queued.names[chain[0]])
                if endpoint is None or not self._chain(chain, endpoint, queued.at_us, now_us):
                    name = queued.names[chain[0]]
                    self._wait(_Waiting(chain, name, queued.at_us, queued.peer, now + WAIT_SECONDS))
            records -= upto - queued.done
            self._books.counts.received["chains"] += upto - queued.done
            queued.done = upto
            if upto == len(chains):
                self._queue.popleft()
                self._withdrawals(queued, now)
        return bool(self._queue)

    def lost(self, peer: Peer) -> None:
        """It is gone for good: what it measured counts no more."""
        self._changed(self._books.rates.told(peer.name, {}))

    def _on_our_clock(self, peer: Peer, sent_us: int, at: float) -> int:
        offset = int(at * 1e6) - sent_us
        if peer.offset_us is None or abs(offset - peer.offset_us) > OFFSET_STEP_US:
            peer.offset_us = offset
        return sent_us + peer.offset_us

    def _states(self, peer: Peer, sequence: int, batch: Batch, endpoints: list[Endpoint | None], at: float) -> None:
        if batch.load is not None and sequence > peer.load_sequence:
            peer.load_sequence = sequence
            load: dict[Endpoint, Load] = {}
            for place, requests, sequences, prefilling, prefill, context, memory in batch.load:
                endpoint = endpoints[place]
                if endpoint is not None:
                    load[endpoint] = Load(
                        requests, sequences, prefilling, float(prefill), float(context), float(memory)
                    )
            self._books.peers.carry(peer, load, at)
        if batch.slowness is not None and sequence == peer.sequence:
            found: dict[int, tuple[float, float]] = {}
            for place, deviation, samples in batch.slowness:
                endpoint = endpoints[place]
                if endpoint is not None:
                    found[endpoint.slot] = (deviation, samples)
            self._changed(self._books.rates.told(peer.name, found))

    def _changed(self, slots: list[int]) -> None:
        """Costs read these anew."""
        wanted = set(slots)
        if wanted:
            ledger = self._books.ledger
            ledger.changed.update(each for each in self._books.datastore.endpoints if each.slot in wanted)

    def beside(self, batch: Batch, at_us: int, now: float) -> int:
        """What a batch has but chains, withdrawals and states. How many records that was."""
        books = self._books
        now_us, received = int(now * 1e6), books.counts.received
        for place, age in batch.purged:
            endpoint = books.names.find(name_at(batch.endpoints, place))
            if endpoint is not None:
                tick = min(at_us - age, now_us)
                books.purge(endpoint, tick)
                books.index.forget_before(endpoint.slot, tick)
        for place, left, ejections in batch.aside:
            endpoint = books.names.find(name_at(batch.endpoints, place))
            if endpoint is not None:
                until = None if left is None else min(at_us - left, now_us + _ASIDE_US_MAX) / 1e6
                books.ejection.told(endpoint, until, ejections, books.aside_max())
        for kind, key, place, age in batch.sticky:
            endpoint = books.names.find(name_at(batch.endpoints, place))
            if endpoint is not None:
                books.sticky[kind].told(key, endpoint, min(at_us - age, now_us) / 1e6)
        received["purged"] += len(batch.purged)
        received["aside"] += len(batch.aside)
        received["sticky"] += len(batch.sticky)
        return len(batch.purged) + len(batch.aside) + len(batch.sticky)

    def _chain(self, chain: Chain, endpoint: Endpoint, at_us: int, now_us: int) -> bool:
        """Into the index. False: what it builds on is not known (yet)."""
        books = self._books
        _, age, last, anchor, mark, raw = chain
        ground: Node | None = None
        if anchor:
            ground = books.trails.find(last, anchor)
            if ground is None:
                return False
        elif not raw:
            return True
        tick = min(at_us - age, now_us)
        if books.purged and tick < books.purged.get(endpoint, tick):
            return True
        hashes = read(raw)
        if ground is not None:
            if ground.end == anchor and not mark:
                end = hashes[-1] if hashes else last
                depth = anchor + len(hashes)
                node = books.index.merge_below(ground, hashes, endpoint.slot, tick)
                if node is not None:
                    books.trails.went_on(last, anchor, end, depth, node)
                    return True
            whole = follow(ground, anchor, last)
            if whole is None:
                return False
            whole.extend(hashes)
            hashes = whole
        node = books.index.merge(hashes, endpoint.slot, tick).node
        if node is not None:
            books.trails.remember(hashes, node, anchor, mark)
        return True

    def _withdrawals(self, queued: _Queued, now: float) -> None:
        for withdrawn in queued.batch.withdrawn:
            self._withdraw(withdrawn, queued)
        self._books.counts.received["withdrawn"] += len(queued.batch.withdrawn)

    def _withdraw(self, withdrawn: Withdrawn, queued: _Queued) -> None:
        place, age, last, depth, held_before = withdrawn
        endpoint = self._books.names.find(name_at(queued.batch.endpoints, place))
        hashes = self._books.trails.follow(last, depth)
        if endpoint is not None and hashes is not None:
            self._books.index.take_back(hashes, Recorded(endpoint.slot, held_before, queued.at_us - age))

    def _wait(self, waiting: _Waiting) -> None:
        if len(self._waiting) >= WAITING_MAX:
            self._unresolved(self._waiting.pop(0))
        self._waiting.append(waiting)

    def _settle(self, now: float) -> None:
        """Try the waiting ones again; whose time is over are given up, and asked for."""
        if not self._waiting or 0.0 <= now - self._settled_at < SETTLE_SECONDS:
            return
        self._settled_at = now
        waiting, self._waiting = self._waiting, []
        now_us = int(now * 1e6)
        for each in waiting:
            endpoint = self._books.names.find(each.name)
            if endpoint is not None and self._chain(each.chain, endpoint, each.offset_us, now_us):
                continue
            if now < each.until:
                self._waiting.append(each)
            else:
                self._unresolved(each)

    def _unresolved(self, waiting: _Waiting) -> None:
        self._books.counts.dropped["unresolved"] += 1
        if self._books.names.find(waiting.name) is not None:
            self.want(waiting.peer, waiting.offset_us - waiting.chain[1])


def name_at(endpoints: bytes, place: int) -> int:
    return int.from_bytes(endpoints[8 * place : 8 * place + 8], "little")
