"""Requests that the picker answers itself: status, JSON in the shape of the client's API, a reason in
one word, and how long to wait. Through the real Envoy, in the modes with the most and fewest duties."""

import json
from collections.abc import Iterator

import pytest

from picker.lab.envoy import Balancing, BodySendMode, EnvoyProcess
from tests.envoy.clients import Http1Client, Http2Client, Response, post, request
from tests.envoy.lab import BODY, CHAT, FD, MIB, Lab
from tests.envoy.picker_process import PickerProcess, wait_until
from tests.envoy.upstream import FULL_PAGE, Upstream

MESSAGES = "/v1/messages"
LIMIT = 16 * MIB


def assert_openai_error(answer: Response, status: int) -> str:
    """The message of an error in OpenAI's shape."""
    assert answer.status == status, answer
    assert answer.value("content-type") == "application/json"
    reason = answer.value("x-picker-reason")
    assert reason is not None
    assert len(reason.split()) == 1
    tree = json.loads(answer.body)
    assert set(tree) == {"error"}
    error = tree["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["param"], error["code"]) == (None, status)
    assert isinstance(error["type"], str)
    message = error["message"]
    assert isinstance(message, str)
    return message


def assert_anthropic_error(answer: Response, status: int) -> str:
    """The message of an error in Anthropic's shape."""
    assert answer.status == status, answer
    assert answer.value("content-type") == "application/json"
    tree = json.loads(answer.body)
    assert (set(tree), tree["type"]) == ({"type", "error"}, "error")
    assert set(tree["error"]) == {"type", "message"}
    message = tree["error"]["message"]
    assert isinstance(message, str)
    return message


def assert_waits(answer: Response) -> None:
    """`Retry-After` in whole seconds."""
    assert int(answer.value("retry-after") or "") >= 1


def test_invalid_json(lab: Lab, either: EnvoyProcess, rid: str) -> None:
    broken = b'{"model": "m", "messages": [}'
    message = assert_openai_error(post(either.port, f"{CHAT}?id={rid}", broken), 400)
    # The brace that cannot be there is the 29th character.
    assert "28" in message or "29" in message
    assert not any(upstream.saw(rid) for upstream in lab.upstreams)
    lab.picker.wait_idle()


def test_invalid_json_on_an_anthropic_path(either: EnvoyProcess, rid: str) -> None:
    assert_anthropic_error(post(either.port, f"{MESSAGES}?id={rid}", b"{"), 400)


def test_json_of_another_shape_is_the_model_servers_business(lab: Lab, either: EnvoyProcess, rid: str) -> None:
    """JSON that is not what the path promises routes by load, unchanged."""
    for number, body in enumerate((b"[]", b'"text"', b'{"messages": 7}', b'{"model": ["m"]}', b"{}")):
        assert post(either.port, f"{CHAT}?id={rid}.{number}", body).status == 200
        assert bytes(lab.upstream_of(f"{rid}.{number}").recorded(f"{rid}.{number}").body) == body


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
@pytest.mark.parametrize("told", [True, False], ids=["content-length", "chunked"])
def test_too_large(lab: Lab, either: EnvoyProcess, rid: str, path: str, told: bool) -> None:
    """Over the limit, told beforehand or found out on the way: 413 in the API's shape."""
    body = b'{"prompt":"' + b"x" * LIMIT + b'"}'
    with Http2Client(either.port) as client:
        length = [("content-length", str(len(body)))] if told else []
        stream = client.start("POST", f"{path}?id={rid}", [("content-type", "application/json"), *length])
        for start in range(0, len(body), MIB):
            last = start + MIB >= len(body)
            if not client.try_data(stream, body[start : start + MIB], end=last):
                break
        answer = client.response(stream)
    message = (assert_anthropic_error if path == MESSAGES else assert_openai_error)(answer, 413)
    assert str(LIMIT) in message
    assert not any(upstream.saw(rid) for upstream in lab.upstreams)
    lab.picker.wait_idle()


def test_exactly_at_the_limit(lab: Lab, either: EnvoyProcess, rid: str) -> None:
    frame = b'{"model":"m","prompt":""}'
    body = frame[:-2] + b"x" * (LIMIT - len(frame)) + frame[-2:]
    assert len(body) == LIMIT
    assert post(either.port, f"/v1/completions?id={rid}", body).status == 200
    assert bytes(lab.upstream_of(rid).recorded(rid).body) == body


def test_a_path_that_is_not_read_has_no_limit(lab: Lab, duplex: EnvoyProcess, rid: str) -> None:
    """It streams through; the picker holds none of it."""
    body = b"0123456789abcdef" * (LIMIT // 16 + 1)
    assert post(duplex.port, f"/v1/files?id={rid}", body).status == 200
    assert bytes(lab.upstream_of(rid).recorded(rid).body) == body


def test_refused_before_the_body_came(either: EnvoyProcess, rid: str) -> None:
    """A content-length over the limit is refused at once; not a byte of the body is needed."""
    with Http1Client(either.port) as client:
        client.head(
            "POST", f"{CHAT}?id={rid}", [("content-length", str(LIMIT + 1)), ("content-type", "application/json")]
        )
        assert_openai_error(client.response(), 413)


class Small:
    """A picker of its own in front of some endpoints, with an Envoy in each of the two modes."""

    def __init__(self, lab: Lab, endpoints: list[str], config: str = "", flags: list[str] | None = None) -> None:
        self.picker = PickerProcess(endpoints, config, flags=flags or [])
        self.envoys = [
            EnvoyProcess(
                lab.config(request_body=request, response_body=response, picker_address=self.picker.grpc_address)
            )
            for request, response in ((FD, FD), (BodySendMode.BUFFERED, BodySendMode.NONE))
        ]

    def close(self) -> None:
        for envoy in self.envoys:
            envoy.stop()
        self.picker.close()


@pytest.fixture(scope="module")
def full(lab: Lab) -> Iterator[Small]:
    """Every endpoint reports a long queue."""
    with Upstream() as first, Upstream() as second:
        first.metrics_page = second.metrics_page = FULL_PAGE
        small = Small(lab, [first.address, second.address], "objectives: {batch: -1, urgent: 5}\n")
        try:
            yield small
        finally:
            small.close()


@pytest.mark.parametrize("name", ["x-gateway-inference-objective", "x-llm-d-inference-objective"])
def test_shed(full: Small, name: str, rid: str) -> None:
    """A request of negative priority, while every endpoint is full."""
    for envoy in full.envoys:
        # The first scrape may still be under way.
        wait_until(
            lambda envoy=envoy: post(envoy.port, f"{CHAT}?id={rid}", BODY, [(name, "batch")]).status == 429,
            "nothing was shed",
        )
        answer = post(envoy.port, f"{CHAT}?id={rid}", BODY, [(name, "batch")])
        assert_openai_error(answer, 429)
        assert_waits(answer)
        answer = post(envoy.port, f"{MESSAGES}?id={rid}", BODY, [(name, "batch")])
        assert_anthropic_error(answer, 429)
        assert_waits(answer)
        assert request(envoy.port, "GET", "/v1/models", [(name, "batch")]).status == 429


@pytest.mark.parametrize("objective", ["urgent", "unknown", ""])
def test_not_shed(full: Small, objective: str, rid: str) -> None:
    """Other priorities, and names that nobody knows, are served by a full pool as well."""
    for envoy in full.envoys:
        answer = post(envoy.port, f"{CHAT}?id={rid}", BODY, [("x-gateway-inference-objective", objective)])
        assert answer.status == 200


def test_the_bodys_own_priority_is_not_ours(full: Small, rid: str) -> None:
    body = BODY[:-1] + b',"priority":-1}'
    for envoy in full.envoys:
        assert post(envoy.port, f"{CHAT}?id={rid}", body).status == 200


@pytest.fixture(scope="module")
def empty(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Small]:
    """A source that is synced and has nothing in it."""
    endpoints = tmp_path_factory.mktemp("source") / "endpoints.yaml"
    endpoints.write_text("endpoints: []\n")
    small = Small(lab, [], flags=["--endpoints-file", str(endpoints)])
    try:
        yield small
    finally:
        small.close()


def test_no_endpoint(empty: Small, rid: str) -> None:
    """503, not 429: nobody is there, which is not the client's haste."""
    for envoy in empty.envoys:
        for answer in (
            post(envoy.port, f"{CHAT}?id={rid}", BODY),
            request(envoy.port, "GET", "/v1/models"),
            post(envoy.port, "/v1/custom", b"x"),
        ):
            assert_openai_error(answer, 503)
            assert_waits(answer)
        assert_anthropic_error(post(envoy.port, MESSAGES, BODY), 503)


def test_ready_without_an_endpoint(empty: Small) -> None:
    """Readiness says that the source is synced, not that somebody is in it."""
    wait_until(lambda: empty.picker.health("readiness") == "SERVING", "not ready")


def test_a_fallback_policy_does_not_hide_a_refusal(lab: Lab, full: Small, rid: str) -> None:
    """override_host with fail-open: what the picker refuses stays refused."""
    config = lab.config(
        balancing=Balancing.OVERRIDE_HOST, failure_mode_allow=True, picker_address=full.picker.grpc_address
    )
    with EnvoyProcess(config) as envoy:
        answer = post(envoy.port, f"{CHAT}?id={rid}", BODY, [("x-gateway-inference-objective", "batch")])
    assert_openai_error(answer, 429)
