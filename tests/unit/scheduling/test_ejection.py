"""Passing over endpoints that fail: three in a row, 5 s doubling to 60 s, one trial each time."""

import pytest

from picker.config import Ejection
from picker.pool.endpoint import Endpoint
from picker.pool.inflight import Charge
from picker.pool.specs import EndpointSpec
from picker.scheduling.ejection import EjectionBook

LIMITS = Ejection()


@pytest.fixture
def endpoint() -> Endpoint:
    return Endpoint(EndpointSpec(address="10.0.0.1:8000", uid="a", name="a"), 0)


@pytest.fixture
def book() -> EjectionBook:
    return EjectionBook()


def charge(endpoint):
    return Charge(endpoint, prefill_tokens=0.0, context_tokens=0.0, memory_tokens=0.0, now=0.0)


def fail(book, endpoint, now, times=1, limits=LIMITS):
    return [book.failed(endpoint, charge(endpoint), now, limits) for _ in range(times)]


def test_the_third_failure_in_a_row_ejects_and_a_success_between_starts_anew(book, endpoint):
    assert fail(book, endpoint, 0.0, 2) == [False, False]
    book.succeeded(endpoint)
    assert fail(book, endpoint, 0.0, 3) == [False, False, True]
    assert book.ejected(4.999) == [0] and book.ejected(5.0) == []


def test_more_failures_while_aside_neither_extend_nor_count(book, endpoint):
    fail(book, endpoint, 0.0, 3)
    assert fail(book, endpoint, 1.0, 10) == [False] * 10
    assert book.ejected(5.0) == []


def test_one_trial_at_a_time_doubles_on_failure_up_to_the_limit(book, endpoint):
    fail(book, endpoint, 0.0, 3)
    now, waits = 0.0, []
    for _ in range(7):
        until = now
        while book.ejected(until):
            until += 0.5
        waits.append(until - now)
        trial = charge(endpoint)
        book.picked(endpoint, trial, until)
        assert book.ejected(until) == [0], "while the trial is under way nobody else goes there"
        assert book.failed(endpoint, trial, until, LIMITS)
        now = until
    assert waits == [5, 10, 20, 40, 60, 60, 60]


def test_a_trial_that_succeeds_brings_it_back_as_if_nothing_had_been(book, endpoint):
    fail(book, endpoint, 0.0, 3)
    book.picked(endpoint, charge(endpoint), 6.0)
    book.succeeded(endpoint)
    assert book.ejected(6.0) == [] and fail(book, endpoint, 7.0, 3) == [False, False, True]
    assert book.ejected(11.9) == [0] and book.ejected(12.0) == []


def test_a_trial_that_ends_without_an_answer_makes_room_for_another(book, endpoint):
    fail(book, endpoint, 0.0, 3)
    trial = charge(endpoint)
    book.picked(endpoint, trial, 6.0)
    book.released(charge(endpoint))
    assert book.ejected(6.0) == [0], "another request's end is not the trial's"
    book.released(trial)
    assert book.ejected(6.0) == []


def test_a_failure_of_an_old_request_after_its_time_is_no_trial(book, endpoint):
    fail(book, endpoint, 0.0, 3)
    book.picked(endpoint, charge(endpoint), 6.0)
    assert fail(book, endpoint, 6.0) == [False]


def test_an_endpoint_that_is_dead_for_days_stays_aside(book, endpoint):
    """Over a thousand trials: a float's exponent must not be what ends it."""
    fail(book, endpoint, 0.0, 3)
    now = 0.0
    for number in range(1500):
        now += 60.0
        trial = charge(endpoint)
        book.picked(endpoint, trial, now)
        assert book.failed(endpoint, trial, now, LIMITS)
        assert book.ejected(now + (9.0, 19.0, 39.0, 59.0)[min(number, 3)]) == [0]


def test_whoever_left_is_forgotten_and_never_comes_back_as_a_slot(book, endpoint):
    fail(book, endpoint, 0.0, 3)
    book.forget(endpoint)
    endpoint.slot = -1
    assert fail(book, endpoint, 0.0, 5) == [False] * 5
    assert book.ejected(0.0) == []


def test_no_time_aside_is_no_ejection(book, endpoint):
    none = Ejection(seconds=0.0, seconds_max=0.0)
    fail(book, endpoint, 1.0, 3, none)
    assert book.ejected(1.0) == []
