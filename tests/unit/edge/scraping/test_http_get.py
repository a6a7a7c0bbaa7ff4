"""The lean GET client: HTTP/1.1 framing, keep-alive, and every way an answer can be wrong."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
import uvloop

from picker.edge.scraping.http_get import Fetched, HttpError, HttpGetter
from tests.unit.edge.loopback import HANG_UP, LoopbackServer, answer

BODY_BYTES_MAX = 100_000


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(coroutine, 20))


async def get_from(raw: bytes, *, times: int = 1) -> tuple[list[Fetched], LoopbackServer]:
    async with LoopbackServer(lambda head: raw) as server:
        getter = HttpGetter("127.0.0.1", server.port, body_bytes_max=BODY_BYTES_MAX)
        try:
            return [await getter.get("/metrics") for _ in range(times)], server
        finally:
            getter.close()


def test_a_page_and_the_request_that_asks_for_it() -> None:
    async def scenario() -> None:
        async with LoopbackServer(lambda head: answer(b"hello", headers="X-A: b\r\n")) as server:
            getter = HttpGetter("127.0.0.1", server.port, body_bytes_max=10)
            page = await getter.get("/metrics?x=1", "Authorization: Bearer t\r\n")
            getter.close()
            assert page == Fetched(200, {b"content-length": b"5", b"x-a": b"b"}, b"hello")
            lines = server.requests[0].split(b"\r\n")
            assert lines[0] == b"GET /metrics?x=1 HTTP/1.1"
            assert f"Host: 127.0.0.1:{server.port}".encode() in lines
            assert b"Authorization: Bearer t" in lines

    run(scenario())


def test_the_connection_is_kept() -> None:
    pages, server = run(get_from(answer(b"x"), times=3))
    assert [page.body for page in pages] == [b"x"] * 3
    assert server.connections == 1


def test_uvloop_serves_as_well() -> None:
    async def scenario() -> None:
        pages, server = await get_from(answer(b"y" * 90_000), times=2)
        assert [len(page.body) for page in pages] == [90_000, 90_000]
        assert server.connections == 1

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(scenario(), 20))


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("raw", "body", "connections"),
    [
        (CHUNKED + b"5\r\nhello\r\n1;ext=1\r\n!\r\n0\r\n\r\n", b"hello!", 1),
        (CHUNKED + b"A \r\n0123456789\r\n0\r\nTrailer: x\r\n\r\n", b"0123456789", 1),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + answer(b"x"), b"x", 1),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b"", 1),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 1\r\n\r\nx", b"x", 2),
        (b"HTTP/1.1 200 OK\r\n\r\nuntil the end" + HANG_UP, b"until the end", 2),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\nx", b"x", 2),
        (answer(b"x") + b"and more than was asked for", b"x", 2),
    ],
)
def test_framings(raw: bytes, body: bytes, connections: int) -> None:
    pages, server = run(get_from(raw, times=2))
    assert [page.body for page in pages] == [body, body]
    assert server.connections == connections


@pytest.mark.parametrize("cut", range(1, 90, 4))
def test_an_answer_may_come_in_pieces(cut: int) -> None:
    raw = CHUNKED + b"5\r\nhello\r\n0\r\n\r\n"

    async def scenario() -> None:
        loop = asyncio.get_running_loop()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(raw[:cut])
            await writer.drain()
            await asyncio.sleep(0)
            writer.write(raw[cut:])
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        getter = HttpGetter("127.0.0.1", server.sockets[0].getsockname()[1], body_bytes_max=10)
        assert loop.is_running()
        assert (await getter.get("/")).body == b"hello"
        getter.close()
        server.close()

    run(scenario())


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"SSH-2.0-OpenSSH\r\n\r\n", "not HTTP"),
        (b"HTTP/2 200\r\n\r\n", "not HTTP"),
        (b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n", "malformed response header"),
        (b"HTTP/1.1 200 OK\r\n folded: x\r\n\r\n", "malformed response header"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", "malformed content-length"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nx", "two content-length"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100001\r\n\r\n", "exceeds 100000 bytes"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n", "transfer encoding"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n", "transfer encoding"),
        (CHUNKED + b"zz\r\n", "malformed chunk"),
        (CHUNKED + b"1\r\nxy\r\n", "malformed chunk"),
        (CHUNKED + b"1ffff\r\n", "exceeds 100000 bytes"),
        (b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 6000, "headers exceed"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 100_001, "exceeds 100000 bytes"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel" + HANG_UP, "in the middle"),
        (CHUNKED + b"5\r\nhel" + HANG_UP, "in the middle"),
        (HANG_UP, "before an answer"),
    ],
)
def test_a_wrong_answer_says_what_is_wrong(raw: bytes, why: str) -> None:
    with pytest.raises(HttpError, match=why):
        run(get_from(raw))


def test_an_idle_connection_that_the_server_dropped_is_opened_again() -> None:
    async def scenario() -> None:
        async with LoopbackServer(lambda head: answer(b"x")) as server:
            getter = HttpGetter("127.0.0.1", server.port, body_bytes_max=10)
            await getter.get("/")
            server.hang_up()
            assert (await getter.get("/")).body == b"x"
            getter.close()
            assert server.connections == 2

    run(scenario())


def test_a_server_that_drops_fresh_connections_too_is_asked_once_more_only() -> None:
    answers = [answer(b"x"), HANG_UP, HANG_UP, HANG_UP]

    async def scenario() -> None:
        async with LoopbackServer(lambda head: answers.pop(0)) as server:
            getter = HttpGetter("127.0.0.1", server.port, body_bytes_max=10)
            await getter.get("/")
            with pytest.raises(HttpError):
                await getter.get("/")
            assert len(server.requests) == 3

    run(scenario())


def test_a_cancelled_get_never_leaves_its_answer_to_the_next() -> None:
    async def scenario() -> None:
        async with LoopbackServer(lambda head: None if b"/slow" in head else answer(b"quick")) as server:
            getter = HttpGetter("127.0.0.1", server.port, body_bytes_max=10)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await getter.get("/slow")
            assert (await getter.get("/quick")).body == b"quick"
            getter.close()
            assert server.connections == 2

    run(scenario())


def test_a_refused_connection_is_told_in_words() -> None:
    async def scenario() -> None:
        async with LoopbackServer(lambda head: None) as server:
            port = server.port
        with pytest.raises(HttpError, match=r"(?i)refused|connect call failed"):
            await HttpGetter("127.0.0.1", port, body_bytes_max=10).get("/")

    run(scenario())


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 100, "interim answers"),
        (CHUNKED + b"1\r\nx\r\n" * 5_000, "crumbs"),
        (CHUNKED + b"1\r\nx\r\n" * 270, "crumbs"),
    ],
)
def test_answers_that_cost_more_than_they_say(raw: bytes, why: str) -> None:
    with pytest.raises(HttpError, match=why):
        run(get_from(raw))


def test_a_page_in_small_chunks_is_read() -> None:
    body = [b"%04d" % number + b"z" * 100 for number in range(900)]
    raw = CHUNKED + b"".join(b"68\r\n%b\r\n" % each for each in body) + b"0\r\n\r\n"
    pages, _ = run(get_from(raw, times=2))
    assert [page.body for page in pages] == [b"".join(body)] * 2
