"""Two proxies that ask the picker the same questions: one in memory, one the real Envoy.

The one in memory plays Envoy's part with an independent codec (`envoy-data-plane`) against the ext_proc service
itself, with no socket between. The real one shows what it took from the picker in response headers of its own:
the destination as header and as metadata, each as Envoy saw it.
"""

import base64
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import msgspec
from google.protobuf import struct_pb2

from picker.config import Config
from picker.decision import Finished
from picker.director import Director
from picker.edge.grpc.ext_proc import METHOD, ExtProcService
from picker.edge.grpc.transport import GrpcStatus
from picker.lab.envoy import Balancing, BodySendMode, EnvoyConfig, EnvoyProcess, build
from picker.pool.specs import EndpointSpec, EngineSample
from tests.envoy.clients import request
from tests.envoy.picker_process import PickerProcess, wait_until
from tests.envoy.upstream import FULL_PAGE, Upstream
from tests.faults import raised

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its generated code uses what pydantic is about to drop
    from envoy_data_plane.envoy.config.core import v3 as core
    from envoy_data_plane.envoy.service.ext_proc import v3 as ext_proc
    from envoy_data_plane.google import protobuf as well_known

DESTINATION = "x-gateway-destination-endpoint"
SUBSET = "x-gateway-destination-endpoint-subset"
SERVED = "x-gateway-destination-endpoint-served"
OBJECTIVES = {"batch": -1}
MODES = {BodySendMode.NONE: 0, BodySendMode.STREAMED: 1, BodySendMode.BUFFERED: 2, BodySendMode.FULL_DUPLEX_STREAMED: 4}
FD = BodySendMode.FULL_DUPLEX_STREAMED

Headers = tuple[tuple[str, str], ...]


class Ask(NamedTuple):
    """One HTTP request, and what the proxy tells the picker about it."""

    method: str = "POST"
    path: str = "/v1/chat/completions"
    headers: Headers = ()
    body: bytes | None = b'{"model":"m","messages":[{"role":"user","content":"hello"}]}'
    subset: tuple[str, ...] | str | None = None


class Told(NamedTuple):
    """What the picker made of it: a destination in both places, or an answer of its own."""

    header: str | None
    metadata: str | None
    status: int | None = None


class Call:
    """The transport's end of a call, in memory: keeps what is sent."""

    peer = "memory"
    received_at_seconds = 0.0

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.status: GrpcStatus | None = None

    def hold(self, size: int) -> None:
        assert size >= 0

    def send(self, message: bytes, body: bytes | memoryview = b"") -> None:
        self.sent.append(ext_proc.ProcessingResponse.parse(message + body))

    def finish(self, status: GrpcStatus = GrpcStatus.OK, text: str = "") -> None:
        self.status = status


class Stream:
    """One ext_proc stream, message by message."""

    def __init__(self, service: ExtProcService, clock: "MemoryProxy") -> None:
        self.call = Call()
        self.call.received_at_seconds = clock.now
        self.handler = service.methods()[METHOD](self.call)

    def tell(self, **fields: Any) -> list[Any]:
        """Send one ProcessingRequest; the replies that came of it."""
        before = len(self.call.sent)
        self.handler.receive(bytes(ext_proc.ProcessingRequest(**fields)))
        return self.call.sent[before:]

    def close(self) -> None:
        self.handler.closed()


class MemoryProxy:
    """The ext_proc service and a director, with as many endpoints as asked for."""

    name = "memory"

    def __init__(self, request_body: BodySendMode, response_body: BodySendMode, endpoints: int, **config: Any) -> None:
        self.modes = (request_body, response_body)
        self.now = 100.0
        self.director = Director(Config(objectives={**OBJECTIVES}, **config))
        self.addresses = tuple(f"10.0.0.{number}:8000" for number in range(1, endpoints + 1))
        self.director.replace_endpoints(EndpointSpec(address=each, uid=each, name=each) for each in self.addresses)
        self.finished: list[Finished] = []
        self.service = ExtProcService(
            self.director,
            clock=lambda: self.now,
            rng=Random(7),
            finished=self.finished.append,
            decided=lambda picked, record: None,
            faulted=raised,
        )

    def saturate(self) -> None:
        """Every engine reports a long queue."""
        for address in self.addresses:
            sample = EngineSample(uid=address, taken_at_seconds=self.now, engine="vllm", waiting_requests=99)
            self.director.record_sample(sample)

    def open(self) -> Stream:
        return Stream(self.service, self)

    def ask(self, ask: Ask) -> Told:
        """One request up to the decision; the stream ends as if the client had left."""
        stream = self.open()
        replies = self.send_request(stream, ask)
        stream.close()
        return told(replies)

    def send_request(self, stream: Stream, ask: Ask) -> list[Any]:
        """Every message that Envoy sends for this request in these modes."""
        pseudo = ((":method", ask.method), (":path", ask.path), (":authority", "test"))
        pairs = [core.HeaderValue(key=key, raw_value=value.encode()) for key, value in (*pseudo, *ask.headers)]
        upgrade = any(key == "upgrade" for key, _ in ask.headers)
        modes = ext_proc.ProtocolConfiguration(
            request_body_mode=MODES[self.modes[0]], response_body_mode=MODES[self.modes[1]]
        )
        replies = stream.tell(
            request_headers=ext_proc.HttpHeaders(
                headers=core.HeaderMap(headers=pairs), end_of_stream=not ask.body and not upgrade
            ),
            protocol_config=modes,
            **metadata(ask.subset),
        )
        if (
            ask.body
            and not any(reply.immediate_response for reply in replies)
            and self.modes[0] is not BodySendMode.NONE
        ):
            for chunk, last in pieces(ask.body, self.modes[0]):
                replies += stream.tell(
                    request_body=ext_proc.HttpBody(body=chunk, end_of_stream=last), **metadata(ask.subset)
                )
        return replies

    def close(self) -> None:
        assert self.director.ledger.open_charges == 0


def pieces(body: bytes, mode: BodySendMode) -> Iterator[tuple[bytes, bool]]:
    """BUFFERED shows a body as one message; the others as it comes, the end often alone."""
    if mode is BodySendMode.BUFFERED:
        yield body, True
        return
    size = max(20, len(body) // 8)
    for start in range(0, len(body), size):
        yield body[start : start + size], False
    yield b"", True


def metadata(subset: tuple[str, ...] | str | None) -> dict[str, Any]:
    """The subset hint as `metadata_context`."""
    if subset is None:
        return {}
    if isinstance(subset, str):
        value = well_known.Value(string_value=subset)
    else:
        entries = [well_known.Value(string_value=entry) for entry in subset]
        value = well_known.Value(list_value=well_known.ListValue(values=entries))
    hint = {"envoy.lb.subset_hint": well_known.Struct(fields={SUBSET: value})}
    return {"metadata_context": core.Metadata(filter_metadata=hint)}


def told(replies: list[Any]) -> Told:
    """The destination in these replies, wherever it may stand, or the status of an immediate answer."""
    for reply in replies:
        if reply.immediate_response is not None:
            return Told(None, None, int(reply.immediate_response.status.code))
    headers, entries = [], []
    for reply in replies:
        part = reply.request_headers or reply.request_body
        if part is None or part.response is None:
            continue
        mutation = part.response.header_mutation
        if mutation is not None:
            assert mutation.remove_headers == []
            for option in mutation.set_headers:
                assert option.header.key == DESTINATION, "a header is set that the protocol does not name"
                assert option.header.value == ""
                headers.append(option.header.raw_value.decode())
        if reply.dynamic_metadata is not None:
            assert set(reply.dynamic_metadata.fields) == {"envoy.lb"}
            inner = reply.dynamic_metadata.fields["envoy.lb"].struct_value
            assert set(inner.fields) == {DESTINATION}
            entries.append(inner.fields[DESTINATION].string_value)
    assert len(headers) <= 1, "the destination is set twice"
    assert len(entries) <= 1, "the metadata is set twice"
    return Told(next(iter(headers), None), next(iter(entries), None))


class EnvoyProxy:
    """The real Envoy before a real picker before recording model servers."""

    name = "envoy"

    def __init__(self, request_body: BodySendMode, response_body: BodySendMode, endpoints: int, **config: Any) -> None:
        self.upstreams = [Upstream() for _ in range(endpoints)]
        self.addresses = tuple(upstream.address for upstream in self.upstreams)
        text = msgspec.json.encode({"objectives": OBJECTIVES, **config}).decode()
        self._folder = tempfile.TemporaryDirectory(prefix="picker-test-")
        source = Path(self._folder.name) / "endpoints.json"
        source.write_bytes(msgspec.json.encode({"endpoints": self.addresses}))
        self.picker = PickerProcess([], text, flags=["--endpoints-file", str(source)])
        envoy = EnvoyConfig(
            balancing=Balancing.OVERRIDE_HOST,
            endpoints=self.addresses or ("127.0.0.1:9",),
            picker_address=self.picker.grpc_address,
            request_body=request_body,
            response_body=response_body,
            strip_destination=False,
            subset_header="x-subset",
        )
        self.envoy = EnvoyProcess(with_destination_shown(build(envoy)))

    def saturate(self) -> None:
        for upstream in self.upstreams:
            upstream.metrics_page = FULL_PAGE
        waiting = "inference_pool_per_pod_queue_size"  # the mean leaves out engines that were not read yet

        def all_read() -> bool:
            queues = [value for series, value in self.picker.metrics().items() if series.startswith(waiting + "{")]
            return queues == [99] * len(self.upstreams)

        wait_until(all_read, "the engines' queues were not read")

    def ask(self, ask: Ask) -> Told:
        headers = list(ask.headers)
        if isinstance(ask.subset, str):
            headers.append(("x-subset", ask.subset))
        elif ask.subset is not None:
            value = struct_pb2.Value()
            value.list_value.values.extend(struct_pb2.Value(string_value=entry) for entry in ask.subset)
            headers.append(("x-subset-list", base64.b64encode(value.SerializeToString()).decode()))
        answer = request(self.envoy.port, ask.method, ask.path, headers, ask.body)
        if answer.value("x-picker-reason"):
            return Told(None, None, answer.status)
        return Told(answer.value("x-shown-header"), answer.value("x-shown-metadata"))

    def close(self) -> None:
        self.picker.wait_idle()
        self.envoy.stop()
        self.picker.close()
        self._folder.cleanup()
        for upstream in self.upstreams:
            upstream.__exit__()


def with_destination_shown(bootstrap: dict[str, Any]) -> dict[str, Any]:
    """Envoy tells the client what it took from the picker."""
    listener = bootstrap["static_resources"]["listeners"][0]
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    shown = {
        "x-shown-header": f"%REQ({DESTINATION})%",
        "x-shown-metadata": f"%DYNAMIC_METADATA(envoy.lb:{DESTINATION})%",
    }
    manager["route_config"]["response_headers_to_add"] = [
        {"header": {"key": key, "value": value}} for key, value in shown.items()
    ]
    return bootstrap


Proxy = MemoryProxy | EnvoyProxy
