"""Which endpoints say that they serve which model, as their `/v1/models` list them.

An endpoint that never told its list is unknown: neither in nor out. The last list that was read
counts whatever its age, since models change rarely and a living engine's list outlives a failed
scrape. Sets of slots are bitmasks, changed in place when a list changes: a decision looks up.

Invariants (`check()`): what is held by model is what is held by slot, turned around.
"""

from typing import TypeGuard

from picker.pool.snapshot import Mask, Snapshot, bits_to_mask
from picker.pool.specs import EngineSample

_MASKS_MAX = 256
_NOTHING: frozenset[str] = frozenset()


class ModelLists:
    """All lists. One event loop owns it."""

    def __init__(self) -> None:
        self._models: dict[int, frozenset[str]] = {}
        self._adapters: dict[int, frozenset[str]] = {}
        self._slots_by_model: dict[str, int] = {}
        self._slots_by_adapter: dict[str, int] = {}
        self._told = 0
        """Slots that told their list."""
        self._masks: dict[tuple[str, int], Mask | None] = {}

    def put(self, slot: int, sample: EngineSample) -> None:
        """A reading. Adapters are those that the list names as such, and those that the gauges show."""
        models = sample.models
        if models is not None and models is not self._models.get(slot):
            self._told |= 1 << slot
            self._masks.clear()
            self._turn(self._slots_by_model, slot, self._models.get(slot, _NOTHING), models)
            self._models[slot] = models
        adapters = sample.adapters or _NOTHING
        if sample.adapters_running or sample.adapters_waiting or sample.adapters_loaded:
            adapters = adapters.union(
                sample.adapters_running or (), sample.adapters_waiting or (), sample.adapters_loaded or ()
            )
        known = self._adapters.get(slot, _NOTHING)
        if adapters is not known and adapters != known:
            self._turn(self._slots_by_adapter, slot, known, adapters)
            self._adapters[slot] = adapters

    def forget(self, slot: int) -> None:
        """The slot has no endpoint any more, or another."""
        self._told &= ~(1 << slot)
        self._masks.clear()
        self._turn(self._slots_by_model, slot, self._models.pop(slot, _NOTHING), _NOTHING)
        self._turn(self._slots_by_adapter, slot, self._adapters.pop(slot, _NOTHING), _NOTHING)

    def lists(self, model: str) -> bool:
        """Whether any endpoint lists it, as a model or an adapter."""
        return model in self._slots_by_model or model in self._slots_by_adapter

    def is_adapter(self, model: str | None) -> TypeGuard[str]:
        """Whether any endpoint knows it as an adapter."""
        return model in self._slots_by_adapter

    @property
    def differ(self) -> bool:
        """Whether some endpoint lists a model that another, whose list is known, does not."""
        return any(self._told & ~slots for slots in self._slots_by_model.values())

    def serving(self, model: str | None, snapshot: Snapshot) -> Mask | None:
        """The slots that may be asked for a model: those that list it and those whose list is unknown.

        `None`: all slots, because none of them lists it (the engine will refuse it), or all of them do.
        """
        serving = self._slots_by_model.get(model) if model is not None else None
        if not serving or not self._told & ~serving:
            return None
        assert model is not None
        key = (model, snapshot.ready_bits)
        if key not in self._masks:
            if len(self._masks) >= _MASKS_MAX:
                self._masks.clear()
            self._masks[key] = bits_to_mask(snapshot.ready_bits & (serving | ~self._told), snapshot.width)
        return self._masks[key]

    def check(self) -> None:
        """Assert the invariants. For tests."""
        for by_slot, by_name in ((self._models, self._slots_by_model), (self._adapters, self._slots_by_adapter)):
            turned: dict[str, int] = {}
            for slot, names in by_slot.items():
                for name in names:
                    turned[name] = turned.get(name, 0) | 1 << slot
            assert turned == by_name
        assert self._told == sum(1 << slot for slot in self._models)
        assert len(self._masks) <= _MASKS_MAX

    def _turn(self, slots: dict[str, int], slot: int, before: frozenset[str], after: frozenset[str]) -> None:
        if before == after:
            return
        bit = 1 << slot
        for name in before - after:
            left = slots[name] & ~bit
            if left:
                slots[name] = left
            else:
                del slots[name]
        for name in after - before:
            slots[name] = slots.get(name, 0) | bit
        self._masks.clear()
