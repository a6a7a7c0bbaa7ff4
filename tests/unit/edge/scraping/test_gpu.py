"""GPU metrics joined to endpoints by pod, through a URL template."""

import asyncio
import logging
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from picker.config.urls import check_gpu_url
from picker.edge.scraping.gpu import STALE_INTERVALS, GpuSource, url_for
from picker.pool.specs import EndpointSpec
from tests.unit.edge.loopback import LoopbackServer, answer

PAGE = answer((Path(__file__).parents[3] / "fixtures" / "engines" / "dcgm-exporter.txt").read_bytes())
INTERVAL_SECONDS = 0.05


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(coroutine, 20))


def spec(name: str = "vllm-0", namespace: str = "llm", node: str | None = "127.0.0.1") -> EndpointSpec:
    return EndpointSpec(address="10.0.0.1:8000", uid=f"{namespace}/{name}", name=name, namespace=namespace, node=node)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def source(template: str, endpoints: list[EndpointSpec], clock: Clock) -> GpuSource:
    return GpuSource(
        url_template=template,
        endpoints=lambda: endpoints,
        clock=clock,
        log=logging.getLogger("test.gpu"),
        interval_seconds=INTERVAL_SECONDS,
    )


async def until(condition: Any) -> None:
    while not condition():  # noqa: ASYNC110 - what is awaited is state, not an event
        await asyncio.sleep(0.005)


@pytest.mark.parametrize(
    ("template", "url"),
    [
        ("http://{node}:9400/metrics", "http://10.9.0.1:9400/metrics"),
        ("http://{host}:9400/metrics", "http://10.0.0.1:9400/metrics"),
        ("http://gpu.{namespace}:9400/p/{name}", "http://gpu.llm:9400/p/vllm-0"),
        ("http://one-for-all:9400/metrics", "http://one-for-all:9400/metrics"),
    ],
)
def test_the_template_is_filled_in(template: str, url: str) -> None:
    check_gpu_url(template)
    assert url_for(template, spec(node="10.9.0.1")) == url


def test_ipv6_gets_its_brackets_and_what_is_unknown_gives_no_url() -> None:
    assert url_for("http://{node}:9400/metrics", spec(node="fd00::1")) == "http://[fd00::1]:9400/metrics"
    assert url_for("http://{node}:9400/metrics", spec(node=None)) is None


@pytest.mark.parametrize(
    "template",
    [
        "http://{pod}:9400/",
        "http://{node}:99999/",
        "http://{node:9400/",
        "http://{node}:9400/a b",
        "http://{node}:9400/\r\nX: y",
        "{node}:9400",
        "https://{node}:9400/",
        "",
    ],
)
def test_a_template_that_cannot_work_is_refused_in_words(template: str) -> None:
    with pytest.raises(ValueError, match="gpu_url"):
        check_gpu_url(template)


def test_endpoints_of_one_node_are_read_from_one_page_until_it_is_old() -> None:
    async def scenario() -> None:
        clock = Clock()
        endpoints = [spec(), spec("vllm-0-rank-1"), spec("vllm-mig"), spec("unknown"), spec(namespace="other")]
        async with LoopbackServer(lambda head: PAGE) as server:
            gpus = source(f"http://{{node}}:{server.port}/metrics", endpoints, clock)
            assert gpus.utilization(endpoints[0]) is None
            task = asyncio.create_task(gpus.run())
            await until(lambda: gpus.utilization(endpoints[0]) is not None)
            assert [gpus.utilization(one) for one in endpoints] == pytest.approx([0.97, 0.97, 0.25, None, 0.12])
            assert server.connections == 1
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    run(scenario())


def test_an_old_page_is_unknown_and_trouble_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        clock = Clock()
        endpoints = [spec()]
        async with LoopbackServer(lambda head: PAGE) as server:
            gpus = source(f"http://{{node}}:{server.port}/metrics", endpoints, clock)
            task = asyncio.create_task(gpus.run())
            await until(lambda: gpus.utilization(endpoints[0]) is not None)
            server.script = lambda head: answer(b"", "500 Oops")
            asked = len(server.requests)
            await until(lambda: len(server.requests) >= asked + 3)
            clock.now += STALE_INTERVALS * INTERVAL_SECONDS + 0.01
            assert gpus.utilization(endpoints[0]) is None
            endpoints.clear()
            await until(lambda: not gpus._pages and not gpus._getters)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    with caplog.at_level(logging.WARNING, "test.gpu"):
        run(scenario())
    assert [record.getMessage() for record in caplog.records if "status 500" in record.getMessage()] == [
        caplog.records[0].getMessage()
    ]


@pytest.mark.parametrize(
    ("status", "headers", "words"),
    [
        ("401 Unauthorized", "", "credentials"),
        ("302 Found", "Location: /login\r\n", "redirects to '/login'; say the page itself in engine_metrics.gpu_url"),
    ],
)
def test_what_a_page_wants_is_told(caplog: pytest.LogCaptureFixture, status: str, headers: str, words: str) -> None:
    async def scenario() -> None:
        async with LoopbackServer(lambda head: answer(b"", status, headers)) as server:
            gpus = source(f"http://{{node}}:{server.port}/metrics", [spec()], Clock())
            task = asyncio.create_task(gpus.run())
            await until(lambda: len(server.requests) >= 2)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    with caplog.at_level(logging.WARNING, "test.gpu"):
        run(scenario())
    (told,) = [record.getMessage() for record in caplog.records]
    assert words in told
