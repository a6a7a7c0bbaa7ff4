"""Who used what, as Envoy gets it: its access log says why, and its rate limits charge tokens. docs/usage.md, run.

The rate limit service is a small one of our own on Envoy's protocol; the answers are recorded from a real vLLM.
"""

import contextlib
import json
import re
import threading
import warnings
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any, Self

import grpc
import pytest
import yaml

from picker.lab.envoy import Balancing, EnvoyConfig, EnvoyProcess
from picker.lab.envoy_config import build
from tests.envoy.clients import Http1Client, post
from tests.envoy.lab import CHAT, FD
from tests.envoy.picker_process import PickerProcess, wait_until
from tests.envoy.upstream import Answer, Recorded, Upstream

with warnings.catch_warnings():  # its modules use what pydantic calls deprecated
    warnings.simplefilter("ignore")
    from envoy_data_plane.envoy.service.ratelimit.v3 import RateLimitRequest, RateLimitResponse, RateLimitResponseCode

ROOT = Path(__file__).parents[2]
EXCHANGES = ROOT / "tests" / "fixtures" / "exchanges" / "vllm-0.32"
LIMIT = 2000
"""Tokens that each tenant has: three of the recorded chats."""
CONFIG = """\
epsilon: 0
tenants: {{header: x-tenant, names: [acme, globex]}}
usage_file: {file}
proxy_metadata: {{namespace: inference-picker}}
"""


def recorded(name: str) -> tuple[bytes, bytes]:
    return (EXCHANGES / f"{name}.request.json").read_bytes(), (EXCHANGES / f"{name}.response.bin").read_bytes()


def usage_of(answer: bytes) -> dict[str, Any]:
    """As the engine wrote it, read by another reader than ours."""
    if answer.startswith(b"data:"):
        events = [line[6:] for line in answer.split(b"\n") if line.startswith(b"data: {")]
        found: dict[str, Any] = next(each["usage"] for each in map(json.loads, reversed(events)) if each.get("usage"))
        return found
    whole: dict[str, Any] = json.loads(answer)["usage"]
    return whole


class Replaying(Upstream):
    """Answers with the recorded exchange that the query names."""

    async def answer(self, request: Recorded, answer: Answer) -> None:
        name = request.query.get("play")
        if name is None:
            await super().answer(request, answer)
            return
        body = (EXCHANGES / f"{name}.response.bin").read_bytes()
        kind = "text/event-stream" if body.startswith((b"data:", b"event:")) else "application/json"
        await answer.head(200, [("content-type", kind)])
        third = len(body) // 3
        for piece in (body[:third], body[third:-7], body[-7:]):
            await answer.chunk(piece)
        if "stall" in request.query:
            await request.let_go()
        await answer.end()


class TokenLimits:
    """A rate limit service: each descriptor has so many tokens, for good. `asked` keeps (tenant, hits)."""

    def __init__(self, tokens: int) -> None:
        self.asked: list[tuple[str, int]] = []
        self._left: dict[str, int] = {}
        self._tokens = tokens
        self._lock = threading.Lock()
        self._server = grpc.server(futures.ThreadPoolExecutor(2))
        handler = grpc.unary_unary_rpc_method_handler(
            self._should_limit, request_deserializer=RateLimitRequest.parse, response_serializer=bytes
        )
        service = "envoy.service.ratelimit.v3.RateLimitService"
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(service, {"ShouldRateLimit": handler}),)
        )
        self.port = self._server.add_insecure_port("127.0.0.1:0")

    def _should_limit(self, request: Any, context: grpc.ServicerContext) -> Any:
        code = RateLimitResponseCode.OK
        with self._lock:
            for descriptor in request.descriptors:
                tenant = next(entry.value for entry in descriptor.entries if entry.key == "tenant")
                hits = request.hits_addend if descriptor.hits_addend is None else int(descriptor.hits_addend)
                self.asked.append((tenant, hits))
                left = self._left.get(tenant, self._tokens)
                if left <= 0:
                    code = RateLimitResponseCode.OVER_LIMIT
                self._left[tenant] = left - hits
        return RateLimitResponse(overall_code=code)

    def charged(self, tenant: str) -> list[int]:
        with self._lock:
            return [hits for each, hits in self.asked if each == tenant and hits]

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(0)


def documented(name: str) -> dict[str, Any]:
    """A block of docs/usage.md."""
    text = (ROOT / "docs" / "usage.md").read_text("utf-8")
    found = re.search(rf"<!-- test: {name} -->\n```yaml\n(.*?)```", text, re.DOTALL)
    assert found, name
    block: dict[str, Any] = yaml.safe_load(found[1])
    return block


def merged(into: dict[str, Any], more: dict[str, Any]) -> None:
    for key, value in more.items():
        if isinstance(value, dict) and key in into:
            merged(into[key], value)
        else:
            into[key] = value


def bootstrap(picker: PickerProcess, limits: TokenLimits, log: Path) -> dict[str, Any]:
    config = build(EnvoyConfig(balancing=Balancing.ORIGINAL_DST, picker_address=picker.grpc_address, request_body=FD))
    (listener,), clusters = config["static_resources"]["listeners"], config["static_resources"]["clusters"]
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    merged(manager["http_filters"][0]["typed_config"], documented("ext_proc"))
    merged(manager, documented("access_log"))
    manager["access_log"][0]["typed_config"]["path"] = str(log)
    (route,) = manager["route_config"]["virtual_hosts"][0]["routes"]
    merged(route, documented("rate_limits"))
    manager["http_filters"].insert(
        0,
        {
            "name": "envoy.filters.http.ratelimit",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit",
                "domain": "tokens",
                "failure_mode_deny": True,
                "timeout": "5s",
                "rate_limit_service": {
                    "transport_api_version": "V3",
                    "grpc_service": {"envoy_grpc": {"cluster_name": "limits"}},
                },
            },
        },
    )
    picker_cluster = next(each for each in clusters if each["name"] == "picker")
    limits_cluster = json.loads(json.dumps(picker_cluster))
    limits_cluster["name"] = limits_cluster["load_assignment"]["cluster_name"] = "limits"
    (group,) = limits_cluster["load_assignment"]["endpoints"]
    group["lb_endpoints"][0]["endpoint"]["address"]["socket_address"]["port_value"] = limits.port
    clusters.append(limits_cluster)
    return config


class Stand:
    """A picker with a usage file, an Envoy with limits, and where everything is written."""

    def __init__(self, picker: PickerProcess, envoy: EnvoyProcess, limits: TokenLimits, up: Replaying, folder: Path):
        self.picker, self.envoy, self.limits, self.upstream = picker, envoy, limits, up
        self._folder = folder

    def play(self, name: str, tenant: str, **headers: str) -> int:
        body, answer = recorded(name)
        path = f"/v1/embeddings?play={name}" if name == "embeddings" else f"{CHAT}?play={name}"
        response = post(self.envoy.port, path, body, [("x-tenant", tenant), *headers.items()])
        assert response.status == 429 or response.body == answer
        return response.status

    def usage_lines(self, count: int) -> list[dict[str, Any]]:
        path = self._folder / "usage.jsonl"
        wait_until(lambda: path.exists() and path.read_bytes().count(b"\n") >= count, f"{count} lines of usage")
        return [json.loads(line) for line in path.read_text().splitlines()]

    def access_log(self, count: int) -> list[dict[str, Any]]:
        path = self._folder / "access.log"
        wait_until(lambda: path.exists() and path.read_bytes().count(b"\n") >= count, f"{count} lines of access log")
        return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def stand(tmp_path: Path) -> Iterator[Stand]:
    with contextlib.ExitStack() as stack:
        upstream = stack.enter_context(Replaying())
        limits = stack.enter_context(TokenLimits(LIMIT))
        picker = stack.enter_context(PickerProcess([upstream.address], CONFIG.format(file=tmp_path / "usage.jsonl")))
        envoy = stack.enter_context(EnvoyProcess(bootstrap(picker, limits, tmp_path / "access.log")))
        yield Stand(picker, envoy, limits, upstream, tmp_path)


def test_tokens_are_charged_when_an_answer_has_ended_and_the_next_request_is_refused(stand: Stand) -> None:
    chat, stream = usage_of(recorded("chat")[1]), usage_of(recorded("chat-stream")[1])
    spent = 0
    sent = []
    while spent < LIMIT:
        name, usage = ("chat", chat) if len(sent) % 2 else ("chat-stream", stream)
        assert stand.play(name, "acme") == 200
        spent += usage["total_tokens"]
        sent.append(usage)
        wait_until(lambda due=spent: sum(stand.limits.charged("acme")) == due, "charged")
    assert stand.limits.charged("acme") == [each["total_tokens"] for each in sent]
    assert stand.play("chat", "acme") == 429
    assert stand.play("chat", "globex") == 200, "another tenant has tokens of its own"
    lines = stand.usage_lines(len(sent) + 1)
    assert [line["input_tokens"] for line in lines[:-1]] == [each["prompt_tokens"] for each in sent]
    assert [line["output_tokens"] for line in lines[:-1]] == [each["completion_tokens"] for each in sent]
    assert {line["usage"] for line in lines} == {"reported"}
    assert [line["tenant"] for line in lines] == ["acme"] * len(sent) + ["globex"]
    tokens = [
        stand.picker.metric(f"picker_tenant_{kind}_tokens_total", tenant="acme", usage="reported")
        for kind in ("prompt", "output")
    ]
    assert sum(tokens) == spent
    logged = stand.access_log(len(sent) + 2)
    assert [line["tokens"] for line in logged[: len(sent)]] == [each["total_tokens"] for each in sent]
    assert {line["why"] for line in logged if line["endpoint"]} <= {"load", "affinity"}


def test_an_answer_without_usage_is_marked_and_charged_nothing_that_was_made_up(stand: Stand) -> None:
    assert stand.play("chat-stream-nousage", "acme") == 200
    (line,) = stand.usage_lines(1)
    assert line["usage"] == "unknown" and line["input_tokens"] is None and line["output_tokens"] is None
    assert line["outcome"] == "completed" and line["status"] == 200
    assert stand.picker.metric("picker_tenant_requests_total", tenant="acme", usage="unknown") == 1
    logged = stand.access_log(1)[0]
    assert logged["tokens"] is None and logged["why"] == "load"
    assert stand.play("chat", "globex") == 200
    wait_until(lambda: stand.limits.charged("globex") != [], "charged")
    assert stand.limits.charged("acme") == [], "and what came after it was"


def test_a_client_that_leaves_is_charged_what_was_reported_until_then_and_marked(stand: Stand) -> None:
    body, answer = recorded("chat-stream")
    with Http1Client(stand.envoy.port) as client:
        head = [("content-length", str(len(body))), ("x-tenant", "globex"), ("content-type", "application/json")]
        client.head("POST", f"{CHAT}?play=chat-stream&stall=1&id=leaves", head)
        client.send(body)
        assert client.read_head().status == 200
        seen = b""
        while len(seen) < len(answer):
            seen += client.read_chunk() or b""
    (line,) = stand.usage_lines(1)
    stand.upstream.recorded("leaves").release.set()
    assert line["outcome"] == "aborted" and line["usage"] == "partial"
    assert line["output_tokens"] == usage_of(answer)["completion_tokens"]
    assert stand.play("chat", "globex") == 200
    tokens = usage_of(recorded("chat")[1])["total_tokens"]
    wait_until(lambda: stand.limits.charged("globex") != [], "charged")
    assert stand.limits.charged("globex") == [tokens], "Envoy heard nothing of the first: docs/usage.md says so"
