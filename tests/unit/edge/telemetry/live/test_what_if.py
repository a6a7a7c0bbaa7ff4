"""The kept decisions again: with the same weights nothing moves, with others what the costs say."""

import asyncio
from random import Random

import pytest

from picker.api.hints import Hints, digest
from picker.config import Config, SessionAffinity, Weights
from picker.decision import Finished, Picked
from picker.edge.telemetry.decisions import DecisionRing
from picker.edge.telemetry.live.what_if import Proposal, again, what_if
from picker.outcomes import Outcome, Reason
from picker.scheduling.explanation import LazyExplanation
from tests.unit.edge.telemetry.live.pool_of import KIB, NOW, decide, director_of, prompt


def replay(ring, director, **proposal):
    return asyncio.run(what_if(ring.newest(1000), director.config, Proposal(**proposal)))


@pytest.mark.parametrize("scoring", ["cost", "normalized"])
def test_with_the_same_weights_nothing_moves_and_the_same_code_decides(scoring):
    director, ring = director_of(5, scoring=scoring), DecisionRing()
    for turn in range(60):
        decide(director, ring, turn % 9, now=NOW + turn * 0.01)
    found = replay(ring, director)
    assert (found["decisions"], found["moved"], found["bound"]) == (60, 0, 0)
    assert found["before"] == found["after"]
    for picked in (kept.picked for kept in ring.newest(60)):
        assert isinstance(picked.explain, LazyExplanation)
        choice = again(picked.explain, director.config)
        assert choice.cost.tolist() == picked.explain.choice.cost.tolist()
        assert choice.reason == picked.explain.choice.reason


def test_explored_ones_count_as_what_the_rule_says():
    director, ring = director_of(3, epsilon=1.0), DecisionRing()
    for turn in range(30):
        decide(director, ring, turn % 3, now=NOW + turn * 0.01)
    assert any(picked.reason is Reason.EXPLORE for picked in (kept.picked for kept in ring.newest(30)))
    found = replay(ring, director)
    assert found["moved"] == 0 and "explore" not in found["before"]["reasons"]


def test_the_holder_keeps_what_a_high_affinity_break_keeps_and_loses_it_without():
    """One prompt, again and again: its holder fills until the rule leaves it."""
    director, ring = director_of(2), DecisionRing()
    for turn in range(40):
        decide(director, ring, 1, now=NOW + turn * 1e-4)
    assert {kept.picked.reason for kept in ring.newest(40)} >= {Reason.AFFINITY}
    stays = replay(ring, director, affinity_break=1000.0)
    leaves = replay(ring, director, affinity_break=0.0, weights={"kv": 100.0, "queue": 100.0})
    assert stays["after"]["busiest_share"] >= stays["before"]["busiest_share"]
    assert leaves["moved"] > 0
    assert leaves["after"]["hit_share"] < leaves["before"]["hit_share"]
    moved = leaves["examples"][0]
    assert {moved["from"], moved["to"]} == {"pod-0", "pod-1"}
    assert len(leaves["examples"]) <= 12


def test_estimates_are_the_scorers_seconds_of_the_pick():
    director, ring = director_of(2), DecisionRing()
    picked = decide(director, ring, 3)
    found = replay(ring, director)
    (row,) = [each for each in picked.explain().endpoints if each.picked]
    assert found["before"]["ttft_seconds"] == pytest.approx(row.seconds["prefix"] + row.seconds["queue"])
    assert found["before"]["total_seconds"] == pytest.approx(sum(row.seconds.values()))


def test_sessions_stay_where_they_are():
    affinity = SessionAffinity(header="x-session")
    director, ring = director_of(2, session_affinity=affinity), DecisionRing()
    hints = Hints(session=digest("header", "s"))
    for turn in range(3):
        picked = director.decide(prompt(turn), now=NOW, rng=Random(turn), hints=hints)
        assert isinstance(picked, Picked)
        director.answered(picked.booking, 200, NOW)
        ring.add(picked, Finished(outcome=Outcome.COMPLETED))
    found = replay(ring, director, weights={"queue": 50.0})
    assert found["bound"] == 2 and found["decisions"] == 1


def test_decisions_without_costs_are_left_out():
    director, ring = director_of(2), DecisionRing()
    picked = director.decide_plainly(prompt(1), now=NOW)
    assert isinstance(picked, Picked)
    ring.add(picked, Finished(outcome=Outcome.COMPLETED))
    found = replay(ring, director)
    assert found["decisions"] == 0 and found["before"]["hit_share"] is None


def test_a_proposal_is_checked_like_the_file():
    applied = Proposal(weights={"queue": 5}, threshold=0.5, affinity_break=7.0).applied(Config(epsilon=0.3))
    assert applied.weights == Weights(queue=5.0) and applied.threshold == 0.5
    assert applied.routing.affinity_break == 7.0 and applied.epsilon == 0.0
    for wrong in (
        {"weights": {"prefix": 0.0}},
        {"weights": {"other": 1.0}},
        {"threshold": 1.5},
        {"weights": {"kv": -1.0}},
    ):
        with pytest.raises(ValueError, match=r"prefix|other|<= 1.0|>= 0.0"):
            Proposal(**wrong).applied(Config())


def test_the_cost_is_the_sum_of_what_is_shown():
    """The page stacks seconds times weights: they add up to the cost that decided."""
    for scoring in ("cost", "normalized"):
        director = director_of(4, weights=Weights(prefix=2.0, queue=5.0, kv=1.0), scoring=scoring)
        ring = DecisionRing()
        for turn in range(20):
            decide(director, ring, turn % 4, now=NOW + turn * 1e-3)
        (kept,) = ring.newest(1)
        picked, shown = kept.picked, ring.shown(kept)
        assert isinstance(picked.explain, LazyExplanation)
        rows = list(ring.rows(picked, picked.explain.standing()))
        assert len(rows) == shown["candidates"] == 4
        for row in rows:
            total = sum(row["seconds"][name] * weight for name, weight in shown["weights"].items())
            assert total == pytest.approx(row["cost_seconds"], rel=1e-9)


def test_a_ring_is_bounded_in_bytes_too():
    director, ring = director_of(50), DecisionRing(bytes_max=100_000)
    for turn in range(40):
        decide(director, ring, turn)
    assert ring.bytes_estimate <= 100_000
    assert 5 < len(ring) < 25
    assert ring.added_total == 40
    numbers = [kept.number for kept in ring.newest(100)]
    assert numbers == list(range(40, 40 - len(ring), -1))
    assert ring.numbered(40).number == 40 and ring.numbered(41) is None and ring.numbered(40 - len(ring)) is None
    assert [kept.number for kept in ring.newest(100, since=38)] == [40, 39]


def test_a_prompt_without_end_leaves_one_decision_at_least():
    director, ring = director_of(2), DecisionRing(bytes_max=4_200)
    picked = director.decide(prompt(1, 200 * KIB), now=NOW, rng=Random(1))
    assert isinstance(picked, Picked)
    ring.add(picked, Finished(outcome=Outcome.COMPLETED))
    assert len(ring) == 1
