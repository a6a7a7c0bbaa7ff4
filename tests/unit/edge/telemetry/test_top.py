"""`picker top`: what it reads of a real metrics port, what it shows of it, and how it lives in a terminal."""

import asyncio
import io
import json
import math
import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from rich.console import Console

from picker.cli import main
from picker.decision import Finished
from picker.edge.telemetry.decisions import DecisionRing
from picker.edge.telemetry.explain import AskError
from picker.edge.telemetry.page import Telemetry
from picker.edge.telemetry.top.from_metrics import MetricsReader, quantile
from picker.edge.telemetry.top.from_stream import NoStreamError, events, readings, stream_readings
from picker.edge.telemetry.top.reading import DecisionReading, EndpointReading, PoolReading, TopReading
from picker.edge.telemetry.top.screen import ORDERS, bar, frame
from picker.edge.telemetry.view import EndpointRow, PoolView
from picker.outcomes import Outcome, Reason, Usage
from tests.kept_decisions import NAMES, A, B, decided, metrics_server
from tests.ports import free_ports
from tests.unit.edge.telemetry.live.pool_of import decide, read
from tests.unit.edge.telemetry.live.test_stream import serving

VIEW = PoolView(
    pool_name="pool",
    endpoints=[
        EndpointRow(name="vllm-1", address=A, in_flight_requests=3, waiting_requests=1, scrape_age_seconds=0.5),
        EndpointRow(name="vllm-2", address=B, in_flight_requests=12, ejected=True),
    ],
    requests_in_flight=15,
    saturation=0.25,
)


def traffic(telemetry: Telemetry) -> None:
    """Three answers with 400 of 500 tokens cached, their first after 100 ms; then one that is shed."""
    for _ in range(3):
        telemetry.finished(
            Finished(
                outcome=Outcome.COMPLETED,
                path="chat_completions",
                model="m",
                status=200,
                reason=Reason.AFFINITY,
                address=A,
                matched_share=0.9,
                cached_share=0.9,
                ttft_seconds=0.1,
                duration_seconds=1.0,
                streaming=True,
                usage=Usage(500, 20, 400),
            )
        )
    telemetry.finished(Finished(outcome=Outcome.SHED, path="completions", status=429, reject_word="saturated"))


def ring() -> DecisionRing:
    made = DecisionRing()
    made.add(*decided(A, "first"))
    made.add(*decided(B, "second"))
    return made


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with metrics_server(ring(), view=lambda: VIEW, traffic=traffic) as found:
        yield found


def shown(reading: TopReading, *, width: int = 160, height: int = 40, **more: Any) -> str:
    screen = io.StringIO()
    Console(file=screen, width=width).print(frame(reading, address="10.0.0.9:9090", width=width, height=height, **more))
    return screen.getvalue()


# Read from the pages -----------------------------------------------------------------------


def test_pages_are_read_and_their_differences_are_rates(address: str) -> None:
    reader = MetricsReader(address, None)
    assert reader.read().pool.requests_per_second is None
    while not (pool := reader.read().pool).requests_per_second:
        pass
    assert pool.shed_per_second == pytest.approx(pool.requests_per_second / 4)
    assert pool.hit_share == pytest.approx(0.8)  # 400 of 500
    assert pool.expected_hit_share == pytest.approx(0.9)
    # All in one bucket, which ends at 0.1: PromQL puts the median in its middle.
    assert 0.05 <= pool.ttft_p50_seconds < pool.ttft_p95_seconds <= 0.1
    assert (pool.in_flight, pool.saturation, pool.ejected) == (15, 0.25, 1)


def test_endpoints_and_decisions_are_read(address: str) -> None:
    reading = MetricsReader(address, None).read()
    by_name = {each.name: each for each in reading.endpoints}
    assert by_name["vllm-1"] == EndpointReading(name="vllm-1", address=A, in_flight=3, waiting=1, age_seconds=0.5)
    assert by_name["vllm-2"].waiting is None
    assert [each.request_id for each in reading.decisions] == ["second", "first"]
    assert (reading.decisions[0].endpoint, reading.decisions[0].matched_share) == (NAMES[B], 0.5)


@pytest.mark.parametrize(
    ("share", "buckets", "value"),
    [
        (0.5, {1.0: 10, 2.0: 20, math.inf: 20}, 1.0),
        (0.75, {1.0: 10, 2.0: 20, math.inf: 20}, 1.5),
        (0.95, {1.0: 10, 2.0: 10, math.inf: 20}, 2.0),  # beyond the last bound: that bound
        (0.5, {1.0: 0, math.inf: 0}, None),
        (0.5, {}, None),
    ],
)
def test_quantiles_are_promqls(share: float, buckets: dict[float, float], value: float | None) -> None:
    assert quantile(share, buckets) == value


def test_a_picker_that_began_anew_shows_no_negative_rates(address: str) -> None:
    reader = MetricsReader(address, None)
    reader.read()
    with metrics_server(ring(), view=lambda: VIEW) as fresh:
        reader._address = fresh
        assert reader.read().pool.requests_per_second is None


# Read from the stream ----------------------------------------------------------------------

HELLO = {
    "instance": "a", "version": "9.9", "build": "compiled", "pool": "p", "now": 1_769_860_800.0,
    "history": [
        {"seconds": 5.0, "requests": 10, "shed": 1, "hit_observed": 0.5, "hit_expected": 0.6,
         "ttft_p50_seconds": 0.1, "ttft_p95_seconds": 0.9},
        {"seconds": 5.0, "requests": 20, "shed": 0, "hit_observed": None, "hit_expected": 0.7,
         "ttft_p50_seconds": 0.2, "ttft_p95_seconds": None},
    ],
    "decisions": [{"number": 1, "at": 1_769_860_800.0, "request_id": "old", "model": "m", "reason": "load",
                   "endpoint": "a", "matched_share": 0.0, "prompt_tokens": 1, "predicted_ttft_seconds": 0.1}],
}  # fmt: skip
MEMBERS = {"generation": 1, "endpoints": [["a", A], ["b", B]]}
TICK = {
    "now": 1_769_860_801.0, "generation": 1, "in_flight": 7, "saturation": 0.5, "synced": True,
    "decisions": [{"number": 3, "at": 1_769_860_801.5, "request_id": "new", "model": None, "reason": "affinity",
                   "endpoint": "b", "matched_share": 0.9, "prompt_tokens": 1, "predicted_ttft_seconds": None}],
    "columns": {
        "in_flight": [1, 6], "others": [0, 0], "running": [1, None], "waiting": [0, None],
        "backlog_seconds": [0.1, 2.5], "kv": [0.3, None], "hit_expected": [0.5, None], "hit_observed": [0.4, None],
        "slowness": [1.0, 1.5], "ejected": [0, 1], "closed": [0, 0], "age_seconds": [0.4, None],
    },
}  # fmt: skip


def told(*messages: tuple[str, Any]) -> bytes:
    return b"".join(f"event: {name}\ndata: {json.dumps(data)}\n\n".encode() for name, data in messages)


def test_a_tick_of_the_stream_is_a_reading() -> None:
    stream = told(("hello", HELLO), ("members", MEMBERS), ("news", {"of": "tomorrow"}), ("tick", TICK), ("tick", TICK))
    first, second = readings(events(stream.splitlines(keepends=True)))
    assert first.version == "9.9 compiled"
    assert first.pool == PoolReading(
        requests_per_second=3.0,
        shed_per_second=0.1,
        hit_share=0.5,
        expected_hit_share=0.7,
        ttft_p50_seconds=0.2,
        ttft_p95_seconds=0.9,
        in_flight=7,
        saturation=0.5,
        ejected=1,
    )
    assert first.endpoints[1] == EndpointReading(
        name="b", address=B, in_flight=6, backlog_seconds=2.5, slowness=1.5, is_ejected=True
    )
    assert [(each.at, each.request_id) for each in first.decisions] == [
        ("2026-01-31T12:00:01.500Z", "new"),
        ("2026-01-31T12:00:00.000Z", "old"),
    ]
    assert len(second.decisions) == 3


@contextmanager
def answering(body: bytes, content_type: str = "text/event-stream; charset=utf-8") -> Iterator[str]:
    """Something that answers every GET so, and closes."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", content_type)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


def test_the_stream_is_read_over_http() -> None:
    with answering(told(("hello", HELLO), ("members", MEMBERS), ("tick", TICK))) as where:
        assert [each.source for each in stream_readings(where, None)] == ["/live"]


@pytest.mark.parametrize(
    "body", [b"event: tick\ndata: {\n\n", told(("tick", {})), told(("tick", []))], ids=["cut", "empty", "list"]
)
def test_a_stream_that_makes_no_sense_is_said(body: bytes) -> None:
    with answering(body) as where, pytest.raises(AskError, match=r"the stream of .* broke off"):
        list(stream_readings(where, None))


def test_a_picker_without_a_stream_is_told_apart(address: str) -> None:
    with pytest.raises(NoStreamError):
        list(stream_readings(address, None))
    with answering(b"<html>", "text/html") as where, pytest.raises(NoStreamError):
        list(stream_readings(where, None))


def test_the_live_pages_own_stream_is_read(capsys: Any) -> None:
    """Its real source, with three endpoints and two decisions."""

    async def scenario() -> int:
        async with serving() as served:
            read(served.director, 1, running_requests=4, waiting_requests=2, kv_cache_utilization=0.25)
            decide(served.director, served.ring, 1, request_id="first")
            decide(served.director, served.ring, 1, request_id="second")
            where = served.base.removeprefix("http://")
            return await asyncio.to_thread(main, ["top", "--address", where, "--once", "--interval", "0.1"])

    assert asyncio.run(asyncio.wait_for(scenario(), 30)) == 0
    out = capsys.readouterr().out
    assert "from /live" in out and "2 in flight" in out and "3 endpoints, 0 ejected" in " ".join(out.split())
    (row,) = (line for line in out.splitlines() if line.startswith("pod-1"))
    assert "25%" in row
    assert out.index("second") < out.index("first")


# Shown -------------------------------------------------------------------------------------


def reading_of(*endpoints: EndpointReading, **more: Any) -> TopReading:
    given = {"source": "/live", "version": "1", "pool": PoolReading(), "decisions": [], **more}
    return TopReading(endpoints=list(endpoints), **given)


@pytest.mark.parametrize(
    ("share", "text"), [(0.0, "    "), (1.0, "████"), (0.5, "██  "), (0.125, "▌   "), (-1.0, "    "), (9.0, "████")]
)
def test_bars(share: float, text: str) -> None:
    assert bar(share, 4) == text


def test_the_busiest_is_on_top_and_what_does_not_fit_is_counted() -> None:
    many = [EndpointReading(name=f"pod-{n:04}", address="a:1", in_flight=n) for n in range(1000)]
    lines = shown(reading_of(*many), height=20).splitlines()
    assert len(lines) <= 20
    rows = [line.split()[0] for line in lines if line.startswith("pod-")]
    assert rows == [f"pod-{n:04}" for n in range(999, 999 - len(rows), -1)]
    assert len(rows) > 5
    assert f"and {1000 - len(rows)} more" in "".join(lines)


@pytest.mark.parametrize("order", ORDERS)
def test_every_order_takes_what_is_unknown(order: str) -> None:
    known = EndpointReading(
        name="known", address="a:1", in_flight=1, waiting=1, backlog_seconds=1.0, kv_share=0.5, hit_share=0.5,
        age_seconds=1.0,
    )  # fmt: skip
    text = shown(reading_of(EndpointReading(name="unknown", address="b:1"), known), order=order)
    assert text.index("known ") < text.index("unknown") or order == "name"


@pytest.mark.parametrize("width", [80, 100, 140, 200])
def test_everything_has_room_on_a_terminal_of_80_columns(width: int) -> None:
    endpoint = EndpointReading(
        name="vllm-llama-8b-7d9f8c5b6-x2x9p", address="10.0.0.1:8000", in_flight=1234, running=4321, waiting=5678,
        backlog_seconds=12.3, kv_share=0.99, hit_share=0.87, slowness=1.25, is_ejected=True, age_seconds=0.456,
    )  # fmt: skip
    decision = DecisionReading(
        at="2026-01-31T12:00:00.000Z", request_id="b105f382-50ee-468a-9be5-4c753fb7ffad", model="meta-llama/Llama-8B",
        endpoint=endpoint.name, reason="affinity", matched_share=0.76, predicted_ttft_seconds=0.348,
    )  # fmt: skip
    text = shown(reading_of(endpoint, decisions=[decision]), width=width)
    for words in ("1,234", "4,321", "5,678", "12.3s", "99%", "87%", "1.25", "456ms", "ejected", "affinity", "348ms"):
        assert words in text
    assert len(text.splitlines()) <= 40
    assert "12:00:00.000" in text and "vllm-llama-8b" in text
    assert ("█" in text) == (width >= 100)


def test_unknown_is_no_zero_and_a_column_without_a_value_is_left_out() -> None:
    text = shown(reading_of(EndpointReading(name="a", address="a:1", in_flight=0)))
    assert "hit rate -" in text and "TTFT p50 -, p95 -" in text
    assert "in flight" in text and "KV" not in text and "0%" not in text


def test_what_others_said_is_shown_as_text() -> None:
    name = "evil\x1b]0;x\x07[/]\u202e"
    decision = DecisionReading(at="2026-01-31T12:00:00.000Z", request_id=name, model=name, endpoint=name, reason=name)
    text = shown(reading_of(EndpointReading(name=name, address=name), decisions=[decision], version=name), note=name)
    for forbidden in ("\x1b]", "\x07", "\u202e"):
        assert forbidden not in text
    assert text.count("evil\\x1b]0;x\\x07[/]\\u202e") == 5  # and two that are cut


# In a terminal -----------------------------------------------------------------------------


def test_one_frame_is_printed_where_nobody_would_see_a_second_one(address: str, capsys: Any) -> None:
    assert main(["top", "--address", address, "--interval", "0.2"]) == 0
    out = capsys.readouterr().out
    assert out.index("vllm-2") < out.index("vllm-1")
    assert "from /metrics" in out and "15 in flight" in out and "hit rate 80% (expected 90%)" in out
    assert "second" in out and "\x1b" not in out


def test_who_does_not_answer_is_said_in_one_line(capsys: Any) -> None:
    assert main(["top", "--address", "127.0.0.1:1"]) == 1
    assert capsys.readouterr().err.count("\n") == 1
    with answering(b"nothing", "text/plain") as where:
        assert main(["top", "--address", where]) == 1
    assert "is no picker's metrics port" in capsys.readouterr().err


def test_a_token_is_sent(capsys: Any) -> None:
    with metrics_server(ring(), token="good", view=lambda: VIEW) as guarded:
        assert main(["top", "--address", guarded, "--token", "good", "--interval", "0.1"]) == 0
        assert main(["top", "--address", guarded]) == 1
    assert "wants a bearer token" in capsys.readouterr().err


@pytest.mark.parametrize("flags", [["--interval", "0"], ["--interval", "x"], ["--sort", "luck"]])
def test_wrong_usage(flags: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["top", *flags])
    assert ended.value.code == 2


def test_it_draws_until_ctrl_c_also_over_a_restart_of_the_picker() -> None:
    """In a real terminal (a pty), on its second screen, which it leaves."""
    (port,) = free_ports(1)
    with metrics_server(ring(), view=lambda: VIEW, traffic=traffic, port=port) as where:
        terminal = Terminal("top", "--address", where, "--interval", "0.1")
        with terminal:
            terminal.wait_for("vllm-2", "15 in flight", "\x1b[?1049h")
    with terminal:
        terminal.wait_for("Is this the picker's metrics port?")
        terminal.forget()
        with metrics_server(ring(), view=lambda: VIEW, port=port):
            terminal.wait_for("15 in flight")
            terminal.process.send_signal(signal.SIGINT)
            terminal.wait_for("\x1b[?1049l")
            assert terminal.process.wait(20) == 0


class Terminal:
    """A command of ours in a terminal of 160 columns and 40 lines."""

    def __init__(self, *arguments: str) -> None:
        ours, theirs = pty.openpty()
        self._ours = ours
        self._seen = ""
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "160", "LINES": "40"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "picker", *arguments], stdin=theirs, stdout=theirs, stderr=theirs, env=environment
        )
        os.close(theirs)

    def wait_for(self, *words: str) -> None:
        """Until all of them were written. The test's own time limit ends it."""
        while not all(word in self._seen for word in words):
            self._seen += os.read(self._ours, 65536).decode(errors="replace")

    def forget(self) -> None:
        self._seen = ""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None or self.process.poll() is not None:
            self.process.kill()
            self.process.wait()
            os.close(self._ours)
