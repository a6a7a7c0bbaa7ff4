"""The Endpoint Picker Protocol v1.0.0, sentence by sentence: each MUST in memory and through the real Envoy.

Source: kubernetes-sigs/gateway-api-inference-extension, docs/proposals/004-endpoint-picker-protocol/README.md.
Each test quotes in its own words the sentence that it proves.
"""

import ipaddress
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from picker.lab.envoy import BodySendMode
from picker.lab.envoy_config import EXT_PROC_SERVICE
from tests.conformance.proxies import (
    FD,
    SERVED,
    Ask,
    EnvoyProxy,
    MemoryProxy,
    Proxy,
    core,
    ext_proc,
    told,
    well_known,
)
from tests.envoy.picker_process import PickerProcess, wait_until

ADDRESS = re.compile(r"(\[[0-9a-f:]+\]|\d+\.\d+\.\d+\.\d+):(\d+)")
SHAPES = {
    "chat": Ask(),
    "completion": Ask(path="/v1/completions?x=1", body=b'{"model":"m","prompt":"p"}'),
    "anthropic": Ask(path="/v1/messages", body=b'{"model":"m","max_tokens":1,"messages":[]}'),
    "no body": Ask("GET", "/v1/models", body=None),
    "unknown path": Ask(path="/v1/custom", body=b"\x00\xff"),
    "not the JSON that the path promises": Ask(body=b"[1]"),
    "compressed": Ask(headers=(("content-encoding", "gzip"),), body=b"\x1f\x8b\x08"),
    "a destination from the client": Ask(headers=(("x-gateway-destination-endpoint", "10.9.9.9:80"),)),
    "large": Ask(body=b'{"prompt":"' + b"x" * 200_000 + b'"}', path="/v1/completions"),
}
"""`For each HTTP request`: all of these."""

Make = Callable[..., Proxy]
KINDS = {"memory": MemoryProxy, "envoy": EnvoyProxy}


@pytest.fixture(scope="module")
def opened() -> Iterator[dict[Any, Proxy]]:
    proxies: dict[Any, Proxy] = {}
    yield proxies
    for proxy in proxies.values():
        proxy.close()


@pytest.fixture(params=["memory", "envoy"])
def make(request: pytest.FixtureRequest, opened: dict[Any, Proxy]) -> Make:
    """A proxy of either kind, shared by tests that ask for the same one."""

    def make_one(
        request_body: BodySendMode = FD,
        response_body: BodySendMode = FD,
        endpoints: int = 3,
        mark: str = "",
        **config: Any,
    ) -> Proxy:
        key = (request.param, request_body, response_body, endpoints, mark, tuple(config.items()))
        if key not in opened:
            opened[key] = KINDS[request.param](request_body, response_body, endpoints, **config)  # type: ignore[assignment]
        return opened[key]

    return make_one


EACH_SHAPE = pytest.mark.parametrize("shape", SHAPES)
EACH_MODE = pytest.mark.parametrize(
    "modes",
    [
        (FD, FD),
        (FD, BodySendMode.STREAMED),
        (BodySendMode.BUFFERED, BodySendMode.NONE),
        (BodySendMode.NONE, BodySendMode.NONE),
    ],
    ids="-".join,
)


# Destination endpoint ----------------------------------------------------------------------


@EACH_SHAPE
@EACH_MODE
def test_header_and_metadata_name_the_same_endpoint(
    make: Make, shape: str, modes: tuple[BodySendMode, BodySendMode]
) -> None:
    """The picker MUST communicate the endpoint by the header and by metadata under `envoy.lb`, and MUST NOT set
    two different values; without the hint it MUST select from the pool."""
    proxy = make(*modes)
    answer = proxy.ask(SHAPES[shape])
    assert answer.status is None
    assert answer.header == answer.metadata
    assert answer.header in proxy.addresses


@EACH_MODE
def test_a_list_of_fallbacks(make: Make, modes: tuple[BodySendMode, BodySendMode]) -> None:
    """Several endpoints are separated by commas, each as ip:port, the primary first; they are distinct."""
    proxy = make(*modes, destinations_max=3)
    for shape in SHAPES.values():
        answer = proxy.ask(shape)
        assert answer.header is not None
        assert answer.header == answer.metadata
        entries = answer.header.split(",")
        assert sorted(entries) == sorted(proxy.addresses)
        for entry in entries:
            found = ADDRESS.fullmatch(entry)
            assert found is not None
            ipaddress.ip_address(found[1].strip("[]"))
            assert 0 < int(found[2]) < 65536


@EACH_SHAPE
def test_no_ready_endpoint(make: Make, shape: str) -> None:
    """MUST return an ImmediateResponse with 503 if there are no ready endpoints."""
    assert make(endpoints=0).ask(SHAPES[shape]).status == 503


@EACH_SHAPE
@pytest.mark.parametrize("modes", [(FD, FD), (BodySendMode.BUFFERED, BodySendMode.NONE)], ids=["duplex", "buffered"])
def test_dropped_under_load(make: Make, shape: str, modes: tuple[BodySendMode, BodySendMode]) -> None:
    """MUST return an ImmediateResponse with 429 if the request should be dropped."""
    proxy = make(*modes, mark="saturated")
    proxy.saturate()
    ask = SHAPES[shape]
    sheddable = ask._replace(headers=(*ask.headers, ("x-gateway-inference-objective", "batch")))
    # On a machine so busy that scrapes time out, a reading may be stale for a moment, and unknown is not full.
    wait_until(lambda: proxy.ask(sheddable).status == 429, "a sheddable request was served by a saturated pool")
    assert proxy.ask(ask).header in proxy.addresses


# Endpoint subset ---------------------------------------------------------------------------


@EACH_SHAPE
@pytest.mark.parametrize("as_text", [False, True], ids=["list", "text"])
def test_subset_is_kept(make: Make, shape: str, as_text: bool) -> None:
    """If the key is set, the picker MUST only select endpoints from the list."""
    proxy = make()
    for subset in ((proxy.addresses[1],), (proxy.addresses[2], proxy.addresses[0])):
        for _ in range(10):
            hint = ",".join(subset) if as_text else subset
            answer = proxy.ask(SHAPES[shape]._replace(subset=hint))
            assert answer.header == answer.metadata
            assert answer.header in subset


@pytest.mark.parametrize("modes", [(FD, FD), (BodySendMode.BUFFERED, BodySendMode.NONE)], ids=["duplex", "buffered"])
def test_fallbacks_are_of_the_subset(make: Make, modes: tuple[BodySendMode, BodySendMode]) -> None:
    """Every endpoint of a fallback list is one that may be selected."""
    proxy = make(*modes, destinations_max=3)
    allowed = proxy.addresses[:2]
    for shape in SHAPES.values():
        answer = proxy.ask(shape._replace(subset=allowed))
        assert answer.header is not None
        assert set(answer.header.split(",")) == set(allowed)


@EACH_SHAPE
@pytest.mark.parametrize("subset", [(), ("10.9.9.9:1",), ("10.9.9.9:1", "nonsense")], ids=str)
def test_nobody_of_the_subset(make: Make, shape: str, subset: tuple[str, ...]) -> None:
    """If none of the list is eligible or the list is empty: an ImmediateResponse with 503."""
    assert make().ask(SHAPES[shape]._replace(subset=subset)).status == 503


@EACH_SHAPE
def test_an_empty_text_is_an_empty_list(shape: str, opened: dict[Any, Proxy]) -> None:
    """In memory alone: Envoy makes no metadata of an empty header."""
    proxy = opened.setdefault("empty text", MemoryProxy(FD, FD, endpoints=3))
    assert proxy.ask(SHAPES[shape]._replace(subset="")).status == 503


# Destination endpoint served ---------------------------------------------------------------


def test_served_moves_the_charge() -> None:
    """The proxy tells who served: load and prefixes are booked there. (Through Envoy:
    tests/envoy/test_endpoints_that_fail.py.)"""
    proxy = MemoryProxy(FD, FD, endpoints=2, destinations_max=2, epsilon=0.0)
    body = b'{"model":"m","prompt":"' + b"what is so long that it has many blocks? " * 500 + b'"}'
    ask = Ask(path="/v1/completions", body=body)
    stream = proxy.open()
    first, second = (told(proxy.send_request(stream, ask)).header or "").split(",")
    assert in_flight(proxy, first) == 1
    served = {"envoy.lb": well_known.Struct(fields={SERVED: well_known.Value(string_value=second)})}
    stream.tell(
        response_headers=ext_proc.HttpHeaders(
            headers=core.HeaderMap(headers=[core.HeaderValue(key=":status", raw_value=b"200")])
        ),
        metadata_context=core.Metadata(filter_metadata=served),
    )
    assert (in_flight(proxy, first), in_flight(proxy, second)) == (0, 1)
    stream.tell(response_body=ext_proc.HttpBody(body=b"{}", end_of_stream=True))
    assert in_flight(proxy, second) == 0
    stream.close()
    for _ in range(5):
        assert (proxy.ask(ask).header or "").startswith(second), "its prefixes were not booked where it was served"
    proxy.close()


def in_flight(proxy: MemoryProxy, address: str) -> int:
    snapshot = proxy.director.datastore.snapshot(proxy.now)
    return int(proxy.director.ledger.columns(snapshot.width)[0][snapshot.by_address[address].slot])


# Streaming ---------------------------------------------------------------------------------


def test_streaming_both_ways() -> None:
    """The picker MUST support streaming mode for requests and responses: token by token, nothing held back."""
    proxy = MemoryProxy(FD, FD, endpoints=1)
    stream = proxy.open()
    replies = proxy.send_request(stream, Ask())
    assert b"".join(echoed(reply.request_body) for reply in replies[1:]) == Ask().body
    assert [ends(reply.request_body) for reply in replies[1:]] == [False] * (len(replies) - 2) + [True]
    status = core.HeaderValue(key=":status", raw_value=b"200")
    kind = core.HeaderValue(key="content-type", raw_value=b"text/event-stream")
    [reply] = stream.tell(response_headers=ext_proc.HttpHeaders(headers=core.HeaderMap(headers=[status, kind])))
    assert reply.response_headers is not None
    for token in (b'data: {"a":1}\n\n', b"data: [DONE]\n\n", b""):
        [reply] = stream.tell(response_body=ext_proc.HttpBody(body=token, end_of_stream=not token))
        assert (echoed(reply.response_body), ends(reply.response_body)) == (token, not token)
    stream.close()
    assert [record.status for record in proxy.finished] == [200]
    proxy.close()


@pytest.mark.parametrize("by_trailers", [False, True], ids=["end of stream", "trailers"])
def test_large_bodies_come_back_in_small_pieces(by_trailers: bool) -> None:
    """Proxies refuse pieces over 64 KB. Exactly one piece ends the stream, the last; none where trailers do."""
    proxy = MemoryProxy(FD, FD, endpoints=1)
    stream = proxy.open()
    body = b'{"prompt":"' + bytes(range(97, 123)) * 20_000 + b'"}'
    headers = [core.HeaderValue(key=key, raw_value=value) for key, value in PATH]
    modes = ext_proc.ProtocolConfiguration(request_body_mode=4, response_body_mode=4)
    held = stream.tell(
        request_headers=ext_proc.HttpHeaders(headers=core.HeaderMap(headers=headers)), protocol_config=modes
    )
    assert held == []
    assert stream.tell(request_body=ext_proc.HttpBody(body=body[:300_000])) == []
    rest = ext_proc.HttpBody(body=body[300_000:], end_of_stream=not by_trailers)
    replies = stream.tell(request_body=rest)
    if by_trailers:
        assert replies == []
        replies = stream.tell(request_trailers=ext_proc.HttpTrailers(trailers=core.HeaderMap()))
        assert replies.pop().request_trailers is not None
    route, *pieces = replies
    assert told([route]).header == proxy.addresses[0]
    assert b"".join(echoed(piece.request_body) for piece in pieces) == body
    assert max(len(echoed(piece.request_body)) for piece in pieces) <= 62_000
    assert [ends(piece.request_body) for piece in pieces] == [False] * (len(pieces) - 1) + [not by_trailers]
    stream.close()
    proxy.close()


PATH = ((":method", b"POST"), (":path", b"/v1/completions"))


def echoed(reply: Any) -> bytes:
    body: bytes = reply.response.body_mutation.streamed_response.body
    return body


def ends(reply: Any) -> bool:
    last: bool = reply.response.body_mutation.streamed_response.end_of_stream
    return last


# Health ------------------------------------------------------------------------------------


def test_health_of_a_picker_that_is_synced() -> None:
    """liveness, readiness and the ext_proc service are SERVING, on the ext_proc port and on the health port."""
    with PickerProcess(["127.0.0.1:9"]) as picker:
        for address in (picker.grpc_address, picker.health_address):
            for service in ("liveness", "readiness", EXT_PROC_SERVICE):
                wait_until(
                    lambda address=address, service=service: picker.health(service, address) == "SERVING",
                    f"{service} is not SERVING",
                )


def test_health_of_a_picker_that_is_not(tmp_path: Path) -> None:
    """Readiness and the ext_proc service depend on the datastore; liveness does not."""
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(UNREACHABLE_CLUSTER)
    flags = ["--pool", "models", "--namespace", "default"]
    with PickerProcess(flags=flags, env={"KUBECONFIG": str(kubeconfig)}) as picker:
        for address in (picker.grpc_address, picker.health_address):
            assert picker.health("liveness", address) == "SERVING"
            assert picker.health("readiness", address) == "NOT_SERVING"
            assert picker.health(EXT_PROC_SERVICE, address) == "NOT_SERVING"


UNREACHABLE_CLUSTER = """\
apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: "http://127.0.0.1:9"}}]
users: [{name: u, user: {token: t}}]
"""
