"""The stream and the questions over real HTTP: what is told, to whom, and what nobody pays for."""

import asyncio
import contextlib
import json
import logging
import socket
from collections.abc import AsyncIterator, Coroutine, Mapping
from typing import Any

import aiohttp
import msgspec
import pytest

from picker.api.hints import digest
from picker.config import Config, Debug, SessionAffinity
from picker.director import Director
from picker.edge.telemetry.decision_page import decision_routes
from picker.edge.telemetry.decisions import DecisionRing
from picker.edge.telemetry.live import live as live_module
from picker.edge.telemetry.live import routes as routes_module
from picker.edge.telemetry.live.columns import COLUMNS, endpoint_columns
from picker.edge.telemetry.live.history import History
from picker.edge.telemetry.live.live import Live
from picker.edge.telemetry.live.routes import FILES, OPEN_PATHS, LiveRoutes
from picker.edge.telemetry.page import Telemetry
from picker.edge.telemetry.server import MetricsServer
from picker.edge.telemetry.view import PoolView
from picker.pool.specs import EndpointSpec
from tests.faults import raised
from tests.unit.edge.telemetry.live.pool_of import NOW, decide, director_of, read


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(coroutine, 30))


class Served:
    def __init__(self, director: Director, authorize=None, faulted=raised) -> None:
        self.director = director
        self.ring = DecisionRing()
        telemetry = Telemetry(lambda: PoolView(pool_name="p"))
        clock, wall = (lambda: NOW), (lambda: 1e9)

        def enabled() -> bool:
            return director.config.debug.page

        self.history = History(telemetry, director, clock=clock, wall=wall, enabled=enabled, faulted=faulted)
        self.live = Live(
            director,
            self.ring,
            self.history,
            pool_name="p",
            instance="i",
            clock=clock,
            wall=wall,
            enabled=enabled,
            faulted=faulted,
        )
        self.questions = LiveRoutes(self.live, director, self.ring, clock=clock, enabled=enabled)
        self.server = MetricsServer(
            telemetry=telemetry,
            ready=lambda: True,
            host="127.0.0.1",
            port=0,
            log=logging.getLogger("test"),
            routes=[*decision_routes(self.ring), *self.questions.routes()],
            authorize=authorize,
            open_paths=OPEN_PATHS,
        )
        self.session: aiohttp.ClientSession
        self.base = ""

    async def get(self, path: str, method: str = "GET", **more: Any) -> tuple[int, Mapping[str, str], bytes]:
        async with self.session.request(method, self.base + path, **more) as response:
            return response.status, response.headers, await response.read()

    async def json(self, path: str, **more: Any) -> Any:
        return json.loads((await self.get(path, **more))[2])


@contextlib.asynccontextmanager
async def serving(director: Director | None = None, **more: Any) -> AsyncIterator[Served]:
    served = Served(director or director_of(3), **more)
    await served.server.start()
    task = asyncio.create_task(served.live.run())
    served.base = f"http://127.0.0.1:{served.server.port}"
    try:
        async with aiohttp.ClientSession() as served.session:
            yield served
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await served.server.stop()


async def events(response: aiohttp.ClientResponse) -> AsyncIterator[tuple[str, Any]]:
    while True:
        name = (await response.content.readline()).decode()
        if not name:
            return
        data = (await response.content.readline()).decode()
        assert (await response.content.readline()) == b"\n"
        assert name.startswith("event: ") and data.startswith("data: ")
        yield name[7:].strip(), json.loads(data[6:])


def test_who_looks_is_told_everything_and_then_what_is_new() -> None:
    async def scenario() -> None:
        async with serving() as served:
            read(served.director, 1, running_requests=4, waiting_requests=2, kv_cache_utilization=0.25)
            decide(served.director, served.ring, 1, request_id="first")
            async with served.session.get(served.base + "/live") as response:
                assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
                heard = events(response)
                name, hello = await anext(heard)
                assert name == "hello" and hello["pool"] == "p" and hello["config"]["weights"]["kv"] == 2.0
                assert [each["request_id"] for each in hello["decisions"]] == ["first"]
                name, members = await anext(heard)
                assert name == "members"
                assert members["endpoints"] == [[f"pod-{n}", f"10.0.0.{n}:80"] for n in range(3)]
                name, tick = await anext(heard)
                assert name == "tick" and tick["decided"] == 0 and tick["generation"] == members["generation"]
                assert tuple(tick["columns"]) == COLUMNS
                assert tick["columns"]["running"] == [None, 4, None]
                assert tick["columns"]["kv"] == [None, 0.25, None]
                assert sum(tick["columns"]["in_flight"]) == tick["in_flight"] == 1
                decide(served.director, served.ring, 2, request_id="second")
                served.director.replace_endpoints(
                    EndpointSpec(address=f"10.0.0.{n}:80", uid=f"u{n}", name=f"pod-{n}") for n in range(1, 5)
                )
                while (found := await anext(heard))[0] != "members":
                    pass
                assert [each[0] for each in found[1]["endpoints"]] == ["pod-1", "pod-2", "pod-3", "pod-4"]
                name, tick = await anext(heard)
                assert tick["generation"] == found[1]["generation"] > members["generation"]
                assert len(tick["columns"]["kv"]) == 4
                assert [each["request_id"] for each in tick["decisions"]] == ["second"]

    run(scenario())


def test_all_viewers_share_one_rendering_and_nobody_looking_costs_none(monkeypatch) -> None:
    renderings: list[int] = []

    async def counted(director, history, endpoints, clock):
        renderings.append(1)
        return {name: [None] * len(endpoints) for name in COLUMNS}

    monkeypatch.setattr(live_module, "endpoint_columns", counted)
    monkeypatch.setattr(live_module, "PERIOD_SECONDS", 0.02)

    async def scenario() -> None:
        async with serving() as served:
            await asyncio.sleep(0.2)
            assert not renderings
            async with contextlib.AsyncExitStack() as stack:
                heard = []
                for _ in range(3):
                    response = await stack.enter_async_context(served.session.get(served.base + "/live"))
                    heard.append(events(response))
                ticks = []
                for each in heard:
                    found = [await anext(each) for _ in range(8)]
                    ticks.append([data for name, data in found if name == "tick"])
                assert served.live.viewers == 3
                assert all(len(each) == 6 for each in ticks)
            await asyncio.sleep(0.2)
            assert not served.live.viewers
            before = len(renderings)
            await asyncio.sleep(0.2)
            assert len(renderings) == before < 3 * 6 * 3

    run(scenario())


def test_a_slow_viewer_is_dropped_and_the_others_are_not_kept_waiting(monkeypatch) -> None:
    monkeypatch.setattr(live_module, "PERIOD_SECONDS", 0.01)
    names = [
        EndpointSpec(address=f"10.1.{n >> 8}.{n & 255}:80", uid=str(n), name="x" * 50 + str(n)) for n in range(3000)
    ]

    async def scenario() -> None:
        director = director_of(0)
        director.replace_endpoints(names)
        async with serving(director) as served:
            host, port = served.base.removeprefix("http://").split(":")
            slow = socket.create_connection((host, int(port)))
            slow.sendall(b"GET /live HTTP/1.1\r\nHost: x\r\n\r\n")
            async with served.session.get(served.base + "/live") as response:
                heard = events(response)
                while served.live.viewers < 2:
                    await anext(heard)
                while served.live.viewers == 2:
                    await anext(heard)
                assert served.live.viewers == 1
                await anext(heard)
            slow.close()

    run(scenario())


def test_viewers_are_bounded(monkeypatch) -> None:
    monkeypatch.setattr(live_module, "VIEWERS_MAX", 2)

    async def scenario() -> None:
        async with contextlib.AsyncExitStack() as stack:
            served = await stack.enter_async_context(serving())
            for _ in range(2):
                await stack.enter_async_context(served.session.get(served.base + "/live"))
            assert (await served.get("/live", "HEAD"))[0] == 405
            status, _, body = await served.get("/live")
            assert status == 503 and b"as many look as may" in body

    run(scenario())


def test_a_stream_outlives_the_time_of_an_answer(monkeypatch) -> None:
    monkeypatch.setattr("picker.edge.telemetry.server.ANSWER_SECONDS", 1.5)

    async def scenario() -> None:
        async with serving() as served, served.session.get(served.base + "/live") as response:
            heard = events(response)
            found = [await anext(heard) for _ in range(7)]
            assert sum(name == "tick" for name, _ in found) == 5

    run(scenario())


@pytest.mark.parametrize("path", FILES)
def test_the_files_are_open_static_and_strict(path) -> None:
    async def refuse(token: str | None) -> bool:
        return False

    async def scenario() -> None:
        async with serving(authorize=refuse) as served:
            status, headers, body = await served.get(path)
            assert status == 200 and body
            policy = headers["Content-Security-Policy"]
            assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
            assert headers["X-Content-Type-Options"] == "nosniff"
            assert b"http://" not in body.replace(b"http://www.w3.org/2000/svg", b"") and b"https://" not in body
            status, again, nothing = await served.get(path, "HEAD")
            assert (status, nothing, again["Content-Length"]) == (200, b"", str(len(body)))
            status, _, nothing = await served.get(path, headers={"If-None-Match": headers["ETag"]})
            assert (status, nothing) == (304, b"")
            assert (await served.get(path, "POST"))[0] == 405

    run(scenario())


def test_what_tells_something_asks_for_the_token_of_metrics() -> None:
    async def authorize(token: str | None) -> bool:
        return token == "secret"

    async def scenario() -> None:
        async with serving(authorize=authorize) as served:
            for method, path in (
                ("GET", "/live"),
                ("GET", "/live/where?name=x"),
                ("POST", "/live/what-if"),
                ("GET", "/debug/decisions"),
            ):
                assert (await served.get(path, method))[0] == 401, path
            allowed = {"Authorization": "Bearer secret"}
            assert (await served.get("/live/where?name=x", headers=allowed))[0] == 200
            async with served.session.get(served.base + "/live", headers=allowed) as response:
                assert response.status == 200

    run(scenario())


def test_a_token_that_is_taken_back_ends_the_stream(monkeypatch) -> None:
    monkeypatch.setattr(live_module, "PERIOD_SECONDS", 0.01)
    monkeypatch.setattr(routes_module, "REVIEW_MESSAGES", 5)
    good = {"secret"}

    async def authorize(token: str | None) -> bool:
        return token in good

    async def scenario() -> None:
        async with serving(authorize=authorize) as served:
            allowed = {"Authorization": "Bearer secret"}
            async with served.session.get(served.base + "/live", headers=allowed) as response:
                heard = events(response)
                for _ in range(12):
                    await anext(heard)
                good.clear()
                async for _ in heard:  # comes to its end
                    pass
            assert served.live.viewers == 0
            async with served.session.get(served.base + "/live", headers=allowed) as response:
                assert response.status == 401

    run(scenario())


def test_pages_of_other_sites_are_refused() -> None:
    async def scenario() -> None:
        async with serving() as served:
            for path in ("/live", "/live/where?name=x", "/page.js"):
                for site in ("cross-site", "same-site"):
                    assert (await served.get(path, headers={"Sec-Fetch-Site": site}))[0] == 403
            linked = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
            assert (await served.get("/", headers=linked))[0] == 200

    run(scenario())


def test_switched_off_nothing_of_it_is_there_and_viewers_go(monkeypatch) -> None:
    monkeypatch.setattr(live_module, "PERIOD_SECONDS", 0.02)

    async def scenario() -> None:
        director = director_of(2)
        async with serving(director) as served:
            async with served.session.get(served.base + "/live") as response:
                heard = events(response)
                await anext(heard)
                director.reconfigure(Config(debug=Debug(page=False)))
                async for _ in heard:
                    pass
            for method, path in (("GET", "/"), ("GET", "/page.js"), ("GET", "/live"), ("POST", "/live/what-if")):
                assert (await served.get(path, method))[0] == 404
            assert (await served.get("/metrics"))[0] == 200
            director.reconfigure(Config())
            assert (await served.get("/"))[0] == 200

    run(scenario())


def test_where_a_session_and_a_prefix_live() -> None:
    async def scenario() -> None:
        director = director_of(3, session_affinity=SessionAffinity(header="x-session"))
        async with serving(director) as served:
            picked = decide(director, served.ring, 1, request_id="r1")
            home = picked.addresses[0]
            held = director.datastore.snapshot(NOW).by_address[home]
            director.stickiness.sessions.hold(digest("header", "alice"), held, NOW)
            found = await served.json("/live/where?name=alice")
            assert found["homes"] == [{"kind": "session", "endpoint": held.spec.name, "address": home}]
            assert found["prefix"] is None and found["sessions"] is True
            found = await served.json("/live/where?name=r1")
            assert found["homes"] == []
            (holder,) = found["prefix"]["holders"]
            assert (holder["address"], holder["blocks"], holder["share"]) == (home, 8, 1.0)
            assert found["prefix"]["blocks"] == 8 and holder["confirmed_share"] is None
            assert (await served.json("/live/where?number=1"))["prefix"] == found["prefix"]
            assert (await served.json("/live/where?name=nobody"))["prefix"] is None
            assert (await served.get("/live/where?number=-1"))[0] == 400

    run(scenario())


def test_what_if_over_http() -> None:
    async def scenario() -> None:
        async with serving() as served:
            for turn in range(5):
                decide(served.director, served.ring, turn)
            found = await served.json("/live/what-if", method="POST", data=b'{"weights":{"queue":5}}')
            assert found["decisions"] == 5
            for wrong in (b"", b"[]", b'{"weights":{"prefix":0}}', b'{"weight":{}}', b'{"threshold":2}'):
                status, _, body = await served.get("/live/what-if", "POST", data=wrong)
                assert status == 400 and json.loads(body)["error"], wrong
            assert (await served.get("/live/what-if"))[0] == 405

    run(scenario())


def test_replays_wait_in_a_row_of_bounded_length(monkeypatch) -> None:
    go_on = asyncio.Event()

    async def slow(*arguments):
        await go_on.wait()
        return {"decisions": 0}

    monkeypatch.setattr(routes_module, "what_if", slow)

    async def scenario() -> None:
        async with serving() as served:
            asked = [
                asyncio.create_task(served.get("/live/what-if", "POST", data=b"{}"))
                for _ in range(routes_module.REPLAYS_WAITING_MAX)
            ]
            while served.questions.replays < len(asked):  # noqa: ASYNC110  they are under way
                await asyncio.sleep(0.01)
            status, _, body = await served.get("/live/what-if", "POST", data=b"{}")
            assert status == 429 and b"try again" in body
            go_on.set()
            assert [(await each)[0] for each in asked] == [200] * len(asked)
            assert (await served.get("/live/what-if", "POST", data=b"{}"))[0] == 200

    run(scenario())


def test_others_have_their_turn_while_a_thousand_endpoints_are_written() -> None:
    async def scenario() -> None:
        turns, over = 0, False

        async def others() -> None:
            nonlocal turns
            while not over:
                turns += 1
                await asyncio.sleep(0)

        director, history = director_of(1000), Served(director_of(0)).history
        running = asyncio.create_task(others())
        columns = await endpoint_columns(director, history, director.datastore.endpoints, lambda: NOW)
        over = True
        await running
        assert turns >= 9 and all(len(column) == 1000 for column in columns.values())

    run(scenario())


def test_every_candidate_of_a_decision() -> None:
    async def scenario() -> None:
        async with serving(director_of(120)) as served:
            decide(served.director, served.ring, 1, request_id="a")
            decide(served.director, served.ring, 1, request_id="b")
            (few,) = (await served.json("/debug/decisions?request_id=b"))["decisions"]
            (every,) = (await served.json("/debug/decisions?number=2&endpoints=all"))["decisions"]
            assert few["number"] == every["number"] == 2 and every["request_id"] == "b"
            assert len(few["endpoints"]) < len(every["endpoints"]) == every["candidates"] == 120
            assert every["endpoints"][0]["picked"]
            rest = [each["cost_seconds"] for each in every["endpoints"][1:]]
            assert rest == sorted(rest)
            shown = {each["address"]: each for each in every["endpoints"]}
            assert all(shown[each["address"]] == each for each in few["endpoints"])
            assert every["outcome"] is None and every["ttft_seconds"] is None
            for absent in ("number=3", "number=0", "request_id=c"):
                assert (await served.json(f"/debug/decisions?{absent}"))["decisions"] == []
            for wrong in ("number=x", "number=-1", "number=" + "9" * 40, "number=1&endpoints=few"):
                assert (await served.get(f"/debug/decisions?{wrong}"))[0] == 400

    run(scenario())


def test_hostile_names_are_bounded_and_stay_json() -> None:
    async def scenario() -> None:
        director = director_of(0)
        name = "<img src=x onerror=alert(1)>\u202e\x1b[31m\n\n" + "y" * 5000
        director.replace_endpoints([EndpointSpec(address="10.0.0.1:80", uid="1", name=name)])
        async with serving(director) as served:
            decide(director, served.ring, 1, request_id="</script>\r\nevent: x")
            async with served.session.get(served.base + "/live") as response:
                heard = events(response)
                _, hello = await anext(heard)
                assert hello["decisions"][0]["request_id"] == "</script>\r\nevent: x"
                _, members = await anext(heard)
                assert members["endpoints"][0][0] == name[:255] + "…"
                assert len(msgspec.json.encode(hello)) < 4000

    run(scenario())


def test_a_fault_of_ours_costs_viewers_and_nothing_else(monkeypatch) -> None:
    monkeypatch.setattr(live_module, "PERIOD_SECONDS", 0.02)
    real, faults = endpoint_columns, []

    async def broken(*arguments):
        raise ZeroDivisionError

    async def scenario() -> None:
        async with serving(faulted=lambda where, error: faults.append((where, type(error)))) as served:
            monkeypatch.setattr(live_module, "endpoint_columns", broken)
            async with served.session.get(served.base + "/live") as response:
                assert [name async for name, _ in events(response)] == ["hello", "members"]
            assert faults == [("telemetry", ZeroDivisionError)] and served.live.viewers == 0
            monkeypatch.setattr(live_module, "endpoint_columns", real)
            async with served.session.get(served.base + "/live") as response:
                heard = events(response)
                assert [(await anext(heard))[0] for _ in range(3)] == ["hello", "members", "tick"]

    run(scenario())


def test_words_that_no_encoder_takes_are_told_all_the_same() -> None:
    async def scenario() -> None:
        async with serving() as served:
            decide(served.director, served.ring, 1, request_id="cut \ud83d here")
            async with served.session.get(served.base + "/live") as response:
                _, hello = await anext(events(response))
                assert hello["decisions"][0]["request_id"] == "cut ? here"

    run(scenario())
