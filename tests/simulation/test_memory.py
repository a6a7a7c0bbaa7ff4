"""Memory is flat through ten thousand streams that end badly, wherever they end."""

import gc
import json
import tracemalloc
from random import Random
from typing import NamedTuple

import pytest

from picker.config import Config, Limits, Routing
from picker.director import Director
from picker.edge.grpc.ext_proc import METHOD, ExtProcService
from picker.edge.telemetry.decisions import DecisionRing
from picker.generated import ext_proc_pb2 as pb
from picker.pool.specs import EndpointSpec
from tests.faults import raised

STREAMS = 10_000
CUTS = 6


class Wire:
    """A call that a transport would have made. Counts what is sent and keeps nothing."""

    peer = "127.0.0.1:1"
    received_at_seconds = 0.0

    def __init__(self) -> None:
        self.sent = 0
        self.finished = False

    def hold(self, size: int) -> None:
        assert size >= 0

    def send(self, message: bytes, body: bytes | memoryview = b"") -> None:
        self.sent += len(message) + len(body)

    def finish(self, status: object = None, text: str = "") -> None:
        self.finished = True


def conversation(number: int) -> list[bytes]:
    """Headers, a body in two pieces, an answer that streams: every one with a prompt, model and id of its own."""

    def headers(part: pb.HttpHeaders, **values: str) -> None:
        for name, value in values.items():
            header = part.headers.headers.add()
            header.key, header.raw_value = name.replace("_", "-").replace("pseudo-", ":"), value.encode()

    start, first, second, answer, chunk = (pb.ProcessingRequest() for _ in range(5))
    headers(
        start.request_headers, pseudo_path="/v1/chat/completions", pseudo_method="POST", x_request_id=f"id-{number}"
    )
    start.protocol_config.request_body_mode = start.protocol_config.response_body_mode = 4
    text = f"{number} " * 1500
    body = json.dumps(
        {"model": f"model-{number}", "stream": True, "messages": [{"role": "user", "content": text}]}
    ).encode()
    first.request_body.body, second.request_body.body = body[:3000], body[3000:]
    second.request_body.end_of_stream = True
    headers(answer.response_headers, pseudo_status="200", content_type="text/event-stream")
    chunk.response_body.body = b'data: {"usage":{"prompt_tokens":3000,"completion_tokens":1}}\n\n'
    return [each.SerializeToString() for each in (start, first, second, answer, chunk)]


class Rig(NamedTuple):
    service: ExtProcService
    director: Director
    now: list[float]


@pytest.fixture
def rig():
    now = [0.0]
    config = Config(limits=Limits(index_bytes_max=2**20), routing=Routing(kv_capacity_tokens=100_000))
    director = Director(config)
    director.replace_endpoints(EndpointSpec(address=f"10.0.0.{n}:80", uid=str(n), name=str(n)) for n in range(4))
    ring = DecisionRing()

    made = ExtProcService(
        director,
        clock=lambda: now[0],
        rng=Random(1),
        finished=lambda record: None,
        decided=ring.add,
        faulted=raised,
    )
    return Rig(made, director, now)


def test_ten_thousand_aborted_streams_leave_nothing_behind(rig):
    service = rig.service
    opened = service.methods()[METHOD]

    def run(start: int, end: int) -> int:
        for number in range(start, end):
            call = Wire()
            stream = opened(call)
            for message in conversation(number)[: number % CUTS]:
                stream.receive(message)
            if number % 3 == 0:
                stream.half_closed()
            stream.closed()
            rig.now[0] += 0.001
            if number % 50 == 0:
                service.tick()
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    warm = run(0, STREAMS // 5)  # rings, caches and the index are full from here on
    after = run(STREAMS // 5, STREAMS)
    tracemalloc.stop()
    assert (service.open_streams, len(service.waiting), rig.director.ledger.open_charges) == (0, 0, 0)
    rig.director.datastore.check()
    rig.director.index.check()
    assert after - warm < 300_000, f"{(after - warm) / (STREAMS * 0.8):.0f} bytes a stream stay"
