"""The ledger's books: charged once, released once, on whom it was charged, never below zero."""

from random import Random

import pytest

from picker.pool.endpoint import Endpoint
from picker.pool.inflight import InflightLedger
from picker.pool.specs import EndpointSpec


@pytest.fixture
def ledger() -> InflightLedger:
    return InflightLedger()


def join(ledger, slot, name="a"):
    endpoint = Endpoint(EndpointSpec(address=f"10.0.0.{slot}:80", uid=name, name=name), slot)
    ledger.adopt(endpoint)
    return endpoint


def counters(endpoint):
    return (
        endpoint.in_flight_requests,
        endpoint.prefilling_requests,
        endpoint.prefill_tokens,
        endpoint.context_tokens,
    )


def test_a_charge_is_released_in_two_steps_each_once(ledger):
    endpoint = join(ledger, 0)
    charge = ledger.charge(endpoint, prefill_tokens=700, context_tokens=1000, now=1.0)
    assert counters(endpoint) == (1, 1, 700, 1000)
    assert [ledger.first_token(charge) for _ in range(3)] == [True, False, False]
    assert counters(endpoint) == (1, 0, 0, 1000)
    assert [ledger.release(charge) for _ in range(3)] == [True, False, False]
    assert counters(endpoint) == (0, 0, 0, 0) and ledger.open_charges == 0
    assert not ledger.first_token(charge)
    ledger.check([endpoint])


def test_the_backlog_at_the_charge_is_what_was_there_before_it(ledger):
    endpoint = join(ledger, 0)
    first = ledger.charge(endpoint, prefill_tokens=100, context_tokens=0, now=0.0)
    second = ledger.charge(endpoint, prefill_tokens=50, context_tokens=0, now=0.0)
    assert (first.backlog_tokens, second.backlog_tokens) == (0, 100)


def test_a_timed_prefill_ends_by_the_clock_and_at_the_latest_with_the_request(ledger):
    endpoint = join(ledger, 0)
    late = ledger.charge(endpoint, prefill_tokens=10, context_tokens=1, now=0.0, prefill_seconds=2.0)
    soon = ledger.charge(endpoint, prefill_tokens=20, context_tokens=1, now=0.0, prefill_seconds=1.0)
    ledger.expire(0.999)
    assert endpoint.prefill_tokens == 30
    ledger.expire(1.0)
    assert counters(endpoint) == (2, 1, 10, 2) and not soon.prefilling
    ledger.release(late)
    ledger.expire(2.0)
    assert counters(endpoint) == (1, 0, 0, 1)
    ledger.time_prefill(soon, 5.0)
    assert not ledger._due, "its prefill is over: nothing to wait for"


def test_what_is_charged_on_the_old_is_released_on_the_old(ledger):
    """Deleted and re-created under the same name and slot while a request runs."""
    old = join(ledger, 0)
    charge = ledger.charge(old, prefill_tokens=500, context_tokens=500, now=0.0, prefill_seconds=1.0)
    ledger.retire(0)
    old.slot = -1
    new = join(ledger, 0)
    fresh = ledger.charge(new, prefill_tokens=7, context_tokens=8, now=0.0)
    ledger.expire(1.0)
    assert counters(new) == (1, 1, 7, 8) and counters(old) == (1, 0, 0, 500)
    assert ledger.release(charge)
    assert counters(old) == (0, 0, 0, 0) and counters(new) == (1, 1, 7, 8)
    assert [column[0] for column in ledger.columns(1)] == [1, 7, 8, 8]
    ledger.release(fresh)
    ledger.check([new])


def test_columns_mirror_the_counters_through_growth(ledger):
    endpoints = [join(ledger, slot, str(slot)) for slot in range(3)]
    before = ledger.columns(3)
    ledger.charge(endpoints[1], prefill_tokens=5, context_tokens=6, now=0.0)
    now = [[0, 1, 0], [0, 5, 0], [0, 6, 0], [0, 6, 0]]
    assert [column.tolist() for column in ledger.columns(3)] == [column.tolist() for column in before] == now
    endpoints += [join(ledger, slot, str(slot)) for slot in range(3, 100)]
    ledger.charge(endpoints[99], prefill_tokens=1, context_tokens=2, now=0.0)
    requests, prefill, context, memory = ledger.columns(100)
    assert (requests[1], prefill[1], context[1], memory[1], requests[99], prefill[99]) == (1, 5, 6, 6, 1, 1)
    assert len(ledger.columns(2)[0]) == 2
    ledger.check(endpoints)


def test_rounding_never_leaves_a_residue_or_goes_below_zero(ledger):
    endpoint = join(ledger, 0)
    rng = Random(5)
    running = [ledger.charge(endpoint, prefill_tokens=0.0, context_tokens=0.0, now=0.0)]
    for _ in range(2000):
        tokens = rng.choice([0.1, 0.7, 1e6 + 0.3, 1e-9, 3.3])
        running.append(ledger.charge(endpoint, prefill_tokens=tokens, context_tokens=tokens * 3, now=0.0))
        if len(running) > 5:
            gone = running.pop(rng.randrange(1, len(running)))
            if rng.random() < 0.5:
                ledger.first_token(gone)
            ledger.release(gone)
        assert endpoint.prefill_tokens >= 0 and endpoint.context_tokens >= 0
    for charge in running:
        ledger.release(charge)
    assert counters(endpoint) == (0, 0, 0.0, 0.0)


def test_the_queue_of_timed_prefills_does_not_outgrow_what_is_open(ledger):
    endpoint = join(ledger, 0)
    kept = ledger.charge(endpoint, prefill_tokens=1, context_tokens=1, now=0.0, prefill_seconds=1e6)
    for _ in range(5000):
        ledger.release(ledger.charge(endpoint, prefill_tokens=1, context_tokens=1, now=0.0, prefill_seconds=1e6))
        ledger.expire(0.0)
    assert len(ledger._due) < 100
    ledger.expire(1e6)
    assert not kept.prefilling, "and what is open is not forgotten by the tidying"
