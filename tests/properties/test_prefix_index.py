"""The index against a naive model: per slot a dict of prefixes with their last use."""

from hypothesis import given, settings
from hypothesis import strategies as st

from picker.prefix.index import PrefixIndex
from picker.prefix.matches import Recorded
from tests.chains import chain

SLOTS = 3


class Naive:
    """`held[slot][prefix tuple] = tick of last use`: prefixes one by one, no sharing, no runs."""

    def __init__(self, capacity: int) -> None:
        self.held: dict[int, dict[tuple[int, ...], int]] = {}
        self.capacity = capacity
        self.tick = 0

    def match(self, path: tuple[int, ...]) -> dict[int, int]:
        found = {}
        for slot, held in self.held.items():
            depth = 0
            while depth < len(path) and path[: depth + 1] in held:
                depth += 1
            if depth:
                found[slot] = depth
        return found


paths = st.lists(st.integers(0, 2), min_size=1, max_size=12).map(tuple)
operations = st.lists(
    st.one_of(
        st.tuples(st.just("record"), paths, st.integers(0, SLOTS - 1)),
        st.tuples(st.just("match"), paths, st.just(0)),
        st.tuples(st.just("purge"), st.just(()), st.integers(0, SLOTS - 1)),
        st.tuples(st.just("withdraw"), st.just(()), st.just(0)),
    ),
    max_size=60,
)


def matched(index: PrefixIndex, path: tuple[int, ...]) -> dict[int, int]:
    found = {}
    for mask, depth in index.match(chain(path)).steps:
        for slot in range(SLOTS):
            if mask >> slot & 1:
                assert slot not in found
                found[slot] = depth
    return found


@settings(max_examples=300, deadline=None)
@given(operations)
def test_without_eviction_the_index_equals_the_naive_model(steps):
    index, naive = PrefixIndex(bytes_max=1 << 30, capacity_blocks=10_000), Naive(10_000)
    for verb, path, slot in steps:
        if verb == "record":
            index.record(chain(path), slot)
            held = naive.held.setdefault(slot, {})
            for depth in range(1, len(path) + 1):
                held[path[:depth]] = 0
        elif verb == "purge":
            index.purge(slot)
            naive.held.pop(slot, None)
        elif verb == "match":
            assert matched(index, path) == naive.match(path)
        index.check()
    for first in range(3):
        for second in range(3):
            assert matched(index, (first, second, 1)) == naive.match((first, second, 1))
    distinct = {prefix for held in naive.held.values() for prefix in held}
    assert index.blocks == len(distinct)


@settings(max_examples=300, deadline=None)
@given(operations, st.integers(3, 15))
def test_capacity_holds_and_what_is_left_is_contiguous(steps, capacity):
    index = PrefixIndex(bytes_max=1 << 30, capacity_blocks=capacity)
    last: tuple[tuple[int, ...], Recorded] | None = None
    for verb, path, slot in steps:
        if verb == "record":
            recorded = index.record(chain(path), slot)
            assert matched(index, path).get(slot) == min(len(path), capacity), "the newest is held up to capacity"
            last = (path, recorded)
        elif verb == "purge":
            index.purge(slot)
        elif verb == "withdraw" and last is not None:
            index.withdraw(chain(last[0]), last[1])
            last = None
        index.check()


@settings(max_examples=200, deadline=None)
@given(st.lists(paths, max_size=8), paths)
def test_withdrawing_at_once_restores_every_match(before, path):
    index = PrefixIndex(bytes_max=1 << 30, capacity_blocks=10_000)
    for number, each in enumerate(before):
        index.record(chain(each), number % SLOTS)
    probes = [*before, path]
    expected = [matched(index, probe) for probe in probes]
    recorded = index.record(chain(path), 1)
    index.withdraw(chain(path), recorded)
    index.check()
    assert [matched(index, probe) for probe in probes] == expected


@settings(max_examples=100, deadline=None)
@given(st.lists(paths, min_size=1, max_size=40))
def test_the_memory_budget_holds(all_paths):
    index = PrefixIndex(bytes_max=5_000, capacity_blocks=10_000)
    for number, path in enumerate(all_paths):
        index.record(chain(path), number % SLOTS)
        index.check()
        assert index.bytes_estimate <= 5_000
