"""The chart's Envoy leaves: `picker drain-envoy`, the real Envoy and picker, and clients of every kind.

The kubelet's part is done by hand, as the chart's pod has it: SIGTERM to `drain-envoy` (and, in the sidecar's pod, to
the picker at the same moment), to Envoy only when `drain-envoy` has ended. docs/high-availability.md has the rows.
"""

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from picker.lab.child import dying_with_us
from picker.lab.envoy import EnvoyProcess
from tests.deploy.standalone import bootstrap, on_this_machine
from tests.deploy.tools import REPOSITORY
from tests.envoy.clients import Http1Client, Http2Client, post
from tests.envoy.picker_process import PickerProcess, wait_until
from tests.envoy.upstream import Upstream, sse_events

pytestmark = pytest.mark.usefixtures("helm")

CHAT = "/v1/chat/completions"
BODY = b'{"model":"m","messages":[{"role":"user","content":"hello"}]}'
LENGTH = ("content-length", str(len(BODY)))
PAGE = REPOSITORY / "docs" / "high-availability.md"


class Drain:
    """`picker drain-envoy` beside an Envoy."""

    def __init__(self, admin_port: int, pressure_file: Path, seconds: float) -> None:
        command = [sys.executable, "-m", "picker", "drain-envoy", f"--admin=127.0.0.1:{admin_port}"]
        command += [f"--pressure-file={pressure_file}", f"--seconds={seconds}"]
        self.process = subprocess.Popen(
            dying_with_us(command), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=REPOSITORY
        )
        assert self.process.stdout is not None
        assert "waiting for SIGTERM" in self.process.stdout.readline()

    def begin(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def running(self) -> bool:
        return self.process.poll() is None

    def finish(self) -> tuple[int, str]:
        """Its exit code and last words."""
        out, _ = self.process.communicate(timeout=60)
        return self.process.returncode, out

    def __enter__(self) -> "Drain":
        return self

    def __exit__(self, *_: object) -> None:
        if self.running():
            self.process.kill()
        self.process.communicate()


@contextmanager
def pod(
    upstream: Upstream, folder: Path, mode: str, seconds: float = 60
) -> Iterator[tuple[EnvoyProcess, Drain, PickerProcess]]:
    """A standalone Envoy of the chart's, its `drain-envoy`, and a picker."""
    pressure = folder / "pressure"
    with PickerProcess([upstream.address], insecure=False) as picker:
        config = bootstrap({"standalone": {"enabled": True, "mode": mode}})
        with EnvoyProcess(on_this_machine(config, picker.grpc_address, pressure)) as envoy:
            wait_until(lambda: post(envoy.port, f"{CHAT}?id=warm", BODY).status == 200, "it never served", 30)
            with Drain(envoy.admin_port, pressure, seconds) as drain:
                yield envoy, drain, picker


def answers(client: Http1Client, name: str) -> int:
    """A request on a connection that is kept."""
    client.head("POST", f"{CHAT}?id={name}", [LENGTH])
    client.send(BODY)
    return client.response().status


def is_closed(client: Http1Client) -> bool:
    """Whether Envoy has ended an idle connection."""
    client.socket.setblocking(False)
    try:
        return client.socket.recv(1) == b""
    except BlockingIOError:
        return False
    finally:
        client.socket.settimeout(10)


def rows() -> dict[str, list[str]]:
    """The page's table of the chart's Envoy, by its first column."""
    table = PAGE.read_text().partition("## The chart's Envoy leaves")[2].partition("\n## ")[0]
    lines = [line for line in table.splitlines() if line.startswith("|")][2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {first: rest for first, *rest in cells}


@pytest.mark.parametrize("mode", ["sidecar", "service"])
def test_nobody_loses_anything(upstream: Upstream, tmp_path: Path, mode: str) -> None:
    """Each cell of the page's table, in one leaving."""
    column = ["sidecar", "service"].index(mode)
    wanted = {what: cells[column] for what, cells in rows().items() if not what.startswith("killed: ")}
    found: dict[str, str] = {}
    with pod(upstream, tmp_path, mode) as (envoy, drain, picker):
        with Http1Client(envoy.port) as long, Http1Client(envoy.port) as idle, Http1Client(envoy.port) as busy:
            long.head("POST", f"{CHAT}?id={mode}-long&do=sse&n=5&stall=1", [LENGTH])
            long.send(BODY)
            head = long.read_head()
            begun = long.read_chunk()
            half = Http1Client(envoy.port)
            half.head("POST", f"{CHAT}?id={mode}-half", [LENGTH])
            half.send(BODY[:10])
            assert answers(idle, "idle") == answers(busy, "busy") == 200
            drain.begin()
            if mode == "sidecar":
                picker.terminate()
            wait_until(lambda: "draining" in picker.log() or mode == "service", "the picker does not drain", 30)
            found["new requests on connections that are kept"] = str(answers(busy, "kept"))
            found["new connections"] = str(post(envoy.port, f"{CHAT}?id=new", BODY).status)
            half.send(BODY[10:])
            found["requests half sent"] = str(half.response().status)
            half.close()
            wait_until(lambda: is_closed(busy) and is_closed(idle), "kept connections stay", 30)
            found["idle connections"] = "closed"
            assert drain.running(), "one answer is not over"
            upstream.recorded(f"{mode}-long").release.set()
            rest = long.read_body(head)
            found["running answers"] = "go on" if begun + rest.body == b"".join(sse_events(5)) else "cut"
        code, said = drain.finish()
        assert code == 0 and "drained in" in said
        assert envoy.is_running(), "it is the kubelet that stops it, now"
    assert found == wanted


def cut_or_whole(read: Callable[[], object]) -> str:
    """How an exchange ends; the client asserts that an answer is whole."""
    try:
        read()
    except (AssertionError, OSError, ValueError):
        return "cut"
    return "whole"


@pytest.mark.parametrize("mode", ["sidecar", "service"])
def test_one_that_is_killed_cuts_what_runs_through_it(upstream: Upstream, tmp_path: Path, mode: str) -> None:
    """The other rows of the table: SIGKILL, as the kernel sends it to who has taken too much memory."""
    column = ["sidecar", "service"].index(mode)
    wanted = {what: cells[column] for what, cells in rows().items() if what.startswith("killed: ")}
    config = bootstrap({"standalone": {"enabled": True, "mode": mode}})
    found: dict[str, str] = {}
    with pod(upstream, tmp_path, mode) as (envoy, _, picker), Http1Client(envoy.port) as long:
        long.head("POST", f"{CHAT}?id={mode}-killed&do=sse&n=5&stall=1", [LENGTH])
        long.send(BODY)
        head = long.read_head()
        long.read_chunk()
        with Http1Client(envoy.port) as half:
            half.head("POST", f"{CHAT}?id={mode}-half-killed", [LENGTH])
            half.send(BODY[:10])
            wait_until(lambda: picker.in_flight() == 1, "the long answer is not in the books", 10)
            os.kill(envoy.pid, signal.SIGKILL)
            ends = {cut_or_whole(lambda: long.read_body(head)), cut_or_whole(half.response)}
        wait_until(lambda: not envoy.is_running(), "the kernel has not closed its listener yet", 10)
        found["killed: running answers, requests half sent"] = " and ".join(ends)
        with pytest.raises(ConnectionRefusedError):
            Http1Client(envoy.port)
        found["killed: new connections to its pod"] = "refused"
        wait_until(lambda: picker.in_flight() == 0, "the picker still counts what was cut", 10)
        with EnvoyProcess(on_this_machine(config, picker.grpc_address, tmp_path / "pressure")) as again:
            status = post(again.port, f"{CHAT}?id={mode}-again", BODY).status
            found["killed: new connections, once the kubelet has started it again"] = str(status)
        upstream.recorded(f"{mode}-killed").release.set()
    assert found == wanted


def test_an_idle_pod_leaves_in_seconds(upstream: Upstream, tmp_path: Path) -> None:
    """Though a client keeps a connection: not after the drain's two minutes, but when that is closed."""
    with pod(upstream, tmp_path, "service", seconds=130) as (envoy, drain, _), Http1Client(envoy.port) as idle:
        assert answers(idle, "once") == 200
        drain.begin()
        code, said = drain.finish()
        seconds = re.search(r"drained in (\d+) s", said)
        assert code == 0 and seconds is not None and int(seconds[1]) < 20


def test_http_2_clients_are_told_to_go(upstream: Upstream, tmp_path: Path) -> None:
    with pod(upstream, tmp_path, "service") as (envoy, drain, _), Http2Client(envoy.port) as client:
        stream = client.start("POST", f"{CHAT}?id=h2-1", [LENGTH])
        client.data(stream, BODY, end=True)
        assert client.response(stream).status == 200
        drain.begin()
        assert drain.finish()[0] == 0
        client.socket.settimeout(10)
        data = b""
        while piece := client.socket.recv(65536):
            data += piece
        assert b"\x07" in data, "GOAWAY, then the end"


def test_an_answer_longer_than_the_drain_is_cut_and_said_so(upstream: Upstream, tmp_path: Path) -> None:
    with pod(upstream, tmp_path, "service", seconds=1) as (envoy, drain, _), Http1Client(envoy.port) as long:
        long.head("POST", f"{CHAT}?id=too-long&do=sse&n=5&stall=1", [LENGTH])
        long.send(BODY)
        assert long.read_head().status == 200
        drain.begin()
        code, said = drain.finish()
        assert (code, "1 connections are left after 1 s" in said) == (0, True)
        upstream.recorded("too-long").release.set()


def test_without_an_envoy_there_is_nothing_to_drain(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    with Drain(port, tmp_path / "pressure", 5) as drain:
        drain.begin()
        code, said = drain.finish()
    assert code == 1 and "no answer from Envoy's admin port" in said
