"""Waits after a failed request: bounds, growth, and what a server may ask for."""

import random

import pytest

from picker.kubernetes.backoff import Backoff, Fault, Health, parse_retry_after


@pytest.mark.parametrize(
    ("status", "health"),
    [
        (None, Health.UNREACHABLE),
        (401, Health.UNAUTHORIZED),
        (403, Health.FORBIDDEN),
        (404, Health.MISSING),
        (410, Health.EXPIRED),
        (429, Health.BUSY),
        (503, Health.BUSY),
        (500, Health.REFUSED),
        (302, Health.REFUSED),
    ],
)
def test_each_fault_has_one_word(status: int | None, health: Health) -> None:
    assert Fault("", status).health is health


def test_full_jitter_draws_from_zero_to_a_bound_that_doubles_up_to_ten_seconds() -> None:
    rng, backoff = random.Random(3), Backoff()
    for failures, bound in [(1, 0.5), (2, 1.0), (3, 2.0), (4, 4.0), (7, 10.0), (1000, 10.0)]:
        draws = [backoff.delay_seconds(Fault("reset"), failures, rng) for _ in range(2000)]
        assert 0.0 <= min(draws) < 0.05 * bound
        assert 0.95 * bound < max(draws) <= bound
        assert sum(draws) / len(draws) == pytest.approx(bound / 2, rel=0.1)


def test_a_denial_never_waits_less_than_a_second_nor_more_than_thirty() -> None:
    rng, backoff = random.Random(3), Backoff()
    draws = [backoff.delay_seconds(Fault("no", 403), failures, rng) for failures in range(1, 50) for _ in range(20)]
    assert min(draws) >= 1.0
    assert max(draws) <= 30.0


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None),
        ("1", 1.0),
        (" 30 ", 30.0),
        ("", None),
        ("-1", None),
        ("1.5", None),
        ("Wed, 21 Oct 2026 07:28:00 GMT", None),
        ("٣", None),
        ("9" * 5000, 1e9),
    ],
)
def test_retry_after_is_whole_seconds_or_unknown(header: str | None, seconds: float | None) -> None:
    assert parse_retry_after(header) == seconds
