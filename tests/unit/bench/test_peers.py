"""The pure parts of `make bench-peers`: who takes part, in which order, medians, who beats whom, the page."""

import re
from typing import Any

import msgspec
import pytest

from picker.sim.statistics import Percentiles
from tests.bench.peers import contestants, environments, publish, report, run, verdict, workload
from tests.bench.peers.__main__ import arguments
from tests.bench.peers.cell import Cell, _charged, idle_share
from tests.bench.peers.verdict import Median


def cell(contestant, round_number=0, name="chat", p95=1.0, **more):
    times = Percentiles(mean=p95 / 2, p50=p95 / 4, p90=p95, p95=p95, p99=p95)
    known: dict[str, Any] = {
        "requests": 200,
        "hit_rate": 0.5,
        "ttft": times,
        "e2e": times,
        "busiest_over_mean": 1.0,
        "idle_share": 0.5,
    }
    known |= {"cpu_us": {contestant: 100.0}, "late_p99_seconds": 0.01, "seconds": 9.0} | more
    return Cell(contestant=contestant, workload=name, round=round_number, position=0, seed=1, **known)


def results(cells, names, rounds=1, workloads=("chat",), absent=None):
    lines = [
        run.Line(name=name, flags=f"{name} --fast", version="1", ours=name == "picker", absent=(absent or {}).get(name))
        for name in names
    ]
    return run.Results(
        date="2026-11-30",
        arguments=["--rounds", str(rounds), "--json", "kept.json"],
        machine={"cores": 2, "cpu": "a cpu", "memory_gib": 4, "kernel": "6"},
        plan=run.Plan(rounds=rounds, workloads=workloads),
        seconds=60.0,
        lines=lines,
        cells=cells,
    )


class TestOrder:
    def test_rounds_begin_as_given_then_in_reverse_then_further_on(self):
        assert run.order("abcdef", 0) == list("abcdef")
        assert run.order("abcdef", 1) == list("fedcba")
        assert run.order("abcdef", 2) == list("cdefab")
        assert run.order("abcdef", 3) == list("bafedc")

    @pytest.mark.parametrize("count", [0, 1, 2, 7])
    def test_everybody_has_a_turn_in_every_round(self, count):
        names = list(range(count))
        for number in range(7):
            assert sorted(run.order(names, number)) == names

    def test_in_three_rounds_nobody_goes_first_twice(self):
        firsts = [run.order("abcdef", number)[0] for number in range(3)]
        assert len(set(firsts)) == 3


class TestWorkload:
    def test_contestants_of_a_round_get_equal_requests_and_rounds_different_ones(self):
        for name in workload.WORKLOADS:
            first, again = (workload.draw(name, workload.seed_of(1, 0, name), 40) for _ in range(2))
            other = workload.draw(name, workload.seed_of(1, 1, name), 40)
            assert first == again
            assert sum(len(session.turns) for session in first) == 40
            ids = [
                {s.id for session in some for turn in session.turns for s in turn.segments} for some in (first, other)
            ]
            assert not ids[0] & ids[1]

    def test_no_two_workloads_or_rounds_share_a_seed(self):
        seeds = {workload.seed_of(1, number, name) for number in range(5) for name in workload.WORKLOADS}
        assert len(seeds) == 5 * len(workload.WORKLOADS)

    def test_without_a_number_of_requests_it_lasts_the_scenes_seconds(self):
        drawn = workload.draw("long", 1)
        assert 0 <= drawn[0].at_seconds <= drawn[-1].at_seconds < workload.WORKLOADS["long"].seconds


class TestVerdict:
    def test_the_median_has_its_range_and_leaves_out_what_is_unknown(self):
        assert verdict.over_rounds([3.0, None, 1.0, 2.0]) == Median(2.0, 1.0, 3.0, 3)
        assert verdict.over_rounds([None]) is None

    def test_who_beats_us_is_found_by_medians_and_counted_by_rounds(self):
        ours = [cell("picker", number, p95=p95) for number, p95 in enumerate((1.0, 2.0, 3.0))]
        theirs = [cell("other", number, p95=p95) for number, p95 in enumerate((1.5, 1.8, 1.9))]
        found = {win.figure.title: win for win in verdict.wins([*ours, *theirs], "picker")}
        assert set(found) == {"TTFT mean", "TTFT p50", "TTFT p95", "E2E p50", "E2E p95"}  # hit rate and CPU are equal
        win = found["TTFT p95"]
        assert (win.contestant, win.theirs.middle, win.ours.middle) == ("other", 1.8, 2.0)
        assert (win.rounds_better, win.rounds) == (2, 3)

    def test_more_hits_are_better_and_less_cpu_is(self):
        cells = [cell("picker", hit_rate=0.5), cell("other", hit_rate=0.6, cpu_us={"other": 90.0})]
        assert [win.figure.title for win in verdict.wins(cells, "picker")] == ["hit rate", "CPU us a request"]
        assert (
            verdict.wins([cells[1], cell("picker", hit_rate=0.7, cpu_us={"Envoy": 40.0, "picker": 40.0})], "picker")
            == []
        )

    def test_cpu_is_of_all_processes_and_unknown_where_one_is(self):
        assert verdict.router_cpu(cell("a", cpu_us={"Envoy": 40.0, "a": 60.0})) == 100.0
        assert verdict.router_cpu(cell("a", cpu_us={"Envoy": 40.0, "a": None})) is None
        assert verdict.router_cpu(cell("a", cpu_us={})) is None

    def test_a_cell_with_too_many_errors_has_no_figures(self):
        cells = [cell("picker"), cell("other", p95=0.1, errors=3), cell("fine", p95=0.1, errors=2)]
        assert {win.contestant for win in verdict.wins(cells, "picker")} == {"fine"}
        assert verdict.summary(cells, "chat", "other")["TTFT p95"] is None


class TestReport:
    def test_a_sentence_names_all_who_win_with_figures_and_how_sure_it_is(self):
        cells = [cell("picker", n, p95=p95) for n, p95 in enumerate((0.5, 0.6))]
        cells += [cell("a", n, p95=p95) for n, p95 in enumerate((0.4, 0.45))]
        cells += [cell("b", n, p95=p95) for n, p95 in enumerate((0.51, 0.549))]
        words = report.verdict(results(cells, ["picker", "a", "b"], rounds=2))
        (ttft,) = [line for line in words if "TTFT p95" in line]
        assert ttft == (
            "`chat`, TTFT p95, the picker 550 ms: a 425 ms (23 % less, better in 2 of 2 rounds), "
            "b 530 ms (4 % less, better in 1 of 2 rounds, ranges overlap)."
        )

    def test_it_says_so_where_nobody_wins_and_nothing_where_we_did_not_take_part(self):
        (line,) = report.verdict(results([cell("picker"), cell("a", p95=9.0)], ["picker", "a"]))
        assert line.startswith("In none of these figures does any other beat the picker: hit rate, TTFT mean")
        assert report.verdict(results([cell("a")], ["a"])) == []

    def test_tables_have_a_line_for_everybody_also_for_the_absent(self):
        found = results([cell("picker", errors=1)], ["picker", "gone"], absent={"gone": "gone did not start: no"})
        seen, cost = report.tables(found)
        assert [row[""] for row in seen["rows"]] == [row[""] for row in cost["rows"]] == ["picker", "gone"]
        assert (seen["rows"][0]["TTFT p95"], seen["rows"][0]["errors"]) == ("1.00 s", "1/200")
        assert (seen["rows"][1]["TTFT p95"], cost["rows"][1]["CPU us a request"]) == ("absent", "absent")
        assert report.absences(found.lines) == ["gone is absent: gone did not start: no"]

    def test_ranges_share_their_unit_where_it_is_one(self):
        assert report.show_median("share", Median(0.5, 0.4, 0.6, 3)) == "50.0 % (40.0 to 60.0 %)"
        assert report.show_median("seconds", Median(1.0, 0.9, 1.1, 3)) == "1.00 s (900 ms to 1.10 s)"
        assert report.show_median("us", Median(1500.0, 1400.0, 1600.0, 3)) == "1,500 (1,400 to 1,600)"

    @pytest.mark.parametrize(
        ("known", "busy"),
        [
            ({"idle_share": 0.11}, False),
            ({"idle_share": 0.09}, True),
            ({"idle_share": None, "late_p99_seconds": None}, False),
            ({"late_p99_seconds": 0.2}, True),
        ],
    )
    def test_a_busy_machine_is_told(self, known, busy):
        one = cell("picker", **known)
        assert report.busy(one) is busy
        assert ("MACHINE BUSY" in report.progress(one)) is busy
        assert ("in 1 of 1 cells" in report.machine_words(results([one], ["picker"]))) is busy


class TestPage:
    TEXT = f"before\n{publish.BEGIN}\nold\n{publish.END}\nafter\n"

    def test_only_what_stands_between_the_markers_is_rewritten(self):
        assert publish.rewritten(self.TEXT, "new\n") == f"before\n{publish.BEGIN}\nnew\n{publish.END}\nafter\n"

    @pytest.mark.parametrize("text", ["", publish.BEGIN, TEXT + TEXT, f"{publish.END}\n{publish.BEGIN}"])
    def test_a_page_without_its_markers_is_refused(self, text):
        with pytest.raises(ValueError, match="peers: begin"):
            publish.rewritten(text, "new")

    def test_a_run_is_kept_and_published_with_everything_that_matters(self, tmp_path):
        cells = [cell("picker", p95=0.5), cell("Envoy round robin", p95=0.4), cell("slow", errors=200, ttft=None)]
        found = results(cells, ["Envoy round robin", "picker", "slow", "gone"], absent={"gone": "no such wheel"})
        kept = tmp_path / "kept.json"
        kept.write_bytes(msgspec.json.encode(found))
        target = tmp_path / "pages.md"
        target.write_text(self.TEXT)
        publish.main([str(kept), str(tmp_path / "pages")])
        text = target.read_text()
        for words in (
            "2026-11-30",
            "`python -m tests.bench.peers --rounds 1`",
            "bursty chat",
            "200/200",
            "`slow --fast`",
        ):
            assert words in text
        assert "`chat`, TTFT p95, the picker 500 ms: Envoy round robin 400 ms" in text
        assert "gone is absent: no such wheel" in text
        plots = re.findall(r"\]\((pages/[\w-]+\.svg)\)", text)
        assert len(plots) == len(publish.PLOTS)
        assert all("</svg>" in (tmp_path / plot).read_text() for plot in plots)

    def test_a_second_run_follows_the_first_without_plots(self, tmp_path):
        one = results([cell("picker")], ["picker"])
        other = results([cell("picker"), cell("a")], ["picker", "a"])
        other.arguments = ["--only", "picker,a"]
        text = publish.page([one, other], tmp_path)
        first, second = text.split("### Another run: `python -m tests.bench.peers --only picker,a`")
        assert first.count(".svg") == len(publish.PLOTS)
        assert ".svg" not in second
        assert "| a | 1 | `a --fast` |" in second

    def test_the_default_run_is_named_by_its_target(self):
        assert publish.command(["--json", "x.json"]) == "make bench-peers"
        assert publish.command(["--only", "smg small", "--json=x"]) == "python -m tests.bench.peers --only 'smg small'"


class TestArguments:
    @pytest.mark.parametrize(
        ("given", "words"),
        [
            (["--rounds", "0"], "'0' is no whole number above 0"),
            (["--requests", "many"], "'many' is no whole number above 0"),
            (["--workload", "chat,chess"], "'chess': there is long, chat, agents"),
            (["--workload", ","], "--workload: name at least one"),
            (["--only", "smg,nginx"], "'nginx': there is Envoy round robin, Envoy least request, picker, smg"),
            (["--only", ","], "--only: name at least one contestant"),
            (["--peer", "other"], "'other': write NAME=HOST:PORT"),
            (["--peer", "other=127.0.0.1"], "'127.0.0.1' is not host:port"),
            (["--peer", "smg=127.0.0.1:9"], "--peer smg: there is a contestant of that name already"),
            (["--peer", "other=127.0.0.1:9"], "--peer needs --server-ports"),
            (["--server-ports", "80,x"], "port 'x' is not in 1..65535"),
        ],
    )
    def test_wrong_ones_are_named(self, given, words, capsys):
        with pytest.raises(SystemExit) as ended:
            arguments(given)
        assert ended.value.code == 2
        assert words in capsys.readouterr().err

    def test_by_default_all_that_look_at_prefixes_and_the_baselines(self):
        plan, found, _ = arguments([])
        names = ["Envoy round robin", "Envoy least request", "picker", "smg", "sglang-router", "vllm-router"]
        assert [one.name for one in found] == names
        assert [one.name for one in found if one.ours] == ["picker"]
        assert (plan.rounds, plan.workloads, plan.server_ports) == (3, ("long", "chat", "agents"), (0,) * 8)

    def test_a_peer_takes_part_beside_those_named_and_ports_say_how_many_servers(self):
        given = ["--only", "picker", "--peer", "other=127.0.0.1:9", "--server-ports", "8001,8002"]
        plan, found, _ = arguments(given)
        assert [one.name for one in found] == ["picker", "other"]
        assert plan.server_ports == (8001, 8002)

    def test_all_is_everybody_once(self):
        names = [one.name for one in contestants.chosen(("all",), [])]
        assert len(names) == len(set(names)) == len(contestants.by_default()) + len(contestants.on_demand())


class TestEnvironments:
    def test_pins_are_read_and_anything_else_is_named(self):
        assert environments.pins("# why\nsmg==1.13.0  # this\n\n") == {"smg": "1.13.0"}
        with pytest.raises(ValueError, match=r"'smg>=1' is no pin"):
            environments.pins("smg>=1")

    def test_every_environment_of_a_contestant_is_pinned(self):
        pins = environments.pins(environments.REQUIREMENTS.read_text())
        wanted = {one.environment for one in contestants.chosen(("all",), []) if one.environment}
        assert wanted == set(pins)

    def test_what_is_installed_is_left_alone(self, tmp_path):
        home = tmp_path / "smg"
        home.mkdir()
        (home / "installed").write_text(f"smg=={environments.pinned('smg')}")
        told = []
        assert environments.ensure("smg", told.append, tmp_path) == home / "bin"
        assert told == []

    def test_what_cannot_be_installed_is_one_line_and_a_line_of_the_table(self, tmp_path, monkeypatch):
        monkeypatch.setattr(environments.sys, "executable", str(tmp_path / "no-python"))
        monkeypatch.setattr(environments, "FOLDER", tmp_path)
        told = []
        lines = run.prepare(contestants.chosen(("picker", "smg"), []), told.append)
        assert lines[0].absent is None
        assert lines[1].absent.startswith(f"smg=={environments.pinned('smg')} cannot be installed: ")
        assert "\n" not in lines[1].absent
        assert lines[1].absent in told


class TestCell:
    def test_cpu_of_threads_that_ended_is_not_lost(self):
        assert _charged((1.0, 1.0), (1.5, 1.51)) == pytest.approx(0.5)
        assert _charged((1.0, 1.0), (1.2, 1.8)) == pytest.approx(0.8)
        assert _charged((1.0, 1.0), (0.9, 1.3)) == pytest.approx(0.3)

    def test_idle_is_of_all_cores_and_waiting_for_disks_is_idle(self):
        class Times:
            def __init__(self, user, idle, iowait):
                self.user, self.system, self.idle, self.iowait = user, 0.0, idle, iowait

        assert idle_share(Times(1, 1, 0), Times(2, 3, 1)) == pytest.approx(0.75)
        assert idle_share(Times(1, 1, 0), Times(1, 1, 0)) is None
