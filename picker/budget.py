"""One ledger for what is held for peers, from the socket to the decision, and who gives way when it is full.

Whoever keeps bytes of a peer beyond the step that brought them is a `Holder` and tells the `Budget`
how many. Over `bytes_max` holders give way, at once, until the rest fits: the one with the most
bytes times seconds first, which is never a small request that goes on as it should. Holders stand
in shelves by size, each in the order in which they came there, so that the first of each shelf are all
that has to be compared.

Invariants: `used` is the sum of the four parts; a holder stands in a shelf exactly while `held_bytes`
is above 0; who gives way leaves its shelf before it is asked to; what is asked of one call to `take`
is bounded (`_ASKED_MAX`), so that a flood pays for itself step by step.
"""

from collections.abc import Callable
from typing import Final

STREAM_BYTES: Final = 4096
"""What an open call takes by itself: its own state and its exchange's (measured: docs/security.md)."""

UNANSWERED_BYTES: Final = 4096
"""And so much more until its first answer: headers and the beginning of a body, not counted one by one."""

_OPEN_BYTES: Final = STREAM_BYTES + UNANSWERED_BYTES
_SHELVES_MAX: Final = (16_384, 262_144, 4_194_304, 2**60)
_ASKED_MAX: Final = 64
_MOMENT_SECONDS: Final = 0.01
"""Added to the time that bytes were held: among those that came in the same instant the largest goes first."""


class Holder:
    """Something that keeps bytes of a peer."""

    __slots__ = ("after", "before", "held_bytes", "held_since", "shelf")

    def __init__(self) -> None:
        self.held_bytes = 0
        self.held_since = 0.0
        self.shelf = -1
        self.before: Holder | None = None
        self.after: Holder | None = None

    def give_way(self) -> None:
        """Let go of everything now, and of the peer's call with it."""
        raise NotImplementedError


class HolderFor(Holder):
    """A holder in place of an object that cannot inherit: interpreted classes do not from compiled ones."""

    __slots__ = ("_give_way",)

    def __init__(self, give_way: Callable[[], None]) -> None:
        super().__init__()
        self._give_way = give_way

    def give_way(self) -> None:
        self._give_way()


class Budget:
    """What is held, by part, against one bound. `now` is set by whoever reads a clock."""

    __slots__ = ("_shelves", "answers", "bodies", "bytes_max", "gave_way_total", "messages", "now", "streams", "used")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.used = 0
        self.messages = 0
        """Bytes of messages that are not whole."""
        self.bodies = 0
        """Bytes of bodies that wait for their end, or for a decision."""
        self.answers = 0
        """Bytes of answers that wait for their peer."""
        self.streams = 0
        """Bytes of open calls."""
        self.gave_way_total = 0
        self.now = 0.0
        self._shelves = [Holder() for _ in _SHELVES_MAX]
        for shelf in self._shelves:
            shelf.before = shelf.after = shelf

    def take(self, holder: Holder, size: int) -> None:
        """`holder` keeps `size` bytes more. The caller has added them to their part. May make anybody give way."""
        self.used += size
        held = holder.held_bytes = holder.held_bytes + size
        shelf = holder.shelf
        if shelf < 0:
            holder.held_since = self.now
            self._place(holder, held)
        elif held > _SHELVES_MAX[shelf]:
            _unlink(holder)
            self._place(holder, held)
        if self.used > self.bytes_max:
            self._relieve()

    def give(self, holder: Holder, size: int) -> None:
        """`holder` keeps `size` bytes less. The caller has taken them off their part."""
        self.used -= size
        holder.held_bytes -= size
        if holder.held_bytes <= 0 and holder.shelf >= 0:
            _unlink(holder)

    def begin(self, holder: Holder) -> None:
        """A call is open. Until its first answer it may have to give way for that alone."""
        self.streams += _OPEN_BYTES
        self.used += _OPEN_BYTES
        holder.held_bytes = _OPEN_BYTES
        holder.held_since = self.now
        holder.shelf = 0  # what `_place` would find
        head = self._shelves[0]
        last = head.before
        assert last is not None
        holder.before, holder.after = last, head
        last.after = head.before = holder
        if self.used > self.bytes_max:
            self._relieve()

    def answered(self, holder: Holder) -> None:
        """Its first answer: it is somebody's request, and goes on."""
        self.streams -= UNANSWERED_BYTES
        self.used -= UNANSWERED_BYTES
        held = holder.held_bytes = holder.held_bytes - _OPEN_BYTES
        if held <= 0 and holder.shelf >= 0:
            _unlink(holder)

    def end(self, holder: Holder, answered: bool) -> None:
        """The call is over."""
        self.streams -= STREAM_BYTES
        if answered:
            self.used -= STREAM_BYTES
        else:
            self.streams -= UNANSWERED_BYTES
            self.give(holder, _OPEN_BYTES)

    def _place(self, holder: Holder, held: int) -> None:
        shelf = 0
        while held > _SHELVES_MAX[shelf]:
            shelf += 1
        holder.shelf = shelf
        head = self._shelves[shelf]
        last = head.before
        assert last is not None
        holder.before, holder.after = last, head
        last.after = head.before = holder

    def _relieve(self) -> None:
        """Make holders give way until the rest fits, or enough have been asked for now."""
        asked = 0
        while self.used > self.bytes_max and asked < _ASKED_MAX:
            asked += 1
            holder = self._heaviest()
            if holder is None:
                return
            _unlink(holder)
            self.gave_way_total += 1
            holder.give_way()

    def _heaviest(self) -> Holder | None:
        found: Holder | None = None
        weight = -1.0
        for head in self._shelves:
            first = head.after
            assert first is not None
            if first is not head:
                own = first.held_bytes * (self.now - first.held_since + _MOMENT_SECONDS)
                if own > weight:
                    found, weight = first, own
        return found

    def parts(self) -> dict[str, int]:
        """Bytes by what they are held for."""
        return {"messages": self.messages, "bodies": self.bodies, "answers": self.answers, "streams": self.streams}

    def check(self) -> None:
        """The invariants, for tests."""
        assert self.used == self.messages + self.bodies + self.answers + self.streams, (self.used, self.messages)
        assert min(self.messages, self.bodies, self.answers, self.streams) >= 0
        for number, head in enumerate(self._shelves):
            each = head.after
            while each is not None and each is not head:
                assert each.shelf == number and each.held_bytes > 0
                assert each.after is not None and each.after.before is each
                each = each.after


def _unlink(holder: Holder) -> None:
    before, after = holder.before, holder.after
    assert before is not None and after is not None
    before.after, after.before = after, before
    holder.before = holder.after = None
    holder.shelf = -1
