"""What Envoy does between a request and an answer when something else than the picker steps in."""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from picker.lab.envoy import Balancing, BodySendMode, EnvoyProcess, build
from picker.lab.envoy_config import DESTINATION
from tests.envoy.clients import Http1Client, Http2Client, post, request
from tests.envoy.lab import BODY, CHAT, FD, MIB, Lab
from tests.envoy.picker_process import PickerProcess, wait_until
from tests.envoy.test_operations import EACH_TRANSPORT, HEALTHY
from tests.envoy.upstream import sse_events

JSON = [("content-type", "application/json")]
EACH_RESPONSE_MODE = pytest.mark.parametrize(
    "response_body", [BodySendMode.NONE, BodySendMode.STREAMED, BodySendMode.BUFFERED, FD]
)


def manager_of(bootstrap: dict[str, Any]) -> dict[str, Any]:
    found = bootstrap["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    assert isinstance(found, dict)
    return found


@EACH_RESPONSE_MODE
def test_an_answer_of_a_filter_before_us(lab: Lab, response_body: BodySendMode, rid: str) -> None:
    """Another filter answers before the picker saw the request: response headers are the first message."""
    bootstrap = build(lab.config(response_body=response_body))
    fault = {
        "name": "envoy.filters.http.fault",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.fault.v3.HTTPFault",
            "abort": {"http_status": 418, "percentage": {"numerator": 100}},
            "headers": [{"name": "x-teapot", "present_match": True}],
        },
    }
    manager_of(bootstrap)["http_filters"].insert(0, fault)
    unseen = lab.picker.metric("picker_requests_total", outcome="unseen")
    with EnvoyProcess(bootstrap) as envoy:
        for method, body in (("POST", BODY), ("GET", None)):
            answer = request(envoy.port, method, f"{CHAT}?id={rid}", [("x-teapot", "1")], body)
            assert (answer.status, answer.body) == (418, b"fault filter abort")
        assert post(envoy.port, f"{CHAT}?id={rid}", BODY).status == 200
    wait_until(lambda: lab.picker.metric("picker_requests_total", outcome="unseen") > unseen, "never told")
    lab.picker.wait_idle()


@EACH_RESPONSE_MODE
def test_envoys_own_413(lab: Lab, response_body: BodySendMode, rid: str) -> None:
    """BUFFERED with Envoy's default limit of 1 MiB: Envoy answers while the picker waits for the body."""
    envoy = lab.envoy(
        lab.config(request_body=BodySendMode.BUFFERED, response_body=response_body, buffer_bytes_max=None)
    )
    with Http1Client(envoy.port) as client:
        client.head("POST", f"{CHAT}?id={rid}", [*JSON, ("content-length", str(3 * MIB))])
        with contextlib.suppress(ConnectionError):
            for _ in range(3):
                client.send(b"x" * MIB)
        answer = client.response()
    assert answer.status == 413
    assert answer.value("x-picker-reason") is None
    lab.picker.wait_idle()
    assert post(envoy.port, f"{CHAT}?id={rid}-next", BODY).status == 200


@pytest.mark.parametrize("response_body", [BodySendMode.NONE, BodySendMode.STREAMED, FD])
def test_a_body_that_does_not_come_in_time(lab: Lab, response_body: BodySendMode, rid: str) -> None:
    """Full duplex has no timeout of Envoy's: the picker waits `limits.body_wait_seconds`, then picks by load and
    lets the body pass as it comes. Nothing is lost."""
    with PickerProcess(lab.addresses, "limits: {body_wait_seconds: 0.3}\n") as picker:
        config = lab.config(picker_address=picker.grpc_address, response_body=response_body)
        with EnvoyProcess(config) as envoy, Http1Client(envoy.port) as client:
            client.head("POST", f"{CHAT}?id={rid}", [*JSON, ("transfer-encoding", "chunked")])
            client.chunk(BODY[:20])
            wait_until(lambda: any(upstream.saw(rid) for upstream in lab.upstreams), "the picker waits for ever")
            for byte in BODY[20:40]:
                client.chunk(bytes([byte]))
            client.chunk(BODY[40:])
            client.last_chunk()
            assert client.response().status == 200
            got = lab.upstream_of(rid).recorded(rid)
            assert bytes(got.body) == BODY
            assert got.values(DESTINATION) == [lab.upstream_of(rid).address]
            wait_until(lambda: picker.in_flight() == 0, "in flight")
            assert picker.metric("picker_decisions_total", reason="headers") == 1


def test_not_a_byte_of_the_body_comes(lab: Lab, rid: str) -> None:
    """The same, where nothing but the headers came."""
    with PickerProcess(lab.addresses, "limits: {body_wait_seconds: 0.3}\n") as picker:
        config = lab.config(picker_address=picker.grpc_address, response_body=FD)
        with EnvoyProcess(config) as envoy, Http1Client(envoy.port) as client:
            client.head("POST", f"{CHAT}?id={rid}", [*JSON, ("content-length", str(len(BODY)))])
            wait_until(lambda: any(upstream.saw(rid) for upstream in lab.upstreams), "the picker waits for ever")
            client.send(BODY)
            assert client.response().status == 200
            assert bytes(lab.upstream_of(rid).recorded(rid).body) == BODY


@EACH_TRANSPORT
@pytest.mark.parametrize("request_body", [FD, BodySendMode.BUFFERED, BodySendMode.STREAMED])
def test_either_transport(lab: Lab, transport: str, request_body: BodySendMode, rid: str) -> None:
    """The lean transport and grpcio carry the same bytes: small, 10 MB, many at once, SSE."""
    with PickerProcess(lab.addresses, flags=["--transport", transport]) as picker:
        config = lab.config(picker_address=picker.grpc_address, request_body=request_body, response_body=FD)
        with EnvoyProcess(config) as envoy:
            body = b'{"prompt":"' + bytes(range(97, 123)) * 400_000 + b'"}'
            assert post(envoy.port, f"/v1/completions?id={rid}-large&do=echo", body).body == body
            with Http2Client(envoy.port) as client:
                streams = []
                for number in range(50):
                    streams.append(client.start("POST", f"{CHAT}?id={rid}.{number}&do=sse&n=50", JSON))
                    client.data(streams[-1], BODY, end=True)
                for stream in streams:
                    assert client.response(stream).body == b"".join(sse_events(50))
            wait_until(lambda: picker.in_flight() == 0 and picker.ended() == 51, "not all ended")


@contextlib.contextmanager
def two_pickers(lab: Lab, config: str = "") -> Iterator[tuple[PickerProcess, EnvoyProcess]]:
    """Two replicas behind one Envoy, fail-closed, with a health check; the first of them is yours to end."""
    with PickerProcess(lab.addresses, config) as first, PickerProcess(lab.addresses, config) as second:
        settings = lab.config(picker_address=first.grpc_address, response_body=FD, picker_health_check_seconds=0.1)
        bootstrap = build(settings)
        [members] = bootstrap["static_resources"]["clusters"][1]["load_assignment"]["endpoints"]
        host, _, port = second.grpc_address.rpartition(":")
        address = {"socket_address": {"address": host, "port_value": int(port)}}
        members["lb_endpoints"].append({"endpoint": {"address": address}})
        with EnvoyProcess(bootstrap) as envoy:
            yield first, envoy


DRAIN = "drain: {accept_seconds: 3, seconds: 30}\n"


def test_one_of_two_pickers_drains(lab: Lab, rid: str) -> None:
    """A rolling update, fail-closed: not one request fails."""
    with two_pickers(lab, DRAIN) as (first, envoy):
        first.terminate()
        while first.process.poll() is None:
            assert post(envoy.port, f"{CHAT}?id={rid}", BODY).status == 200
        assert first.process.returncode == 0
        for _ in range(10):
            assert post(envoy.port, f"{CHAT}?id={rid}", BODY).status == 200


def test_one_of_two_pickers_is_killed(lab: Lab, rid: str) -> None:
    """Until the health check notices, requests that met the dead one get 503; after that, none."""
    with two_pickers(lab) as (first, envoy):
        first.kill()
        statuses = set()

        def noticed() -> bool:
            statuses.add(post(envoy.port, f"{CHAT}?id={rid}", BODY).status)
            return envoy.stats(HEALTHY)[HEALTHY] == 1

        wait_until(noticed, "the health check never noticed")
        assert statuses <= {200, 503}
        for _ in range(10):
            assert post(envoy.port, f"{CHAT}?id={rid}", BODY).status == 200


def test_a_dead_first_choice_stops_being_first(lab: Lab) -> None:
    """With a fallback list nobody sees a failure but the proxy, which tells who served: whoever was passed over
    has failed, and is put aside like any endpoint that fails."""
    alive = lab.upstreams[0]
    pool = ("127.0.0.1:9", alive.address)
    # Metrics elsewhere: else the picker sees for itself that the port is closed.
    config = "destinations_max: 2\nepsilon: 0\nejection: {failures: 3, seconds: 60}\nengine_metrics: {port: 7}\n"
    settings = {"balancing": Balancing.OVERRIDE_HOST, "endpoints": pool, "retries_max": 2}
    with (
        PickerProcess(pool, config) as picker,
        EnvoyProcess(lab.config(picker_address=picker.grpc_address, **settings)) as envoy,
    ):
        firsts = []
        for number in range(40):
            assert post(envoy.port, f"{CHAT}?id=first-{number}", BODY).status == 200
            firsts += alive.recorded(f"first-{number}").values(DESTINATION)
        assert sum(first.startswith("127.0.0.1:9,") for first in firsts) == 3
        assert picker.metrics()["picker_ejected_endpoints"] == 1
