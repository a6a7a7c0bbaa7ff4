"""The endpoint cache: who joined and left, what a reading means, and what a snapshot shows of it."""

import math

import numpy as np
import pytest

from picker.pool.datastore import Datastore
from picker.pool.inflight import InflightLedger
from picker.pool.snapshot import bits_to_mask, mask_to_bits
from picker.pool.specs import EndpointSpec, EngineSample


@pytest.fixture
def store() -> Datastore:
    return Datastore(InflightLedger(), stale_seconds=5.0, default_capacity_tokens=400_000)


def spec(address="10.0.0.1:80", uid=None, **more):
    return EndpointSpec(address=address, uid=uid or address, name=more.pop("name", address), **more)


def sample(uid="10.0.0.1:80", at=10.0, **more):
    return EngineSample(uid=uid, taken_at_seconds=at, engine="vllm", **more)


def names(endpoints):
    return [endpoint.spec.uid for endpoint in endpoints]


def test_replace_works_out_who_joined_and_who_left(store):
    assert names(store.replace([spec(uid="a"), spec("10.0.0.2:80", uid="b")]).joined) == ["a", "b"]
    change = store.replace([spec("10.0.0.2:80", uid="b"), spec("10.0.0.3:80", uid="c")])
    assert (names(change.joined), names(change.left), change.left_slots) == (["c"], ["a"], (0,))
    assert change.left[0].slot == -1 and change.joined[0].slot == 0, "the free slot is used again"
    store.check()


def test_the_same_address_with_another_uid_is_another_endpoint(store):
    (old,) = store.replace([spec(uid="a")]).joined
    change = store.replace([spec(uid="b")])
    assert change.left == (old,) and change.joined[0] is not old and store.find("a") is None
    assert store.snapshot(0.0).by_address["10.0.0.1:80"] is change.joined[0]


def test_the_same_uid_at_another_address_is_another_endpoint(store):
    store.replace([spec(uid="a")])
    change = store.replace([spec("10.0.0.9:80", uid="a")])
    assert (names(change.left), names(change.joined)) == (["a"], ["a"])
    assert set(store.snapshot(0.0).by_address) == {"10.0.0.9:80"}


def test_other_labels_are_the_same_endpoint_with_its_load(store):
    (endpoint,) = store.replace([spec(uid="a")]).joined
    store.record(sample("a", waiting_requests=3))
    change = store.replace([spec(uid="a", labels={"role": "x"})])
    assert change.joined == change.left == () and store.find("a") is endpoint
    assert endpoint.spec.labels == {"role": "x"} and store.snapshot(10.0).waiting_requests[0] == 3


def test_of_equal_uids_or_addresses_the_first_wins(store):
    change = store.replace([spec(uid="a"), spec("10.0.0.2:80", uid="a"), spec(uid="b"), spec("10.0.0.3:80", uid="c")])
    assert names(change.joined) == ["a", "c"] and set(store.snapshot(0.0).by_address) == {"10.0.0.1:80", "10.0.0.3:80"}


def test_synced_means_told_even_when_there_is_nobody(store):
    assert not store.snapshot(0.0).synced
    store.replace([])
    assert store.snapshot(0.0).synced and store.snapshot(0.0).ready_count == 0 and store.snapshot(0.0).width == 0


def test_a_hole_is_no_endpoint_and_the_end_shrinks(store):
    store.replace([spec(f"10.0.0.{number}:80") for number in range(4)])
    store.replace([spec("10.0.0.0:80"), spec("10.0.0.3:80")])
    shown = store.snapshot(0.0)
    assert shown.ready_mask.tolist() == [True, False, False, True] and shown.ready_bits == 0b1001
    assert shown.endpoints[1] is None and shown.ready_count == 2
    store.replace([spec("10.0.0.0:80")])
    assert store.snapshot(0.0).width == 1
    store.check()


def test_an_address_is_found_by_its_host_too(store):
    store.replace([spec("10.0.0.1:80"), spec("10.0.0.1:81"), spec("[fd00::1]:80")])
    by_host = store.snapshot(0.0).by_host
    assert {host: sorted(names(found)) for host, found in by_host.items()} == {
        "10.0.0.1": ["10.0.0.1:80", "10.0.0.1:81"],
        "fd00::1": ["[fd00::1]:80"],
    }


def test_an_endpoint_is_found_by_its_second_address_and_another_ones_first_goes_before(store):
    store.replace(
        [
            spec("10.0.0.1:80", aliases=("[fd00::1]:80", "10.0.0.2:80")),
            spec("10.0.0.2:80", aliases=("[fd00::2]:80",)),
        ]
    )
    snapshot = store.snapshot(0.0)
    found = {address: endpoint.spec.address for address, endpoint in snapshot.by_address.items()}
    assert found == {
        "10.0.0.1:80": "10.0.0.1:80",
        "10.0.0.2:80": "10.0.0.2:80",
        "[fd00::1]:80": "10.0.0.1:80",
        "[fd00::2]:80": "10.0.0.2:80",
    }
    assert [each.spec.address for each in snapshot.by_host["fd00::2"]] == ["10.0.0.2:80"]


@pytest.mark.parametrize(("age", "fresh"), [(0.0, True), (4.999, True), (5.0, False), (100.0, False)])
def test_a_reading_counts_while_it_is_fresh(store, age, fresh):
    store.replace([spec()])
    store.record(sample(waiting_requests=7, kv_cache_utilization=0.5, kv_capacity_tokens=1000))
    shown = store.snapshot(10.0 + age)
    if fresh:
        assert (shown.waiting_requests[0], shown.kv_cache_utilization[0]) == (7, 0.5)
        assert (shown.foreign_requests[0], shown.reported_context_tokens[0]) == (7, 500)
    else:
        assert math.isnan(shown.waiting_requests[0]) and math.isnan(shown.kv_cache_utilization[0])
        assert shown.foreign_requests is None and shown.reported_context_tokens[0] == 0
    assert shown.capacity_tokens[0] == 1000, "how big a cache is does not age"


def test_unknown_is_not_zero(store):
    store.replace([spec()])
    for reading in (None, sample()):
        if reading is not None:
            store.record(reading)
        shown = store.snapshot(10.0)
        assert np.isnan(shown.waiting_requests).all() and np.isnan(shown.kv_cache_utilization).all()
        assert shown.capacity_tokens.tolist() == [400_000] and shown.reported_context_tokens.tolist() == [0]


def test_a_snapshot_is_the_same_object_until_something_changes_or_ages(store):
    store.replace([spec()])
    store.record(sample(at=10.0))
    first = store.snapshot(10.0)
    assert store.snapshot(14.9) is first and store.snapshot(15.0) is not first
    second = store.snapshot(15.0)
    assert store.snapshot(1e9) is second
    store.record(sample(at=16.0))
    assert store.snapshot(16.0) is not second
    third = store.snapshot(16.0)
    store.reconfigure(stale_seconds=1.0, default_capacity_tokens=9)
    assert store.snapshot(16.0).capacity_tokens.tolist() == [9] and store.snapshot(16.0) is not third
    store.record(sample(at=16.0, waiting_requests=1))
    assert math.isnan(store.snapshot(17.0).waiting_requests[0])


def test_foreign_is_what_waits_beyond_our_own_without_a_first_token_at_the_scrape(store):
    (endpoint,) = store.replace([spec()]).joined
    ledger = store._ledger
    mine = [ledger.charge(endpoint, prefill_tokens=1, context_tokens=1, now=0.0) for _ in range(3)]
    ledger.first_token(mine[0])
    store.record(sample(waiting_requests=5))
    assert store.snapshot(10.0).foreign_requests[0] == 3
    store.record(sample(waiting_requests=1))
    assert store.snapshot(10.0).foreign_requests is None


@pytest.mark.parametrize(
    ("before", "after", "restarted"),
    [
        ({"started_at_seconds": 100.0}, {"started_at_seconds": 100.0}, False),
        ({"started_at_seconds": 100.0}, {"started_at_seconds": 101.0}, True),
        ({"started_at_seconds": 100.0}, {}, False),
        ({}, {"started_at_seconds": 100.0}, False),
        ({"prompt_tokens_total": 5.0}, {"prompt_tokens_total": 4.0}, True),
        ({"prefix_queries_total": 5.0}, {"prefix_queries_total": 0.0}, True),
        ({"prefix_hits_total": 5.0}, {"prefix_hits_total": 5.0}, False),
        ({"prompt_tokens_total": 5.0}, {"prompt_tokens_total": None}, False),
        ({"prompt_tokens_total": 5.0}, {"prompt_tokens_total": 50.0}, False),
        ({"kv_cache_utilization": 0.9}, {"kv_cache_utilization": 0.0}, False),
    ],
)
def test_a_restart_is_another_start_time_or_a_counter_that_fell(store, before, after, restarted):
    store.replace([spec()])
    assert not store.record(sample(**before)).restarted
    assert store.record(sample(**after)).restarted is restarted


def test_a_reading_of_whoever_left_is_nothing(store):
    store.replace([spec(uid="a")])
    store.replace([spec(uid="b")])
    assert store.record(sample("a", waiting_requests=50)) is None
    assert math.isnan(store.snapshot(10.0).waiting_requests[0])
    store.check()


def test_bits_and_masks_are_each_others_inverse():
    for width in (1, 7, 8, 9, 100, 1000):
        mask = np.array([(slot * 7) % 3 == 0 for slot in range(width)])
        bits = mask_to_bits(mask)
        assert bits == sum(1 << slot for slot in range(width) if mask[slot])
        assert bits_to_mask(bits, width).tolist() == mask.tolist()
