"""The index, case by case."""

from array import array

import pytest

from picker.prefix.index import PrefixIndex
from picker.prefix.matches import Match


def run(*hashes: int) -> "array[int]":
    return array("Q", hashes)


@pytest.fixture
def index() -> PrefixIndex:
    return PrefixIndex(bytes_max=1 << 30, capacity_blocks=100)


def test_matches_every_holder_to_its_own_depth(index):
    index.record(run(1, 2, 3, 4), 0)
    index.record(run(1, 2), 5)
    assert index.match(run(1, 2, 3, 9)) == Match(((1 << 5, 2), (1 << 0, 3)), (), 4)


def test_a_prefix_with_three_continuations_is_shared(index):
    for tail in (10, 20):
        index.record(run(1, 2, tail), 0)
    assert index.match(run(1, 2, 10)).shared == ()
    index.record(run(1, 2, 30), 0)
    (shared,) = index.match(run(1, 2, 10)).shared
    assert (shared.blocks, shared.holders) == (2, 1)
    assert shared.branches_per_second > 0


def test_a_continuation_counts_once_for_each_place_above_it(index):
    """Six after the second in one moment, of a memory of a minute: 0.1 a second, at the place itself and further up."""
    for tail in (1000, 2000):
        index.record(run(1, tail), 0)
    for tail in range(10, 18):
        index.record(run(1, 2, tail), 0)
    upper, lower = index.match(run(1, 2, 10)).shared
    assert lower.branches_per_second == pytest.approx(6 / 60)
    assert (upper.blocks, lower.blocks) == (1, 2)
    assert upper.branches_per_second == pytest.approx((6 + 2) / 60)


def test_a_session_that_grows_is_not_shared(index):
    for length in range(1, 9):
        index.record(run(*range(1, length + 1)), 0)
    assert index.match(run(*range(1, 9))) == Match(((1, 8),), (), 8)
    assert index.entries == 1, "one chain of one endpoint stays one node"


def test_the_coldest_tail_goes_first_and_the_root_last(index):
    index.set_capacity(0, 5)
    index.record(run(1, 2, 3), 0)
    index.record(run(1, 7, 8), 0)  # 1 2 3 7 8: full
    index.record(run(1, 7, 9), 0)  # one too many: 3 is the coldest tail
    assert index.match(run(1, 2, 3)).steps == ((1, 2),)
    assert index.match(run(1, 7, 8)).steps == ((1, 3),)
    index.record(run(1, 7, 9, 10, 11, 12), 0)
    assert index.match(run(1, 2, 3)).steps == ((1, 1),), "the shared root outlives its cold branches"
    assert index.blocks_held[0] == 5


def test_a_split_by_one_endpoint_leaves_the_others_order_alone(index):
    index.set_capacity(0, 6)
    index.record(run(1, 2, 3), 0)
    index.record(run(20, 21, 22), 0)
    index.record(run(1, 2, 9), 1)  # splits 1 2 | 3, also for slot 0
    index.record(run(40), 0)  # slot 0 is one over: its coldest is still block 3
    assert index.match(run(1, 2, 3)).steps == ((1 | 2, 2),)
    assert index.match(run(20, 21, 22)).steps == ((1, 3),)
    index.check()


def test_withdraw_leaves_what_others_or_later_requests_use(index):
    first = index.record(run(1, 2, 3), 0)
    index.record(run(1, 2, 3, 4), 0)
    index.withdraw(run(1, 2, 3), first)
    assert index.match(run(1, 2, 3, 4)).steps == ((1, 4),)


def test_withdraw_takes_only_what_was_added(index):
    index.record(run(1, 2), 0)
    added = index.record(run(1, 2, 3, 4), 0)
    index.withdraw(run(1, 2, 3, 4), added)
    assert index.match(run(1, 2, 3, 4)).steps == ((1, 2),)
    index.check()


def test_purge_takes_everything_at_once_and_keeps_the_others(index):
    index.record(run(1, 2, 3), 0)
    index.record(run(1, 2, 4), 1)
    index.purge(0)
    assert index.match(run(1, 2, 3)).steps == ((1 << 1, 2),)
    index.purge(1)
    assert (index.blocks, index.entries, index.blocks_held) == (0, 0, {})
    index.check()


def test_a_prompt_longer_than_the_capacity_keeps_its_head(index):
    index.set_capacity(0, 3)
    index.record(run(1, 2, 3, 4, 5), 0)
    assert index.match(run(1, 2, 3, 4, 5)).steps == ((1, 3),)


def test_a_smaller_capacity_takes_effect_at_once(index):
    index.record(run(1, 2, 3, 4), 0)
    index.set_capacity(0, 2)
    assert index.blocks_held[0] == 2
    assert index.match(run(1, 2, 3, 4)).steps == ((1, 2),)


def test_what_is_withdrawn_leaves_nothing_behind(index):
    """A client whose requests are all refused must not fill the memory beside the budget."""
    index.record(run(1, 2, 3), 0)
    for number in range(10, 10_000, 20):
        refused = run(*range(number, number + 20))
        index.withdraw(refused, index.record(refused, 0))
    index.check()
    assert (index.blocks, index.entries) == (3, 1)


def test_what_capacity_evicts_is_counted_block_by_block(index):
    index.set_capacity(0, 3)
    index.record(run(1, 2, 3, 4, 5), 0)
    assert index.blocks == 3, "nobody can hold more: it is not recorded"
    assert index.evicted_blocks_total == 0
    index.record(run(7, 8), 0)
    assert index.evicted_blocks_total == 2


def test_what_is_not_settled_evicts_nobody(index):
    index.set_capacity(0, 3)
    index.record(run(1, 2, 3), 0)
    recorded = index.record(run(7, 8), 0, settled=False)
    index.check()
    assert index.match(run(1, 2, 3)).steps == ((1, 3),) and index.match(run(7, 8)).steps == ((1, 2),)
    index.withdraw(run(7, 8), recorded)
    index.settle(0)
    assert (index.blocks, index.evicted_blocks_total) == (3, 0)
    index.record(run(7, 8), 0, settled=False)
    index.settle(0)
    index.check()
    assert (index.blocks_held[0], index.evicted_blocks_total) == (3, 2)


def test_what_the_memory_budget_evicts_is_counted_block_by_block():
    index = PrefixIndex(bytes_max=20_000, capacity_blocks=1_000_000)
    recorded = 0
    for start in range(0, 30_000, 30):
        index.record(run(*range(start, start + 30)), 0)
        recorded += 30
        assert index.bytes_estimate <= 20_000
    assert 0 < index.blocks < recorded
    assert index.evicted_blocks_total == recorded - index.blocks_held[0] == recorded - index.blocks
    index.check()
