"""What may be asked of the last decisions, over real HTTP and on a terminal."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from picker.cli import main
from picker.edge.telemetry import decision_page
from picker.edge.telemetry.decisions import DecisionRing
from picker.edge.telemetry.moments import MomentError, moment, moment_text
from picker.edge.telemetry.question import QuestionError, question
from tests.kept_decisions import A, B, C, decided, metrics_server

NOON = 1_769_860_800.0
"""2026-01-31T12:00:00Z: `date -u -d @1769860800`."""


def ring_of_five() -> DecisionRing:
    """At noon and every minute after it; the last is asked at five past."""
    clock = iter([NOON + 60.0 * n for n in range(5)])
    ring = DecisionRing(clock=lambda: next(clock, NOON + 300.0))
    for each in (
        decided(A, "one", tenant="red"),
        decided(B, "two", tenant="blue"),
        decided(A, "three", served=C, tenant="red", status=503, ttft_seconds=0.25),
        decided(B, "two"),
        decided(C, "five", tenant="blue"),
    ):
        ring.add(*each)
    return ring


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with metrics_server(ring_of_five()) as found:
        yield found


def asked(address: str, query: str) -> tuple[int, Any]:
    async def run() -> tuple[int, Any]:
        async with (
            aiohttp.ClientSession() as http,
            http.get(f"http://{address}/debug/decisions{query}") as answer,
        ):
            return answer.status, await answer.json()

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("query", "ids"),
    [
        ("", ["five", "two", "three", "two", "one"]),
        ("?count=2", ["five", "two"]),
        ("?request_id=two", ["two", "two"]),
        ("?endpoint=vllm-2", ["two", "two"]),
        (f"?endpoint={B}", ["two", "two"]),
        (f"?endpoint={A}", ["three", "one"]),
        ("?endpoint=vllm-3", ["five", "three"]),  # `three` was picked elsewhere and served there
        (f"?endpoint={C}", ["five", "three"]),
        ("?tenant=red", ["three", "one"]),
        ("?tenant=red&endpoint=vllm-3", ["three"]),
        ("?since=3m", ["five", "two", "three"]),
        ("?from=3m%20ago&to=2m%20ago", ["two", "three"]),
        ("?from=2026-01-31T12:01:00Z&to=2026-01-31T13:02:00%2B01:00", ["three", "two"]),
        ("?to=2026-01-31T12:00:00Z", ["one"]),
        ("?request_id=two&tenant=blue", ["two"]),
        ("?tenant=green", []),
        ("?since=now", []),
    ],
)
def test_all_that_is_asked_has_to_hold(address: str, query: str, ids: list[str]) -> None:
    status, answer = asked(address, query)
    assert status == 200
    assert [each["request_id"] for each in answer["decisions"]] == ids
    assert answer["kept"] == 5
    if "count" not in query:
        assert answer["matched"] == len(ids)


def test_a_decision_says_when_and_for_whom(address: str) -> None:
    _, answer = asked(address, "?request_id=three")
    (decision,) = answer["decisions"]
    assert decision["decided_at"] == "2026-01-31T12:02:00.000Z"
    assert (decision["tenant"], decision["addresses"], decision["served"]) == ("red", [A], C)


def test_an_empty_answer_says_what_was_searched_and_how_far_back(address: str) -> None:
    assert asked(address, "?endpoint=vllm-9&since=1m") == (
        200,
        {
            "decisions": [],
            "matched": 0,
            "kept": 5,
            "oldest": "2026-01-31T12:00:00.000Z",
            "searched": {"endpoint": "vllm-9", "from": "2026-01-31T12:04:00.000Z"},
        },
    )


def test_an_empty_ring_says_so() -> None:
    with metrics_server(DecisionRing()) as empty:
        assert asked(empty, "?tenant=red")[1]["oldest"] is None


def test_more_were_found_than_are_shown(address: str) -> None:
    _, answer = asked(address, "?endpoint=vllm-2&count=1")
    assert (len(answer["decisions"]), answer["matched"]) == (1, 2)


def test_an_answer_is_bounded_in_bytes(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decision_page, "ANSWER_BYTES_MAX", 1200)
    _, answer = asked(address, "")
    assert 0 < len(answer["decisions"]) < answer["matched"] == 5


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("?endpiont=a", "unknown parameter 'endpiont': there are request_id, number, endpoint, tenant"),
        ("?tenant=", "tenant is empty"),
        ("?tenant=a&tenant=b", "tenant is given twice"),
        ("?count=0", "count: '0' is no number from 1"),
        ("?count=-1", "count: '-1' is no number"),
        ("?count=%C2%B2", "count: '²' is no number"),
        ("?from=yesterday", "from: 'yesterday' is no time: write 2026-01-31T14:05:00Z"),
        ("?from=2026-01-31T12:00:00", "from: "),  # of which zone?
        ("?to=2026-02-30T12:00:00Z", "to: "),
        ("?since=1m&from=2m", "one of since and from"),
        ("?from=1m&to=2m", "is later than to"),
        ("?since=99999999d", "since: "),
    ],
)
def test_what_cannot_be_asked_gets_400_and_a_sentence(address: str, query: str, words: str) -> None:
    status, answer = asked(address, query)
    assert status == 400
    assert words in answer["error"]


def test_a_long_id_is_found_as_records_keep_it() -> None:
    """The exchange cuts names at 256 characters."""
    assert question([("request_id", "x" * 1000)], NOON).request_id == "x" * 256


def test_what_is_not_understood_is_shown_in_part_only() -> None:
    with pytest.raises(QuestionError) as refused:
        question([("from", "x" * 100_000)], NOON)
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("now", NOON),
        ("90s", NOON - 90),
        ("5m ago", NOON - 300),
        ("1h30m", NOON - 5400),
        ("2d", NOON - 172_800),
        ("0.5h", NOON - 1800),
        ("2026-01-31T12:00:00Z", NOON),
        ("2026-01-31t12:00:00.250z", NOON + 0.25),
        ("2026-01-31T05:00:00-07:00", NOON),
        ("2026-01-31 12:00:00Z", NOON),
    ],
)
def test_moments(text: str, seconds: float) -> None:
    assert moment(text, NOON) == seconds


@pytest.mark.parametrize(
    "text", ["", "5", "m", "-5m", "5 m", "5m from now", "2026-01-31", "٥m", "1e9s", "9" * 70 + "s"]
)
def test_what_is_no_moment(text: str) -> None:
    with pytest.raises(MomentError, match="write 2026-01-31T14:05:00Z"):
        moment(text, NOON)


def test_a_moment_is_shown_as_it_can_be_read() -> None:
    assert moment_text(NOON + 0.125) == "2026-01-31T12:00:00.125Z"
    assert moment(moment_text(NOON + 0.125), 0.0) == NOON + 0.125


# `picker explain` ------------------------------------------------------------------------


def explained(address: str, *flags: str) -> list[str]:
    return ["explain", "--address", address, "--json", *flags]


@pytest.mark.parametrize(
    ("flags", "ids"),
    [
        (["two"], ["two", "two"]),
        (["two", "--tenant", "blue"], ["two"]),
        (["--endpoint", "vllm-3", "--count", "1"], ["five"]),
        (["--since", "2m"], ["five", "two"]),
        (["--from", "3m ago", "--to", "2026-01-31T12:02:30Z"], ["three"]),
    ],
)
def test_explain_asks_the_same(address: str, flags: list[str], ids: list[str], capsys: Any) -> None:
    assert main(explained(address, *flags)) == 0
    assert [each["request_id"] for each in json.loads(capsys.readouterr().out)] == ids


def test_explain_shows_when_for_whom_and_who_served_instead(address: str, capsys: Any) -> None:
    assert main(["explain", "--address", address, "three"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    for words in (
        "2026-01-31T12:02:00.000Z three: load",
        "tenant red",
        "status 503",
        "first token after 0.250 s",
        f"served by {C} instead",
    ):
        assert words in shown


def test_explain_of_nothing_says_what_was_searched(address: str, capsys: Any) -> None:
    assert main(["explain", "--address", address, "--tenant", "gr\x1ben", "--since", "1m"]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == (
        "picker: none of the last 5 decisions has tenant gr\\x1ben and from 2026-01-31T12:04:00.000Z; "
        "the oldest that is kept was made at 2026-01-31T12:00:00.000Z\n"
    )


def test_explain_of_an_empty_ring(capsys: Any) -> None:
    with metrics_server(DecisionRing()) as empty:
        assert main(["explain", "--address", empty]) == 1
    assert "has made none since it started" in capsys.readouterr().err


@pytest.mark.parametrize("flags", [["--since", "later"], ["--since", "1m", "--from", "2m"], ["--count", "0"]])
def test_a_question_that_cannot_be_asked_is_wrong_usage(flags: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["explain", *flags])
    assert ended.value.code == 2


def test_what_only_the_picker_can_refuse_is_said_in_its_words(address: str, capsys: Any) -> None:
    assert main(["explain", "--address", address, "--from", "1m", "--to", "2m"]) == 1
    assert "is later than to" in capsys.readouterr().err


def test_a_token_goes_with_the_question(tmp_path: Path, capsys: Any) -> None:
    file, bad = tmp_path / "token", tmp_path / "bad"
    file.write_text("good\n")
    bad.write_text("two words")
    with metrics_server(ring_of_five(), token="good") as guarded:
        assert main(["explain", "--address", guarded, "--token-file", str(file)]) == 0
        assert main(["explain", "--address", guarded, "--token", "good"]) == 0
        capsys.readouterr()
        assert main(["explain", "--address", guarded]) == 1
        assert "wants a bearer token: --token-file FILE" in capsys.readouterr().err
        assert main(["explain", "--address", guarded, "--token", "other"]) == 1
        assert "does not take this bearer token" in capsys.readouterr().err
        assert main(["explain", "--address", guarded, "--token-file", str(bad)]) == 1
        said = capsys.readouterr().err
        assert f"{bad} holds no bearer token" in said and "two words" not in said
        assert main(["explain", "--address", guarded, "--token-file", str(tmp_path / "none")]) == 1
        assert "No such file" in capsys.readouterr().err


def test_a_question_goes_past_the_proxies_of_the_environment(address: str, monkeypatch: Any, capsys: Any) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    assert main(["explain", "--address", address, "three"]) == 0


def test_who_is_no_picker_is_told_apart(capsys: Any) -> None:
    assert main(["explain", "--address", "127.0.0.1:1"]) == 1
    assert "Is this the picker's metrics port?" in capsys.readouterr().err
