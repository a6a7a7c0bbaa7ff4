"""Dead and failing model servers behind the real Envoy: fallback lists, ejection, and who is charged."""

import itertools
import socket
import time
from collections.abc import Iterator

import pytest

from picker.lab.envoy import Balancing, BodySendMode, EnvoyProcess
from picker.lab.envoy_config import DESTINATION
from tests.envoy.clients import Http1Client, post
from tests.envoy.lab import BODY, CHAT, FD, Lab
from tests.envoy.picker_process import PickerProcess, wait_until
from tests.envoy.upstream import Upstream, fresh_id, sse_events

EACH_MODE = pytest.mark.parametrize(
    "modes", [(FD, FD), (BodySendMode.BUFFERED, BodySendMode.NONE)], ids=["duplex", "buffered"]
)
IN_FLIGHT = "picker_endpoint_in_flight_requests"
LONG = b'{"model":"m","messages":[{"role":"user","content":"%b"}]}'


def long_body(seed: int) -> bytes:
    """A prompt of many blocks that no other seed shares."""
    return LONG % (f"{seed} is a number. ".encode() * 800)


@pytest.fixture
def dead() -> Iterator[socket.socket]:
    """A port that refuses connections and that nobody else can take."""
    with socket.socket() as bound:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(("127.0.0.1", 0))
        yield bound


UNSEEN = "engine_metrics: {port: 9}\n"
"""Metrics are looked for at another port, so the picker does not see for itself that an endpoint's own is closed."""


def address_of(bound: socket.socket) -> str:
    return f"127.0.0.1:{bound.getsockname()[1]}"


@EACH_MODE
def test_fallback_list(lab: Lab, dead: socket.socket, modes: tuple[BodySendMode, BodySendMode]) -> None:
    """The first of the list refuses, the second serves: the client sees nothing of it, the charge moves to who
    served, and so do the prefixes."""
    gone = address_of(dead)
    with Upstream() as alive:
        pool = (gone, alive.address)
        config = f"destinations_max: 2\nepsilon: 0\nejection: {{failures: 1000}}\n{UNSEEN}"
        with (
            PickerProcess(pool, config) as picker,
            EnvoyProcess(
                lab.config(
                    balancing=Balancing.OVERRIDE_HOST,
                    endpoints=pool,
                    retries_max=2,
                    request_body=modes[0],
                    response_body=modes[1],
                    picker_address=picker.grpc_address,
                )
            ) as envoy,
        ):
            for seed in range(50):
                rid = fresh_id()
                body = long_body(seed)
                with Http1Client(envoy.port) as client:
                    client.head("POST", f"{CHAT}?id={rid}&do=sse&n=2&stall=1", [("content-length", str(len(body)))])
                    client.send(body)
                    head = client.read_head()
                    got = alive.recorded(rid)
                    [destination] = got.values(DESTINATION)
                    if destination == f"{gone},{alive.address}":
                        wait_until(lambda: picker.endpoint_metric(IN_FLIGHT, alive.address) == 1, "charge did not move")
                        assert picker.endpoint_metric(IN_FLIGHT, gone) == 0
                    got.release.set()
                    assert head.status == 200
                    assert client.read_body(head).body == b"".join(sse_events(2))
                    assert bytes(got.body) == body
                if destination == f"{gone},{alive.address}":
                    break
                assert destination == f"{alive.address},{gone}"
            else:
                raise AssertionError("the dead endpoint was never first: two idle endpoints should take turns")
            again = fresh_id()
            assert post(envoy.port, f"{CHAT}?id={again}", body).status == 200
            assert alive.recorded(again).values(DESTINATION) == [f"{alive.address},{gone}"], "prefixes did not move"
            picker.wait_idle()


@EACH_MODE
def test_a_refusing_endpoint_is_put_aside(
    lab: Lab, dead: socket.socket, modes: tuple[BodySendMode, BodySendMode]
) -> None:
    """ORIGINAL_DST: the client sees the 503 of the proxy, the picker sees it too, and the third is the last.
    When the endpoint is back, so is its traffic."""
    gone = address_of(dead)
    config = f"epsilon: 0\nejection: {{failures: 3, seconds: 0.5, seconds_max: 0.5}}\n{UNSEEN}"
    with (
        Upstream() as alive,
        PickerProcess([gone, alive.address], config) as picker,
        EnvoyProcess(
            lab.config(request_body=modes[0], response_body=modes[1], picker_address=picker.grpc_address)
        ) as envoy,
    ):
        statuses = [post(envoy.port, CHAT, long_body(number)).status for number in range(100)]
        assert set(statuses) == {200, 503}
        # Three put it aside; after that, one trial in each half second.
        assert 3 <= statuses.count(503) < 20
        port = dead.getsockname()[1]
        dead.close()
        seeds = itertools.count(1000)
        with Upstream(port=port) as back:

            def came_back() -> bool:
                # A prompt of its own each time: affinity to the other would be right, and hide what is asked.
                assert post(envoy.port, CHAT, long_body(next(seeds))).status == 200
                return len(back.requests) > 3

            wait_until(came_back, "the endpoint that is back gets nothing")
        picker.wait_idle()


@EACH_MODE
def test_a_port_that_refuses_is_seen_without_a_request(
    lab: Lab, dead: socket.socket, modes: tuple[BodySendMode, BodySendMode]
) -> None:
    """Its metrics page is at the port that serves: while others answer, nobody is sent there."""
    with (
        Upstream() as alive,
        PickerProcess([address_of(dead), alive.address], "epsilon: 0\n") as picker,
        EnvoyProcess(
            lab.config(request_body=modes[0], response_body=modes[1], picker_address=picker.grpc_address)
        ) as envoy,
    ):
        wait_until(lambda: picker.metric("picker_closed_endpoints") == 1, "nobody saw that it refuses")
        assert {post(envoy.port, CHAT, long_body(number)).status for number in range(50)} == {200}
        picker.wait_idle()


@EACH_MODE
def test_errors_put_aside_and_refusals_do_not(lab: Lab, modes: tuple[BodySendMode, BodySendMode]) -> None:
    """500 in a row eject; 4xx and 429 are the client's or the load's, never the endpoint's fault."""
    config = "epsilon: 0\nejection: {failures: 3, seconds: 60}\n"
    with (
        Upstream() as first,
        Upstream() as second,
        PickerProcess([first.address, second.address], config) as picker,
        EnvoyProcess(
            lab.config(request_body=modes[0], response_body=modes[1], picker_address=picker.grpc_address)
        ) as envoy,
    ):
        for code in (400, 404, 429):
            for number in range(8):
                assert post(envoy.port, f"{CHAT}?do=status&code={code}", long_body(number)).status == code
        assert picker.metrics()["picker_ejected_endpoints"] == 0
        for number in range(40):
            assert post(envoy.port, f"{CHAT}?do=status&code=500", long_body(number)).status == 500
        # Both failed, and a pool that would be empty is used as it is.
        assert picker.metrics()["picker_ejected_endpoints"] >= 1
        assert post(envoy.port, CHAT, BODY).status == 200


def test_a_lone_endpoint_is_never_put_aside(lab: Lab) -> None:
    config = "ejection: {failures: 1, seconds: 60}\n"
    with (
        Upstream() as alone,
        PickerProcess([alone.address], config) as picker,
        EnvoyProcess(lab.config(picker_address=picker.grpc_address)) as envoy,
    ):
        for _ in range(5):
            assert post(envoy.port, f"{CHAT}?do=status&code=500", BODY).status == 500
        assert post(envoy.port, CHAT, BODY).status == 200


def test_a_5xx_is_not_retried(lab: Lab, rid: str) -> None:
    """One answer means that the work was done: a retry would have it done twice."""
    config = lab.config(balancing=Balancing.OVERRIDE_HOST, retries_max=3)
    envoy = lab.envoy(config)
    assert post(envoy.port, f"{CHAT}?id={rid}&do=status&code=503", BODY).status == 503
    assert sum(request.id == rid for upstream in lab.upstreams for request in upstream.requests) == 1


@pytest.mark.parametrize("how", ["do=hang", "do=sse&n=3&stall=0"], ids=["before its headers", "after them"])
def test_a_server_that_hangs_for_a_client_that_gives_up_late_is_put_aside(lab: Lab, how: str) -> None:
    """Its session goes on elsewhere at once. Others are answered meanwhile, and answers pass the picker."""
    body = long_body(1).replace(b'{"model"', b'{"stream":true,"model"')
    with Upstream() as one, Upstream() as other:
        pool = (one.address, other.address)
        config = f"epsilon: 0\nejection: {{failures: 1}}\n{UNSEEN}"
        with (
            PickerProcess(pool, config) as picker,
            EnvoyProcess(lab.config(response_body=BodySendMode.STREAMED, picker_address=picker.grpc_address)) as envoy,
        ):
            rid = fresh_id()
            assert post(envoy.port, f"{CHAT}?id={rid}&do=sse&n=1", body).status == 200
            home, away = (one, other) if one.saw(rid) else (other, one)
            rid = fresh_id()
            with Http1Client(envoy.port) as client:
                client.head("POST", f"{CHAT}?id={rid}&{how}", [("content-length", str(len(body)))])
                client.send(body)
                home.recorded(rid)
                deadline = time.monotonic() + 3.0
                while time.monotonic() < deadline:
                    assert post(envoy.port, f"{CHAT}?id={fresh_id()}&do=sse&n=1", long_body(2)).status == 200
                    time.sleep(0.2)
            wait_until(lambda: picker.metric("picker_ejected_endpoints") == 1, "nobody was put aside")
            rid = fresh_id()
            assert post(envoy.port, f"{CHAT}?id={rid}&do=sse&n=1", body).status == 200
            away.recorded(rid)
            picker.wait_idle()
