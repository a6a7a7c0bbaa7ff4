"""What a replica does is measured from answers, and what arrives is held against it."""

from collections.abc import Callable

import numpy as np
import pytest

from picker.config import Routing
from picker.pool.datastore import Datastore
from picker.pool.inflight import InflightLedger
from picker.pool.snapshot import Snapshot
from picker.pool.specs import EndpointSpec
from picker.scheduling.demand import Demand

ROUTING = Routing()
FOOT, SEQUENCE, CONTEXT = 0.02, 1.5e-4, 1.68e-7
"""A step of the server that is measured: twice the configured foot, three times the configured slope."""
PREFILL = 5e-5
"""Half of the configured seconds a token."""


def teach(demand: Demand, *, slowness: float = 1.0, others: int = 1, answers: int = 400) -> None:
    """Answers of a server of those constants, at 1 to 60 sequences of 2,000 tokens each.

    `others`: pickers that tell us nothing send as much each; the engine reports them all.
    """
    ledger = InflightLedger()
    store = Datastore(ledger, stale_seconds=5, default_capacity_tokens=400_000)
    store.replace([EndpointSpec(address="10.0.0.1:8000", uid="a", name="a")])
    endpoint = store.endpoints[0]
    now = 0.0
    for number in range(answers):
        count = 1 + number * 7 % 60
        charges = [ledger.charge(endpoint, prefill_tokens=2000.0, context_tokens=2000.0, now=now) for _ in range(count)]
        now += 1.0
        for charge in charges:
            ledger.first_token(charge, now)
        everybody = count * others
        step = slowness * (FOOT + everybody * (SEQUENCE + CONTEXT * 2000))
        # It waits for half a step, and runs beside one and a part of one.
        waited = step * (1.5 + 2000 / 8192)
        demand.observe_prefill(charges[-1], 2000.0, slowness * 2000 * PREFILL + waited, now, slowness, 1.0, everybody)
        now += 99 * step
        demand.observe_decode(charges[-1], 100.0, now, slowness, everybody)
        for charge in charges:
            ledger.release(charge)


def snapshot(endpoints: int, capacity_tokens: int = 400_000) -> Snapshot:
    store = Datastore(InflightLedger(), stale_seconds=5, default_capacity_tokens=capacity_tokens)
    store.replace([EndpointSpec(address=f"10.0.0.{at}:8000", uid=str(at), name=str(at)) for at in range(endpoints)])
    return store.snapshot(0.0)


def arrive(demand: Demand, per_second: float, *, start: float, seconds: float, uncached: float = 1000.0) -> float:
    """Requests of 2,000 tokens for answers of 100, evenly. Returns the work of one, by the server's constants."""
    for number in range(round(per_second * seconds)):
        demand.arrived(uncached, 2000.0, 2000.0, 100.0, 1, start + number / per_second)
    return uncached * PREFILL + 100 * (SEQUENCE + CONTEXT * 2050)


@pytest.fixture
def taught() -> Demand:
    demand = Demand(ROUTING)
    teach(demand)
    return demand


def test_nothing_is_known_until_answers_taught_it() -> None:
    demand = Demand(ROUTING)
    arrive(demand, 10, start=1.0, seconds=60)
    assert demand.wanted_replicas(61.0, snapshot(2), np.ones(2)) is None
    teach(demand, answers=9)  # two samples each
    assert demand.wanted_replicas(61.0, snapshot(2), np.ones(2)) is None
    teach(demand, answers=1)
    assert demand.wanted_replicas(61.0, snapshot(2), np.ones(2)) is not None


@pytest.mark.parametrize(("slowness", "others"), [(1.0, 1), (2.0, 1), (1.0, 3)])
def test_the_servers_constants_are_found(slowness: float, others: int) -> None:
    """Also on a slow endpoint, and where other pickers send as much and tell us nothing."""
    demand = Demand(ROUTING)
    teach(demand, slowness=slowness, others=others)
    assert demand.prefill_token_seconds == pytest.approx(PREFILL, rel=0.1)
    assert demand.step_seconds == pytest.approx(FOOT, rel=0.1)
    assert demand.slope == pytest.approx(3.0, rel=0.1)


def test_work_a_second_is_what_requests_bring(taught: Demand) -> None:
    work = arrive(taught, 20, start=1000.0, seconds=300)
    assert taught.work_rate(1300.0) == pytest.approx(20 * work, rel=0.1)
    arrive(taught, 5, start=1300.0, seconds=300)
    assert taught.work_rate(1600.0) == pytest.approx(5 * work, rel=0.1)
    assert taught.work_rate(2600.0) == pytest.approx(0.0, abs=1e-9)


def test_a_first_burst_is_a_rate_at_once_and_not_a_small_part_of_it(taught: Demand) -> None:
    work = arrive(taught, 20, start=1000.0, seconds=3)
    assert taught.work_rate(1003.0) == pytest.approx(20 * work, rel=0.15)


def test_wanted_is_work_over_what_a_replica_does_a_second(taught: Demand) -> None:
    work = arrive(taught, 20, start=1000.0, seconds=300)
    # Room for 400,000 / 2,050 sequences; each adds its decoding and its part of a prefill to a step.
    sequences = 400_000 / 2050
    load = sequences * (SEQUENCE + CONTEXT * 2050 + PREFILL * 1000 / 100)
    expected = 20 * work / (load / (FOOT + load))
    assert taught.wanted_replicas(1300.0, snapshot(3), np.ones(3)) == pytest.approx(expected, rel=0.12)


def test_slow_replicas_count_for_less(taught: Demand) -> None:
    arrive(taught, 20, start=1000.0, seconds=300)
    equal = taught.wanted_replicas(1300.0, snapshot(2), np.ones(2))
    uneven = taught.wanted_replicas(1300.0, snapshot(2), np.array([1.0, 2.0]))
    assert equal is not None and uneven == pytest.approx(equal / 0.75)


def test_without_endpoints_the_last_measure_holds(taught: Demand) -> None:
    """What asks for the first replica."""
    arrive(taught, 20, start=1000.0, seconds=60)
    assert (taught.wanted_replicas(1060.0, snapshot(0), np.ones(1)) or 0.0) > 0.5


def test_who_was_turned_away_wanted_as_much_as_others(taught: Demand) -> None:
    arrive(taught, 20, start=1000.0, seconds=300)
    before = taught.work_rate(1300.0)
    for number in range(20 * 300):
        taught.turned_away(1300.0 + number / 20)
    assert taught.work_rate(1600.0) == pytest.approx(before, rel=0.05)


def test_a_preempted_answer_moves_little(taught: Demand) -> None:
    def after(change: Callable[[], None]) -> tuple[float, float]:
        change()
        return taught.step_seconds, taught.slope

    ledger = InflightLedger()
    store = Datastore(ledger, stale_seconds=5, default_capacity_tokens=400_000)
    store.replace([EndpointSpec(address="10.0.0.1:8000", uid="a", name="a")])
    charge = ledger.charge(store.endpoints[0], prefill_tokens=10.0, context_tokens=2000.0, now=0.0)
    ledger.first_token(charge, 1.0)
    foot, slope = after(lambda: None)
    assert after(lambda: taught.observe_decode(charge, 100.0, 1e6, 1.0, None)) == (
        pytest.approx(foot, rel=0.08),
        pytest.approx(slope, rel=0.08),
    )


@pytest.mark.parametrize("output_tokens", [0.0, 1.0, 7.0])
def test_short_answers_teach_nothing_of_decoding(output_tokens: float) -> None:
    demand = Demand(ROUTING)
    ledger = InflightLedger()
    store = Datastore(ledger, stale_seconds=5, default_capacity_tokens=400_000)
    store.replace([EndpointSpec(address="10.0.0.1:8000", uid="a", name="a")])
    charge = ledger.charge(store.endpoints[0], prefill_tokens=10.0, context_tokens=2000.0, now=0.0)
    ledger.first_token(charge, 1.0)
    before = (demand.step_seconds, demand.slope)
    demand.observe_decode(charge, output_tokens, 9.0, 1.0, None)
    assert (demand.step_seconds, demand.slope) == before


def test_with_learning_off_nothing_is_known() -> None:
    demand = Demand(Routing(learn=False))
    teach(demand)
    arrive(demand, 20, start=1000.0, seconds=60)
    assert demand.work_rate(1060.0) is None


def test_other_constants_are_measured_against_anew(taught: Demand) -> None:
    taught.reconfigure(Routing(decode_seconds_per_sequence=1e-4))
    assert taught.work_rate(0.0) is None and taught.slope == pytest.approx(1.0)
    kept = Demand(ROUTING)
    teach(kept)
    arrive(kept, 1, start=1000.0, seconds=60)
    kept.reconfigure(Routing(affinity_break=3.0))
    assert kept.work_rate(1060.0) is not None
