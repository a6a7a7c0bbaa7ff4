"""`make bench-peers`, short: two of its contestants and a picker that somebody else started, through the real Envoy.

The peers themselves are not installed here: their adapters are tried against a process that is none of them.
"""

import asyncio
import re
import signal
import subprocess
import sys

import msgspec
import pytest

from picker.lab.child import dying_with_us
from tests.bench.peers import publish
from tests.bench.peers.__main__ import main
from tests.bench.peers.adapters import router_process
from tests.bench.peers.adapters.contract import StartError
from tests.bench.peers.adapters.router_process import peer
from tests.bench.peers.run import Results
from tests.bench.processes import PickerProcess
from tests.envoy.children import children_of, is_running
from tests.ports import free_ports

pytestmark = pytest.mark.usefixtures("nothing_left_behind")
REQUESTS = 10


def test_the_same_requests_go_through_each_and_the_page_can_be_made_of_it(tmp_path):
    ports = free_ports(3)
    kept = tmp_path / "results.json"
    config = tmp_path / "normalized.yaml"
    config.write_text("scoring: normalized\n")
    given = ["--rounds", "1", "--requests", str(REQUESTS), "--workload", "agents", "--json", str(kept)]
    given += ["--only", "Envoy round robin,picker", "--server-ports", ",".join(map(str, ports))]
    addresses = [f"127.0.0.1:{port}" for port in ports]
    with PickerProcess(addresses, "--insecure", "--config", str(config)) as other:
        assert main([*given, "--peer", f"normalized={other.address}"]) == 0
    found = msgspec.json.decode(kept.read_bytes(), type=Results)
    cells = {cell.contestant: cell for cell in found.cells}
    assert list(cells) == ["Envoy round robin", "picker", "normalized"]
    for cell in cells.values():
        assert (cell.requests, cell.errors, cell.first_error) == (REQUESTS, 0, None)
        assert 0.0 < cell.hit_rate < 1.0
        assert 0.0 < cell.ttft.p50 <= cell.e2e.p50
        assert 1.0 <= cell.busiest_over_mean <= len(ports)
        assert all(value > 0 for value in cell.cpu_us.values())
    # The picker that was there before is charged too: its process is found by its port.
    assert [list(cell.cpu_us) for cell in cells.values()] == [["Envoy"], ["Envoy", "picker"], ["Envoy", "normalized"]]
    page = tmp_path / "pages.md"
    page.write_text(f"{publish.BEGIN}\n{publish.END}\n")
    publish.main([str(kept), str(tmp_path / "pages")])
    assert f"| normalized | unknown | `ext_proc at {other.address}` |" in page.read_text()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 130)])
def test_stopping_it_leaves_no_process_behind(number, code):
    words = ["-m", "tests.bench.peers", "--rounds", "1", "--workload", "chat", "--only", "picker"]
    command = dying_with_us([sys.executable, *words])
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as running:
        try:
            for line in running.stdout:
                if line.startswith("model servers at"):
                    break
            started = children_of(running.pid)
            running.send_signal(number)
            output = running.stdout.read()
            assert running.wait(30) == code
        finally:
            running.kill()
    assert "Traceback" not in output
    assert started
    assert [pid for pid in started if is_running(pid)] == []


def stand_in(code):
    return peer("smg", lambda _: [sys.executable, "-c", code], "smg", ())


@pytest.mark.parametrize(
    ("code", "seconds", "words"),
    [
        (
            "import sys; print('\x1b[31mno such flag\x1b[0m', file=sys.stderr); sys.exit(2)",
            20.0,
            "did not start: no such flag",
        ),
        (
            "import time; print('still looking', flush=True); time.sleep(60)",
            1.0,
            "knew 0 of 2 model servers after 1 s: still l",
        ),
    ],
)
def test_a_peer_that_does_not_start_says_why_in_one_line_and_is_ended(code, seconds, words, monkeypatch):
    monkeypatch.setattr(router_process, "START_SECONDS_MAX", seconds)

    async def start():
        async with stand_in(code).start(["127.0.0.1:1", "127.0.0.1:2"]):
            raise AssertionError("it must not get here")

    with pytest.raises(StartError, match=re.escape(words)) as failed:
        asyncio.run(start())
    assert "\n" not in str(failed.value)


WORKERS = """
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        body = b'{"workers": [{"url": "a", "is_healthy": true}, {"url": "b", "is_healthy": true}]}'
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
"""


def test_a_peer_is_ready_when_it_lists_every_server_and_ends_with_its_context():
    async def start():
        async with stand_in(WORKERS).start(["127.0.0.1:1", "127.0.0.1:2"]) as running:
            (pid,) = running.processes.values()
            assert is_running(pid)
            return pid

    assert not is_running(asyncio.run(start()))
