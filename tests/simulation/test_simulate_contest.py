"""Standings by hand: ratios to the best peer of each figure, and what is kept between calls."""

import json
import sys

import msgspec
import pytest

from picker.config import Config
from picker.sim import contest as command
from picker.sim.contest import OURS, PEERS, Cell, Entrant, Score, Scores, contest, one_by_one, standings
from picker.sim.simulate import Run
from picker.sim.sources import Workload

CELL = Cell(Workload("tools"), 0.8, 10.0)
BASE = Run(source=Workload("tools"), policy=OURS, rate=1.0, requests=150, replicas=2)


def score(ttft_mean, ttft_p95, e2e_p95, hit_rate=0.5):
    return Score(ttft_mean, ttft_p95, e2e_p95, hit_rate, 0.9, 0.1)


def test_each_figure_is_compared_with_its_own_best_peer():
    found = {
        (CELL, OURS): [score(1.0, 4.0, 8.0), score(4.0, 4.0, 8.0)],  # geometric mean of the seeds: 2, 4, 8
        (CELL, "a"): [score(1.0, 8.0, 16.0), score(1.0, 8.0, 16.0)],
        (CELL, "b"): [score(9.0, 9.0, 2.0, 0.7), score(9.0, 9.0, 2.0, 0.8)],
    }
    (standing,) = standings(found, OURS, ("a", "b"))
    assert standing.ratios == pytest.approx({"ttft_mean": 2.0, "ttft_p95": 0.5, "e2e_p95": 4.0})
    assert standing.best_peers == {"ttft_mean": "a", "ttft_p95": "a", "e2e_p95": "b"}
    assert standing.ratio == pytest.approx(4.0 ** (1 / 3))
    assert (standing.hit_rate, standing.best_hit_rate) == (0.5, 0.75)


def test_a_peer_by_itself_has_one_ratio_over_all_cells():
    other = CELL._replace(share=CELL.share / 2)
    found = {
        (CELL, OURS): [score(1.0, 2.0, 3.0)],
        (CELL, "a"): [score(4.0, 2.0, 3.0)],  # ours is at 1/4, 1, 1
        (CELL, "b"): [score(1.0, 2.0, 1.5)],
        (other, OURS): [score(1.0, 1.0, 1.0)],
        (other, "a"): [score(1.0, 1.0, 0.5)],
        (other, "b"): [score(1.0, 4.0, 4.0)],
    }
    shown = one_by_one(found, ("a", "b"))
    peers, means, *figures, worst, cells = (list(column.cells) for column in shown.columns)
    assert peers == ["a", "b"]  # the hardest first
    assert [float(mean) for mean in means] == pytest.approx([(1 / 4 * 2) ** (1 / 6), (2 / 16) ** (1 / 6)], abs=1e-3)  # type: ignore[arg-type]
    assert [[float(value) for value in column] for column in figures] == [[0.5, 1.0], [1.0, 0.5], [1.414, 0.707]]  # type: ignore[arg-type]
    assert [float(value) for value in worst] == pytest.approx([2 ** (1 / 3), 2 ** (1 / 3)], abs=1e-3)  # type: ignore[arg-type]
    assert cells == [f"tools {other.share:g}", f"tools {CELL.share:g}"]


def test_no_variant_of_ours_counts_as_a_peer():
    assert "least_request" in PEERS
    assert not [name for name in PEERS if name.startswith("picker")]


def test_peers_scores_are_kept_and_ours_are_not(tmp_path):
    kept = tmp_path / "cells.json"

    def run():
        asked = []
        found = contest(
            BASE,
            [Workload("tools")],
            [0.5],
            [Entrant(OURS, OURS, Config()), Entrant("random", "random", Config())],
            [1],
            scores=Scores(kept, BASE),
            jobs=1,
            track=lambda label, total: asked.append((label, total)) or (lambda done: None),
        )
        return found, dict(asked)["runs"]

    (first, played), (second, played_again) = run(), run()
    assert (played, played_again) == (2, 1)
    assert first == second
    other_fleet = msgspec.structs.replace(BASE, replicas=3)
    assert Scores(kept, other_fleet).knee(other_fleet) is None
    assert Scores(kept, BASE).knee(BASE) is not None
    uneven = msgspec.structs.replace(BASE, speeds=(1.0, 0.3))
    assert Scores(kept, uneven).knee(uneven) is None


def test_the_command_enters_ours_in_every_form_that_was_asked_for(tmp_path, monkeypatch, capsys):
    knobs = tmp_path / "knobs.yaml"
    knobs.write_text("threshold: 1.0")
    report = tmp_path / "scores.json"
    fleet = "--replicas 2 --requests 150 --workloads tools --loads 0.5 --seeds 1,2 --peers random --quiet"
    asked = f"{fleet} --ours strict={knobs} --without slowness,in_flight --config {knobs} --json {report}"
    monkeypatch.setattr(sys, "argv", ["contest", *asked.split()])
    assert command.main() == 0
    scores = {row["entrant"]: row["scores"] for row in json.loads(report.read_text())}
    assert list(scores) == [OURS, "strict", "without slowness", "without in_flight", "random"]
    assert scores[OURS] == scores["strict"] != scores["without in_flight"]
    assert "without in_flight" in capsys.readouterr().out

    monkeypatch.setattr(
        sys,
        "argv",
        ["contest", *fleet.split(), "--bound", "--events", "0.1", "--kv-share", "0.25", "--json", str(report)],
    )
    assert command.main() == 0
    small = {row["entrant"]: row["scores"] for row in json.loads(report.read_text())}
    assert list(small) == [OURS, "KV events", "true residency", "random"]
    assert small[OURS] != scores[OURS]

    monkeypatch.setattr(sys, "argv", ["contest", *fleet.split(), "--kv-share", "0"])
    assert command.main() == 1
    assert "--kv-share is 0: it must be above 0" in capsys.readouterr().err

    monkeypatch.setattr(sys, "argv", ["contest", *fleet.split(), "--without", "luck"])
    assert command.main() == 1
    assert "picker-without-luck" in capsys.readouterr().err
