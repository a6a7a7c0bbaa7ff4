"""The metrics port over real HTTP."""

import asyncio
import contextlib
import gzip
import logging
import socket
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from picker.edge.telemetry.page import Telemetry
from picker.edge.telemetry.server import MetricsServer
from picker.edge.telemetry.view import EndpointRow, PoolView

ROWS = [EndpointRow(name=f"p{n}", address=f"10.0.{n >> 8}.{n & 255}:80", scrape_age_seconds=1.0) for n in range(1000)]


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(coroutine, 20))


@asynccontextmanager
async def serving(**more: Any) -> AsyncIterator[tuple[str, aiohttp.ClientSession]]:
    rows = more.pop("rows", ROWS)
    server = MetricsServer(
        telemetry=Telemetry(lambda: PoolView(pool_name="pool", endpoints=rows)),
        ready=more.pop("ready", lambda: True),
        host="127.0.0.1",
        port=0,
        log=logging.getLogger("test"),
        **more,
    )
    await server.start()
    try:
        async with aiohttp.ClientSession(auto_decompress=False) as session:
            yield f"http://127.0.0.1:{server.port}", session
    finally:
        await server.stop()


async def fetch(session: aiohttp.ClientSession, url: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    async with session.get(url, headers={"Accept-Encoding": "identity", **headers}) as response:
        return response.status, dict(response.headers), await response.read()


def test_the_page_as_text() -> None:
    async def scenario() -> None:
        async with serving() as (base, session):
            status, headers, body = await fetch(session, f"{base}/metrics")
            assert status == 200
            assert headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
            names = {found.name for found in parse_text(body.decode())}
            assert {"picker_requests", "process_cpu_seconds", "python_info"} <= names

    run(scenario())


def test_the_page_compressed() -> None:
    async def scenario() -> None:
        async with serving() as (base, session):
            _, headers, body = await fetch(session, f"{base}/metrics", **{"Accept-Encoding": "gzip"})
            assert headers["Content-Encoding"] == "gzip"
            plain = gzip.decompress(body).decode()
            assert plain.count("picker_endpoint_scrape_age_seconds{") == 1000
            assert len(body) < len(plain) / 5

    run(scenario())


def test_the_page_in_openmetrics_where_it_is_asked_for() -> None:
    async def scenario() -> None:
        accept = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
        async with serving() as (base, session):
            _, headers, body = await fetch(session, f"{base}/metrics", Accept=accept)
            assert headers["Content-Type"] == "application/openmetrics-text; version=1.0.0; charset=utf-8"
            assert "picker_requests" in {found.name for found in parse_openmetrics(body.decode())}
            assert body.count(b"# EOF") == 1

    run(scenario())


def test_health_and_readiness() -> None:
    state = {"ready": False}

    async def scenario() -> None:
        async with serving(ready=lambda: state["ready"]) as (base, session):
            assert (await fetch(session, f"{base}/healthz"))[0] == 200
            assert (await fetch(session, f"{base}/readyz"))[0] == 503
            state["ready"] = True
            assert (await fetch(session, f"{base}/readyz"))[0] == 200
            assert (await fetch(session, f"{base}/nothing"))[0] == 404

    run(scenario())


def test_a_token_is_asked_for_everything_but_health() -> None:
    async def authorize(token: str | None) -> bool:
        return token == "good"

    async def debug(request: web.Request) -> web.Response:
        return web.Response(text="seen")

    async def scenario() -> None:
        routes = [web.get("/debug/decisions", debug)]
        async with serving(authorize=authorize, routes=routes) as (base, session):
            for path in ("/metrics", "/debug/decisions", "/nothing"):
                status, headers, _ = await fetch(session, base + path)
                assert status == 401 and headers["WWW-Authenticate"] == "Bearer"
                assert (await fetch(session, base + path, Authorization="Bearer bad"))[0] == 401
                assert (await fetch(session, base + path, Authorization="Basic good"))[0] == 401
            assert (await fetch(session, f"{base}/metrics", Authorization="bearer good"))[0] == 200
            assert (await fetch(session, f"{base}/debug/decisions", Authorization="Bearer good"))[2] == b"seen"
            assert (await fetch(session, f"{base}/healthz"))[0] == 200

    run(scenario())


def test_a_port_in_use_is_an_error_that_names_it() -> None:
    async def scenario() -> None:
        async with serving() as (base, _):
            port = int(base.rpartition(":")[2])
            telemetry = Telemetry(lambda: PoolView(pool_name="p"))
            log = logging.getLogger("test")
            second = MetricsServer(telemetry=telemetry, ready=lambda: True, host="127.0.0.1", port=port, log=log)
            with pytest.raises(OSError, match=str(port)):
                await second.start()
            await second.stop()

    run(scenario())


def test_others_get_their_turn_while_a_large_page_is_written() -> None:
    async def scenario() -> None:
        turns = 0
        done = False

        async def others() -> None:
            nonlocal turns
            while not done:
                turns += 1
                await asyncio.sleep(0)

        async with serving() as (base, session):
            task = asyncio.create_task(others())
            await asyncio.gather(*(fetch(session, f"{base}/metrics") for _ in range(4)))
            done = True
            await task
            assert turns > 4 * len(ROWS) / 128

    run(scenario())


def test_who_does_not_finish_a_request_is_cut_and_others_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("picker.edge.telemetry.server.REQUEST_SECONDS", 0.5)
    monkeypatch.setattr("picker.edge.telemetry.server.CONNECTIONS_MAX", 8)

    async def scenario() -> None:
        async with serving() as (base, session):
            host, port = "127.0.0.1", int(base.rpartition(":")[2])
            halves = [await asyncio.open_connection(host, port) for _ in range(12)]
            for _, writer in halves:
                writer.write(b"GET /metr")
            status, _, _ = await fetch(session, f"{base}/healthz")
            assert status == 200
            for reader, writer in halves:
                with contextlib.suppress(ConnectionError):
                    assert await reader.read() == b""
                writer.close()

    run(scenario())


def test_readers_that_do_not_read_cost_nobody_else_his_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """More of them than pages are made at a time; the one that takes longest is cut for the next."""
    monkeypatch.setattr("picker.edge.telemetry.server.READERS_MAX", 4)

    async def scenario() -> None:
        rows = [EndpointRow(name="n" * 200 + str(n), address=f"10.0.{n >> 8}.{n & 255}:80") for n in range(20_000)]
        async with serving(rows=rows) as (base, session):
            port = int(base.rpartition(":")[2])
            slow = []
            for _ in range(6):
                made = socket.socket()
                made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                made.setblocking(False)
                await asyncio.get_running_loop().sock_connect(made, ("127.0.0.1", port))
                await asyncio.get_running_loop().sock_sendall(made, b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n")
                slow.append(made)
            await asyncio.sleep(0.5)
            status, _, body = await fetch(session, f"{base}/metrics")
            assert status == 200
            assert len(body) > 4_000_000
            for made in slow:
                made.close()

    run(scenario())
