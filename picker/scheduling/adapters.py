"""LoRA adapters: where they are loaded, and where no slot is free for another.

What engines report is a second old, and most show only adapters with requests; so our own books stand
beside it: adapters with requests of ours in flight, and the last ones sent (an engine keeps those
it used last, as many as it has slots). An adapter that the engine reports as waiting, and not as
running, is not loaded. Where an engine tells which adapters are loaded, idle ones too, that is what
holds, and of the last ones sent only those with requests still count beside it. Who never told of
slots, or not lately, has none free with the likelihood of those that did tell; our own requests in
flight fill them in any case.

Invariants (`check()`): the bitmasks that decisions read are those of the endpoints' states.
"""

from collections import OrderedDict

import numpy as np

from picker.pool.endpoint import Endpoint
from picker.pool.snapshot import Column, Mask, Snapshot, bits_to_mask
from picker.pool.specs import EngineSample

SLOTS_UNKNOWN = 1
"""Assumed of an engine that does not tell: vLLM's default of `--max-loras`."""

_NONE: frozenset[str] = frozenset()


class _State:
    __slots__ = ("in_flight", "loaded", "recent", "running", "slots", "told", "waiting")

    def __init__(self) -> None:
        self.running = _NONE
        self.waiting = _NONE
        self.told: frozenset[str] | None = None
        """What the engine says is loaded; `None`: it does not say."""
        self.slots: int | None = None
        self.in_flight: dict[str, int] = {}
        self.recent: OrderedDict[str, None] = OrderedDict()
        self.loaded = _NONE

    def loaded_now(self) -> frozenset[str]:
        told = self.told
        if told is None:
            return self.running | (frozenset(self.recent) - (self.waiting - self.running))
        sent = frozenset([each for each in self.recent if each in self.in_flight])
        return self.running | told | (sent - (self.waiting - self.running))

    def full(self) -> bool:
        return self.slots is not None and len(self.running.union(self.waiting, self.in_flight)) >= self.slots

    def filled_by_us(self) -> bool:
        return self.slots is not None and len(self.in_flight) >= self.slots


class AdapterBook:
    """All endpoints that have to do with adapters. One event loop owns it."""

    def __init__(self) -> None:
        self._states: dict[Endpoint, _State] = {}
        self._loaded: dict[str, int] = {}
        self._full = 0
        self._filled_by_us = 0
        self._told = 0
        """Whose number of slots is known."""

    def record(self, endpoint: Endpoint, sample: EngineSample, *, restarted: bool) -> None:
        """A reading of its engine."""
        state = self._states.get(endpoint)
        if state is None:
            if sample.adapters_running is None and sample.adapters_loaded is None:
                return
            state = self._states[endpoint] = _State()
        state.running = sample.adapters_running or _NONE
        state.waiting = sample.adapters_waiting or _NONE
        state.told = sample.adapters_loaded
        state.slots = sample.adapters_max
        if restarted:
            state.recent.clear()
        self._changed(endpoint, state)

    def picked(self, endpoint: Endpoint, adapter: str) -> None:
        """A request for an adapter goes there."""
        state = self._states.setdefault(endpoint, _State())
        state.in_flight[adapter] = state.in_flight.get(adapter, 0) + 1
        state.recent[adapter] = None
        state.recent.move_to_end(adapter)
        self._changed(endpoint, state)

    def released(self, endpoint: Endpoint, adapter: str) -> None:
        """It is over. An endpoint that left meanwhile has nothing to release."""
        state = self._states.get(endpoint)
        if state is None:
            return
        left = state.in_flight[adapter] - 1
        if left:
            state.in_flight[adapter] = left
        else:
            del state.in_flight[adapter]
        self._changed(endpoint, state)

    def forget(self, endpoint: Endpoint, slot: int) -> None:
        """It left the pool and its slot."""
        state = self._states.pop(endpoint, None)
        if state is not None:
            self._turn(slot, state.loaded, _NONE)
            self._full &= ~(1 << slot)
            self._filled_by_us &= ~(1 << slot)
            self._told &= ~(1 << slot)

    def masks(self, adapter: str, snapshot: Snapshot) -> tuple[Mask, Column]:
        """`(loaded, no slot free)` by slot, for one adapter; the second 0..1, in between where it is not known."""
        width, ready = snapshot.width, snapshot.ready_bits
        known = bits_to_mask(self._told & ready, width) & snapshot.fresh_mask
        full: Column = bits_to_mask(self._full & ready, width).astype(np.float64)
        full[~known] = full[known].mean() if known.any() else 0.0
        full[bits_to_mask(self._filled_by_us & ready, width)] = 1.0
        return bits_to_mask(self._loaded.get(adapter, 0), width), full

    def check(self) -> None:
        """Assert the invariants. For tests."""
        loaded: dict[str, int] = {}
        for endpoint, state in self._states.items():
            assert all(count > 0 for count in state.in_flight.values())
            assert len(state.recent) <= (state.slots or SLOTS_UNKNOWN)
            for adapter in state.loaded_now():
                loaded[adapter] = loaded.get(adapter, 0) | 1 << endpoint.slot
        assert loaded == self._loaded
        for bits, holds in ((self._full, _State.full), (self._filled_by_us, _State.filled_by_us)):
            assert bits == sum(1 << endpoint.slot for endpoint, state in self._states.items() if holds(state))
        told = [endpoint for endpoint, state in self._states.items() if state.slots is not None]
        assert self._told == sum(1 << endpoint.slot for endpoint in told)

    def _changed(self, endpoint: Endpoint, state: _State) -> None:
        while len(state.recent) > (state.slots or SLOTS_UNKNOWN):
            state.recent.popitem(last=False)
        loaded = state.loaded_now()
        if loaded != state.loaded:
            self._turn(endpoint.slot, state.loaded, loaded)
            state.loaded = loaded
        bit = 1 << endpoint.slot
        self._full = self._full | bit if state.full() else self._full & ~bit
        self._filled_by_us = self._filled_by_us | bit if state.filled_by_us() else self._filled_by_us & ~bit
        self._told = self._told | bit if state.slots is not None else self._told & ~bit

    def _turn(self, slot: int, before: frozenset[str], after: frozenset[str]) -> None:
        bit = 1 << slot
        for adapter in before - after:
            left = self._loaded[adapter] & ~bit
            if left:
                self._loaded[adapter] = left
            else:
                del self._loaded[adapter]
        for adapter in after - before:
            self._loaded[adapter] = self._loaded.get(adapter, 0) | bit
