"""Pickers that tell each other choose like one, also when a part of what they tell is late or lost."""

import msgspec
import pytest

from picker.sim.cli_simulate import UsageError, add_arguments, base_run
from picker.sim.policies.picker import PickerPolicy
from picker.sim.results import Result
from picker.sim.sharing import Sharing
from picker.sim.simulate import Run, fleet_of, simulate
from picker.sim.sources import Workload

AGENTS = Run(source=Workload("agents"), policy="picker", rate=15.0, requests=1500, replicas=4, seed=1)


def played(**changes: object) -> Result:
    return simulate(msgspec.structs.replace(AGENTS, **changes))[0]


def test_three_that_share_hit_like_one_and_three_apart_do_not():
    one = played().hit_rate
    apart = played(pickers=3).hit_rate
    assert one - apart > 0.05
    assert played(pickers=3, sharing=Sharing()).hit_rate == pytest.approx(one, abs=0.01)
    assert played(pickers=3, sharing=Sharing(delay_seconds=1.0)).hit_rate == pytest.approx(one, abs=0.01)


def test_what_is_lost_is_made_good():
    run = msgspec.structs.replace(AGENTS, pickers=3, sharing=Sharing(loss_share=0.2), check_every=997, requests=800)
    fleet = fleet_of(run)
    fleet.run()
    fleet.check()
    counts = [policy.director.outbox._books.counts for policy in fleet.policies if isinstance(policy, PickerPolicy)]
    assert sum(each.sent["asks"] for each in counts) > 0 < sum(each.received["runs"] for each in counts)
    assert played(pickers=3, sharing=Sharing(loss_share=0.05)).hit_rate == pytest.approx(played().hit_rate, abs=0.015)


def test_a_run_with_sharing_is_repeatable():
    changes = {"pickers": 3, "sharing": Sharing(loss_share=0.1), "requests": 300}
    first, second = (played(**changes) for _ in range(2))
    assert msgspec.structs.replace(first, wall_seconds=0.0) == msgspec.structs.replace(second, wall_seconds=0.0)


def test_other_rules_tell_nobody():
    run = msgspec.structs.replace(AGENTS, pickers=2, policy="least_request", sharing=Sharing())
    with pytest.raises(ValueError, match="only the picker's own policies"):
        fleet_of(run)


@pytest.mark.parametrize(
    ("options", "said"),
    [(["--shared-delay", "-1"], "--shared-delay -1: it must be 0..60"), (["--shared-loss", "1"], "below 1")],
)
def test_what_makes_no_sense_is_said(options, said):
    import argparse

    parser = argparse.ArgumentParser()
    add_arguments(parser)
    with pytest.raises(UsageError, match=said):
        base_run(parser.parse_args(["--shared", *options]))
