"""The scraper against servers on the loopback that answer with recorded pages."""

import asyncio
import gzip
import logging
import os
import random
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import uvloop

from picker.config import EngineMetrics
from picker.edge.grpc.tls import self_signed, server_context
from picker.edge.scraping import watch
from picker.edge.scraping.scraper import WATCHES_A_STEP, EngineScraper
from picker.edge.scraping.watch import MODEL_OBJECTS_MAX, MODELS_MAX, Surroundings
from picker.pool.specs import EndpointSpec, EngineSample
from tests.unit.edge.loopback import LoopbackServer, Script, answer

FIXTURES = Path(__file__).parents[3] / "fixtures" / "engines"
VLLM = answer((FIXTURES / "vllm-0.32-busy.txt").read_bytes())
TRTLLM = answer((FIXTURES / "trtllm-1.2.txt").read_bytes())
MODELS = answer((FIXTURES / "vllm-0.32-models.json").read_bytes())
NOT_FOUND = answer(b"", "404 Not Found")


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(coroutine, 30))


def vllm(head: bytes) -> bytes:
    return MODELS if head.startswith(b"GET /v1/models") else VLLM


class Sink:
    """What a scraper told, and a way to wait for it."""

    def __init__(self) -> None:
        self.samples: list[EngineSample] = []
        self.failures: list[tuple[str, str]] = []
        self._news = asyncio.Event()

    def record(self, sample: EngineSample) -> None:
        self.samples.append(sample)
        self._news.set()

    def failed(self, uid: str, why: str) -> None:
        self.failures.append((uid, why))
        self._news.set()

    async def until(self, condition: Any) -> None:
        while not condition():
            self._news.clear()
            await self._news.wait()


def spec(port: int, uid: str = "a", **more: Any) -> EndpointSpec:
    return EndpointSpec(address=f"127.0.0.1:{port}", uid=uid, name=f"pod-{uid}", **more)


@asynccontextmanager
async def scraping(
    endpoints: list[EndpointSpec], settings: EngineMetrics | None = None, log: str = "test.scraper", **more: Any
) -> AsyncIterator[tuple[Sink, EngineScraper]]:
    sink = Sink()
    scraper = EngineScraper(
        settings=settings or EngineMetrics(interval_seconds=0.05),
        endpoints=lambda: endpoints,
        record=sink.record,
        failed=sink.failed,
        clock=time.monotonic,
        rng=random.Random(1),
        log=logging.getLogger(log),
        **more,
    )
    task = asyncio.create_task(scraper.run())
    try:
        yield sink, scraper
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def test_a_real_page_becomes_samples_and_models_follow() -> None:
    async def scenario() -> None:
        async with LoopbackServer(vllm) as server, scraping([spec(server.port)]) as (sink, _):
            await sink.until(lambda: any(sample.models for sample in sink.samples))
            last = sink.samples[-1]
            assert (last.uid, last.engine, last.running_requests) == ("a", "vllm", 12)
            assert last.kv_capacity_tokens == 1048576
            assert last.models == {"m", "sql"}
            assert server.connections == 1
            assert sum(b"/v1/models" in head for head in server.requests) == 1
            assert sink.failures == []

    run(scenario())


@pytest.mark.parametrize("count", [MODELS_MAX + 1, MODEL_OBJECTS_MAX + 1])
def test_a_list_of_models_that_is_all_structure_is_not_built(count: int) -> None:
    """A long one is cut; of an endless one nothing is known, and the metrics count all the same."""

    def script(head: bytes) -> bytes:
        if b"/v1/models" not in head:
            return vllm(head)
        return answer(b'{"data":[%b]}' % b",".join(b'{"id":"m%d"}' % number for number in range(count)))

    async def scenario() -> None:
        async with LoopbackServer(script) as server, scraping([spec(server.port)]) as (sink, _):
            await sink.until(lambda: any(b"/v1/models" in head for head in server.requests))
            before = len(sink.samples)
            await sink.until(lambda: len(sink.samples) > before + 3)
            models = sink.samples[-1].models
            assert models is None if count > MODEL_OBJECTS_MAX else len(models) == MODELS_MAX

    run(scenario())


def test_models_are_not_asked_for_when_switched_off() -> None:
    async def scenario() -> None:
        async with (
            LoopbackServer(vllm) as server,
            scraping([spec(server.port)], models_interval_seconds=None) as (sink, _),
        ):
            await sink.until(lambda: len(sink.samples) >= 3)
            assert not any(b"/v1/models" in head for head in server.requests)

    run(scenario())


def test_trtllm_is_found_at_its_own_path_behind_json_statistics() -> None:
    def script(head: bytes) -> bytes:
        if head.startswith(b"GET /metrics "):
            return answer(b'[{"numActiveRequests": 1}]')
        return TRTLLM if head.startswith(b"GET /prometheus/metrics ") else NOT_FOUND

    async def scenario() -> None:
        async with LoopbackServer(script) as server, scraping([spec(server.port)]) as (sink, _):
            await sink.until(lambda: len(sink.samples) >= 3)
            assert sink.samples[0].engine == "trtllm"
            # Once found, the JSON statistics are left to whoever reads them.
            assert sum(head.startswith(b"GET /metrics ") for head in server.requests) == 1

    run(scenario())


def test_the_named_engine_is_asked_where_it_keeps_its_page() -> None:
    async def scenario() -> None:
        async with (
            LoopbackServer(lambda head: TRTLLM if b"/prometheus/" in head else NOT_FOUND) as server,
            scraping([spec(server.port, engine="trtllm-serve")]) as (sink, _),
        ):
            await sink.until(lambda: sink.samples)
            assert not any(head.startswith(b"GET /metrics ") for head in server.requests)

    run(scenario())


def test_another_engine_at_the_same_address_is_noticed() -> None:
    pages = {"now": VLLM}

    async def scenario() -> None:
        async with LoopbackServer(lambda head: pages["now"]) as server, scraping([spec(server.port)]) as (sink, _):
            await sink.until(lambda: sink.samples)
            pages["now"] = answer((FIXTURES / "sglang-0.5.txt").read_bytes())
            await sink.until(lambda: sink.samples[-1].engine == "sglang")

    run(scenario())


@pytest.mark.parametrize(
    ("script", "why"),
    [
        (lambda head: NOT_FOUND, "status 404"),
        (lambda head: answer(b"<html>busy</html>"), "no known engine"),
        (lambda head: answer(b"", "503 Service Unavailable"), "status 503"),
        (lambda head: answer(b"", "401 Unauthorized"), "give a token with engine_metrics.bearer_token_file"),
        (lambda head: answer(b"", "403 Forbidden"), "give a token with engine_metrics.bearer_token_file"),
        (lambda head: answer(b"", "302 Found", "Location: http://10.0.0.9/login\r\n"), "another server"),
        (lambda head: answer(b"", "307 T", "Location: /metrics\r\n"), "redirects again and again"),
        (lambda head: answer(b"", "301 M", "Location: /a b\x1b\r\n"), "is no URL"),
        (lambda head: answer(b"", "301 M", "Location: http://[\r\n"), "is no URL"),
        (lambda head: answer(b"", "400 Bad Request"), "check engine_metrics.scheme"),
    ],
)
def test_a_failure_is_told_in_words_and_again_each_time(script: Script, why: str) -> None:
    async def scenario() -> None:
        async with LoopbackServer(script) as server, scraping([spec(server.port)]) as (sink, _):
            await sink.until(lambda: len(sink.failures) >= 2)
            assert sink.samples == []
            assert all(uid == "a" and why in text for uid, text in sink.failures)
            assert f"http://127.0.0.1:{server.port}/metrics" in sink.failures[0][1]

    run(scenario())


def test_a_server_that_comes_back_is_read_again(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with LoopbackServer(vllm) as server, scraping([spec(server.port)]) as (sink, _):
            await sink.until(lambda: sink.samples)
            server.script = lambda head: NOT_FOUND
            await sink.until(lambda: len(sink.failures) >= 2)
            server.script = vllm
            count = len(sink.samples)
            await sink.until(lambda: len(sink.samples) > count)

    with caplog.at_level(logging.INFO, "test.scraper"):
        run(scenario())
    told = [record.getMessage() for record in caplog.records]
    assert len([text for text in told if "status 404" in text]) == 1
    assert len([text for text in told if "metrics are back" in text]) == 1


def test_a_slow_endpoint_delays_nobody_and_is_asked_less_often() -> None:
    async def scenario() -> None:
        settings = EngineMetrics(interval_seconds=0.05, timeout_seconds=0.05, concurrency_max=2)
        async with LoopbackServer(lambda head: None) as slow, LoopbackServer(vllm) as quick:
            endpoints = [spec(slow.port, "slow", engine="vllm"), spec(quick.port, "quick")]
            async with scraping(endpoints, settings) as (sink, _):
                await sink.until(lambda: len(sink.samples) >= 20)
                assert {sample.uid for sample in sink.samples} == {"quick"}
                assert all(why == "no answer within 0.05 s" for _, why in sink.failures)
                assert 1 <= len(sink.failures) < 12

    run(scenario())


def test_an_endpoint_that_leaves_is_not_asked_again_and_its_connection_closed() -> None:
    async def scenario() -> None:
        async with LoopbackServer(vllm) as gone, LoopbackServer(vllm) as stays:
            endpoints = [spec(gone.port, "gone"), spec(stays.port, "stays")]
            async with scraping(endpoints) as (sink, _):
                await sink.until(lambda: {sample.uid for sample in sink.samples} == {"gone", "stays"})
                del endpoints[0]
                await sink.until(lambda: [sample.uid for sample in sink.samples[-4:]] == ["stays"] * 4)
                asked = len(gone.requests)
                count = len(sink.samples)
                await sink.until(lambda: len(sink.samples) >= count + 4)
                assert len(gone.requests) == asked
                assert not gone._writers

    run(scenario())


def test_a_bad_metrics_url_fails_in_words_and_harms_no_other() -> None:
    async def scenario() -> None:
        async with LoopbackServer(vllm) as server:
            endpoints = [spec(1, "bad", metrics_url="gopher://x"), spec(server.port, "good")]
            async with scraping(endpoints) as (sink, _):
                await sink.until(lambda: sink.samples and sink.failures)
                assert sink.failures[0][0] == "bad"
                assert "gopher://x" in sink.failures[0][1]

    run(scenario())


def test_a_missing_gauge_is_told_once_for_all_endpoints(caplog: pytest.LogCaptureFixture) -> None:
    page = VLLM.partition(b"\r\n\r\n")[2].replace(b"vllm:kv_cache_usage_perc", b"vllm:kv_cache_renamed")

    async def scenario() -> None:
        async with (
            LoopbackServer(lambda head: answer(page)) as server,
            scraping([spec(server.port, "1"), spec(server.port, "2")]) as (sink, _),
        ):
            await sink.until(lambda: {sample.uid for sample in sink.samples[-4:]} == {"1", "2"})
            assert {sample.kv_cache_utilization for sample in sink.samples} == {None}
            assert {sample.running_requests for sample in sink.samples} == {12}

    with caplog.at_level(logging.WARNING, "test.scraper"):
        run(scenario())
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 1
    assert "vllm:kv_cache_usage_perc or vllm:gpu_cache_usage_perc" in told[0]


def test_the_bearer_token_goes_along(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("secret")
    os.utime(path, (1, 1))

    async def scenario() -> None:
        settings = EngineMetrics(interval_seconds=0.05, bearer_token_file=str(path))
        async with LoopbackServer(vllm) as server, scraping([spec(server.port)], settings) as (sink, _):
            await sink.until(lambda: sink.samples)
            assert b"\r\nAuthorization: Bearer secret\r\n" in server.requests[0]

    run(scenario())


def test_a_refused_token_is_told_as_such(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("secret")
    settings = EngineMetrics(interval_seconds=0.05, bearer_token_file=str(path))

    async def scenario() -> None:
        async with (
            LoopbackServer(lambda head: answer(b"", "401 Unauthorized")) as server,
            scraping([spec(server.port)], settings) as (sink, _),
        ):
            await sink.until(lambda: sink.failures)
            assert "refuses the token in engine_metrics.bearer_token_file" in sink.failures[0][1]
            assert "secret" not in sink.failures[0][1]

    run(scenario())


@pytest.mark.parametrize("location", ["/metrics/", "metrics/", "http://127.0.0.1:{port}/metrics/"])
def test_a_redirect_on_the_same_server_is_followed_and_then_known(location: str) -> None:
    """As a `prometheus_client` application answers that is mounted at /metrics."""
    gone = False

    async def scenario() -> None:
        nonlocal gone

        def script(head: bytes) -> bytes:
            if head.startswith(b"GET /v1/models"):
                return MODELS
            if head.startswith(b"GET /metrics/ ") and not gone:
                return VLLM
            if head.startswith(b"GET /metrics ") and gone:
                return VLLM
            if head.startswith(b"GET /metrics "):
                return answer(b"", "307 Temporary Redirect", f"Location: {location.format(port=server.port)}\r\n")
            return NOT_FOUND

        async with LoopbackServer(script) as server, scraping([spec(server.port)]) as (sink, _):
            await sink.until(lambda: len(sink.samples) >= 3)
            assert sink.failures == []
            assert sum(head.startswith(b"GET /metrics ") for head in server.requests) == 1
            gone = True  # the server was replaced by one that has its page at the usual place
            count = len(sink.samples)
            await sink.until(lambda: len(sink.samples) > count)

    run(scenario())


def test_a_redirect_to_https_names_the_key() -> None:
    async def scenario() -> None:
        def script(head: bytes) -> bytes:
            return answer(b"", "308 Permanent Redirect", f"Location: https://127.0.0.1:{server.port}/metrics\r\n")

        async with LoopbackServer(script) as server, scraping([spec(server.port)]) as (sink, _):
            await sink.until(lambda: sink.failures)
            assert "set engine_metrics.scheme: https" in sink.failures[0][1]

    run(scenario())


def test_a_page_that_is_compressed_all_the_same_is_read() -> None:
    page = gzip.compress((FIXTURES / "vllm-0.32-busy.txt").read_bytes())

    async def scenario() -> None:
        packed = answer(page, headers="Content-Encoding: gzip\r\n")
        async with LoopbackServer(lambda head: packed) as server, scraping([spec(server.port)]) as (sink, _):
            await sink.until(lambda: sink.samples)
            assert sink.samples[0].running_requests == 12

    run(scenario())


@pytest.mark.parametrize(
    ("encoding", "body", "why"),
    [
        ("br", b"x", "encoded as 'br'"),
        ("gzip", b"no gzip", "damaged"),
        ("gzip", gzip.compress(b"x" * 100, mtime=0)[:-9], "is cut"),
        ("gzip", gzip.compress(b"\n" * (16 << 20), mtime=0), "exceeds"),
    ],
)
def test_a_compressed_page_that_cannot_be_read_is_named_and_bounded(encoding: str, body: bytes, why: str) -> None:
    async def scenario() -> None:
        packed = answer(body, headers=f"Content-Encoding: {encoding}\r\n")
        async with LoopbackServer(lambda head: packed) as server, scraping([spec(server.port)]) as (sink, _):
            await sink.until(lambda: sink.failures)
            assert why in sink.failures[0][1]

    run(scenario())


def test_a_model_list_behind_a_token_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    def script(head: bytes) -> bytes:
        return answer(b"", "401 Unauthorized") if head.startswith(b"GET /v1/models") else VLLM

    async def scenario() -> None:
        async with (
            LoopbackServer(script) as server,
            scraping([spec(server.port)], models_interval_seconds=0.01) as (sink, _),
        ):
            await sink.until(lambda: len(sink.samples) >= 4)

    with caplog.at_level(logging.WARNING, "test.scraper"):
        run(scenario())
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 1
    assert "/v1/models" in told[0] and "engine_metrics.bearer_token_file" in told[0]


def test_new_settings_take_effect() -> None:
    async def scenario() -> None:
        async with LoopbackServer(vllm) as server, scraping([spec(server.port)]) as (sink, scraper):
            await sink.until(lambda: sink.samples)
            scraper.replace_settings(EngineMetrics(interval_seconds=0.05, path="/elsewhere"))
            await sink.until(lambda: server.requests[-1].startswith(b"GET /elsewhere "))
            count = len(sink.samples)
            await sink.until(lambda: len(sink.samples) > count)

    run(scenario())


IDLE = answer((FIXTURES / "vllm-0.32-idle.txt").read_bytes())
LEFT_ALONE = EngineMetrics(interval_seconds=0.02, idle_interval_seconds=100, stale_seconds=200)


def test_an_idle_endpoint_is_left_alone_until_a_request_goes_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "IDLE_READS_A_SECOND", 0.001)

    async def scenario() -> None:
        busy = {"b"}
        async with LoopbackServer(lambda head: IDLE) as server:
            endpoints = [spec(server.port, uid) for uid in ("a", "b")]
            async with scraping(endpoints, LEFT_ALONE, models_interval_seconds=None, busy=lambda: busy) as (sink, _):

                def count(uid: str) -> int:
                    return sum(sample.uid == uid for sample in sink.samples)

                await sink.until(lambda: count("b") >= 10 and count("a"))
                assert count("a") == 1
                busy.add("a")
                await sink.until(lambda: count("a") >= 5)
                busy.clear()
                at_rest = [count(uid) for uid in ("a", "b")]
                await asyncio.sleep(0.3)
                assert all(count(uid) <= before + 1 for uid, before in zip(("a", "b"), at_rest, strict=True))

    run(scenario())


def test_an_endpoint_that_others_use_is_not_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "IDLE_READS_A_SECOND", 0.001)

    async def scenario() -> None:
        async with LoopbackServer(vllm) as server, scraping([spec(server.port)], LEFT_ALONE, busy=set) as (sink, _):
            await sink.until(lambda: len(sink.samples) >= 4)
            assert sink.samples[-1].running_requests == 12

    run(scenario())


@pytest.mark.parametrize(
    ("interval", "idle", "stale", "endpoints", "expected"),
    [
        *((1, 3, 5, 1000, 3), (1, 30, 5, 10_000, 3), (2, 1, 5, 1000, 2), (4, 3, 5, 1000, 4), (1, 3, 2, 1000, 1.2)),
        *((1, 3, 5, 4, 1), (1, 3, 5, 250, 1), (1, 3, 5, 500, 2), (0.5, 3, 5, 0, 0.5)),
    ],
)
def test_how_long_an_idle_endpoint_is_left_alone(interval, idle, stale, endpoints, expected) -> None:
    settings = EngineMetrics(interval_seconds=interval, idle_interval_seconds=idle, stale_seconds=stale)
    for rests, seconds in ((True, expected), (False, interval)):
        around = Surroundings(
            settings=settings,
            record=lambda sample: None,
            failed=lambda uid, why: None,
            port_answers=lambda uid, accepts: None,
            clock=time.monotonic,
            rng=random.Random(1),
            log=logging.getLogger("test.scraper"),
            models_interval_seconds=None,
            gpu_utilization=None,
            told=set(),
            rests=rests,
        )
        around.set_pool_size(endpoints)
        assert around.idle_interval_seconds == pytest.approx(seconds)


def test_hundreds_begin_and_end_some_at_a_time() -> None:
    async def scenario() -> None:
        endpoints = [spec(1, str(number), engine="vllm") for number in range(5 * WATCHES_A_STEP)]
        counts = [0]
        async with scraping(endpoints) as (_, scraper):
            for goal in (len(endpoints), 0):
                while len(scraper._watches) != goal:
                    await asyncio.sleep(0)
                    counts.append(len(scraper._watches))
                endpoints.clear()
        assert max(abs(after - before) for before, after in pairwise(counts)) == WATCHES_A_STEP

    run(scenario())


def test_no_more_than_the_allowed_number_at_a_time() -> None:
    async def scenario() -> None:
        open_at_request: list[int] = []

        def script(head: bytes) -> None:
            open_at_request.append(len(server._writers))

        settings = EngineMetrics(interval_seconds=0.05, timeout_seconds=0.1, concurrency_max=3)
        async with LoopbackServer(script) as server:
            endpoints = [spec(server.port, str(number), engine="vllm") for number in range(12)]
            async with scraping(endpoints, settings) as (sink, _):
                await sink.until(lambda: len(sink.failures) >= 6)
                assert max(open_at_request) == 3

    run(scenario())


def test_the_pods_label_names_the_engine() -> None:
    async def scenario() -> None:
        labels = {"inference.networking.k8s.io/engine-type": "trtllm-serve"}
        async with (
            LoopbackServer(lambda head: TRTLLM if b"/prometheus/" in head else NOT_FOUND) as server,
            scraping([spec(server.port, labels=labels)]) as (sink, _),
        ):
            await sink.until(lambda: sink.samples)
            assert not any(head.startswith(b"GET /metrics ") for head in server.requests)

    run(scenario())


def test_gpu_utilization_joins_the_sample() -> None:
    async def scenario() -> None:
        async with (
            LoopbackServer(vllm) as server,
            scraping([spec(server.port)], gpu_utilization=lambda one: 0.5 if one.uid == "a" else None) as (sink, _),
        ):
            await sink.until(lambda: sink.samples)
            assert sink.samples[0].gpu_utilization == 0.5
            assert sink.samples[0].running_requests == 12

    run(scenario())


@pytest.mark.parametrize("loop_factory", [None, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_https_is_verified_unless_told_otherwise(loop_factory: Callable[[], asyncio.AbstractEventLoop] | None) -> None:
    async def scenario() -> None:
        context = server_context(self_signed())
        context.set_alpn_protocols(["http/1.1"])
        async with LoopbackServer(vllm, tls=context) as server:
            for skip in (False, True):
                settings = EngineMetrics(interval_seconds=0.05, scheme="https", insecure_skip_verify=skip)
                async with scraping([spec(server.port, engine="vllm")], settings) as (sink, _):
                    await sink.until(lambda: sink.samples or sink.failures)
                    assert bool(sink.samples) == skip
                    assert skip or "self-signed certificate" in sink.failures[0][1]

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(asyncio.wait_for(scenario(), 30))
