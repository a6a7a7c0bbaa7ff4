"""All of it for one director: what the edge (or the simulator) talks to.

Life: `join` asks the oldest picker for everything; a picker is *whole* once it has that, or is alone, or
gave up waiting (`settle`). Only who is whole answers for all, and of those the oldest; what a picker alone knows
(a gap in its numbering) it answers itself.
"""

from collections.abc import Iterator
from typing import Final

from picker.sharing.books import Books, RecordCounts
from picker.sharing.codec import BatchHead, Refused, decode, encode
from picker.sharing.inbox import OLDEST, Inbox
from picker.sharing.outbox import Outbox
from picker.sharing.peers import Peer, Peers
from picker.sharing.records import Answer
from picker.sharing.snapshots import Loader, chunks

ANSWER_SECONDS: Final = 2.0
"""From one snapshot to the next that the same picker writes."""
JOIN_ASK_SECONDS: Final = 1.0


class Shared:
    """One picker's part. Not thread-safe: the director's loop owns it."""

    def __init__(self, books: Books, *, name: int, started_ms: int) -> None:
        """`name`: of this run of this picker, 1..2**64-1, drawn at random."""
        self.name = name
        self.started_ms = started_ms
        self.whole = False
        self._books = books
        self._inbox = Inbox(books, name)
        self.outbox = Outbox(books)
        """What the director tells its news."""
        self._sequence = 0
        self._asked_at = -JOIN_ASK_SECONDS
        self._answered_at = -ANSWER_SECONDS
        books.index.exact = True

    @property
    def counts(self) -> RecordCounts:
        """What went through."""
        return self._books.counts

    @property
    def peers(self) -> Peers:
        """The others."""
        return self._books.peers

    # Telling -------------------------------------------------------------------------------

    def flush(self, now: float) -> bytes | None:
        """The next batch, if there is something to tell."""
        self.outbox.asks += self._inbox.asks(now)
        if OLDEST in self._inbox.wants and now - self._asked_at >= JOIN_ASK_SECONDS:
            self._asked_at = now
            self.outbox.asks.append((OLDEST, 0))
        missed = self._books.index.news_missed
        batch = self.outbox.batch(now)
        if batch is None:
            return None
        self._sequence += 2 if missed else 1
        return encode(BatchHead(self.name, self._sequence, int(now * 1e6), self.started_ms, self.whole), batch)

    def dropped(self, batches: int) -> None:
        """The edge had no room for batches: the gap in their numbers tells the others."""
        self.counts.dropped["outbox"] += batches

    # Hearing -------------------------------------------------------------------------------

    def receive(self, data: bytes, *, at: float, now: float) -> None:
        """A batch that was sent at `at`, on our clock. Raises `Refused`."""
        try:
            head, batch = decode(data)
        except Refused:
            self.counts.dropped["refused"] += 1
            raise
        self._inbox.receive(head, batch, at=at, now=now)

    def work(self, now: float, records: int = 64) -> bool:
        """Apply about so many records of what was received. True while there is more."""
        return self._inbox.work(now, records)

    def tick(self, now: float) -> None:
        """Now and then: the load of the silent counts no more."""
        for peer in self.peers.expire(now):
            self._inbox.lost(peer)
        if not self.whole and OLDEST in self._inbox.wants:
            alive = self.peers.alive(now)
            if alive and not any(peer.whole for peer in alive) and self._older_than(alive):
                self.settle()  # nobody knows more

    # Snapshots -----------------------------------------------------------------------------

    def join(self) -> None:
        """Ask for everything."""
        self.whole = False
        self._inbox.want(OLDEST, 0)

    def settle(self) -> None:
        """Whole, as far as can be: there is nobody to ask, or nobody answered."""
        self.whole = True
        self._inbox.wants.pop(OLDEST, None)

    def snapshot_due(self, now: float) -> int | None:
        """From which tick on others want a snapshot of us; `None`: nobody does, or we just wrote one."""
        if now - self._answered_at < ANSWER_SECONDS or not self._inbox.asked:
            return None
        asked, self._inbox.asked = self._inbox.asked, []
        ours = []
        for who, whom, since in asked:
            others = [peer for peer in self.peers.alive(now) if peer.name != who and peer.whole]
            if whom == self.name or (whom == OLDEST and self.whole and self._older_than(others)):
                ours.append(0 if whom == OLDEST else since)
        if not ours:
            return None
        self._answered_at = now
        return max(0, min(ours))

    def snapshot(self, since: int, now: float) -> Iterator[bytes | None]:
        """The chunks of a snapshot, of what was used from that tick on. `None` ends a step without one."""
        head = BatchHead(self.name, 0, int(now * 1e6), self.started_ms, self.whole)
        for batch in chunks(self._books, since, now):
            self.counts.sent["runs"] += 0 if batch is None else len(batch.runs)
            yield None if batch is None else encode(head, batch)

    def announce(self, name: str, count: int, since: int, begun: float) -> None:
        """A snapshot of so many chunks lies under `name`."""
        self.outbox.answers.append((name, count, since, int(begun * 1e6)))

    def answers(self) -> list[tuple[int, Answer, int]]:
        """Snapshots of others that we want: who wrote it, what it is, when that was told (our clock, microseconds)."""
        found, self._inbox.answers = self._inbox.answers, []
        return [each for each in found if self._wanted(each[0], each[1], each[2])]

    def load(self, loader: Loader, data: bytes, begun_us: int, now: float) -> Iterator[None]:
        """One chunk, in steps. `begun_us`: when the snapshot was begun, on our clock. Raises `Refused`."""
        try:
            head, batch = decode(data)
            if head.sequence:
                raise Refused("a batch in the place of a snapshot's chunk")
        except Refused:
            self.counts.dropped["refused"] += 1
            raise
        self.counts.received["runs"] += len(batch.runs)
        yield
        self._inbox.beside(batch, begun_us, now)
        yield
        yield from loader.runs(batch, begun_us, now)

    def loaded(self, whom: int, since: int) -> None:
        """All chunks of a snapshot are in; `since` 0: it was whole."""
        self._inbox.loaded(whom, since)
        if since <= 0:
            self.whole = True

    def loader(self) -> Loader:
        """For one snapshot."""
        return Loader(self._books)

    def check(self) -> None:
        """Assert the invariants. For tests."""
        self.peers.check()

    def _wanted(self, who: int, answer: Answer, at_us: int) -> bool:
        wants = self._inbox.wants
        if answer.whole and OLDEST in wants:
            return True
        wanted = wants.get(who)
        return wanted is not None and (answer.whole or at_us - answer.since <= wanted)

    def _older_than(self, peers: list[Peer]) -> bool:
        return all((self.started_ms, self.name) < (peer.started_ms, peer.name) for peer in peers)
