"""Damaged messages on one ext_proc stream: that stream ends or goes on, nothing of ours fails, nothing stays booked."""

from random import Random

import hypothesis.strategies as st
from hypothesis import given, settings

from picker.config import Config
from picker.director import Director
from picker.edge.grpc.ext_proc import METHOD, ExtProcService
from picker.edge.grpc.transport import GrpcStatus
from picker.generated import ext_proc_pb2 as pb
from picker.pool.specs import EndpointSpec


class Call:
    """The transport's end, with its rules: nothing after the end, `closed` exactly once."""

    peer = "127.0.0.1:1"
    received_at_seconds = 0.0

    def __init__(self) -> None:
        self.sent: list[pb.ProcessingResponse] = []
        self.status: GrpcStatus | None = None
        self.handler = None

    def hold(self, size: int) -> None:
        assert size >= 0

    def send(self, message: bytes, body: bytes | memoryview = b"") -> None:
        if self.status is None:
            self.sent.append(pb.ProcessingResponse.FromString(message + body))

    def finish(self, status: GrpcStatus = GrpcStatus.OK, text: str = "") -> None:
        if self.status is None:
            self.status = status
            assert text.isprintable() and len(text) < 500
            self.handler.closed()  # type: ignore[attr-defined]


def message(field: str, **headers: str) -> pb.ProcessingRequest:
    made = pb.ProcessingRequest()
    part = getattr(made, field)
    part.SetInParent()
    for name, value in headers.items():
        header = part.headers.headers.add()
        header.key, header.raw_value = name.replace("pseudo_", ":").replace("_", "-"), value.encode()
    return made


def parts(mode: int, response_mode: int) -> list[bytes]:
    start = message(
        "request_headers", pseudo_method="POST", pseudo_path="/v1/responses", content_type="application/json"
    )
    start.protocol_config.request_body_mode, start.protocol_config.response_body_mode = mode, response_mode
    body = message("request_body")
    body.request_body.body = b'{"model":"m","input":[{"role":"user","content":"' + b"x" * 1500 + b'"}],"stream":true}'
    body.request_body.end_of_stream = True
    answer = message("response_headers", pseudo_status="200", content_type="text/event-stream")
    chunk = message("response_body")
    chunk.response_body.body = b'data: {"response":{"id":"resp_1","usage":{"input_tokens":9,"output_tokens":1}}}\n\n'
    end = message("response_body")
    end.response_body.end_of_stream = True
    return [each.SerializeToString() for each in (start, body, answer, chunk, end)]


def damaged(data: bytes, rng: Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(changed) + 1)
        what = rng.randrange(4)
        if what == 0 and at < len(changed):
            changed[at] ^= 1 << rng.randrange(8)
        elif what == 1:
            del changed[at : at + rng.randrange(1, 30)]
        elif what == 2:
            changed[at:at] = rng.randbytes(rng.randrange(1, 9))
        else:
            changed = changed[:at]
    return bytes(changed)


@settings(max_examples=300, deadline=None)
@given(
    st.integers(0, 2**32),
    st.sampled_from([0, 1, 2, 4]),
    st.sampled_from([0, 1, 4]),
    st.lists(st.integers(0, 4), max_size=8),
    st.floats(0, 1),
    st.booleans(),
)
def test_whatever_arrives_one_stream_ends_cleanly(seed, mode, response_mode, order, damage, half_close):
    rng = Random(seed)
    director = Director(Config())
    director.replace_endpoints(EndpointSpec(address=f"10.0.0.{n}:80", uid=str(n), name=str(n)) for n in range(3))
    faults: list[BaseException] = []
    finished: list[object] = []
    service = ExtProcService(
        director,
        clock=lambda: 0.0,
        rng=Random(1),
        finished=finished.append,
        decided=lambda picked, record: None,
        faulted=lambda where, error: faults.append(error),
    )
    call = Call()
    call.handler = handler = service.methods()[METHOD](call)  # type: ignore[assignment]
    available = parts(mode, response_mode)
    for number in [0, *order]:
        if call.status is not None:
            break
        data = available[number]
        handler.receive(damaged(data, rng) if rng.random() < damage else data)
    if call.status is None:
        if half_close:
            handler.half_closed()
            assert call.status is GrpcStatus.OK
        else:
            handler.closed()
    assert not faults, "bad input is never a fault of ours"
    assert call.status in (None, GrpcStatus.OK, GrpcStatus.INVALID_ARGUMENT)
    assert (service.open_streams, len(service.waiting), director.ledger.open_charges) == (0, 0, 0)
    assert len(finished) <= 1
    director.datastore.check()
    director.index.check()
