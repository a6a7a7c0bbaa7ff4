"""Which of our chains an engine's blocks belong to: by session id, parent links and counting, no token read.

A request that is sent carries an id of ours (`sent`); the engine says it on each block that the
request stores. Such a block's place in the prompt is its parent's plus one, or 0 without a parent. Where
the parent is not known (it was there before we listened, or is one of the many that are not kept), the
end of the request tells: what `usage` counts as cached was there before its first new block.

Of an engine's blocks (16 to 256 tokens) only those are kept that end one of our blocks of 1,024
bytes, and the last of what a request stored, as its next ones name it as their parent. An entry says which
block of which chain it is. So memory is by our blocks, and bounded.

What events come to, as effects on the index:

* stored: the chain is there, as deep as the blocks reach (`confirmed`);
* removed: that chain ends before that block, and all that lie beneath it there. Not while a request
  that needs the block is on its way: it waits for room, and will store the block again;
* cleared, or a publisher that starts again: nothing is there any more.

What cannot be matched with certainty changes nothing and is counted.

Invariants (`check()`): a slot's two maps mirror each other; entries and requests are within their
bounds.
"""

from array import array
from collections import OrderedDict
from typing import Final

from picker.prefix.blocks import BLOCK_BYTES
from picker.prefix.index import PrefixIndex
from picker.residency.wire import BlockHash, Cleared, Event, Removed, Stored

ENTRIES_MAX: Final = 1_000_000
"""Over all slots: some 250 MB at worst. Beyond it the slot with the most forgets its oldest."""
REQUESTS_MAX: Final = 16_384
"""Requests whose blocks are still expected; the oldest go first."""
SESSION_CHARS_MAX: Final = 256
"""Of a client's own name for its session: a longer one meets none of the engine's."""
_BYTES_PER_TOKEN_MIN: Final = 0.5
_BYTES_PER_TOKEN_MAX: Final = 16.0
"""Reported tokens outside of it are not those of this prompt."""
PENDING_MAX: Final = 64
"""Events of one request that wait for its end."""


class _Request:
    """A request that an engine may speak of."""

    __slots__ = ("ambiguous", "cached_tokens", "hashes", "open", "pending", "prompt_bytes", "tail", "tokens")

    def __init__(self, hashes: "array[int]", prompt_bytes: float, tokens: float) -> None:
        self.hashes = hashes
        self.prompt_bytes = prompt_bytes
        self.tokens = tokens
        """Of the prompt: as estimated, then as reported."""
        self.cached_tokens: int | None = None
        self.open = True
        self.ambiguous = False
        self.pending: list[Stored] = []
        self.tail: BlockHash | None = None
        """The last block it stored, kept only to be found as a parent."""


class _Place:
    """Where an engine's block lies."""

    __slots__ = ("block", "depth", "hashes")

    def __init__(self, hashes: "array[int]", depth: int, block: int) -> None:
        self.hashes = hashes
        self.depth = depth
        """Blocks of the engine up to and with this one."""
        self.block = block
        """Which of our blocks ends within it; -1: none that counts."""


class _Slot:
    __slots__ = ("groups", "ours", "places", "whole")

    def __init__(self) -> None:
        self.places: dict[BlockHash, _Place] = {}
        self.ours: dict[int, BlockHash] = {}
        """The engine's block that ends a block of ours, by our hash."""
        self.groups: set[int] = set()
        """Groups of other kinds of attention: what they remove says nothing."""
        self.whole = True


class Residency:
    """All slots. One event loop owns it; it changes the index it is given."""

    def __init__(self, index: PrefixIndex, *, stamps: str = "", entries_max: int = ENTRIES_MAX) -> None:
        """`stamps`: what the names of our requests begin with, this process's own."""
        self._index = index
        self._stamps = stamps
        self._stamped = 0
        self._entries_max = entries_max
        self._slots: dict[int, _Slot] = {}
        self._requests: OrderedDict[tuple[int, str], _Request] = OrderedDict()
        self._open: dict[int, dict[_Request, None]] = {}
        """By slot, those that are not over."""
        self._entries = 0
        self.events_total: dict[str, int] = {"stored": 0, "removed": 0, "cleared": 0}
        self.unmatched_blocks_total = 0
        """Stored for a request that is not ours, or no longer known, or below a parent that nobody knows."""
        self.shortened_total = 0

    # What is sent --------------------------------------------------------------------------

    def named(self, own: str | None, slot: int, *, stamps: bool) -> str | None:
        """What the engine of `slot` will call a request: as its client did (`own`), or by a name of ours.

        Ours are all of one length.

        `None`: nobody listens to it, or it gets no name (`stamps`: whether a header carries ours).
        """
        if slot not in self._slots or (own is None and not stamps):
            return None
        if own is not None:
            return own[:SESSION_CHARS_MAX]
        self._stamped = (self._stamped + 1) & 0xFFFFFFFFFF
        return f"{self._stamps}{self._stamped:010x}"

    def sent(self, session_id: str, slot: int, hashes: "array[int]", prompt_bytes: float, tokens: float) -> None:
        """A request with this id went to `slot`. `tokens`: of its prompt, about."""
        requests = self._requests
        before = requests.pop((slot, session_id), None)
        requests[slot, session_id] = request = _Request(hashes, prompt_bytes, tokens)
        # Two at a time under one name of their client's: which of them a block is of, nobody can tell.
        if before is not None:
            request.ambiguous = before.open or before.ambiguous
            self._close(slot, before)
        self._open.setdefault(slot, {})[request] = None
        if len(requests) > REQUESTS_MAX:
            (there, _), oldest = requests.popitem(last=False)
            self._close(there, oldest)

    def ended(self, session_id: str, slot: int, input_tokens: int | None, cached_tokens: int | None) -> None:
        """It is over: what waited for its end is placed, if its answer told how much was cached."""
        request = self._requests.get((slot, session_id))
        if request is None:
            return
        self._close(slot, request)
        if input_tokens and _BYTES_PER_TOKEN_MIN <= request.prompt_bytes / input_tokens <= _BYTES_PER_TOKEN_MAX:
            request.tokens = float(input_tokens)
        request.cached_tokens = cached_tokens
        pending, request.pending = request.pending, []
        for event in pending:
            if request.cached_tokens is not None:
                self._store(slot, request, event)
            else:
                self.unmatched_blocks_total += len(event.block_hashes)

    # What engines say ----------------------------------------------------------------------

    def apply(self, slot: int, events: list[Event], rank: int = 0) -> None:
        """Events of one batch, in their order. `rank`: of data parallelism; each has a cache of its own."""
        counts = self.events_total
        for event in events:
            if rank and not isinstance(event, Cleared):
                _of_rank(event, rank)
            if isinstance(event, Stored):
                counts["stored"] += 1
                self._stored(slot, event)
            elif isinstance(event, Removed):
                counts["removed"] += 1
                if event.counts:
                    self._removed(slot, event)
            else:
                counts["cleared"] += 1
                self.cleared(slot)

    def cleared(self, slot: int) -> None:
        """The engine holds nothing any more."""
        self._forget_blocks(slot)
        self._index.clear(slot)
        self._slots.setdefault(slot, _Slot()).whole = True

    def missed(self, slot: int) -> None:
        """Events of this engine are lost: what is known of it is approximate until it is cleared or replayed."""
        self._slots.setdefault(slot, _Slot()).whole = False

    def heard(self, slot: int) -> None:
        """All that this engine did is known."""
        self._slots.setdefault(slot, _Slot()).whole = True

    def forget(self, slot: int) -> None:
        """Another endpoint, or none that tells."""
        self._forget_blocks(slot)
        self._slots.pop(slot, None)

    # What is known -------------------------------------------------------------------------

    @property
    def listens(self) -> bool:
        """To anybody."""
        return bool(self._slots)

    def tells(self, slot: int) -> bool:
        """Whether this slot's engine is listened to."""
        return slot in self._slots

    def whole(self, slot: int) -> bool:
        """And nothing of what it said was lost."""
        known = self._slots.get(slot)
        return known is not None and known.whole

    def confirmed_blocks(self, slot: int) -> int:
        """Of ours, over all chains."""
        known = self._slots.get(slot)
        return 0 if known is None else len(known.ours)

    def counts(self) -> tuple[int, int, int]:
        """Slots that are listened to, those of them of which nothing is missing, and confirmed blocks over all."""
        slots = self._slots.values()
        return len(slots), sum(each.whole for each in slots), sum(len(each.ours) for each in slots)

    def confirmed(self, hashes: "array[int]", slot: int, matched: int) -> int | None:
        """How deep the engine itself said that it holds this chain, of the `matched` blocks that the index believes.

        `None`: nobody listens to it.
        """
        known = self._slots.get(slot)
        if known is None:
            return None
        depth = min(matched, len(hashes))
        while depth and hashes[depth - 1] not in known.ours:
            depth -= 1
        return depth

    def check(self) -> None:
        """Assert the invariants. For tests."""
        assert self._entries == sum(len(known.places) for known in self._slots.values()) <= self._entries_max
        assert len(self._requests) <= REQUESTS_MAX
        still = {(slot, request) for slot, requests in self._open.items() for request in requests}
        assert still == {(slot, request) for (slot, _), request in self._requests.items() if request.open}
        for known in self._slots.values():
            for ours, theirs in known.ours.items():
                place = known.places[theirs]
                assert place.block >= 0 and place.hashes[place.block] == ours

    # Steps ---------------------------------------------------------------------------------

    def _close(self, slot: int, request: _Request) -> None:
        request.open = False
        at_slot = self._open.get(slot)
        if at_slot is not None:
            at_slot.pop(request, None)
            if not at_slot:
                del self._open[slot]

    def _awaited(self, slot: int, place: _Place) -> bool:
        """A request on its way there needs the block."""
        ours, block = place.hashes[place.block], place.block
        for request in self._open.get(slot, ()):
            if len(request.hashes) > block and request.hashes[block] == ours:
                return True
        return False

    def _stored(self, slot: int, event: Stored) -> None:
        known = self._slots.get(slot)
        if known is None:
            known = self._slots[slot] = _Slot()
        if not event.counts:
            known.groups.add(event.group)
            return
        request = None if event.session_id is None else self._requests.get((slot, event.session_id))
        if request is None or request.ambiguous:
            self.unmatched_blocks_total += len(event.block_hashes)
            return
        self._store(slot, request, event)

    def _store(self, slot: int, request: _Request, event: Stored) -> None:
        known = self._slots.setdefault(slot, _Slot())
        depth = 0
        if event.parent is not None:
            place = known.places.get(event.parent)
            if place is not None:
                depth = place.depth
            elif request.cached_tokens is None:
                if len(request.pending) < PENDING_MAX:
                    request.pending.append(event)
                else:
                    self.unmatched_blocks_total += len(event.block_hashes)
                return
            else:  # its first new block: what lies above was cached
                depth = request.cached_tokens // event.block_tokens
        self._keep(slot, known, request, event, depth)

    def _keep(self, slot: int, known: _Slot, request: _Request, event: Stored, depth: int) -> None:
        hashes, size = request.hashes, event.block_tokens
        per_block = BLOCK_BYTES * request.tokens / request.prompt_bytes if request.prompt_bytes else 0.0
        deepest = 0
        if per_block:
            # Our block j ends within the engine's block that is the last to lie wholly in it.
            block = int(depth * size / per_block)
            while block < len(hashes):
                at = int((block + 1) * per_block / size) - 1 - depth
                if at >= len(event.block_hashes):
                    break
                if at >= 0:
                    self._enter(known, event.block_hashes[at], _Place(hashes, depth + at + 1, block))
                    deepest = block + 1
                block += 1
        last = event.block_hashes[-1] if event.block_hashes else None
        if last is not None:
            self._retail(known, request, event.parent, last, depth + len(event.block_hashes))
        if deepest:
            self._index.confirm(hashes, deepest, slot)
        while self._entries > self._entries_max:
            self._drop_oldest()

    def _enter(self, known: _Slot, theirs: BlockHash, place: _Place) -> None:
        self._take(known, theirs)
        ours = place.hashes[place.block]
        before = known.ours.get(ours)
        if before is not None:
            self._take(known, before)
        known.places[theirs] = place
        known.ours[ours] = theirs
        self._entries += 1

    def _retail(self, known: _Slot, request: _Request, parent: BlockHash | None, last: BlockHash, depth: int) -> None:
        """The request's last block is another one now."""
        tail = request.tail
        if tail is not None and tail == parent:
            place = known.places.get(tail)
            if place is not None and place.block < 0:
                self._take(known, tail)
        request.tail = last
        if last not in known.places:
            known.places[last] = _Place(request.hashes, depth, -1)
            self._entries += 1

    def _take(self, known: _Slot, theirs: BlockHash) -> _Place | None:
        place = known.places.pop(theirs, None)
        if place is None:
            return None
        self._entries -= 1
        if place.block >= 0:
            ours = place.hashes[place.block]
            if known.ours.get(ours) == theirs:
                del known.ours[ours]
                return place
        return None

    def _removed(self, slot: int, event: Removed) -> None:
        known = self._slots.get(slot)
        if known is None or event.group in known.groups:
            return
        for theirs in event.block_hashes:
            place = self._take(known, theirs)
            if place is not None and not self._awaited(slot, place):
                self.shortened_total += 1
                self._index.shorten(place.hashes, place.block, slot)

    def _drop_oldest(self) -> None:
        """A 64th of the slot that has the most."""
        known = max(self._slots.values(), key=lambda each: len(each.places))
        for theirs in list(known.places)[: max(1, len(known.places) // 64)]:
            self._take(known, theirs)

    def _forget_blocks(self, slot: int) -> None:
        known = self._slots.get(slot)
        if known is not None:
            self._entries -= len(known.places)
            known.places.clear()
            known.ours.clear()


def _of_rank(event: Stored | Removed, rank: int) -> None:
    """Equal blocks of several ranks are several: their names are made to differ."""
    event.block_hashes = [_named(each, rank) for each in event.block_hashes]
    if isinstance(event, Stored) and event.parent is not None:
        event.parent = _named(event.parent, rank)


def _named(block: BlockHash, rank: int) -> BlockHash:
    return block + bytes((rank & 0xFF,)) if isinstance(block, bytes) else block ^ rank << 64
