"""What the index forgets first, against a model that keeps every block of every endpoint by itself.

Chains have one length here, so that no chain is the head of another: a chain that stops inside a
run refreshes the whole run, which is the one liberty the index takes with recency.
"""

from hypothesis import given, settings
from hypothesis import strategies as st

from picker.prefix.index import PrefixIndex
from tests.chains import chain

SLOTS, LENGTH = 3, 6


class Blocks:
    """Per endpoint: prefix -> tick of its last use. Over capacity the least recent goes, the deepest of equals."""

    def __init__(self, capacity: int) -> None:
        self.capacity = dict.fromkeys(range(SLOTS), capacity)
        self.held: dict[int, dict[tuple[int, ...], int]] = {slot: {} for slot in range(SLOTS)}
        self.tick = 0

    def record(self, path: tuple[int, ...], slot: int) -> None:
        self.tick += 1
        for depth in range(1, len(path) + 1):
            self.held[slot][path[:depth]] = self.tick
        self.evict(slot)

    def evict(self, slot: int) -> None:
        held = self.held[slot]
        while len(held) > self.capacity[slot]:
            del held[min(held, key=lambda prefix: (held[prefix], -len(prefix)))]

    def matches(self, path: tuple[int, ...]) -> dict[int, int]:
        found = {}
        for slot, held in self.held.items():
            depth = 0
            while depth < len(path) and path[: depth + 1] in held:
                depth += 1
            if depth:
                found[slot] = depth
        return found


paths = st.lists(st.integers(0, 2), min_size=LENGTH, max_size=LENGTH).map(tuple)
slots = st.integers(0, SLOTS - 1)
operations = st.lists(
    st.one_of(
        st.tuples(st.just("record"), paths, slots, st.just(0)),
        st.tuples(st.just("record"), paths, slots, st.just(0)),
        st.tuples(st.just("purge"), st.just(()), slots, st.just(0)),
        st.tuples(st.just("capacity"), st.just(()), slots, st.integers(1, 30)),
    ),
    max_size=50,
)


@settings(max_examples=400, deadline=None)
@given(operations, st.integers(1, 30))
def test_the_least_recent_goes_first_and_the_deepest_of_equals(steps, capacity):
    index, model = PrefixIndex(bytes_max=1 << 30, capacity_blocks=capacity), Blocks(capacity)
    seen: list[tuple[int, ...]] = []
    for verb, path, slot, size in steps:
        if verb == "record":
            index.record(chain(path), slot)
            model.record(path, slot)
            seen.append(path)
        elif verb == "purge":
            index.purge(slot)
            model.held[slot] = {}
            model.capacity[slot] = capacity
        else:
            index.set_capacity(slot, size)
            model.capacity[slot] = size
            model.evict(slot)
        index.check()
        for probe in seen[-12:]:
            found = {}
            for bits, depth in index.match(chain(probe)).steps:
                found |= {each: depth for each in range(SLOTS) if bits >> each & 1}
            assert found == model.matches(probe)
    assert {slot: count for slot, count in index.blocks_held.items() if count} == {
        slot: len(held) for slot, held in model.held.items() if held
    }
