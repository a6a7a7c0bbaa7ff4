"""The chart's Envoy under pressure: more connections than it may have, more memory than it may take.

What is expected stands in docs/chart.md ("Standalone") and in Envoy's own documentation of its overload manager.
"""

import contextlib
import socket

import pytest

from picker.lab.envoy import EnvoyProcess
from tests.deploy.standalone import PATIENCE_SECONDS, envoy_for, listener_port, stat, unfinished
from tests.envoy.clients import Http1Client, Http2Client, request
from tests.envoy.lab import BODY, CHAT, MIB
from tests.envoy.picker_process import PickerProcess, wait_until
from tests.envoy.upstream import Upstream

pytestmark = pytest.mark.usefixtures("helm")


def active(envoy: EnvoyProcess, action: str) -> int:
    """Whether an overload action is taken."""
    return stat(envoy, f"overload.envoy.overload_actions.{action}.active")


def is_refused(envoy: EnvoyProcess) -> bool:
    """Whether a new connection is closed without a word."""
    with socket.create_connection(("127.0.0.1", envoy.port), timeout=PATIENCE_SECONDS) as client:
        try:
            client.sendall(b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n")
            return client.recv(1) == b""
        except (ConnectionResetError, BrokenPipeError):
            return True


def test_one_connection_beyond_the_limit_is_refused_and_probes_are_not(picker: PickerProcess) -> None:
    with envoy_for(picker, connectionsMax=3) as envoy, contextlib.ExitStack() as stack:
        kept = [stack.enter_context(Http1Client(envoy.port)) for _ in range(3)]
        for _ in range(2):
            for client in kept:
                client.head("GET", "/v1/models?do=json")
                assert client.response().status == 200
            assert is_refused(envoy)
        ready = listener_port(envoy, "ready")
        assert request(ready, "GET", "/ready").status == 200
        assert request(ready, "GET", "/stats/prometheus").status == 200
        assert "LIVE" in envoy.admin("/ready"), "`picker drain-envoy` asks there"
        kept.pop().close()
        wait_until(lambda: not is_refused(envoy), "nobody came in when one had left")


def is_taken(envoy: EnvoyProcess) -> bool:
    """Whether a new connection gets any answer at all within a second."""
    with Http1Client(envoy.port) as client:
        client.head("GET", "/v1/models")
        client.socket.settimeout(1)
        try:
            return client.socket.recv(1) != b""
        except TimeoutError:
            return False


def test_over_its_heap_it_takes_nothing_and_says_so_where_it_is_scraped(picker: PickerProcess) -> None:
    """Envoy's own start takes more than nine tenths of 1 MiB."""
    with envoy_for(picker, resources={"limits": {"memory": "1Mi"}}) as envoy:
        actions = ["shrink_heap", "reset_high_memory_stream", "stop_accepting_requests", "stop_accepting_connections"]
        wait_until(lambda: all(active(envoy, action) for action in actions), "there is no pressure")
        ready = listener_port(envoy, "ready")
        # The worker hears of it a moment after the statistics say so.
        wait_until(lambda: not is_taken(envoy), "new connections are still taken", PATIENCE_SECONDS)
        taken = stat(envoy, "http.requests.downstream_cx_total")
        assert not is_taken(envoy)
        assert stat(envoy, "http.requests.downstream_cx_total") == taken
        page = request(ready, "GET", "/stats/prometheus").body.decode()
        for action in actions:
            assert f"\nenvoy_overload_envoy_overload_actions_{action}_active{{}} 1\n" in page
        assert request(ready, "GET", "/ready").status == 200, "or it would be put aside when it is needed most"


def test_uploads_that_fill_the_heap_keep_others_out_until_they_end(picker: PickerProcess) -> None:
    """Envoy's words of the two actions: 503 at once for new requests, and no new connection is taken."""
    with (
        envoy_for(picker, resources={"limits": {"memory": "64Mi"}}) as envoy,
        Http1Client(envoy.port) as kept,
        contextlib.ExitStack() as stack,
    ):

        def status() -> int:
            kept.head("GET", "/v1/models?do=json")
            return kept.response().status

        assert (status(), active(envoy, "stop_accepting_requests")) == (200, 0)
        # Three leave room, so the fourth is still taken; with it they hold more than nine tenths of the limit.
        uploads = [stack.enter_context(unfinished(envoy, 15 * MIB, 15 * MIB - 1)) for _ in range(4)]
        wait_until(lambda: active(envoy, "stop_accepting_connections") == 1, "60 MiB do not fill 57", PATIENCE_SECONDS)
        wait_until(lambda: status() == 503, "requests are still taken")  # the worker hears of it a moment later
        with Http1Client(envoy.port) as waiting:
            waiting.head("GET", "/v1/models?do=json")
            for upload in uploads:
                upload.close()
            assert waiting.response().status == 200, "it waited in the backlog"
        assert active(envoy, "stop_accepting_connections") == 0


def test_of_http_2_the_largest_holders_go_and_small_requests_stay(picker: PickerProcess, upstream: Upstream) -> None:
    with (
        envoy_for(picker, resources={"limits": {"memory": "64Mi"}}) as envoy,
        Http2Client(envoy.port) as small,
        contextlib.ExitStack() as stack,
    ):
        stream = small.start("POST", f"{CHAT}?id=small", [("content-length", str(len(BODY)))])
        small.data(stream, BODY[:10])
        for _ in range(5):
            client = stack.enter_context(Http2Client(envoy.port))
            large = client.start("POST", CHAT)
            all(client.try_data(large, b" " * MIB) for _ in range(15))
        count = "envoy.overload_actions.reset_high_memory_stream.count"
        wait_until(lambda: stat(envoy, count) >= 1, "none was ended", PATIENCE_SECONDS)
        small.data(stream, BODY[10:], end=True)
        assert small.response(stream).status == 200
        assert bytes(upstream.recorded("small").body) == BODY
