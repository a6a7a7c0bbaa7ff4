"""Each ablation lacks the part it is named after, and nothing else."""

from array import array
from random import Random

import numpy as np
import pytest

from picker.config import Config
from picker.outcomes import Usage
from picker.scheduling.loads import BACKLOG_TOKENS, CONTEXT_TOKENS, REQUESTS
from picker.sim.block_cache import BlockCache
from picker.sim.contest import FIGURES, OURS, Cell, Score, change
from picker.sim.policies import POLICIES
from picker.sim.policies.ablated_books import ABLATIONS
from picker.sim.policies.ablations import PARTS
from picker.sim.policies.policy import Gauges, Setting
from picker.sim.scripts import SimRequest
from picker.sim.sources import Workload


def make(part=None, replicas=2):
    name = "picker" if part is None else f"picker-without-{part}"
    policy = POLICIES[name](Setting(rng=Random(3), config=Config()))
    for replica in range(replicas):
        policy.join(replica, BlockCache(100_000), 0.0)
    return policy


def ask(number, tokens, shared_blocks=0, own_blocks=0):
    """A prompt that begins with blocks all have, and goes on with its own."""
    hashes = array("Q", [*range(1, 1 + shared_blocks), *range(number << 20, (number << 20) + own_blocks)])
    return SimRequest(
        number=number,
        session=number,
        model="m",
        prompt_tokens=tokens,
        output_tokens=10,
        ids=array("Q"),
        block_hashes=hashes,
        streaming=True,
    )


def rows(policy, now):
    director = policy.director
    return director.loads.current(director.datastore.snapshot(now))


def scrape(policy, *, waiting, running=(0, 0), now=1.0):
    for replica, (waits, runs) in enumerate(zip(waiting, running, strict=True)):
        policy.scraped(replica, Gauges(now, waits, runs, 0.0, 400_000, 0, 0, 0))


def test_every_part_has_its_books():
    assert set(PARTS) == set(ABLATIONS)


def test_without_in_flight_only_what_engines_report_counts():
    ablated, complete = make("in_flight"), make()
    for policy in (ablated, complete):
        scrape(policy, waiting=(8, 0), running=(5, 1))
    picks = [[policy.pick(ask(n, 900), 1.1).replica for n in range(1, 41)] for policy in (ablated, complete)]
    assert picks[0].count(1) >= 39  # one may have been an exploration
    assert 8 <= picks[1].count(0) <= 32
    assert list(rows(ablated, 1.1)[REQUESTS]) == [13.0, 1.0]
    assert list(rows(complete, 1.1)[REQUESTS]) == [picks[1].count(0), picks[1].count(1)]


def test_without_in_flight_a_stale_report_counts_nothing():
    policy = make("in_flight")
    scrape(policy, waiting=(8, 0), running=(5, 1))
    assert not rows(policy, 100.0)[REQUESTS].any()


def test_without_in_flight_tokens_a_long_request_is_one_like_the_others():
    ablated, complete = make("in_flight_tokens"), make()
    for policy in (ablated, complete):
        policy.pick(ask(1, 60_000), 0.0)
        policy.pick(ask(2, 300), 0.0)
    for row in (BACKLOG_TOKENS, CONTEXT_TOKENS):
        one, other = rows(ablated, 0.0)[row]
        assert one == other > 0.0
        assert sorted(rows(complete, 0.0)[row]) == [300.0, 60_000.0]


@pytest.mark.parametrize(("matched", "seen"), [(79, False), (80, True)])
def test_without_partial_matches_nothing_below_the_threshold_is_seen(matched, seen):
    ablated, complete = make("partial_matches"), make()
    for policy in (ablated, complete):
        policy.pick(ask(1, 25_600, shared_blocks=matched, own_blocks=100 - matched), 0.0)
        found = policy.director.index.match(ask(2, 25_600, matched, 100 - matched).block_hashes)
        assert found.blocks == 100
        assert [blocks for _, blocks in found.steps] == ([matched] if seen or policy is complete else [])


@pytest.mark.parametrize("part", [None, "slowness", "bytes_per_token", "output_length"])
def test_each_part_of_learning_goes_alone(part):
    policy = make(part)
    before = policy.director.rates.model("m")
    for number in range(1, 60):
        request = ask(number, 2_000)
        ticket = policy.pick(request, float(number))
        policy.answered(ticket, 200, float(number))
        policy.first_token(ticket, request, number + (4.0 if ticket.replica else 0.1))
        policy.finished(ticket, request, Usage(input_tokens=4_000, output_tokens=30), number + 5.0)
    sizes, slowness = policy.director.rates.model("m"), policy.director.rates.slowness
    assert (slowness.max() == 1.0) == (part == "slowness")
    assert (sizes.bytes_per_token == before.bytes_per_token) == (part == "bytes_per_token")
    assert (sizes.output_tokens == before.output_tokens) == (part == "output_length")
    if part != "slowness":
        assert slowness[1] > slowness[0]


@pytest.mark.parametrize("part", PARTS)
def test_what_an_ablation_replaces_still_learns_who_joins(part):
    policy = make(part, replicas=20)
    assert {policy.pick(ask(n, 4_000), 0.0).replica for n in range(1, 200)} == set(range(20))
    assert np.isfinite(rows(policy, 0.0)).all()
    policy.check()


def test_a_change_is_compared_seed_by_seed():
    cell = Cell(Workload("tools"), 0.8, 10.0)

    def score(seconds):
        return Score(seconds, seconds, seconds, 0.5, 0.9, 0.1)

    found = {
        (cell, OURS): [score(1.0), score(10.0)],  # the seeds differ tenfold,
        (cell, "twice"): [score(2.0), score(20.0)],  # but this is twice in both,
        (cell, "either"): [score(2.0), score(5.0)],  # and this as often better as worse
    }
    mean, error = change(found, "twice", FIGURES)
    assert (mean, error) == pytest.approx((1.0, 0.0))
    mean, error = change(found, "either", FIGURES)
    assert mean == pytest.approx(0.0)
    assert error == pytest.approx(0.693147, rel=1e-4)  # of the logarithms: sd ln 2 * sqrt 2, over sqrt 2
