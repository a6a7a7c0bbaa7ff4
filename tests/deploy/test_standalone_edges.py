"""The chart's Envoy at its edges: who stops halfway, what it passes on, and what it says of itself.

The real Envoy with the bootstrap that the chart renders, before a real picker. What is expected stands in docs/chart.md
("Standalone"), docs/telemetry.md ("Why, in Envoy's access log") and Envoy's own documentation.
"""

import contextlib
import json
import os
import re
import signal
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from picker.lab.envoy import EnvoyProcess
from tests.deploy.standalone import (
    PATIENCE_SECONDS,
    bootstrap,
    config_for,
    envoy_for,
    listener_port,
    manager,
    on_this_machine,
    stat,
    unfinished,
)
from tests.deploy.tools import only, render
from tests.deploy.values import BASE, Values, merged
from tests.envoy.clients import Http1Client, Http2Client, post, request
from tests.envoy.lab import BODY, CHAT, MIB
from tests.envoy.picker_process import PickerProcess, wait_until
from tests.envoy.upstream import Upstream, fresh_id, sse_events
from tests.ports import free_ports

pytestmark = pytest.mark.usefixtures("helm")

LENGTH = ("content-length", str(len(BODY)))
DESTINATION = "x-gateway-destination-endpoint"
ACTIVE = "http.requests.downstream_rq_active"
DUPLEX: Values = {"requestBodyMode": "FULL_DUPLEX_STREAMED", "responseBodyMode": "FULL_DUPLEX_STREAMED"}


@pytest.fixture(scope="module")
def plain(picker: PickerProcess) -> Iterator[EnvoyProcess]:
    """As the chart ships it."""
    with envoy_for(picker) as started:
        yield started


@pytest.fixture
def rid() -> str:
    """The request's id, by which the model server finds what it recorded."""
    return fresh_id()


def allocated_bytes(envoy: EnvoyProcess) -> int:
    """What Envoy holds now. Its statistics say it every five seconds only."""
    return int(json.loads(envoy.admin("/memory"))["allocated"])


def held_bytes(picker: PickerProcess) -> float:
    """The picker's ledger without the index, which honest requests fill."""
    return picker.metric("picker_memory_bytes") - picker.metric("picker_memory_bytes", part="index")


HALVES = {
    # What is sent, and the counter of Envoy's that says which timeout ended it.
    "headers": (b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nx-hal", "downstream_rq_header_timeout"),
    "body": (b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{", "downstream_rq_timeout"),
}


@pytest.mark.parametrize("half", HALVES)
def test_who_stops_in_the_middle_is_let_go_and_a_long_answer_is_not(
    picker: PickerProcess, upstream: Upstream, rid: str, half: str
) -> None:
    """Of the two timeouts only the one under test is short, so no other can end the request."""
    sent, counter = HALVES[half]
    config = config_for(picker, **({"receiveTimeoutSeconds": 1} if half == "body" else {}))
    if half == "headers":
        assert manager(config, "requests")["request_headers_timeout"] == "10s"
        manager(config, "requests")["request_headers_timeout"] = "1s"
    with EnvoyProcess(config) as envoy, Http1Client(envoy.port) as honest:
        honest.head("POST", f"{CHAT}?id={rid}&do=sse&n=5&stall=1", [LENGTH])
        honest.send(BODY)
        head = honest.read_head()
        begun = honest.read_chunk()
        with socket.create_connection(("127.0.0.1", envoy.port), timeout=PATIENCE_SECONDS) as stopped:
            stopped.sendall(sent)
            answer = stopped.makefile("rb").read()
        assert answer.startswith(b"HTTP/1.1 408 "), "and then the connection ended"
        wait_until(lambda: stat(envoy, ACTIVE) == 1, "the honest one is not alone")
        assert stat(envoy, f"http.requests.{counter}") == 1
        upstream.recorded(rid).release.set()
        rest = honest.read_body(head)
        assert begun + rest.body == b"".join(sse_events(5)), "it began before the timeout, and ended after it"


@pytest.mark.parametrize("shape", [{}, DUPLEX], ids=["held by Envoy", "held by the picker"])
def test_twenty_unfinished_uploads_are_gone_at_the_timeout_with_all_they_held(
    picker: PickerProcess, rid: str, shape: Values
) -> None:
    """The issue's case: twenty of 15 MiB held 310 MB for 75 s and more."""
    with envoy_for(picker, receiveTimeoutSeconds=6, **shape) as envoy, contextlib.ExitStack() as stack:
        assert post(envoy.port, f"{CHAT}?id={rid}-before", BODY).status == 200
        picker.wait_idle()
        wait_until(lambda: stat(envoy, ACTIVE) == 0, "the first is not over")
        before, ledger = allocated_bytes(envoy), held_bytes(picker)
        uploads = [stack.enter_context(unfinished(envoy, 15 * MIB)) for _ in range(20)]
        wait_until(lambda: stat(envoy, ACTIVE) == 20, "they never came")
        held = []
        for upload in uploads:
            with contextlib.suppress(OSError):  # on a slow machine its time is over already
                upload.sendall(b" " * (15 * MIB - 1))
            held.append(allocated_bytes(envoy) - before + held_bytes(picker) - ledger)
        assert post(envoy.port, f"{CHAT}?id={rid}-beside", BODY).status == 200

        wait_until(lambda: stat(envoy, ACTIVE) == 0, "they are still there", PATIENCE_SECONDS)
        wait_until(lambda: stat(envoy, "http.requests.downstream_cx_active") == 0, "so are their connections")
        for upload in uploads:
            with contextlib.suppress(ConnectionResetError):
                assert upload.makefile("rb").readline() in (b"HTTP/1.1 408 Request Timeout\r\n", b"")
        wait_until(lambda: allocated_bytes(envoy) - before < 8 * MIB, "Envoy still holds a body", PATIENCE_SECONDS)
        wait_until(lambda: held_bytes(picker) <= ledger, "so does the picker", PATIENCE_SECONDS)
        assert post(envoy.port, f"{CHAT}?id={rid}-after", BODY).status == 200
    assert max(held) > 100 * MIB, "else nothing was held, and nothing is shown"


PATHS = {
    # As sent; as it is seen; and what the picker calls that (picker_requests_total). Unchanged, the first five would be
    # `completions` at most: the picker knows a path by its tail. `%2F` stays: it is one model, called org/model.
    "/v1/chat//completions": (CHAT, "chat_completions"),
    "/v1/chat/x/../completions": (CHAT, "chat_completions"),
    "/v1/chat/x/%2e%2e/completions": (CHAT, "chat_completions"),
    "/v1/chat/%2E/completions": (CHAT, "chat_completions"),
    "/../..//v1/chat/./completions": (CHAT, "chat_completions"),
    "/v1/models/org%2Fmodel/infer": ("/v1/models/org%2Fmodel/infer", "infer"),
}


@pytest.mark.parametrize("sent", PATHS)
def test_the_picker_and_the_model_server_see_one_path(
    plain: EnvoyProcess, picker: PickerProcess, upstream: Upstream, rid: str, sent: str
) -> None:
    seen, name = PATHS[sent]
    query = f"?id={rid}&next=//a/../b"
    before = picker.metric("picker_requests_total", path=name)
    assert post(plain.port, sent + query, BODY).status == 200
    assert upstream.recorded(rid).target == seen + query
    wait_until(lambda: picker.metric("picker_requests_total", path=name) == before + 1, "it saw another path")


def test_headers_with_underscores_are_dropped(plain: EnvoyProcess, upstream: Upstream, rid: str) -> None:
    headers = [("x_user", "a"), ("x-team", "b"), ("x_gateway_destination_endpoint", "127.0.0.1:1")]
    assert post(plain.port, f"{CHAT}?id={rid}-1", BODY, headers).status == 200
    with Http2Client(plain.port) as client:
        stream = client.start("POST", f"{CHAT}?id={rid}-2", headers)
        client.data(stream, BODY, end=True)
        assert client.response(stream).status == 200
    for version in (1, 2):
        arrived = upstream.recorded(f"{rid}-{version}")
        assert arrived.values("x-team") == ["b"]
        assert not [name for name, _ in arrived.headers if "_" in name]


def test_a_destination_of_the_clients_own_is_stripped_on_every_route() -> None:
    """Also for files and upgrades. No picker is there to overwrite it, and the filter fails open: so it shows."""
    upgrade = [("connection", "Upgrade"), ("upgrade", "websocket"), ("sec-websocket-version", "13")]
    upgrade.append(("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="))
    nobody = on_this_machine(bootstrap({"standalone": {"enabled": True}}), f"127.0.0.1:{free_ports(1)[0]}")
    with Upstream() as secret, EnvoyProcess(nobody) as envoy:
        spoofed = [(DESTINATION, secret.address), ("X-Gateway-Destination-Endpoint", secret.address)]
        assert post(envoy.port, CHAT, BODY, spoofed).status == 503
        with Http1Client(envoy.port) as client:
            kind = [("content-type", "multipart/form-data; boundary=X"), ("transfer-encoding", "chunked")]
            client.head("POST", "/v1/audio/transcriptions", [*kind, *spoofed])
            client.chunk(b"--X--")
            client.last_chunk()
            assert client.response().status == 503
        with Http1Client(envoy.port) as client:
            client.head("GET", "/v1/realtime", [*upgrade, *spoofed])
            assert client.response().status == 503
        assert secret.requests == []


def test_the_access_log_says_why_and_where_and_no_query(picker: PickerProcess, upstream: Upstream, rid: str) -> None:
    """The flags are Envoy's: `DC` for a client that left, `UC` for a model server that hung up."""
    private = [("authorization", "Bearer secret"), ("cookie", "secret"), ("referer", "http://x/?api_key=secret")]
    with envoy_for(picker) as envoy:
        for name, target, body in (
            ("served", f"{CHAT}?id={rid}&api_key=secret", BODY),
            ("refused", "/v1/./chat//completions?api_key=secret", b"{"),
            ("cut", f"{CHAT}?do=close&api_key=secret", BODY),
        ):
            post(envoy.port, target, body, [*private, ("x-request-id", f"{rid}-{name}")])
        with unfinished(envoy, 100):
            wait_until(lambda: stat(envoy, ACTIVE) == 1, "it never came")
        wait_until(lambda: stat(envoy, ACTIVE) == 0, "its end was not noticed")
        lines = access_log(envoy)
    assert "secret" not in json.dumps(lines)
    fields = ("request_id", "status", "flags", "reason", "upstream", "path")
    *found, left = [tuple(line[field] for field in fields) for line in lines]
    assert found == [
        (f"{rid}-served", 200, "-", None, upstream.address, CHAT),
        (f"{rid}-refused", 400, "-", "invalid_json", None, CHAT),
        (f"{rid}-cut", 503, "UC", None, upstream.address, CHAT),
    ]
    assert re.fullmatch(r"[0-9a-f-]{36}", left[0]), "Envoy names who did not name himself"
    assert left[1:] == (0, "DC", None, None, CHAT)


def access_log(envoy: EnvoyProcess) -> list[dict[str, Any]]:
    """All its lines. It writes them every ten seconds, or at its end: so it is ended."""
    os.kill(envoy.pid, signal.SIGTERM)
    wait_until(lambda: not envoy.is_running(), "it did not end")
    return [json.loads(line) for line in envoy.log().splitlines() if line.startswith("{")]


ADMIN = ["/", "/config_dump", "/clusters", "/stats", "/certs", "/memory", "/server_info", "/quitquitquit", "/logging"]
ADMIN += ["/stats/prometheus/", "/stats/prometheus/../config_dump", "/stats/prometheus%2f..%2f..%2fconfig_dump"]
ADMIN += ["//stats/prometheus/../../config_dump", "/stats/prometheus;/config_dump", "/drain_listeners"]


@pytest.mark.parametrize("mode", ["sidecar", "service"])
def test_where_the_monitor_looks_are_the_statistics_and_nothing_else_of_the_admin_interface(
    picker: PickerProcess, mode: str
) -> None:
    """From the monitor to the container's port, to the listener with that port, to the page."""
    values = merged(BASE, {"standalone": {"enabled": True, "mode": mode}, "metrics": {"monitor": {"enabled": True}}})
    found = render(values)
    (scraped,) = only(found, "PodMonitor")["spec"]["podMetricsEndpoints"]
    google = render(merged(values, {"metrics": {"monitor": {"kind": "gmp"}}}))
    (scraped_by_google,) = only(google, "PodMonitoring", "demo-picker-envoy")["spec"]["endpoints"]
    assert [scraped_by_google[key] for key in ("port", "path")] == [scraped[key] for key in ("port", "path")]
    pod = only(found, "Deployment", "demo-picker-envoy" if mode == "service" else "demo-picker")["spec"]["template"]
    (container,) = (each for each in pod["spec"]["initContainers"] if each["name"] == "envoy")
    (number,) = (port["containerPort"] for port in container["ports"] if port["name"] == scraped["port"])
    config = bootstrap({"standalone": {"enabled": True, "mode": mode}})
    (name,) = (
        each["name"]
        for each in config["static_resources"]["listeners"]
        if each["address"]["socket_address"]["port_value"] == number
    )
    with envoy_for(picker, mode=mode) as envoy:
        port = listener_port(envoy, name)
        assert post(envoy.port, CHAT, BODY).status == 200
        page = request(port, "GET", scraped["path"])
        counter = 'envoy_http_downstream_rq_total{envoy_http_conn_manager_prefix="requests"} 1\n'
        assert page.status == 200 and counter.encode() in page.body
        for path in ADMIN:
            answers = {method: request(port, method, path).status for method in ("GET", "POST")}
            assert answers == {"GET": 404, "POST": 404}, path
        assert envoy.is_running()
