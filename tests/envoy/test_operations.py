"""Starting, pinging, draining, dying: what platform people do to the picker while Envoy stands before it."""

import contextlib
import json
import os
import socket
import ssl
from collections.abc import Iterator, Sequence

import grpc
import pytest

from picker import __version__
from picker.lab.envoy import Balancing, BodySendMode, EnvoyProcess
from picker.lab.envoy_config import EXT_PROC_SERVICE
from tests.envoy.clients import Http1Client, Response, post
from tests.envoy.lab import BODY, CHAT, FD, Lab
from tests.envoy.picker_process import PickerProcess, wait_until
from tests.envoy.upstream import Upstream, sse_events

HEALTHY = "cluster.picker.membership_healthy"
RECEIVED = "cluster.picker.upstream_cx_rx_bytes_total"
PING_BYTES = 17
"""A frame header of 9 bytes and 8 of payload (RFC 9113 section 6.7), sent back as an acknowledgement."""
SERVICES = ["", "liveness", "readiness", EXT_PROC_SERVICE]
EACH_TRANSPORT = pytest.mark.parametrize("transport", ["h2", "grpcio"])


class Waiting:
    """A client that reads a stream which the model server holds back."""

    def __init__(self, port: int, rid: str) -> None:
        self.client = Http1Client(port)
        self.client.head("POST", f"{CHAT}?id={rid}&do=sse&n=3&stall=1", [("content-length", str(len(BODY)))])
        self.client.send(BODY)
        self.head = self.client.read_head()
        assert self.head.status == 200
        assert self.client.read_chunk() == sse_events(3)[0]

    def finish(self, upstream: Upstream, rid: str) -> None:
        """Let the model server go on, and expect all of the rest."""
        upstream.recorded(rid).release.set()
        with self.client:
            assert self.client.read_body(self.head).body == b"".join(sse_events(3)[1:])


@contextlib.contextmanager
def started(
    lab: Lab, config: str = "", *, flags: Sequence[str] = (), **envoy: object
) -> Iterator[tuple[PickerProcess, EnvoyProcess]]:
    """A picker of its own behind an Envoy of its own, full duplex both ways."""
    with (
        PickerProcess(lab.addresses, config, flags=flags) as picker,
        EnvoyProcess(lab.config(picker_address=picker.grpc_address, response_body=FD, **envoy)) as opened,
    ):
        yield picker, opened


def test_which_build_runs_is_said_in_the_log_and_on_the_metrics_page(lab: Lab) -> None:
    """And once, that it is the slow one."""
    compiled = os.environ.get("PICKER_COMPILED") == "1"
    with PickerProcess(lab.addresses) as picker:
        lines = [json.loads(line) for line in picker.log().splitlines()]
        build = "compiled" if compiled else "interpreted"
        kernels = "document,bulk,excerpt,headers,blocks,fused" if compiled else ""
        assert f'picker_build_info{{version="{__version__}",build="{build}",kernels="{kernels}"}}' in picker.metrics()
    assert lines[0]["message"] == "starting"
    assert (lines[0]["version"], lines[0]["build"], lines[0]["kernels"]) == (__version__, build, kernels)
    slow = [line["level"] for line in lines if "interpreted build" in line["message"]]
    assert slow == ([] if compiled else ["warning"])


def test_decisions_are_timed_in_microseconds(lab: Lab) -> None:
    """An event loop's own clock may have milliseconds (uvloop), and a decision takes a tenth of one."""
    with started(lab) as (picker, envoy):
        for _ in range(5):
            assert post(envoy.port, CHAT, BODY).status == 200
        wait_until(lambda: picker.metric("picker_decision_seconds_count") == 5, "five decisions")
        milliseconds = picker.metric("picker_decision_seconds_sum") * 1e3
        assert milliseconds > 0 and abs(milliseconds - round(milliseconds)) > 1e-6


# Health ------------------------------------------------------------------------------------


@pytest.mark.parametrize("service", SERVICES)
def test_health_on_both_ports(lab: Lab, service: str) -> None:
    for address in (lab.picker.grpc_address, lab.picker.health_address):
        wait_until(lambda address=address: lab.picker.health(service, address) == "SERVING", f"{service} not serving")


def test_health_of_an_unknown_service(lab: Lab) -> None:
    """github.com/grpc/grpc doc/health-checking.md: NOT_FOUND."""
    for address in (lab.picker.grpc_address, lab.picker.health_address):
        assert lab.picker.health("no.such.Service", address) == "NOT_FOUND"


# TLS ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def with_tls(lab: Lab) -> Iterator[PickerProcess]:
    """Without --insecure: a self-signed certificate in memory."""
    with PickerProcess(lab.addresses, insecure=False) as picker:
        yield picker


@pytest.mark.parametrize("response_body", [FD, BodySendMode.NONE])
def test_envoy_over_tls(lab: Lab, with_tls: PickerProcess, response_body: BodySendMode, rid: str) -> None:
    config = lab.config(
        picker_address=with_tls.grpc_address,
        picker_tls=True,
        response_body=response_body,
        picker_health_check_seconds=0.2,
    )
    with EnvoyProcess(config) as envoy:
        assert post(envoy.port, f"{CHAT}?id={rid}&do=sse&n=100", BODY).body == b"".join(sse_events(100))
    assert bytes(lab.upstream_of(rid).recorded(rid).body) == BODY


def test_health_over_tls_and_in_plaintext(with_tls: PickerProcess) -> None:
    """Kubelets cannot probe gRPC over TLS: the health port stays plaintext."""
    host, _, port = with_tls.grpc_address.rpartition(":")
    certificate = ssl.get_server_certificate((host, int(port))).encode()
    credentials = grpc.ssl_channel_credentials(root_certificates=certificate)
    name = (("grpc.ssl_target_name_override", _common_name(certificate)),)
    channel = grpc.secure_channel(with_tls.grpc_address, credentials, options=name)
    assert with_tls.health("readiness", channel=channel) == "SERVING"
    assert with_tls.health("readiness", with_tls.health_address) == "SERVING"


def _common_name(certificate: bytes) -> str:
    from cryptography import x509

    names = x509.load_pem_x509_certificate(certificate).extensions.get_extension_for_class(x509.SubjectAlternativeName)
    return names.value.get_values_for_type(x509.DNSName)[0]


def test_http2_is_negotiated(with_tls: PickerProcess) -> None:
    """ALPN h2: proxies refuse a gRPC server without it."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    host, _, port = with_tls.grpc_address.rpartition(":")
    with socket.create_connection((host, int(port)), 10) as plain, context.wrap_socket(plain) as wrapped:
        assert wrapped.selected_alpn_protocol() == "h2"


# Streams of others -------------------------------------------------------------------------


@EACH_TRANSPORT
def test_pings_while_a_request_waits(lab: Lab, transport: str, rid: str) -> None:
    """Thirty pings without data in between: a default gRPC server calls that abuse, hangs up, and every waiting
    request dies with it."""
    with started(lab, flags=["--transport", transport], picker_ping_seconds=0.05) as (_, envoy):
        waiting = Waiting(envoy.port, rid)

        def received() -> int:
            return envoy.stats(RECEIVED)[RECEIVED]

        before = received()
        wait_until(lambda: received() >= before + 30 * PING_BYTES, "pings are not answered", 20)
        waiting.finish(lab.upstream_of(rid), rid)
        stats = envoy.stats("cluster.picker")
        assert stats["cluster.picker.upstream_cx_total"] == 1, "the connection was replaced"
        assert stats["cluster.picker.upstream_cx_destroy_remote"] == 0


GARBAGE = [b"\xff" * 50, b"\x00", b"\x12\xff\xff\xff\xff\x0f", b"\x0a\x03abc", b""]


@EACH_TRANSPORT
def test_a_broken_stream_harms_no_other(lab: Lab, transport: str, rid: str) -> None:
    """Garbage, messages out of order and streams cut off, beside a request that waits."""
    with started(lab, flags=["--transport", transport]) as (picker, envoy):
        waiting = Waiting(envoy.port, rid)
        with grpc.insecure_channel(picker.grpc_address) as channel:
            process = channel.stream_stream(f"/{EXT_PROC_SERVICE}/Process")
            for message in GARBAGE * 3:
                call = process(iter([message]), timeout=10)
                with pytest.raises(grpc.RpcError) as caught:
                    list(call)
                assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            for _ in range(10):
                process(iter([]), timeout=10).cancel()
        assert post(envoy.port, f"{CHAT}?id={rid}-b", BODY).status == 200
        waiting.finish(lab.upstream_of(rid), rid)
        wait_until(lambda: picker.in_flight() == 0, "in flight")


# Drain -------------------------------------------------------------------------------------


@EACH_TRANSPORT
def test_drain(lab: Lab, transport: str, rid: str) -> None:
    """SIGTERM: not ready at once, new requests still served for a while, running ones to their end, exit 0."""
    drain = "drain: {accept_seconds: 4, seconds: 60}\n"
    with started(lab, drain, flags=["--transport", transport]) as (picker, envoy):
        waiting = Waiting(envoy.port, rid)
        wait_until(lambda: picker.health("readiness", picker.health_address) == "SERVING", "not ready")
        picker.terminate()
        wait_until(lambda: picker.health("readiness", picker.health_address) == "NOT_SERVING", "still ready", 2)
        assert picker.health(EXT_PROC_SERVICE) == "NOT_SERVING"
        assert picker.health("liveness", picker.health_address) == "SERVING"
        assert post(envoy.port, f"{CHAT}?id={rid}-late", BODY).status == 200
        wait_until(lambda: post(envoy.port, CHAT, BODY).status != 200, "new streams are accepted for ever")
        assert picker.process.poll() is None, "ended while a request ran"
        waiting.finish(lab.upstream_of(rid), rid)
        assert picker.process.wait(10) == 0


def test_drain_gives_up_at_last(lab: Lab, rid: str) -> None:
    with started(lab, "drain: {accept_seconds: 0, seconds: 0.5}\n") as (picker, envoy):
        waiting = Waiting(envoy.port, rid)
        picker.terminate()
        assert picker.process.wait(10) == 0
        waiting.client.close()
    lab.upstream_of(rid).recorded(rid).release.set()


# Death -------------------------------------------------------------------------------------


def fallback(lab: Lab, picker: PickerProcess, request_body: BodySendMode, response_body: BodySendMode) -> EnvoyProcess:
    """The recommended settings: fail-open, health check, panic threshold 0, override_host."""
    return EnvoyProcess(
        lab.config(
            balancing=Balancing.OVERRIDE_HOST,
            picker_address=picker.grpc_address,
            request_body=request_body,
            response_body=response_body,
            failure_mode_allow=True,
            picker_health_check_seconds=0.1,
        )
    )


@pytest.mark.parametrize("request_body", [FD, BodySendMode.BUFFERED])
def test_killed_while_fail_open(lab: Lab, request_body: BodySendMode, rid: str) -> None:
    """kill -9. Once the health check noticed, requests go round robin with whole bodies; a new picker at the
    port is used again. Running answers go on where the request was BUFFERED. In full duplex Envoy cuts
    them, whatever fail-open says and although their bytes do not pass the picker: a cut that shows."""
    with PickerProcess(lab.addresses) as picker, fallback(lab, picker, request_body, BodySendMode.NONE) as envoy:
        assert post(envoy.port, f"{CHAT}?id={rid}-before", BODY).status == 200
        waiting = Waiting(envoy.port, rid)
        picker.kill()
        if request_body is BodySendMode.BUFFERED:
            waiting.finish(lab.upstream_of(rid), rid)
        else:
            with pytest.raises(AssertionError, match="cut off"):
                waiting.finish(lab.upstream_of(rid), rid)
        wait_until(lambda: envoy.stats(HEALTHY)[HEALTHY] == 0, "the health check never noticed")
        for number in range(10):
            name = f"{rid}.{number}"
            assert post(envoy.port, f"{CHAT}?id={name}", BODY).status == 200
            assert bytes(lab.upstream_of(name).recorded(name).body) == BODY
        port = picker.grpc_address.rpartition(":")[2]
        with PickerProcess(lab.addresses, flags=["--grpc-port", port]) as successor:
            wait_until(lambda: envoy.stats(HEALTHY)[HEALTHY] == 1, "the successor is not used")
            # A connection that is still coming back may fail open: every request is served, and soon by its choice.
            wait_until(
                lambda: post(envoy.port, f"{CHAT}?id={rid}-after", BODY).status == 200 and successor.ended() >= 1,
                "the successor was not asked",
            )


def test_killed_while_fail_closed(lab: Lab, rid: str) -> None:
    """Nobody picks, so nobody serves: 503, never a request at a place that the client named."""
    with PickerProcess(lab.addresses) as picker, EnvoyProcess(lab.config(picker_address=picker.grpc_address)) as envoy:
        assert post(envoy.port, f"{CHAT}?id={rid}", BODY).status == 200
        picker.kill()
        spoofed = [("x-gateway-destination-endpoint", lab.addresses[0])]
        for headers in ([], spoofed):
            answer: Response = post(envoy.port, f"{CHAT}?id={rid}-dead", BODY, headers)
            assert answer.status == 503
        assert not any(upstream.saw(f"{rid}-dead") for upstream in lab.upstreams)


def test_drained_behind_a_health_check(lab: Lab, rid: str) -> None:
    """A rollout as it should be: SIGTERM, Envoy notices within the accept time, nobody sees an error."""
    drain = "drain: {accept_seconds: 3, seconds: 30}\n"
    with PickerProcess(lab.addresses, drain) as picker, fallback(lab, picker, FD, BodySendMode.NONE) as envoy:
        picker.terminate()
        number = 0
        while picker.process.poll() is None:
            assert post(envoy.port, f"{CHAT}?id={rid}.{number}", BODY).status == 200
            number += 1
        assert picker.process.returncode == 0
        for _ in range(5):
            assert post(envoy.port, CHAT, BODY).status == 200


def test_a_taken_port_is_said_in_words(lab: Lab) -> None:
    port = lab.picker.grpc_address.rpartition(":")[2]
    with pytest.raises(AssertionError, match="did not start") as caught:
        PickerProcess(lab.addresses, flags=["--grpc-port", port])
    assert port in str(caught.value)
    assert "--grpc-port" in str(caught.value)
