"""A request on its way from the socket to the decision: every byte of it that waits is in the ledger, and no longer."""

from random import Random

import pytest
from hyperframe.frame import DataFrame, RstStreamFrame, SettingsFrame, WindowUpdateFrame

from picker.budget import STREAM_BYTES, UNANSWERED_BYTES
from picker.config import Config, TransportLimits
from picker.decision import Finished
from picker.director import Director
from picker.edge.grpc.ext_proc import METHOD, ExtProcService
from picker.generated import ext_proc_pb2 as pb
from picker.pool.specs import EndpointSpec
from tests.unit.edge.grpc.h2.wire import CALL_FIELDS, Wire, message

FULL_DUPLEX, BUFFERED, STREAMED = 4, 2, 1
FIELDS = tuple((name, METHOD if name == ":path" else value) for name, value in CALL_FIELDS)


class Door:
    """A proxy's connection to a whole ext_proc service."""

    def __init__(self, held_bytes_max: int = 1_000_000) -> None:
        self.wire = Wire(TransportLimits(buffered_bytes_max=held_bytes_max))
        self.finished: list[Finished] = []
        director = Director(Config(epsilon=0.0))
        director.replace_endpoints([EndpointSpec(address="10.0.0.1:8000", uid="a", name="a")])
        self.service = ExtProcService(
            director,
            clock=lambda: self.wire.now,
            rng=Random(1),
            finished=self.finished.append,
            decided=lambda picked, record: None,
            faulted=lambda where, error: self.wire.errors.append(error),
        )
        self.wire.shared.methods = self.service.methods()
        window = {SettingsFrame.INITIAL_WINDOW_SIZE: 10_000_000}
        self.wire.send(SettingsFrame(0, window), WindowUpdateFrame(0, 100_000_000))
        self.budget = self.wire.shared.budget

    def open(self, stream_id: int, mode: int = FULL_DUPLEX) -> None:
        start = pb.ProcessingRequest()
        for name, value in ((":method", "POST"), (":path", "/v1/chat/completions")):
            start.request_headers.headers.headers.add(key=name, raw_value=value.encode())
        start.protocol_config.request_body_mode = mode
        start.protocol_config.response_body_mode = STREAMED
        self.wire.send(self.wire.headers(stream_id, FIELDS))
        self.send(stream_id, start)

    def body(self, stream_id: int, data: bytes, *, end: bool = False) -> None:
        part = pb.ProcessingRequest()
        part.request_body.body, part.request_body.end_of_stream = data, end
        self.send(stream_id, part)

    def send(self, stream_id: int, content: pb.ProcessingRequest) -> None:
        data = message(content.SerializeToString())
        self.wire.send(*[DataFrame(stream_id, data[at : at + 16_384]) for at in range(0, len(data), 16_384)])

    def answers(self, stream_id: int) -> list[pb.ProcessingResponse]:
        return [pb.ProcessingResponse.FromString(each) for each in self.wire.answers(stream_id)]


def test_a_body_counts_from_its_first_piece_to_the_decision() -> None:
    door = Door()
    door.open(1)
    assert door.budget.used == STREAM_BYTES + UNANSWERED_BYTES
    for number in range(1, 6):
        door.body(1, b" " * 50_000)
        assert 50_000 * number < door.budget.bodies < 50_000 * number + 500
    door.body(1, b'{"model":"m","messages":[]}', end=True)
    assert door.answers(1)[0].WhichOneof("response") == "request_headers"
    assert door.budget.bodies == 0
    assert door.budget.used == door.budget.streams == STREAM_BYTES
    door.wire.send(RstStreamFrame(1, 2))
    assert door.budget.used == 0
    door.budget.check()


@pytest.mark.parametrize("how", ["reset", "late", "invalid", "lost"])
def test_however_a_body_ends_it_is_given_back(how: str) -> None:
    door = Door()
    door.open(1)
    door.body(1, b"{" * 50_000)
    assert door.budget.bodies > 50_000
    if how == "reset":
        door.wire.send(RstStreamFrame(1, 8))
    elif how == "late":
        door.wire.now += 61
        door.service.tick()
        door.wire.turn()
    elif how == "invalid":
        door.body(1, b"}", end=True)
    else:
        door.wire.connection.connection_lost(None)
    assert door.budget.bodies == 0
    door.budget.check()


def test_the_hog_is_told_to_come_again_and_a_small_request_is_served() -> None:
    door = Door(held_bytes_max=300_000)
    door.open(1)
    door.open(3)
    for _ in range(3):
        door.body(1, b" " * 50_000)
    door.wire.now += 0.1
    door.body(3, b'{"model":"m",')
    for _ in range(3):
        door.body(1, b" " * 50_000)
    (answer,) = door.answers(1)
    assert answer.immediate_response.status.code == 503
    headers = {each.header.key: each.header.raw_value for each in answer.immediate_response.headers.set_headers}
    assert headers["x-picker-reason"] == b"out_of_memory"
    assert headers["retry-after"] == b"1"
    assert door.budget.bodies == 0
    door.body(3, b'"messages":[]}', end=True)
    assert door.answers(3)[0].WhichOneof("response") == "request_headers"
    assert [(each.outcome.value, each.reject_word) for each in door.finished] == [("shed", "out_of_memory")]
    assert not door.wire.connection.closing
    assert not door.wire.errors


def test_a_buffered_body_in_one_unfinished_message_gives_way_too() -> None:
    door = Door(held_bytes_max=300_000)
    door.open(1, BUFFERED)
    door.answers(1)
    part = pb.ProcessingRequest()
    part.request_body.body = b" " * 400_000
    data = message(part.SerializeToString())
    door.wire.send(*[DataFrame(1, data[at : at + 16_384]) for at in range(0, 350_000, 16_384)])
    assert [each.WhichOneof("response") for each in door.answers(1)] == ["request_headers", "immediate_response"]
    assert door.budget.used == 0
    assert 1 not in door.wire.connection.streams


def test_a_deadline_waits_for_what_came_while_the_process_stood_still() -> None:
    door = Door()
    door.open(1)
    door.body(1, b'{"model":"m",')
    door.wire.now += 100
    door.service.forgive(100)
    door.service.tick()
    assert door.answers(1) == []
    door.body(1, b'"messages":[]}', end=True)
    assert door.answers(1)[0].WhichOneof("response") == "request_headers"
