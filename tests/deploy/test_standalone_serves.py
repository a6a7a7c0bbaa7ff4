"""The chart's standalone Envoy in front of the real picker, TLS on, as the chart installs both."""

from collections.abc import Iterator

import pytest

from picker.lab.envoy import EnvoyProcess
from tests.deploy.standalone import bootstrap, on_this_machine
from tests.deploy.values import Values
from tests.envoy.clients import Http1Client, post
from tests.envoy.picker_process import PickerProcess, wait_until
from tests.envoy.upstream import Upstream, sse_events
from tests.ports import free_ports

pytestmark = pytest.mark.usefixtures("helm")

CHAT = "/v1/chat/completions"
BODY = b'{"model":"m","messages":[{"role":"user","content":"hello"}]}'


@pytest.fixture
def picker(upstream: Upstream) -> Iterator[PickerProcess]:
    with PickerProcess([upstream.address], insecure=False) as started:
        yield started


def envoy_for(picker: PickerProcess, **standalone: object) -> EnvoyProcess:
    values: Values = {"standalone": {"enabled": True, **standalone}}
    return EnvoyProcess(on_this_machine(bootstrap(values), picker.grpc_address))


@pytest.mark.parametrize(
    "shape",
    [
        {},
        {"mode": "service"},
        {"responseBodyMode": "NONE"},
        {"requestBodyMode": "FULL_DUPLEX_STREAMED", "responseBodyMode": "FULL_DUPLEX_STREAMED"},
    ],
    ids=["sidecar", "service", "headers-only", "duplex"],
)
def test_a_request_reaches_the_pick_and_not_what_the_client_names(
    picker: PickerProcess, upstream: Upstream, shape: Values, request: pytest.FixtureRequest
) -> None:
    name = request.node.callspec.id
    elsewhere = f"127.0.0.1:{free_ports(1)[0]}"
    with envoy_for(picker, **shape) as envoy:
        headers = [("x-gateway-destination-endpoint", elsewhere)]
        response = post(envoy.port, f"{CHAT}?id={name}", BODY, headers)
    assert response.status == 200
    arrived = upstream.recorded(name)
    assert bytes(arrived.body) == BODY
    assert arrived.values("x-gateway-destination-endpoint") == [upstream.address]
    if "requestBodyMode" not in shape:
        assert arrived.values("content-length") == [str(len(BODY))]


def test_a_stream_outlives_its_picker(picker: PickerProcess, upstream: Upstream) -> None:
    """kill -9 in the middle of an answer: the answer ends as it should, the next request gets 503."""
    with envoy_for(picker) as envoy, Http1Client(envoy.port) as client:
        client.head("POST", f"{CHAT}?id=survivor&do=sse&n=5&stall=1", [("content-length", str(len(BODY)))])
        client.send(BODY)
        head = client.read_head()
        assert (head.status, client.read_chunk()) == (200, sse_events(5)[0])
        picker.kill()
        upstream.recorded("survivor").release.set()
        rest = client.read_body(head)
        assert b"".join([sse_events(5)[0], rest.body]) == b"".join(sse_events(5))
        assert post(envoy.port, f"{CHAT}?id=orphan", BODY).status == 503
        assert not upstream.saw("orphan")


def test_a_websocket_upgrade_passes(picker: PickerProcess, upstream: Upstream) -> None:
    with envoy_for(picker) as envoy, Http1Client(envoy.port) as client:
        headers = [
            ("connection", "Upgrade"),
            ("upgrade", "websocket"),
            ("sec-websocket-version", "13"),
            ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
        ]
        client.head("GET", "/v1/realtime?id=socket", headers)
        assert client.read_head().status == 101


def test_a_body_over_the_limit_is_refused_and_never_sent(picker: PickerProcess, upstream: Upstream) -> None:
    with envoy_for(picker, requestBodyBytesMax=65536) as envoy:
        assert post(envoy.port, f"{CHAT}?id=large", b"x" * 200_000).status == 413
    assert not upstream.saw("large")


def test_a_draining_picker_is_still_asked_by_its_sidecar(picker: PickerProcess, upstream: Upstream) -> None:
    """Requests arrive until the cluster's routing has changed; the sidecar checks `liveness`, not readiness."""
    with envoy_for(picker) as envoy:
        assert post(envoy.port, f"{CHAT}?id=before", BODY).status == 200
        picker.terminate()
        wait_until(lambda: "draining" in picker.log(), "the drain never began")
        failures = "cluster.picker.health_check.attempt"
        checks = envoy.stats(failures)[failures]
        wait_until(lambda: envoy.stats(failures)[failures] >= checks + 3, "no health check came")
        assert post(envoy.port, f"{CHAT}?id=during", BODY).status == 200
