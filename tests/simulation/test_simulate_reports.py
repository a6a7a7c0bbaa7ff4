"""The commands: what they print, write and refuse; the page is whole by itself; tuning finds a planted gain."""

import argparse
import json
import re
from html.parser import HTMLParser
from math import log
from xml.etree import ElementTree

import msgspec
import numpy as np
import pytest
import yaml

from picker import config as configuration
from picker.config import Config
from picker.sim import cli_simulate, cli_tune, report_svg
from picker.sim.report_svg import Band, Bar, Line
from picker.sim.simulate import Run
from picker.sim.sources import Workload
from picker.sim.tune import KNOBS, STRETCHES, Measured, prove, tune, with_values

QUICK = ["--workload", "agents", "--replicas", "2", "--requests", "200", "--rate", "4", "--quiet"]


def parsed(command, *arguments):
    parser = argparse.ArgumentParser(exit_on_error=False)
    command.add_arguments(parser)
    return parser.parse_args([*QUICK, *arguments])


def simulate(*arguments):
    return cli_simulate.run(parsed(cli_simulate, *arguments))


def test_json_to_standard_output_is_all_there_is(capsys):
    assert simulate("--policy", "picker,random", "--seed", "1,2", "--json", "-") == 0
    results = json.loads(capsys.readouterr().out)
    assert [(each["policy"], each["seed"]) for each in results] == [
        ("picker", 1),
        ("random", 1),
        ("picker", 2),
        ("random", 2),
    ]
    for each in results:
        assert each["requests"] == 160  # a fifth is warm-up
        assert 0 < each["hit_rate"] <= 1
        assert each["ttft"]["p50"] <= each["ttft"]["p95"] <= each["e2e"]["p95"]


def test_the_table_has_a_row_a_policy(capsys):
    assert simulate("--policy", "least_request,round_robin") == 0
    printed = capsys.readouterr().out
    assert re.search(r"4/s\s+least_request\s+\d+\.\d", printed)
    assert "round_robin" in printed


def test_several_processes_give_the_same_results(capsys):
    outputs = []
    for jobs in ("1", "2"):
        assert simulate("--policy", "picker,random", "--json", "-", "--jobs", jobs) == 0
        outputs.append(json.loads(capsys.readouterr().out))
    for one, other in zip(*outputs, strict=True):
        assert one | {"wall_seconds": 0} == other | {"wall_seconds": 0}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--policy", "best"], "--policy best: choose from picker"),
        (["--pickers", "9"], "--pickers 9: 1..4"),
        (["--fail", "2@30"], "--fail 2@30: replicas are 0..1"),
        (["--fail", "x"], "expected REPLICA@SECONDS"),
        (["--seed", "one"], "--seed one: expected whole numbers"),
        (["--speeds", "1,-1"], "every number must be above 0"),
        (["--index-size", "100"], "is not in 0.1..10"),
        (["--warm-up", "1"], "--warm-up 1: it must be at least 0 and below 1"),
        (["--config", "/nonexistent/picker.yaml"], "--config /nonexistent/picker.yaml"),
    ],
)
def test_wrong_usage_is_told_and_exits_with_2(capsys, arguments, message):
    assert simulate(*arguments) == 2
    assert message in capsys.readouterr().err


def test_what_cannot_be_done_exits_with_1(capsys, tmp_path):
    options = parsed(cli_simulate)
    options.trace = tmp_path / "none.jsonl"
    assert cli_simulate.run(options) == 1
    assert "cannot read the trace" in capsys.readouterr().err
    assert simulate("--json", str(tmp_path / "none" / "out.json")) == 1
    assert "cannot write" in capsys.readouterr().err


class Page(HTMLParser):
    """Collects what could load something, and the text."""

    def __init__(self):
        super().__init__()
        self.loads = []
        self.words = []

    def handle_starttag(self, tag, attributes):
        if tag in ("script", "link", "img", "iframe"):
            self.loads.append(tag)
        self.loads += [value for name, value in attributes if name in ("src", "href", "onload", "onclick")]

    def handle_data(self, data):
        self.words.append(data)


def test_the_report_is_one_page_that_loads_nothing(tmp_path):
    path = tmp_path / "report.html"
    assert simulate("--policy", "picker,sglang_cache_aware", "--html", str(path)) == 0
    text = path.read_text("utf-8")
    page = Page()
    page.feed(text)
    assert not page.loads
    assert "://" not in text
    words = " ".join(page.words)
    for expected in ("picker", "sglang_cache_aware", "Hit rate, and its ceiling", "Time to first token", "End to end"):
        assert expected in words
    plots = re.findall(r"<svg viewBox.*?</svg>", text, re.DOTALL)
    assert len(plots) == 3 + 2  # hit rate, two distributions, the load of each policy
    for plot in plots:
        ElementTree.fromstring(plot)


def test_a_curve_is_drawn_where_its_values_are():
    plot = report_svg.lines("t", "x", [Line("a", [0.0, 10.0], [0.0, 1.0], 0)])
    (points,) = re.findall(r'points="([^"]*)"', plot)
    left, bottom = (float(each) for each in points.split()[0].split(","))
    right, top = (float(each) for each in points.split()[1].split(","))
    assert (left, right) == (report_svg.LEFT, report_svg.WIDTH - report_svg.RIGHT)
    assert (bottom, top) == (report_svg.HEIGHT - report_svg.BOTTOM, report_svg.TOP)


def test_bands_of_a_row_have_one_scale_so_that_twice_as_many_are_twice_as_high():
    def band(most: float, seconds: float) -> Band:
        least, mean, top = (Line("", [0.0, seconds], [y, y], 0) for y in (0.0, most / 2, most))
        return Band("", least, mean, top)

    plots = report_svg.bands("seconds", [band(5.0, 10.0), band(10.0, 5.0)])
    shapes = [re.findall(r'<polygon[^>]*points="([^"]*)"', plot)[0].split() for plot in plots]
    corners = [[tuple(map(float, point.split(","))) for point in shape] for shape in shapes]
    high, width = [[max(p[axis] for p in c) - min(p[axis] for p in c) for c in corners] for axis in (1, 0)]
    assert high[1] == pytest.approx(2 * high[0])
    assert width[0] == pytest.approx(2 * width[1])


def test_a_policy_without_readings_says_so_beside_the_others():
    lines = [Line("", [0.0, 1.0], [1.0, 1.0], 0) for _ in range(3)]
    drawn, empty = report_svg.bands("seconds", [Band("a", *lines), Band("b", *[Line("", [], [], 0)] * 3)])
    assert "polygon" in drawn
    assert "nothing was measured" in empty


def test_names_are_escaped_and_nothing_is_no_error():
    assert "<b>" not in report_svg.bars("<b>", [Bar("<b>", 1.0, None, 0)])
    assert "nothing was measured" in report_svg.lines("t", "x", [])
    ElementTree.fromstring(report_svg.bars("t", [Bar("a", 0.0, 0.0, 0)]))


# Tuning -------------------------------------------------------------------------------------


def measured(seed, factor=1.0, count=2000):
    rng = np.random.default_rng(seed)
    ttft = rng.lognormal(-2, 1, count)
    return Measured(np.sort(rng.uniform(0, 100, count)), ttft * factor, (ttft + 2.0) * factor)


def test_a_gain_is_measured_with_an_interval_that_holds_it():
    before = [measured(seed) for seed in range(3)]
    proof = prove(before, [measured(seed, 0.8) for seed in range(3)], seed=1)
    for gain in (proof.ttft_mean, proof.ttft_p95, proof.e2e_p95, proof.overall):
        assert gain.change == pytest.approx(-0.2)
        assert gain.low <= gain.change <= gain.high < 0
    other = prove(before, [measured(seed + 50) for seed in range(3)], seed=1)
    assert other.overall.low < 0 < other.overall.high  # the same distribution: no gain that holds
    assert not cli_tune.holds(other)


def test_the_interval_covers_the_truth_about_as_often_as_it_says(monkeypatch):
    monkeypatch.setattr("picker.sim.tune.RESAMPLES", 300)
    covered = 0
    for number in range(30):
        before, after = [measured(1000 + number)], [measured(5000 + number, 0.9)]
        gain = prove(before, after, seed=number).ttft_mean
        covered += gain.low <= -0.1 <= gain.high
    assert covered >= 24


class Planted:
    """In place of the simulator: runs whose times depend on one knob, best at its given value."""

    def __init__(self, best):
        self.best = best
        self.played = 0

    def __call__(self, runs):
        return [self.play(run) for run in runs]

    def play(self, run):
        self.played += 1
        away = abs(log(run.config.routing.affinity_break / self.best))
        columns = measured(run.seed, 1.0 + away)

        class Columns:
            @staticmethod
            def column(name):
                return {
                    "arrived_at": columns.arrived_at,
                    "ttft_seconds": columns.ttft,
                    "e2e_seconds": columns.e2e,
                }[name]

        return Columns


def test_tuning_finds_what_was_planted_and_proves_it_on_other_runs():
    base = Run(source=Workload("chat"), policy="picker", rate=1.0, requests=100)
    runs, held_out = (
        [msgspec.structs.replace(base, seed=seed) for seed in seeds] for seeds in ((1, 2, 3), (10, 11, 12))
    )
    planted = Planted(best=12.0)
    tuned = tune(runs, held_out, trials=24, seed=1, play_all=planted)
    assert 8.0 <= tuned.changes["routing.affinity_break"] <= 18.0
    assert cli_tune.holds(tuned.proof)
    assert tuned.config.routing.affinity_break == tuned.changes["routing.affinity_break"]
    assert planted.played == tuned.tried + len(runs) + 2 * len(held_out)


def test_what_is_printed_can_be_pasted():
    changes = {"weights.queue": 4.5, "epsilon": 0.002, "routing.affinity_break": 7.0}
    text = cli_tune.to_yaml(changes)
    assert yaml.safe_load(text) == {"weights": {"queue": 4.5}, "epsilon": 0.002, "routing": {"affinity_break": 7.0}}
    assert configuration.load(text) == with_values(Config(), changes)


def test_every_knob_s_range_is_within_the_configuration_s():
    for knob in KNOBS:
        for value in (knob.low, knob.high):
            text = cli_tune.to_yaml({knob.path: value})
            assert configuration.load(text) == with_values(Config(), {knob.path: value})


def test_tune_runs_end_to_end(capsys):
    options = parsed(cli_tune, "--trials", "3", "--held-out", "1")
    assert cli_tune.run(options) == 0
    printed = capsys.readouterr().out
    assert "proof on runs that the search never saw" in printed
    assert "Paste this" in printed or "keep the configuration as it is" in printed


def test_a_file_is_split_in_halves(tmp_path):
    lines = [
        json.dumps({"timestamp": 1000 * at, "input_length": 600, "output_length": 20, "hash_ids": [at % 7, 1000 + at]})
        for at in range(400)
    ]
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(lines))
    base = Run(source=cli_simulate.open_file(path), policy="picker", rate=1.0, requests=400, warm_up=0.0)  # type: ignore[attr-defined]
    searching, proving = cli_tune._parts(base, [1.0], [1], 5)
    halves = []
    for runs in (searching, proving):
        source = runs[0].source
        scripts = list(source.scripts(1, runs[0].requests, 1.0, 0.0))
        assert scripts[0].at_seconds == 0.0
        halves.append({script.request(0).ids[-1] for script in scripts})
    assert len(halves[0]) == len(halves[1]) == 200
    assert not halves[0] & halves[1]


def test_stretches_are_a_dozen_a_run():
    proof = prove([measured(1, count=STRETCHES)], [measured(1, 0.5, count=STRETCHES)], seed=1)
    assert proof.ttft_mean.change == pytest.approx(-0.5)
