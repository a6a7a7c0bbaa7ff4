"""Answers, in each of the modes that people run: as the model server sent them, when it sent them."""

import pytest

from picker.lab.envoy import Balancing, BodySendMode, EnvoyProcess
from tests.envoy.clients import Http1Client, Http2Client, post, request
from tests.envoy.lab import BODY, CHAT, FD, MIB, Lab
from tests.envoy.upstream import large_body, sse_events

JSON = [("content-type", "application/json")]
SSE_BODY = BODY[:-1] + b',"stream":true,"stream_options":{"include_usage":true}}'


def begin(client: Http1Client, target: str, body: bytes = SSE_BODY) -> None:
    client.head("POST", target, [*JSON, ("content-length", str(len(body)))])
    client.send(body)


def read_exactly(client: Http1Client, wanted: bytes) -> None:
    """Chunks until `wanted` is here, which it must be at once and alone."""
    got = b""
    while len(got) < len(wanted):
        got += client.read_chunk()
    assert got == wanted


def test_sse_flows_as_it_comes(lab: Lab, proxy: EnvoyProcess, rid: str) -> None:
    """The first event is read while the model server still holds the second back."""
    with Http1Client(proxy.port) as client:
        begin(client, f"{CHAT}?id={rid}&do=sse&n=2&stall=1")
        head = client.read_head()
        assert head.value("content-type") == "text/event-stream"
        first, *rest = sse_events(2)
        read_exactly(client, first)
        lab.upstream_of(rid).recorded(rid).release.set()
        assert client.read_body(head).body == b"".join(rest)


@pytest.mark.parametrize("content_type", ["application/x-ndjson", "audio/mpeg", "application/json"])
def test_other_streams_flow_as_they_come(lab: Lab, proxy: EnvoyProcess, rid: str, content_type: str) -> None:
    """What streams without being SSE is not held back until it ends."""
    with Http1Client(proxy.port) as client:
        begin(client, f"{CHAT}?id={rid}&do=ndjson&type={content_type}")
        head = client.read_head()
        read_exactly(client, b'{"line":1}\n')
        lab.upstream_of(rid).recorded(rid).release.set()
        assert client.read_body(head).body == b'{"line":2}\n'


def test_two_thousand_events(proxy: EnvoyProcess, rid: str) -> None:
    with Http1Client(proxy.port) as client:
        begin(client, f"{CHAT}?id={rid}&do=sse&n=2000")
        assert client.response().body == b"".join(sse_events(2000))


def test_ten_megabytes(proxy: EnvoyProcess, rid: str) -> None:
    """Each eight bytes differ: a chunk lost, doubled or moved would show."""
    answer = post(proxy.port, f"{CHAT}?id={rid}&do=large&bytes={10 * MIB}", BODY)
    assert answer.body == large_body(10 * MIB)


def test_length_is_kept(proxy: EnvoyProcess, rid: str) -> None:
    """An answer with a content-length arrives whole, also where full duplex removes the header."""
    body = b'{"model":"m","prompt":"' + b"x" * 300_000 + b'"}'
    answer = post(proxy.port, f"/v1/completions?id={rid}&do=echo", body)
    assert (answer.status, answer.body) == (200, body)


def test_no_content(proxy: EnvoyProcess, rid: str) -> None:
    answer = request(proxy.port, "DELETE", f"/v1/files/1?id={rid}&do=empty")
    assert (answer.status, answer.body) == (204, b"")


def test_cookies_stay_apart(proxy: EnvoyProcess, rid: str) -> None:
    """Two `Set-Cookie` lines are two; a picker that gives headers back through a map makes them one."""
    answer = post(proxy.port, f"{CHAT}?id={rid}&do=cookies", BODY)
    assert answer.values("set-cookie") == ["a=1; Path=/", "b=2; Path=/"]
    assert answer.values("x-other") == ["o"]


def test_nothing_is_added_for_the_client(proxy: EnvoyProcess, rid: str) -> None:
    """Neither the destination nor anything of the picker's own is shown to clients."""
    answer = post(proxy.port, f"{CHAT}?id={rid}", BODY)
    own = {"content-type", "content-length", "transfer-encoding", "date", "server", "x-envoy-upstream-service-time"}
    assert {key for key, _ in answer.headers} <= own


def test_trailers(proxy: EnvoyProcess, rid: str) -> None:
    with Http2Client(proxy.port) as client:
        stream = client.start("POST", f"{CHAT}?id={rid}&do=trailers", JSON)
        client.data(stream, BODY, end=True)
        answer = client.response(stream)
    assert answer.body == b'{"a":1}'
    assert answer.trailers == [("x-checksum", "abc"), ("x-more", "1")]


def test_trailers_in_http1(proxy: EnvoyProcess, rid: str) -> None:
    with Http1Client(proxy.port) as client:
        client.head(
            "POST", f"{CHAT}?id={rid}&do=trailers", [*JSON, ("content-length", str(len(BODY))), ("te", "trailers")]
        )
        client.send(BODY)
        answer = client.response()
    assert (answer.body, answer.trailers) == (b'{"a":1}', [("x-checksum", "abc"), ("x-more", "1")])


@pytest.mark.parametrize("code", [400, 404, 429, 500, 503])
def test_errors_of_the_model_server_pass(proxy: EnvoyProcess, rid: str, code: int) -> None:
    answer = post(proxy.port, f"{CHAT}?id={rid}&do=status&code={code}", BODY)
    assert (answer.status, answer.body) == (code, b'{"error":{"message":"as asked"}}')
    assert answer.value("x-picker-reason") is None


def test_an_answer_before_the_request_ended(lab: Lab, proxy: EnvoyProcess, rid: str) -> None:
    """Bidirectional HTTP/2 on a path that is picked on its headers. BUFFERED cannot: it waits for the end."""
    if lab.config_of(proxy).request_body is BodySendMode.BUFFERED:
        pytest.skip("Envoy holds the request back until its body ended")
    with Http2Client(proxy.port) as client:
        stream = client.start(
            "POST", f"/chat.Service/Talk?id={rid}&do=sse&n=1&stall=1&early=1", [("content-type", "application/grpc")]
        )
        first = sse_events(1)[0]
        assert client.read_some(stream, len(first)).startswith(first)
        client.data(stream, b"late", end=True)
        got = lab.upstream_of(rid).recorded(rid)
        assert got.complete.wait(10)
        assert bytes(got.body) == b"late"
        got.release.set()
        assert client.response(stream).body == b"".join(sse_events(1))
    lab.picker.wait_idle()


@pytest.mark.parametrize("request_body", [BodySendMode.NONE, BodySendMode.STREAMED, BodySendMode.BUFFERED, FD])
@pytest.mark.parametrize("balancing", [Balancing.ORIGINAL_DST, Balancing.OVERRIDE_HOST])
def test_buffered_answers(lab: Lab, rid: str, request_body: BodySendMode, balancing: Balancing) -> None:
    """Response body BUFFERED, with every request mode: one message, and it comes out as it went in."""
    envoy = lab.envoy(lab.config(request_body=request_body, response_body=BodySendMode.BUFFERED, balancing=balancing))
    answer = post(envoy.port, f"{CHAT}?id={rid}&do=large&bytes={MIB}", BODY)
    assert (answer.status, answer.body) == (200, large_body(MIB))
    assert bytes(lab.upstream_of(rid).recorded(rid).body) == BODY
    assert post(envoy.port, f"{CHAT}?id={rid}&do=sse&n=50", BODY).body == b"".join(sse_events(50))


@pytest.mark.parametrize("request_body", [BodySendMode.NONE, BodySendMode.STREAMED])
@pytest.mark.parametrize("response_body", [BodySendMode.NONE, BodySendMode.STREAMED, FD])
@pytest.mark.parametrize("balancing", [Balancing.ORIGINAL_DST, Balancing.OVERRIDE_HOST])
def test_decided_on_headers(
    lab: Lab, rid: str, request_body: BodySendMode, response_body: BodySendMode, balancing: Balancing
) -> None:
    """Request bodies that come too late to decide on (STREAMED) or not at all (NONE)."""
    envoy = lab.envoy(lab.config(request_body=request_body, response_body=response_body, balancing=balancing))
    body = large_body(3 * MIB)
    for target, sent in ((CHAT, BODY), ("/v1/files", body), (CHAT, b'{"prompt":"' + b"y" * MIB + b'"}')):
        name = f"{rid}-{len(sent)}"
        answer = post(envoy.port, f"{target}?id={name}&do=sse&n=20", sent)
        assert (answer.status, answer.body) == (200, b"".join(sse_events(20)))
        assert bytes(lab.upstream_of(name).recorded(name).body) == sent
    with Http2Client(envoy.port) as client:
        stream = client.start("POST", f"{CHAT}?id={rid}-t&do=trailers", JSON)
        client.data(stream, BODY)
        client.trailers(stream, [("x-checksum", "abc")])
        assert client.response(stream).trailers == [("x-checksum", "abc"), ("x-more", "1")]
    assert lab.upstream_of(f"{rid}-t").recorded(f"{rid}-t").trailers == [("x-checksum", "abc")]
