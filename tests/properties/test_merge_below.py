"""A use told on top of a known node is the use of the whole chain: against a model of blocks, each by itself."""

from hypothesis import given, settings
from hypothesis import strategies as st

from picker.prefix.index import PrefixIndex
from picker.prefix.nodes import Node
from picker.prefix.walks import find
from tests.chains import chain

paths = st.lists(st.integers(0, 2), min_size=1, max_size=7).map(tuple)
uses = st.lists(st.tuples(paths, st.integers(0, 2), st.integers(1, 9), st.integers(0, 7)), max_size=40)


def blocks(index: PrefixIndex) -> dict[int, dict[int, int]]:
    """Hash of a block -> slot -> tick of its last use there."""
    found = {}
    for each in index.holdings():
        if each is not None:
            _, _, run, holders = each
            found |= {block: dict(holders) for block in run}
    return found


@settings(max_examples=500, deadline=None)
@given(uses)
def test_each_block_is_as_recent_as_the_last_chain_that_reached_it(steps):
    index = PrefixIndex(bytes_max=1 << 30, capacity_blocks=10_000)
    index.exact = True
    ends: dict[tuple[int, ...], Node] = {}
    expected: dict[int, dict[int, int]] = {}
    for path, slot, tick, depth in steps:
        hashes, depth = chain(path), min(depth, len(path))
        known, node = ends.get(path[:depth]), None
        ground = None if known is None else find(known, depth, hashes[depth - 1])
        if ground is not None and ground.end == depth:
            node = index.merge_below(ground, hashes[depth:], slot, tick)
        if node is None:
            node = index.merge(hashes, slot, tick).node
        assert node is not None and node.end == len(path) and node.run[-1] == hashes[-1]
        ends[path] = node
        for block in hashes:
            holders = expected.setdefault(block, {})
            holders[slot] = max(tick, holders.get(slot, tick))
        index.check()
        assert blocks(index) == expected


@settings(max_examples=300, deadline=None)
@given(uses, st.integers(3, 12))
def test_capacity_holds_below_a_known_node_too(steps, capacity):
    index = PrefixIndex(bytes_max=1 << 30, capacity_blocks=capacity)
    index.exact = True
    ends: dict[tuple[int, ...], Node] = {}
    for path, slot, tick, depth in steps:
        hashes, depth = chain(path), min(depth, len(path))
        known, node = ends.get(path[:depth]), None
        ground = None if known is None else find(known, depth, hashes[depth - 1])
        if ground is not None and ground.end == depth:
            node = index.merge_below(ground, hashes[depth:], slot, tick)
        if node is None:
            node = index.merge(hashes, slot, tick).node
        if node is not None:
            ends[path] = node
        index.check()
        assert index.blocks_held[slot] <= capacity
