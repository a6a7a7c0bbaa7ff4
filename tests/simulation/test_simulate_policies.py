"""Peers' rules, each against what its publication says, on cases worked out by hand."""

from array import array
from random import Random

import pytest

from picker.config import Config
from picker.sim.block_cache import BlockCache
from picker.sim.policies import POLICIES
from picker.sim.policies.costs import DynamoCost
from picker.sim.policies.llm_d import ApproximatePrefixes
from picker.sim.policies.policy import Gauges, Setting
from picker.sim.scripts import SimRequest


def make(name, replicas=3, seed=0):
    policy = POLICIES[name](Setting(rng=Random(seed), config=Config()))
    caches = [BlockCache(10_000) for _ in range(replicas)]
    for replica, cache in enumerate(caches):
        policy.join(replica, cache, 0.0)
    return policy, caches


def ask(blocks, number=1, session=1, tail=0):
    """A prompt of 16-token blocks with these ids, and `tail` tokens more."""
    return SimRequest(
        number=number,
        session=session,
        model="m",
        prompt_tokens=16 * len(blocks) + tail,
        output_tokens=10,
        ids=array("Q", blocks),
        block_hashes=array("Q", blocks[15::16]),
        streaming=True,
    )


def hold(cache, blocks):
    """Make the blocks cached."""
    cache.take(len(blocks))
    cache.release(cache.commit(None, array("Q", blocks), 0, len(blocks)))


def gauges(waiting=0, kv=0.0):
    return Gauges(0.0, waiting, 0, kv, 160_000, 0, 0, 0)


@pytest.mark.parametrize("name", POLICIES)
def test_nobody_to_send_to_is_none(name):
    policy = POLICIES[name](Setting(rng=Random(0), config=Config()))
    assert policy.pick(ask(range(1, 40)), 0.0) is None


@pytest.mark.parametrize("name", POLICIES)
def test_counts_return_to_nothing_when_all_is_over(name):
    policy, _ = make(name)
    asked = [ask(range(100 * each, 100 * each + 40), number=each) for each in range(1, 30)]
    tickets = [policy.pick(request, 0.0) for request in asked]
    policy.check()
    policy.leave(1, 1.0)
    for ticket, request in zip(tickets, asked, strict=True):
        policy.first_token(ticket, request, 2.0)
        policy.finished(ticket, request, None, 3.0)
    policy.check()
    for books in ("in_flight", "prefill_tokens", "_tokens"):
        assert not any(getattr(policy, books, {}).values())


def test_round_robin_takes_turns_and_least_request_fills_the_gap():
    policy, _ = make("round_robin")
    assert sorted(policy.pick(ask([1]), 0.0).replica for _ in range(6)) == [0, 0, 1, 1, 2, 2]
    policy, _ = make("least_request")
    tickets = [policy.pick(ask([1]), 0.0) for _ in range(3)]
    assert {ticket.replica for ticket in tickets} == {0, 1, 2}
    policy.finished(tickets[1], ask([1]), None, 1.0)
    assert policy.pick(ask([1]), 1.0).replica == tickets[1].replica


def test_the_weighted_blend_is_2_2_3():
    policy, _ = make("weighted")
    home = policy.pick(ask(range(1, 11)), 0.0).replica
    away = (home + 1) % 3
    for replica in range(3):
        policy.scraped(replica, gauges(waiting=0 if replica == away else 10, kv=0.0))
    # home: 0 of 2 for its queue, 2 for KV, 3 for the prefix; away: 2 + 2 + 0
    assert policy.pick(ask(range(1, 11)), 0.0).replica == home
    policy.scraped(home, gauges(waiting=10, kv=0.6))  # 0 + 0.8 + 3 < 4
    assert policy.pick(ask(range(1, 11)), 0.0).replica == away


def test_llm_d_s_index_sees_16_kib_counts_blocks_and_forgets_roots_first():
    prefixes = ApproximatePrefixes(block_tokens=16, horizon_tokens=4096)
    for replica in (0, 1):
        prefixes.join(replica)
    prefixes.add(ask(range(1000, 1300)), 0)
    assert prefixes.shares(ask([*range(1000, 1256), *range(5000, 9000)])) == {0: 1.0}
    prefixes.size(1, 4)
    prefixes.add(ask([1, 2, 3, 4, 5, 6]), 1)
    assert prefixes.shares(ask([1, 2, 3, 4, 5, 6])) == {}  # blocks 1 and 2, the root, are gone
    prefixes.add(ask([1, 2]), 0)
    # 0 holds the first two, 1 the last four: blocks count wherever the walk still goes on
    assert prefixes.shares(ask([1, 2, 3, 4, 5, 6])) == {0: 2 / 6, 1: 4 / 6}


def test_llm_d_s_affinity_ends_five_seconds_above_the_best():
    policy, _ = make("llmd_optimized", replicas=2)
    home = policy.pick(ask(range(1, 101)), 0.0).replica
    same = [policy.pick(ask(range(1, 101)), 0.0).replica for _ in range(50)]
    assert same.count(home) >= 47  # but for exploration
    policy._tokens[home] = 5.1 * 15_928
    assert policy.pick(ask(range(1, 101)), 0.0).replica != home


def test_llm_d_s_sessions_stay_whatever_happens():
    policy, _ = make("llmd_session", replicas=2)
    home = policy.pick(ask([1], session=7), 0.0).replica
    assert {policy.pick(ask([each], session=7), 0.0).replica for each in range(2, 60)} == {home}
    assert policy.pick(ask([1], session=8), 0.0).replica != home  # the fewest active
    policy.leave(home, 1.0)
    assert policy.pick(ask([1], session=7), 1.0).replica != home


def test_sessions_leave_when_their_server_is_saturated_or_no_sooner_than_full():
    for name, stays, goes in (
        ("sticky_until_saturated", gauges(waiting=5, kv=0.8), gauges(waiting=6)),
        ("sticky_until_saturated", gauges(), gauges(kv=0.81)),
        ("sticky_until_full", gauges(waiting=0, kv=0.95), gauges(waiting=1)),
        ("sticky_until_full", gauges(), gauges(kv=0.96)),
    ):
        policy, _ = make(name, replicas=2)
        home = policy.pick(ask([1]), 0.0).replica
        policy.scraped(home, stays)
        assert policy.pick(ask([1]), 1.0).replica == home, name
        policy.scraped(home, goes)
        assert policy.pick(ask([1]), 2.0).replica != home, name


def test_sglang_follows_the_prefix_above_30_percent_and_the_queue_when_imbalanced():
    policy, _ = make("sglang_cache_aware", replicas=2)
    home = policy.pick(ask(range(1, 11)), 0.0).replica
    assert policy.pick(ask([*range(1, 11), *range(100, 120)], tail=0), 0.0).replica == home  # 10 of 30: 33 %
    other = policy.pick(ask([*range(1, 11), *range(200, 230)]), 0.0).replica  # 10 of 40: 25 %
    assert other != home
    policy, _ = make("sglang_cache_aware", replicas=2)
    home = policy.pick(ask(range(1, 11)), 0.0).replica
    other = 1 - home
    while policy.in_flight[home] - policy.in_flight[other] <= 64:
        assert policy.pick(ask(range(1, 11)), 0.0).replica == home
    assert policy.pick(ask(range(1, 11)), 0.0).replica == other


def test_dynamo_s_cost_is_prefill_plus_decode_blocks():
    policy, caches = make("dynamo_cost", replicas=2)
    assert isinstance(policy, DynamoCost)
    hold(caches[0], range(1, 9))
    request = ask(range(1, 11))
    # 10 blocks asked, 8 cached on replica 0, nothing active anywhere
    assert policy.cost(request, 0, policy.uncached_tokens(request, 0))[0] == 2 + 10
    assert policy.cost(request, 1, policy.uncached_tokens(request, 1))[0] == 10 + 10
    ticket = policy.pick(request, 0.0)
    assert ticket.replica == 0
    # The same again: its blocks are active already, its 2 blocks of prefill still run
    assert policy.cost(request, 0, policy.uncached_tokens(request, 0))[0] == (2 + 2) + 10
    policy.first_token(ticket, request, 1.0)
    assert policy.cost(request, 0, policy.uncached_tokens(request, 0))[0] == 2 + 10
    other = ask(range(100, 105))
    assert policy.cost(other, 0, policy.uncached_tokens(other, 0))[0] == 5 + 15
    policy.finished(ticket, request, None, 2.0)
    assert policy.cost(other, 0, policy.uncached_tokens(other, 0))[0] == 5 + 5


def test_lmetric_multiplies_new_tokens_by_the_batch():
    policy, caches = make("lmetric", replicas=2)
    hold(caches[0], range(1, 11))
    request = ask(range(1, 11), tail=16)
    tickets = [policy.pick(request, 0.0)]
    assert tickets[0].replica == 0  # both products are 0: the fewer tokens win
    # 0: (16 + 16) x 1 = 32; 1: 176 x 0 = 0
    assert policy.pick(request, 0.0).replica == 1


def test_aibrix_passes_over_a_match_above_one_standard_deviation():
    policy, _ = make("aibrix_prefix", replicas=3)
    home = policy.pick(ask(range(1, 11)), 0.0).replica
    policy.in_flight.update({home: 4, (home + 1) % 3: 3, (home + 2) % 3: 3})  # mean 3.33, deviation 0.47
    assert policy.pick(ask(range(1, 11)), 0.0).replica != home
    policy.in_flight.update({home: 4, (home + 1) % 3: 5, (home + 2) % 3: 5})
    assert policy.pick(ask(range(1, 11)), 0.0).replica == home


def test_consistent_hashing_keeps_its_bound_and_moves_little():
    policy, _ = make("consistent_hash_bounded", replicas=4)
    for number in range(400):
        policy.pick(ask(range(1, 20), number=number), 0.0)  # one key only
    assert max(policy.in_flight.values()) <= 1.25 * (400 / 4) + 1
    policy, _ = make("consistent_hash_bounded", replicas=4)

    def homes():
        found = {}
        for key in range(200):
            request = ask(range(1000 * key, 1000 * key + 16))
            ticket = policy.pick(request, 0.0)
            found[key] = ticket.replica
            policy.finished(ticket, request, None, 0.0)
        return found

    before = homes()
    policy.join(4, BlockCache(10), 1.0)
    after = homes()
    moved = {key for key in before if before[key] != after[key]}
    assert all(after[key] == 4 for key in moved)
    assert 10 < len(moved) < 80  # a fifth, on a ring of 160 points each


def test_a_sticky_session_moves_when_its_home_is_saturated():
    policy, _ = make("sticky_until_saturated")
    home = policy.pick(ask(range(1, 3), session=7), 0.0).replica
    assert all(policy.pick(ask(range(1, 3), session=7), 0.0).replica == home for _ in range(20))
    policy.scraped(home, gauges(waiting=6))
    moved = policy.pick(ask(range(1, 3), session=7), 0.0).replica
    assert moved != home
    policy.scraped(home, gauges())
    assert policy.pick(ask(range(1, 3), session=7), 0.0).replica == moved


def test_dynamo_s_credit_counts_what_is_cached_twice_and_half_of_it_where_a_prompt_waits():
    policy, caches = make("dynamo_credit", replicas=2)
    hold(caches[0], range(1, 5))
    request = ask(range(1, 11))
    # 4 of 10 blocks cached: 10 - 2 x 4 to compute, 10 active
    assert policy.cost(request, 0, policy.uncached_tokens(request, 0))[0] == 2 + 10
    policy.prefill_tokens[0] += request.prompt_tokens  # one request's worth: credit 1, and that prefill too
    assert policy.cost(request, 0, policy.uncached_tokens(request, 0))[0] == (10 + 6) + 10
    hold(caches[1], range(1, 9))  # more credit than prompt: nothing to compute, not less
    assert policy.cost(request, 1, policy.uncached_tokens(request, 1))[0] == 0 + 10


def test_dynamo_s_sessions_follow_their_first_request():
    policy, caches = make("dynamo_session", replicas=2)
    hold(caches[1], range(1, 9))
    assert policy.pick(ask(range(1, 11), session=1), 0.0).replica == 1
    hold(caches[0], range(50, 90))
    assert policy.pick(ask(range(50, 90), session=1), 0.0).replica == 1
    assert policy.pick(ask(range(50, 90), session=2), 0.0).replica == 0


def test_true_residency_is_what_the_caches_hold_and_what_is_on_its_way():
    policy, caches = make("picker-true-residency", replicas=2)
    prompt = ask(range(1, 321))  # 20 of the picker's blocks
    hold(caches[1], range(1, 321))

    def matched():
        policy._index.request = prompt
        return {
            slot: blocks
            for bits, blocks in policy.director.index.match(prompt.block_hashes).steps
            for slot in range(2)
            if bits >> slot & 1
        }

    assert matched() == {1: 20}
    caches[1].take(caches[1].total - caches[1].total // 50)  # 200 blocks are left to keep
    assert matched() == {1: 12}
    other = ask(range(1, 161), number=2)
    ticket = policy.pick(other, 0.0)
    ours = policy._slots[ticket.replica]
    assert matched()[ours] == max(10, 12 if ours == 1 else 0)
    policy.finished(ticket, other, None, 1.0)
    assert matched() == {1: 12}
