"""Who may read the metrics: answers as the Kubernetes API gives them, a clock that is passed in."""

import asyncio
import json
from typing import Any

from picker.edge.kubernetes.api import ApiAnswer, ApiUnreachableError
from picker.edge.kubernetes.token_review import (
    ACCESS_REVIEWS,
    ALLOWED_SECONDS,
    KEPT_MAX,
    REFUSED_SECONDS,
    REVIEWS_MAX,
    STALE_SECONDS,
    TOKEN_REVIEWS,
    MetricsAccess,
)

USER = {"username": "system:serviceaccount:a:reader", "uid": "1", "groups": ["g"], "extra": {"k": ["v"]}}


class ScriptedApi:
    """An API server that knows one token and counts what it is asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Any]] = []
        self.allowed = True
        self.trouble: Exception | int | bytes | None = None
        self.gate: asyncio.Event | None = None

    async def request(
        self, method: str, path: str, params: None = None, body: Any = None, *, timeout_seconds: float | None = None
    ) -> ApiAnswer:
        assert method == "POST" and timeout_seconds is not None
        self.asked.append((path, body["spec"]))
        if self.gate is not None:
            await self.gate.wait()
        if isinstance(self.trouble, Exception):
            raise self.trouble
        if isinstance(self.trouble, int):
            return ApiAnswer(self.trouble, b"{}", None, "application/json")
        if isinstance(self.trouble, bytes):
            return ApiAnswer(200, self.trouble, None, "text/html")
        if path == TOKEN_REVIEWS:
            # A token that is not known: no `authenticated` key at all, only an error.
            known = body["spec"]["token"] == "good"
            status = {"authenticated": True, "user": USER} if known else {"error": "invalid bearer token"}
        else:
            status = {"allowed": self.allowed}
        return ApiAnswer(201, json.dumps({"kind": "x", "status": status}).encode(), None, "application/json")


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Bench:
    def __init__(self) -> None:
        self.api = ScriptedApi()
        self.clock = Clock()
        self.lines: list[str] = []
        self.access = MetricsAccess(
            self.api, clock=self.clock, log=lambda level, message, **_: self.lines.append(message)
        )

    def ask(self, token: str | None = "good") -> bool:
        answer = asyncio.run(self._ask(token))
        self.access.check()
        return answer

    async def _ask(self, token: str | None) -> bool:
        return await self.access(token)


def test_a_known_user_with_the_right_is_let_in() -> None:
    bench = Bench()
    assert bench.ask() is True
    assert [path for path, _ in bench.api.asked] == [TOKEN_REVIEWS, ACCESS_REVIEWS]
    assert bench.api.asked[1][1] == {
        "user": USER["username"],
        "uid": "1",
        "groups": ["g"],
        "extra": {"k": ["v"]},
        "nonResourceAttributes": {"path": "/metrics", "verb": "get"},
    }


def test_no_token_a_huge_one_and_an_unknown_one_are_not() -> None:
    bench = Bench()
    assert bench.ask(None) is False
    assert bench.ask("") is False
    assert bench.ask("x" * 20_000) is False
    assert bench.api.asked == [], "nothing to ask about"
    assert bench.ask("bad") is False
    assert [path for path, _ in bench.api.asked] == [TOKEN_REVIEWS], "who it is comes before what it may"


def test_a_known_user_without_the_right_is_not() -> None:
    bench = Bench()
    bench.api.allowed = False
    assert bench.ask() is False


def test_answers_are_kept_for_a_while() -> None:
    bench = Bench()
    bench.ask()
    bench.ask("bad")
    asked = len(bench.api.asked)
    bench.clock.now += REFUSED_SECONDS - 1
    assert (bench.ask(), bench.ask("bad")) == (True, False)
    assert len(bench.api.asked) == asked
    bench.clock.now += ALLOWED_SECONDS
    bench.api.allowed = False
    assert bench.ask() is False, "a right that was taken away ends with the minute"


def test_the_api_server_away_keeps_out_strangers_only() -> None:
    bench = Bench()
    assert bench.ask() is True
    bench.api.trouble = ApiUnreachableError("connection refused")
    bench.clock.now += ALLOWED_SECONDS + 1
    assert (bench.ask(), bench.ask("new")) == (True, False)
    bench.clock.now += STALE_SECONDS
    assert bench.ask() is False
    assert bench.lines == ["metrics: the API server cannot say who may read: connection refused"], "said once"


def test_a_missing_right_of_ours_names_the_fix() -> None:
    bench = Bench()
    bench.api.trouble = 403
    assert bench.ask() is False
    assert "tokenreviews" in bench.lines[0] and "metrics.auth" in bench.lines[0]
    assert "good" not in " ".join(bench.lines), "never a token"


def test_a_page_instead_of_a_review_refuses() -> None:
    bench = Bench()
    for page in (b"<html>", b'{"status": {"authenticated": "yes"}}', b"[]"):
        bench.api.trouble = page
        assert bench.ask() is False


def test_memory_is_bounded() -> None:
    bench = Bench()
    for number in range(KEPT_MAX + 50):
        assert bench.ask(f"bad-{number}") is False


def test_a_flood_of_strangers_asks_no_more_than_a_few_at_once() -> None:
    bench = Bench()

    async def flood() -> list[bool]:
        bench.api.gate = asyncio.Event()
        asks = [asyncio.ensure_future(bench.access(f"bad-{number}")) for number in range(100)]
        await asyncio.sleep(0)
        bench.access.check()
        bench.api.gate.set()
        return await asyncio.gather(*asks)

    assert asyncio.run(flood()) == [False] * 100
    assert len(bench.api.asked) == REVIEWS_MAX
