"""Labels, adapters, sessions, stored responses, the explanation and the trace, through the real Envoy."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from picker.lab.envoy import BodySendMode, EnvoyProcess
from tests.envoy.clients import Response, post, request
from tests.envoy.engine import Engine
from tests.envoy.lab import CHAT, FD, Lab
from tests.envoy.picker_process import PickerProcess, wait_until
from tests.envoy.upstream import fresh_id
from tests.otlp_collector import Collector, said

CONFIG = """\
epsilon: 0
endpoint_labels: {{header: x-labels}}
session_affinity: {{header: x-session, cookie: sid}}
engine_metrics: {{interval_seconds: 0.1}}
debug: {{explain_header: true}}
tracing: {{otlp_endpoint: "{collector}", sample_ratio: 0}}
"""
PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with Collector() as opened:
        yield opened


@pytest.fixture(scope="module")
def engines() -> Iterator[dict[str, Engine]]:
    """Two gold servers, one with the adapter loaded; a silver one without it; one that only prefills."""
    opened = {
        "loaded": Engine(metrics="loaded"),
        "unused": Engine(),
        "plain": Engine(adapters=False),
        "prefill": Engine(metrics="loaded"),
    }
    try:
        yield opened
    finally:
        for engine in opened.values():
            engine.__exit__()


LABELS = {
    "loaded": {"tier": "gold", "llm-d.ai/role": "decode"},
    "unused": {"tier": "gold"},
    "plain": {"tier": "silver", "llm-d.ai/role": "both"},
    "prefill": {"tier": "gold", "llm-d.ai/role": "prefill"},
}


@pytest.fixture(
    scope="module",
    params=[(FD, FD), (BodySendMode.BUFFERED, BodySendMode.STREAMED)],
    ids=["duplex", "buffered"],
)
def modes(request: pytest.FixtureRequest) -> tuple[BodySendMode, BodySendMode]:
    modes: tuple[BodySendMode, BodySendMode] = request.param
    return modes


@pytest.fixture(scope="module")
def picker(
    modes: tuple[BodySendMode, BodySendMode],
    engines: dict[str, Engine],
    collector: Collector,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[PickerProcess]:
    """New in each mode: no mode inherits what another taught it."""
    file = tmp_path_factory.mktemp("endpoints") / "endpoints.yaml"
    entries = [{"address": engine.address, "name": name, "labels": LABELS[name]} for name, engine in engines.items()]
    Path(file).write_text(json.dumps({"endpoints": entries}))
    config = CONFIG.format(collector=collector.url)
    with PickerProcess(config=config, flags=["--endpoints-file", str(file)]) as opened:
        yield opened


@pytest.fixture(scope="module")
def envoy(modes: tuple[BodySendMode, BodySendMode], lab: Lab, picker: PickerProcess) -> Iterator[EnvoyProcess]:
    asked, answered = modes
    config = lab.config(request_body=asked, response_body=answered, picker_address=picker.grpc_address)
    with EnvoyProcess(config) as opened:
        loaded, plain = {"x_labels": "llm-d.ai/role=decode"}, {"x_labels": "tier=silver"}
        wait_until(lambda: "lora=0.0000" in explained(chat(opened, model="sql", **loaded)), "no adapters were read")
        wait_until(lambda: chat(opened, model="sql", **plain).status == 503, "the list without `sql` was never read")
        yield opened


def chat(envoy: EnvoyProcess, *, rid: str = "", model: str = "m", **headers: str) -> Response:
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": fresh_id()}]}).encode()
    return post(envoy.port, f"{CHAT}?id={rid}", body, [(name.replace("_", "-"), at) for name, at in headers.items()])


def explained(answer: Response) -> str:
    assert answer.status == 200, answer.body
    return answer.value("x-picker-explain") or ""


def server(answer: Response) -> str:
    """The name of the server that the picker says it picked."""
    found = re.match(r"endpoint=(\w+); ", explained(answer))
    assert found
    return found[1]


def servers(envoy: EnvoyProcess, **more: str) -> set[str]:
    """Who gets such requests. 40: that one of three equals is never drawn happens once in millions of runs."""
    return {server(chat(envoy, **more)) for _ in range(40)}


# Labels ------------------------------------------------------------------------------------


def test_a_server_that_only_prefills_gets_no_request(envoy: EnvoyProcess, engines: dict[str, Engine]) -> None:
    assert servers(envoy) == {"loaded", "unused", "plain"}
    assert servers(envoy, x_labels="tier=gold") == {"loaded", "unused"}
    asked = chat(envoy, x_labels="llm-d.ai/role=prefill")
    assert (asked.status, asked.value("x-picker-reason")) == (503, "labels_unmatched")
    asked_by_the_picker = ("/v1/models", "/kv_event_sources")
    assert [each for each in engines["prefill"].requests if each.target not in asked_by_the_picker] == []


def test_a_header_chooses_by_label(envoy: EnvoyProcess) -> None:
    assert servers(envoy, x_labels="tier=silver") == {"plain"}
    assert servers(envoy, x_labels="tier!=silver,llm-d.ai/role=decode") == {"loaded"}


def test_a_header_that_cannot_be_read_is_the_clients_fault(envoy: EnvoyProcess) -> None:
    refused = chat(envoy, x_labels="tier in (gold)")
    assert (refused.status, refused.value("x-picker-reason")) == (400, "invalid_header")
    error = json.loads(refused.body)["error"]
    assert error["type"] == "invalid_request_error" and "x-labels" in error["message"]


# Adapters ----------------------------------------------------------------------------------


def test_an_adapter_goes_where_it_is_served_and_loaded(envoy: EnvoyProcess) -> None:
    """`loaded` shows sql running, `unused` could load it for 0.5 s, `plain` does not list it.

    The picker is new in each mode: what it sent to `unused` itself it would count as loaded there.
    """
    assert servers(envoy, model="sql") == {"loaded"}
    answer = chat(envoy, model="sql", x_labels="llm-d.ai/role!=decode")
    assert server(answer) == "unused"
    refused = chat(envoy, model="sql", x_labels="tier=silver")
    assert (refused.status, refused.value("x-picker-reason")) == (503, "model_not_served")


def test_the_base_model_goes_anywhere(envoy: EnvoyProcess) -> None:
    assert servers(envoy, model="m") == {"loaded", "unused", "plain"}
    assert "lora=" not in explained(chat(envoy, model="m"))


# Sessions and stored responses -------------------------------------------------------------


@pytest.mark.parametrize("name", ["x-session", "cookie"])
def test_a_session_stays_where_it_began(envoy: EnvoyProcess, name: str) -> None:
    token = fresh_id()
    header = {name: f"a=b; sid={token}" if name == "cookie" else token}
    first = server(chat(envoy, **header))
    again = [chat(envoy, **header) for _ in range(10)]
    assert {server(answer) for answer in again} == {first}
    assert all("reason=sticky" in explained(answer) for answer in again)


def test_sessions_spread(envoy: EnvoyProcess) -> None:
    assert {server(chat(envoy, x_session=fresh_id())) for _ in range(24)} == {"loaded", "unused", "plain"}


def test_a_session_covers_requests_without_a_body(envoy: EnvoyProcess) -> None:
    token = [("x-session", fresh_id())]
    first = server(request(envoy.port, "GET", "/v1/models", token))
    for target in ("/v1/models", "/health?do=json", "/tokenize?do=json"):
        assert server(request(envoy.port, "GET", target, token)) == first


def respond(envoy: EnvoyProcess, **fields: object) -> Response:
    return post(envoy.port, "/v1/responses", json.dumps({"model": "m", "input": "hello", **fields}).encode())


def response_id(answer: Response) -> str:
    found = re.search(rb'"id":"(resp_\w+)"', answer.body)
    assert found
    return found[1].decode()


@pytest.mark.parametrize("stream", [False, True])
def test_a_conversation_by_response_ids_stays_with_its_server(
    envoy: EnvoyProcess, engines: dict[str, Engine], stream: bool
) -> None:
    previous = response_id(respond(envoy, stream=stream))
    (owner,) = [name for name, engine in engines.items() if engine.owns(previous)]
    for _ in range(8):
        answer = respond(envoy, stream=stream, previous_response_id=previous)
        assert server(answer) == owner and "reason=sticky" in explained(answer)
        previous = response_id(answer)
        assert engines[owner].owns(previous)


def test_a_stored_response_is_asked_for_where_it_is(envoy: EnvoyProcess, engines: dict[str, Engine]) -> None:
    stored = [response_id(respond(envoy)) for _ in range(12)]
    for name in stored:
        (owner,) = [each for each, engine in engines.items() if engine.owns(name)]
        for method, target in (
            ("GET", f"/v1/responses/{name}?do=json"),
            ("POST", f"/v1/responses/{name}/cancel?do=json"),
            ("DELETE", f"/v1/responses/{name}?do=json"),
        ):
            assert server(request(envoy.port, method, target)) == owner


def test_a_stored_conversation_is_found_by_its_id(envoy: EnvoyProcess, engines: dict[str, Engine]) -> None:
    conversation = response_id(post(envoy.port, "/v1/conversations", b"{}"))
    (owner,) = [name for name, engine in engines.items() if engine.owns(conversation)]
    for _ in range(8):
        assert server(respond(envoy, conversation=conversation)) == owner
        assert server(request(envoy.port, "GET", f"/v1/conversations/{conversation}/items?do=json")) == owner


# Explanation and trace ---------------------------------------------------------------------


def test_the_explanation_is_true_and_shows_nothing_of_the_client(
    envoy: EnvoyProcess, engines: dict[str, Engine]
) -> None:
    rid = fresh_id()
    answer = chat(envoy, rid=rid)
    text = explained(answer)
    name = server(answer)
    assert engines[name].saw(rid) and f"address={engines[name].address};" in text
    assert re.fullmatch(
        r"endpoint=\w+; address=127\.0\.0\.1:\d+; reason=\w+; matched=\d\.\d\d; cost=\d+\.\d{4}"
        r"; prefix=\d+\.\d{4}; queue=\d+\.\d{4}; kv=\d+\.\d{4}",
        text,
    )
    assert len(answer.values("x-picker-explain")) == 1


def test_a_traced_request_and_its_decision_are_spans_of_its_trace_and_others_are_none(
    envoy: EnvoyProcess, collector: Collector, engines: dict[str, Engine]
) -> None:
    """`sample_ratio` is 0: only who brings a sampled trace is traced."""
    before = len(collector.spans)
    assert chat(envoy).status == 200
    rid = fresh_id()
    answer = chat(envoy, rid=rid, traceparent=PARENT, x_request_id=rid)
    span, decision = sorted(collector.wait(before + 2, 20.0)[before:], key=lambda each: each.name, reverse=True)
    assert (span.name, decision.name) == ("route chat_completions", "picker.decision")
    assert (decision.trace_id, decision.parent_span_id) == (span.trace_id, span.span_id)
    candidates = [said(event) for event in decision.events]
    picked = [each["picker.endpoint"] for each in candidates if each["picker.picked"]]
    assert picked == [engines[server(answer)].address]
    assert len({each["picker.endpoint"] for each in candidates}) == len(candidates) > 1
    assert span.trace_id.hex() == PARENT.split("-")[1] and span.parent_span_id.hex() == PARENT.split("-")[2]
    figures = said(span)
    assert figures["picker.endpoint"] == engines[server(answer)].address
    assert (figures["picker.api"], figures["picker.outcome"]) == ("chat_completions", "completed")
    assert figures["http.response.status_code"] == 200 and figures["gen_ai.request.model"] == "m"
    assert len(collector.spans) == before + 2
    assert engines[server(answer)].recorded(rid).values("traceparent") == [PARENT], "the client's goes on untouched"


FORM = b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nsql\r\n--b--\r\n'
EVERYWHERE = {
    **{
        path: (json.dumps({"model": "sql", "query": "q", "input": "i", "prompt": "p"}).encode(), "application/json")
        for path in (
            *(
                "/v1/rerank",
                "/v1/score",
                "/v1/classify",
                "/v1/pooling",
                "/v1/moderations",
                "/tokenize",
                "/v1/embeddings",
            ),
            *("/v1/messages/count_tokens", "/v1/audio/speech", "/v1/images/generations", "/v2/rerank", "/any/other"),
        )
    },
    "/v1/audio/transcriptions": (FORM, "multipart/form-data; boundary=b"),
    "/v1/images/edits": (FORM, "multipart/form-data; boundary=b"),
}


@pytest.mark.parametrize("path", EVERYWHERE)
def test_a_model_goes_only_where_it_is_listed_whatever_the_path(envoy: EnvoyProcess, path: str) -> None:
    body, kind = EVERYWHERE[path]
    headers = [("content-type", kind)]
    found = {server(request(envoy.port, "POST", path, headers, body)) for _ in range(20)}
    assert found and found <= {"loaded", "unused"}
    refused = request(envoy.port, "POST", path, [*headers, ("x-labels", "tier=silver")], body)
    assert (refused.status, refused.value("x-picker-reason")) == (503, "model_not_served")


def test_the_paths_have_their_labels(envoy: EnvoyProcess, picker: PickerProcess) -> None:
    before = picker.metric("picker_requests_total", path="rerank")
    assert post(envoy.port, "/v1/rerank?do=json", b'{"query":"q","documents":["a"]}').status == 200
    wait_until(lambda: picker.metric("picker_requests_total", path="rerank") == before + 1, "rerank was not counted")


def test_headers_that_a_reload_names_are_read_from_then_on(lab: Lab) -> None:
    with (
        PickerProcess(lab.addresses, "epsilon: 0\n") as picker,
        EnvoyProcess(lab.config(picker_address=picker.grpc_address)) as envoy,
    ):
        token = fresh_id()
        assert chat(envoy, x_session=token, x_labels="not a selector").status == 200
        assert picker.metric("picker_decisions_total", reason="sticky") == 0
        picker.config_path.write_text(
            "epsilon: 0\nsession_affinity: {header: x-session}\nendpoint_labels: {header: x-labels}\n"
        )

        def sticks() -> bool:
            chat(envoy, x_session=token)
            return picker.metric("picker_decisions_total", reason="sticky") > 0

        wait_until(sticks, "the new header is not read")
        assert chat(envoy, x_labels="not a selector").status == 400


# GPUs --------------------------------------------------------------------------------------

DCGM = (
    "# HELP DCGM_FI_DEV_GPU_UTIL GPU utilization (in %).\n# TYPE DCGM_FI_DEV_GPU_UTIL gauge\n"
    'DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-1",Hostname="node-a",container="vllm",namespace="",pod="busy"} 97\n'
    'DCGM_FI_DEV_GPU_UTIL{gpu="1",UUID="GPU-2",Hostname="node-a",container="vllm",namespace="",pod="calm"} 3\n'
)
"""One node's page, as the recording of tests/fixtures/engines/dcgm-exporter.txt has it."""


def test_a_busy_gpu_is_avoided_where_configuration_gives_it_a_weight(lab: Lab, tmp_path: Path) -> None:
    with Engine() as busy, Engine() as calm, Engine() as exporter:
        exporter.metrics_page = DCGM
        file = tmp_path / "endpoints.json"
        file.write_text(
            json.dumps([{"address": busy.address, "name": "busy"}, {"address": calm.address, "name": "calm"}])
        )
        config = (
            "epsilon: 0\nweights: {gpu: 3}\ndebug: {explain_header: true}\n"
            f"engine_metrics: {{interval_seconds: 0.1, gpu_url: 'http://{exporter.address}/metrics'}}\n"
        )
        with (
            PickerProcess(config=config, flags=["--endpoints-file", str(file)]) as picker,
            EnvoyProcess(lab.config(picker_address=picker.grpc_address)) as envoy,
        ):
            wait_until(lambda: "gpu=" in explained(chat(envoy)), "no GPU was read")
            wait_until(lambda: servers(envoy) == {"calm"}, "the busy GPU still gets requests")


def test_a_template_that_cannot_work_stops_the_start_and_says_why(lab: Lab) -> None:
    with pytest.raises(AssertionError, match=r"engine_metrics\.gpu_url.*\{nodes\} is not known"):
        PickerProcess(lab.addresses, "engine_metrics: {gpu_url: 'http://{nodes}:9400/metrics'}")
