"""Every shape of request, in each of the modes that people run: it arrives whole, at one model
server, with the destination that the picker chose and nothing else changed."""

import random
import socket

import pytest

from picker.lab.envoy import Balancing, BodySendMode, EnvoyConfig, EnvoyProcess, UpstreamProtocol
from picker.lab.envoy_config import DESTINATION
from tests.envoy.clients import Http1Client, Http2Client, Response, post, request
from tests.envoy.lab import BODY, CHAT, MIB, Lab
from tests.envoy.upstream import Recorded, Upstream, large_body

GRPC_PATH = "/inference.GRPCInferenceService/ModelInfer"
JSON = [("content-type", "application/json")]
TEN_MB = 10 * MIB


def arrived(lab: Lab, rid: str, response: Response) -> Recorded:
    """The one recorded copy of a request that was answered 200."""
    assert response.status == 200, response
    return lab.upstream_of(rid).recorded(rid)


def test_small_post(lab: Lab, proxy: EnvoyProcess, rid: str) -> None:
    got = arrived(lab, rid, post(proxy.port, f"{CHAT}?id={rid}", BODY))
    assert bytes(got.body) == BODY
    assert got.values(DESTINATION) == [lab.upstream_of(rid).address]


def test_bytes_stay_as_they_are(lab: Lab, proxy: EnvoyProcess, rid: str) -> None:
    """Key order, spaces, escapes, doubled keys and numbers beyond a double's precision."""
    body = (
        b'{ "z":1,"model" : "m",  "seed":12345678901234567890123, "temperature":1.0e-2, "top_p":0.10,'
        b'"messages":[{"role":"user","content":"\\u00e9\\/\xc3\xa9<&>"}],"z":2,"n":1E0}\r\n'
    )
    assert bytes(arrived(lab, rid, post(proxy.port, f"{CHAT}?id={rid}", body)).body) == body


def test_post_without_bytes(lab: Lab, proxy: EnvoyProcess, rid: str) -> None:
    """`content-length: 0` ends with the headers; a path that needs no body takes it."""
    got = arrived(lab, rid, post(proxy.port, f"/v1/custom?id={rid}", b""))
    assert bytes(got.body) == b""
    assert got.values(DESTINATION) == [lab.upstream_of(rid).address]


def test_empty_chunked_post(lab: Lab, proxy: EnvoyProcess, rid: str) -> None:
    """No byte, but the headers do not say so: the end comes alone."""
    with Http1Client(proxy.port) as client:
        client.head("POST", f"/v1/custom?id={rid}", [*JSON, ("transfer-encoding", "chunked")])
        client.last_chunk()
        got = arrived(lab, rid, client.response())
    assert bytes(got.body) == b""


@pytest.mark.parametrize("path", [CHAT, "/v1/files"])
def test_ten_megabytes(lab: Lab, proxy: EnvoyProcess, rid: str, path: str) -> None:
    """On a path whose body is read (as JSON) and on one that streams through."""
    head = b'{"model":"m","messages":[{"role":"user","content":"'
    filling = random.Random(1).randbytes(TEN_MB // 2).hex().encode()
    body = head + filling + b'"}]}' if path == CHAT else large_body(TEN_MB)
    got = arrived(lab, rid, post(proxy.port, f"{path}?id={rid}", body))
    assert bytes(got.body) == body


def test_get(lab: Lab, proxy: EnvoyProcess, rid: str) -> None:
    got = arrived(lab, rid, request(proxy.port, "GET", f"/v1/models?id={rid}"))
    assert got.method == "GET"
    assert got.values(DESTINATION) == [lab.upstream_of(rid).address]


def test_chunked_upload(lab: Lab, proxy: EnvoyProcess, rid: str) -> None:
    with Http1Client(proxy.port) as client:
        client.head("POST", f"{CHAT}?id={rid}", [*JSON, ("transfer-encoding", "chunked")])
        for start in range(0, len(BODY), 7):
            client.chunk(BODY[start : start + 7])
        client.last_chunk()
        got = arrived(lab, rid, client.response())
    assert bytes(got.body) == BODY


def test_one_byte_at_a_time(lab: Lab, proxy: EnvoyProcess, rid: str) -> None:
    with Http1Client(proxy.port) as client:
        client.head("POST", f"{CHAT}?id={rid}", [*JSON, ("transfer-encoding", "chunked")])
        for byte in BODY:
            client.chunk(bytes([byte]))
        client.last_chunk()
        got = arrived(lab, rid, client.response())
    assert bytes(got.body) == BODY


def test_expect_continue(lab: Lab, proxy: EnvoyProcess, rid: str) -> None:
    """curl's way for large bodies: ask first, send after `100 Continue`."""
    with Http1Client(proxy.port) as client:
        length = ("content-length", str(len(BODY)))
        client.head("POST", f"{CHAT}?id={rid}", [*JSON, length, ("expect", "100-continue")])
        assert client.read_head().status == 100
        client.send(BODY)
        got = arrived(lab, rid, client.response())
    assert bytes(got.body) == BODY
    assert got.values("expect") == []


def test_http2(lab: Lab, proxy: EnvoyProcess, rid: str) -> None:
    with Http2Client(proxy.port) as client:
        stream = client.start("POST", f"{CHAT}?id={rid}", JSON)
        client.data(stream, BODY, end=True)
        got = arrived(lab, rid, client.response(stream))
    assert (got.version, bytes(got.body)) == ("2", BODY)


def test_request_trailers(lab: Lab, proxy: EnvoyProcess, rid: str) -> None:
    """Trailers end the request in place of a last chunk."""
    with Http2Client(proxy.port) as client:
        stream = client.start("POST", f"{CHAT}?id={rid}", JSON)
        client.data(stream, BODY[:20])
        client.data(stream, BODY[20:])
        client.trailers(stream, [("x-checksum", "abc"), ("x-more", "1")])
        got = arrived(lab, rid, client.response(stream))
    assert bytes(got.body) == BODY
    assert got.trailers == [("x-checksum", "abc"), ("x-more", "1")]


@pytest.mark.parametrize("path", ["/v1/custom", CHAT])
def test_trailers_without_a_body(lab: Lab, proxy: EnvoyProcess, rid: str, path: str) -> None:
    with Http2Client(proxy.port) as client:
        stream = client.start("POST", f"{path}?id={rid}", JSON)
        client.trailers(stream, [("x-checksum", "abc")])
        response = client.response(stream)
    config = lab.config_of(proxy)
    if path == CHAT and config.request_body is BodySendMode.BUFFERED and config.balancing is Balancing.ORIGINAL_DST:
        # An answer to trailers changes no header: only metadata, which ORIGINAL_DST does not read, gets through.
        assert response.status == 503
        return
    got = arrived(lab, rid, response)
    assert (bytes(got.body), got.trailers) == (b"", [("x-checksum", "abc")])


def test_chunked_upload_with_trailers(lab: Lab, proxy: EnvoyProcess, rid: str) -> None:
    """HTTP/1.1 has trailers as well."""
    with Http1Client(proxy.port) as client:
        client.head("POST", f"{CHAT}?id={rid}", [*JSON, ("transfer-encoding", "chunked"), ("trailer", "x-checksum")])
        client.chunk(BODY)
        client.last_chunk([("x-checksum", "abc")])
        got = arrived(lab, rid, client.response())
    assert (bytes(got.body), got.trailers) == (BODY, [("x-checksum", "abc")])


def test_grpc_request(lab: Lab, proxy: EnvoyProcess, rid: str) -> None:
    """A unary gRPC call: an unknown path, answered with trailers."""
    message = b"\x00\x00\x00\x00\x05hello"
    with Http2Client(proxy.port) as client:
        stream = client.start(
            "POST", f"{GRPC_PATH}?id={rid}&do=grpc", [("content-type", "application/grpc"), ("te", "trailers")]
        )
        client.data(stream, message, end=True)
        response = client.response(stream)
    assert response.body == message
    assert ("grpc-status", "0") in response.trailers
    assert bytes(arrived(lab, rid, response).body) == message


def test_websocket(lab: Lab, proxy: EnvoyProcess, rid: str) -> None:
    """Decided on the headers: no body comes before the answer. Then bytes flow both ways."""
    handshake = [
        ("connection", "Upgrade"),
        ("upgrade", "websocket"),
        ("sec-websocket-version", "13"),
        ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ]
    with Http1Client(proxy.port) as client:
        client.head("GET", f"/v1/realtime?id={rid}", handshake)
        response = client.read_head()
        assert response.status == 101
        # The sample key's answer, RFC 6455 section 1.3.
        assert response.value("sec-websocket-accept") == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
        for message in (b"\x81\x85\x00\x00\x00\x00hello", b"\x82\x81\x00\x00\x00\x00!"):
            client.send(message)
            assert client.read(len(message)) == message
    assert lab.upstream_of(rid).recorded(rid).values(DESTINATION) == [lab.upstream_of(rid).address]
    lab.picker.wait_idle()


def test_many_at_once_on_one_connection(lab: Lab, proxy: EnvoyProcess, rid: str) -> None:
    """Streams of one HTTP/2 connection keep their bodies apart."""
    with Http2Client(proxy.port) as client:
        bodies = {}
        for number in range(20):
            stream = client.start("POST", f"{CHAT}?id={rid}.{number}&do=echo", JSON)
            bodies[stream] = BODY.replace(b"hello", b"%d" % number * 3000)
        for start in range(0, 60000, 16000):
            for stream, body in bodies.items():
                client.data(stream, body[start : start + 16000], end=start + 16000 >= len(body)) if start < len(
                    body
                ) else None
        for stream, body in bodies.items():
            assert client.response(stream).body == body


@pytest.fixture(scope="module")
def without_picker(lab: Lab) -> EnvoyProcess:
    """An Envoy of the same settings, but nobody picks."""
    return lab.envoy(
        EnvoyConfig(
            balancing=Balancing.ROUND_ROBIN,
            endpoints=lab.addresses,
            upstream_protocol=UpstreamProtocol.DOWNSTREAM,
            strip_destination=False,
        )
    )


def test_only_the_destination_is_set(lab: Lab, proxy: EnvoyProcess, without_picker: EnvoyProcess, rid: str) -> None:
    """Against an Envoy without a picker: no header added, changed, merged or lost but the framing."""
    headers = [
        ("x-double", "1"),
        ("x-double", "2"),
        ("authorization", "Bearer t"),
        ("x-empty", ""),
        ("x-gateway-inference-objective", "unknown"),
        ("cookie", "a=b"),
        ("x-latin", "\xe9"),
    ]

    def seen(port: int, name: str) -> set[tuple[str, str]]:
        got = arrived(lab, name, post(port, f"{CHAT}?id={name}", BODY, headers))
        own = ("x-request-id", "content-length", "transfer-encoding", "x-envoy-expected-rq-timeout-ms")
        return {(key, value) for key, value in got.headers if key not in own}

    picked = seen(proxy.port, rid)
    assert picked - seen(without_picker.port, f"{rid}-plain") == {(DESTINATION, lab.upstream_of(rid).address)}
    assert {("x-double", "1"), ("x-double", "2")} <= picked or ("x-double", "1,2") in picked


def test_a_destination_from_the_client_never_survives(lab: Lab, proxy: EnvoyProcess, rid: str) -> None:
    """Or anybody could make the proxy call any address."""
    with Upstream() as secret:
        for method, target, body in (("POST", CHAT, BODY), ("GET", "/v1/models", None), ("POST", "/v1/files", b"x")):
            name = f"{rid}-{method}-{target[-5:]}"
            spoofed = [(DESTINATION, secret.address), (DESTINATION, secret.address)]
            got = arrived(lab, name, request(proxy.port, method, f"{target}?id={name}", spoofed, body))
            assert got.values(DESTINATION) == [lab.upstream_of(name).address]
        assert secret.requests == []


def test_pipelined_requests(lab: Lab, proxy: EnvoyProcess, rid: str) -> None:
    """Two requests in one write on one connection: two decisions, answers in order."""
    with Http1Client(proxy.port) as client:
        client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 0)
        head = f"POST {CHAT}?id={rid}-%d&do=echo HTTP/1.1\r\nhost: test\r\ncontent-length: %d\r\n\r\n".encode()
        first, second = BODY, BODY.replace(b"hello", b"again")
        client.send(head % (1, len(first)) + first + head % (2, len(second)) + second)
        assert [client.response().body, client.response().body] == [first, second]
