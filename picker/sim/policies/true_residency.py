"""A bound: our policy, if it saw what each engine holds as it is, in place of an index of what should be there.

What is on its way to an engine counts as held there, as in every index that is written at the pick.
The rest of the rule is production's. Index classes that are replaced cannot be compiled: interpreted build only.
"""

from array import array

from picker.outcomes import Usage
from picker.prefix.index import PrefixIndex
from picker.prefix.matches import Match
from picker.sim.block_cache import BlockCache, BlockRun
from picker.sim.policies.picker import PickerPolicy
from picker.sim.policies.policy import PolicyTicket, Setting
from picker.sim.profiles import BLOCK_TOKENS
from picker.sim.scripts import PICKER_BLOCK_TOKENS, SimRequest

_BOOK_BLOCKS = 2**40


class _Seen(PrefixIndex):
    """Matches are what the caches have, and what is in flight."""

    request: SimRequest
    """Whose prompt is matched next."""
    caches: dict[int, tuple[BlockCache, BlockCache]]
    """By slot: the engine's, and one of prompts that are in flight there."""

    def match(self, hashes: "array[int]", now: float = 0.0) -> Match:
        by_depth: dict[int, int] = {}
        for slot, both in self.caches.items():
            blocks = max(cache.match(self.request.ids, self.request.prompt_blocks).blocks for cache in both)
            depth = min(blocks * BLOCK_TOKENS // PICKER_BLOCK_TOKENS, len(hashes))
            if depth:
                by_depth[depth] = by_depth.get(depth, 0) | 1 << slot
        steps = tuple((by_depth[depth], depth) for depth in sorted(by_depth))
        return Match(steps, super().match(hashes, now).shared, len(hashes))


class TrueResidency(PickerPolicy):
    """One picker process that looks into the engines."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._index = _Seen(
            bytes_max=self.director.config.limits.index_bytes_max,
            capacity_blocks=self.director.index.default_capacity_blocks,
        )
        self._index.caches = {}
        self.director.index = self._index
        self._slots: dict[int, int] = {}
        self._held: dict[int, tuple[int, BlockRun | None]] = {}

    def join(self, replica: int, cache: BlockCache, now: float) -> None:
        """Its cache can be seen."""
        super().join(replica, cache, now)
        endpoint = self.director.datastore.find(str(replica))
        assert endpoint is not None
        self._slots[replica] = endpoint.slot
        self._index.caches[endpoint.slot] = cache, BlockCache(_BOOK_BLOCKS)

    def leave(self, replica: int, now: float) -> None:
        """It cannot."""
        del self._index.caches[self._slots.pop(replica)]
        super().leave(replica, now)

    def pick(self, request: SimRequest, now: float) -> PolicyTicket | None:
        """The director's decision. The prompt is in flight from now on."""
        self._index.request = request
        ticket = super().pick(request, now)
        if ticket is not None:
            slot = self._slots[ticket.replica]
            active = self._index.caches[slot][1]
            self._held[request.number] = slot, active.keep(request.ids, request.prompt_blocks)
        return ticket

    def finished(self, ticket: PolicyTicket, request: SimRequest, usage: Usage | None, now: float) -> None:
        """It is no longer."""
        super().finished(ticket, request, usage, now)
        slot, end = self._held.pop(request.number)
        if self._slots.get(ticket.replica) == slot:
            active = self._index.caches[slot][1]
            active.release(end)
            active.forget()
