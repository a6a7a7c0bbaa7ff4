"""The KV block cache: runs split, are shared, and go tail first, coldest first."""

from array import array

from picker.sim.block_cache import BlockCache


def run_request(cache, ids, blocks):
    """One request of `blocks` full blocks from admission to its end; returns how many it hit."""
    match = cache.match(ids, blocks)
    end = cache.hold(match)
    cache.take(blocks - match.blocks)
    if blocks > match.blocks:
        end = cache.commit(end, ids, match.blocks, blocks)
    cache.release(end)
    cache.check(0)
    return match.blocks


def ids(*values):
    return array("Q", values)


def test_a_prefix_is_hit_up_to_the_first_difference():
    cache = BlockCache(100)
    assert run_request(cache, ids(1, 2, 3, 4, 5), 5) == 0
    assert run_request(cache, ids(1, 2, 3, 14, 15), 5) == 3
    assert run_request(cache, ids(1, 2, 3, 4, 5), 5) == 5
    assert run_request(cache, ids(1, 2, 3, 14, 15), 5) == 5
    assert run_request(cache, ids(9), 1) == 0
    assert cache.cached == 8


def test_the_tail_of_the_coldest_prompt_goes_first():
    cache = BlockCache(10)
    run_request(cache, ids(1, 2, 3, 4), 4)
    run_request(cache, ids(11, 12, 13, 14), 4)
    run_request(cache, ids(21, 22, 23, 24), 4)  # takes two blocks of the first one
    assert cache.match(ids(1, 2, 3, 4), 4).blocks == 2
    assert cache.match(ids(11, 12, 13, 14), 4).blocks == 4


def test_a_shared_head_outlives_its_cold_tails():
    cache = BlockCache(8)
    run_request(cache, ids(1, 2, 3, 4), 4)
    run_request(cache, ids(1, 2, 13, 14), 4)
    run_request(cache, ids(21, 22, 23, 24), 4)
    assert cache.match(ids(1, 2, 3, 4), 4).blocks == 2  # its own tail went, the head was used since
    assert cache.match(ids(1, 2, 13, 14), 4).blocks == 4


def test_held_blocks_are_not_evicted_and_not_free():
    cache = BlockCache(6)
    match = cache.match(ids(1, 2, 3), 3)
    cache.take(3)
    end = cache.commit(cache.hold(match), ids(1, 2, 3), 0, 3)
    assert (cache.free, cache.utilization) == (3, 0.5)
    run_request(cache, ids(11, 12, 13), 3)
    run_request(cache, ids(21, 22, 23), 3)
    assert cache.match(ids(1, 2, 3), 3).blocks == 3
    assert cache.match(ids(11, 12, 13), 3).blocks == 0
    cache.release(end)
    assert cache.free == 6


def test_the_same_blocks_computed_twice_are_kept_once():
    cache = BlockCache(10)
    cache.take(6)
    first = cache.commit(None, ids(1, 2, 3), 0, 3)
    second = cache.commit(None, ids(1, 2, 13), 0, 3)  # 1, 2 are there by now
    cache.check(0)
    assert cache.free == 6
    cache.release(first)
    cache.release(second)
    cache.check(0)
    assert (cache.free, cache.cached) == (10, 4)


def test_forgetting_keeps_what_a_request_holds():
    cache = BlockCache(10)
    run_request(cache, ids(1, 2, 3), 3)
    cache.take(2)
    end = cache.commit(None, ids(11, 12), 0, 2)
    cache.forget()
    cache.check(0)
    assert cache.match(ids(1, 2, 3), 3).blocks == 0
    assert cache.match(ids(11, 12), 2).blocks == 2
    cache.release(end)
