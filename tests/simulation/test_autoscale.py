"""The autoscaler of the simulator: the rules of Kubernetes, what replicas cost, and a day's curve."""

import argparse
from math import pi, sin

import msgspec
import pytest

from picker.config import Config, Routing
from picker.sim import cli_simulate
from picker.sim.autoscale import Autoscale, Scaler
from picker.sim.days import Day
from picker.sim.simulate import Run, fleet_of, simulate
from picker.sim.sources import Workload


def scaler(signal: str = "queue", target: float = 2.0, **more: float) -> Scaler:
    rules = Autoscale(signal=signal, target=target, replicas_max=100, cool_down_seconds=60.0)
    return Scaler(msgspec.structs.replace(rules, **more))


@pytest.mark.parametrize(
    ("signal", "value", "ready", "current", "desired"),
    [
        # desiredReplicas = ceil(currentReplicas * (currentMetricValue / desiredMetricValue))
        ("queue", 40.0, 2, 2, 6),  # at most twice as many, or four more
        ("queue", 4.0, 3, 3, 6),
        ("queue", 4.0, 40, 40, 80),
        ("queue", 1.0, 4, 4, 2),
        ("queue", 1.9, 4, 4, 4),  # within a tenth
        ("queue", 2.3, 4, 4, 5),
        ("queue", 0.0, 4, 4, 1),
        ("queue", None, 4, 4, 4),
        ("wanted", 7.0, 3, 3, 4),  # 7 / 2, whatever there is
        ("wanted", 7.0, 2, 4, 4),
        ("wanted", 13.0, 3, 4, 7),
        ("wanted", None, 3, 5, 5),
    ],
)
def test_desired_replicas_are_those_of_the_documented_formula(
    signal: str, value: float | None, ready: int, current: int, desired: int
) -> None:
    assert scaler(signal).desired(0.0, value, ready=ready, current=current) == desired


def test_down_goes_to_the_most_that_was_wanted_within_the_window() -> None:
    found = scaler()
    wishes = [(0.0, 4.0), (15.0, 1.0), (30.0, 0.4), (45.0, 0.4), (75.0, 0.4), (90.1, 0.4)]
    assert [found.desired(at, value, ready=4, current=4) for at, value in wishes] == [8, 4, 4, 4, 2, 1]


def test_limits_hold() -> None:
    assert scaler(replicas_max=6).desired(0.0, 99.0, ready=5, current=5) == 6
    assert scaler(replicas_min=3).desired(0.0, 0.0, ready=5, current=5) == 3


def command(*arguments: str) -> int:
    parser = argparse.ArgumentParser(exit_on_error=False)
    cli_simulate.add_arguments(parser)
    return cli_simulate.run(parser.parse_args(arguments))


def small(**more: object) -> Run:
    given = Run(source=Workload("chat"), policy="picker", rate=30.0, requests=1500, replicas=2, seed=3)
    return msgspec.structs.replace(given, **more)


def test_who_neither_comes_nor_goes_costs_the_whole_time() -> None:
    fixed = Autoscale(signal="kv", target=0.5, replicas_min=2, replicas_max=2)
    fleet = fleet_of(small(autoscale=fixed))
    records = fleet.run()
    assert records.replica_seconds == pytest.approx(2 * records.ended_at)
    plain = fleet_of(small()).run()
    assert plain.replica_seconds == pytest.approx(2 * plain.ended_at)


@pytest.mark.parametrize("signal", ["wanted", "saturation", "queue", "kv", "running"])
def test_replicas_come_and_go_and_no_request_is_lost(signal: str) -> None:
    target = {"wanted": 0.3, "saturation": 0.1, "queue": 0.02, "kv": 0.05, "running": 10.0}[signal]
    rules = Autoscale(
        signal=signal, target=target, replicas_min=1, replicas_max=5, start_seconds=10.0, cool_down_seconds=15.0
    )
    day = Day(Workload("chat"), 300.0, 0.05)
    fleet = fleet_of(small(source=day, autoscale=rules, check_every=500, requests=3000, rate=20.0))
    records = fleet.run()
    assert records.ended == 3000 and records.failed == 0
    assert len(fleet.replicas) > 2, "some were added"
    gone = [replica for replica in fleet.replicas if replica.gone_at is not None]
    assert gone and not any(replica.flights for replica in gone), "and some went, with nothing left to do"
    lives = sum((r.gone_at or records.ended_at) - r.wanted_at for r in fleet.replicas)
    assert records.replica_seconds >= lives
    for replica in fleet.replicas[2:]:
        assert replica.wanted_at % 15.0 == pytest.approx(0.0), "wanted when the scaler looked"


def test_a_day_has_the_rate_that_its_hour_says() -> None:
    day = Day(Workload("tools"), 1000.0, 0.2)
    rate = 40.0
    requests = day.requests(rate)
    assert requests == pytest.approx(rate * 1000 * 0.6, abs=1)  # the mean of sin squared is a half
    starts = [script.at_seconds for script in day.scripts(1, requests, rate, 0.0)]
    assert len(starts) == requests and starts == sorted(starts)
    for hour in range(10):
        share = (hour + 0.5) / 10
        expected = rate * 100 * (0.2 + 0.8 * sin(pi * share) ** 2)
        found = sum(hour * 100 <= at < (hour + 1) * 100 for at in starts)
        assert found == pytest.approx(expected, rel=0.2)


def test_the_result_says_what_scaled_and_what_it_cost() -> None:
    rules = Autoscale(signal="wanted", target=0.7)
    result, records = simulate(small(autoscale=rules, requests=300))
    assert (result.autoscale, result.label) == ("wanted@0.7", "picker wanted@0.7")
    assert result.replica_seconds == records.replica_seconds > 0.0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--autoscale", "wanted"], "like wanted@0.8"),
        (["--autoscale", "cpu@0.5"], "one of wanted"),
        (["--autoscale", "kv@0"], "above 0"),
        (["--autoscale", "kv@"], "target is missing"),
        (["--autoscale", "kv@0.5", "--replicas-min", "9", "--replicas-max", "3"], "--replicas-min 9"),
        (["--day", "600"], "--rate"),
        (["--day", "5", "--rate", "3"], "60 seconds"),
    ],
)
def test_wrong_usage_is_said_in_words(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(*arguments) == 2
    assert words in capsys.readouterr().err


def test_the_table_shows_each_scaler_with_its_replicas(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--workload", "tools", "--policy", "picker", "--rate", "20", "--day", "60", "--replicas", "1", "--quiet"]
    assert command(*options, "--autoscale", "wanted@0.7,kv@0.5") == 0
    shown = capsys.readouterr().out
    assert "picker wanted@0.7" in shown and "picker kv@0.5" in shown and "replicas" in shown


@pytest.mark.parametrize(("shared_weight", "least", "most"), [(0.05, 0.7, 2.0), (1.0, 0.0, 0.1)])
def test_a_replica_that_joins_takes_its_share_because_a_copy_is_an_investment(
    shared_weight: float, least: float, most: float
) -> None:
    """Beside agents with one preamble, from its 10th to its 60th second; without the rule it gets none."""
    config = Config(routing=Routing(shared_weight=shared_weight))
    run = Run(
        source=Workload("agents"),
        policy="picker",
        rate=8.0,
        requests=1000,
        replicas=4,
        seed=1,
        warm_up=0.0,
        joins=(60.0,),
        config=config,
    )
    records = fleet_of(run).run()
    arrived, replica = records.column("arrived_at"), records.column("replica")
    later = (arrived >= 70.0) & (arrived < 120.0)
    share = float((replica[later] == 4).mean()) * 5
    assert least <= share <= most
