"""The bench's server that decides nothing answers as Envoy asks: read by protobuf, not by our own code."""

from collections.abc import Iterator

import pytest

from picker.edge.grpc.transport import GrpcStatus
from picker.generated import ext_proc_pb2 as pb
from tests.bench.no_decision import Fixed
from tests.bench.raw_exchange import header_message

DESTINATION = "127.0.0.1:8000"


class Kept:
    """A call that keeps what is sent."""

    peer = "127.0.0.1:1"
    received_at_seconds = 0.0

    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self.status: GrpcStatus | None = None

    def hold(self, size: int) -> None:
        assert size >= 0

    def send(self, message: bytes, body: bytes | memoryview = b"") -> None:
        self.messages.append(message + bytes(body))

    def finish(self, status: GrpcStatus = GrpcStatus.OK, text: str = "") -> None:
        self.status = status


def chunks(*pieces: bytes) -> Iterator[bytes]:
    """A request's body as Envoy sends it: its end comes by itself."""
    for piece in (*pieces, b""):
        message = pb.ProcessingRequest()
        message.request_body.body, message.request_body.end_of_stream = piece, not piece
        yield message.SerializeToString()


@pytest.mark.parametrize("pieces", [(), (b"x" * 2_000,), (b"a" * 16_384, b"b" * 130_000, b"c")])
def test_a_request_is_routed_and_its_body_echoed_once_it_has_ended(pieces: tuple[bytes, ...]) -> None:
    call = Kept()
    exchange = Fixed(call, DESTINATION)
    exchange.receive(header_message("request_headers", {":path": "/v1/chat/completions"}).SerializeToString())
    for message in chunks(*pieces):
        assert not call.messages
        exchange.receive(message)

    route, *echoes = [pb.ProcessingResponse.FromString(message) for message in call.messages]
    (header,) = route.request_headers.response.header_mutation.set_headers
    assert (header.header.key, header.header.raw_value) == ("x-gateway-destination-endpoint", DESTINATION.encode())
    streamed = [echo.request_body.response.body_mutation.streamed_response for echo in echoes]
    assert b"".join(each.body for each in streamed) == b"".join(pieces)
    assert max(len(each.body) for each in streamed) < 64 * 1024  # more than that Envoy does not take
    assert [each.end_of_stream for each in streamed] == [False] * (len(streamed) - 1) + [True]


def test_the_response_goes_on_and_the_call_ends() -> None:
    call = Kept()
    exchange = Fixed(call, DESTINATION)
    exchange.receive(header_message("response_headers", {":status": "200"}).SerializeToString())
    (answer,) = [pb.ProcessingResponse.FromString(message) for message in call.messages]
    assert answer.WhichOneof("response") == "response_headers"
    assert not answer.response_headers.response.header_mutation.set_headers
    exchange.half_closed()
    assert call.status is GrpcStatus.OK
