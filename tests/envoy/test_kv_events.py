"""KV events through the real Envoy: the engine is told which request is which, and its events reach the index."""

import json
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import msgspec
import pytest
import zmq

from picker.lab.envoy import BodySendMode, EnvoyProcess
from tests.envoy.clients import Response, post
from tests.envoy.engine import Engine, send
from tests.envoy.lab import CHAT, FD, Lab
from tests.envoy.picker_process import PickerProcess, wait_until
from tests.envoy.upstream import Answer, Recorded, fresh_id

TEXT = "word " * 2000


class PublishingEngine(Engine):
    """Tells where it publishes, as vLLM 0.32 does; what it publishes is the test's to say."""

    def __init__(self) -> None:
        self._socket = zmq.Context.instance().socket(zmq.PUB)
        self._number = 0
        port = self._socket.bind_to_random_port("tcp://127.0.0.1")
        self._sources = json.dumps({"0": {"endpoint": f"tcp://*:{port}", "topic": ""}}).encode()
        super().__init__()

    async def answer(self, request: Recorded, answer: Answer) -> None:
        if urlsplit(request.target).path == "/kv_event_sources":
            await send(answer, self._sources, "application/json")
        else:
            await super().answer(request, answer)

    def publish(self, *events: dict[str, object]) -> None:
        payload = msgspec.msgpack.encode([time.time(), list(events), 0])
        self._socket.send_multipart([b"", self._number.to_bytes(8, "big"), payload])
        self._number += 1

    def close(self) -> None:
        self.__exit__()
        self._socket.close(linger=0)


def stored(session: str, blocks: int) -> dict[str, object]:
    return {
        "type": "BlockStored",
        "block_hashes": list(range(1, blocks + 1)),
        "parent_block_hash": None,
        "token_ids": [1] * (16 * blocks),
        "block_size": 16,
        "session_id": session,
    }


@pytest.fixture
def engine() -> Iterator[PublishingEngine]:
    opened = PublishingEngine()
    try:
        yield opened
    finally:
        opened.close()


@pytest.fixture
def picker(engine: PublishingEngine) -> Iterator[PickerProcess]:
    with PickerProcess([engine.address], "kv_events: {enabled: auto}\n") as opened:
        wait_until(lambda: opened.metric("picker_kv_event_endpoints") == 1, "nobody asked for its sources", 100)
        yield opened  # one that does not answer within two seconds is asked again a minute later


def ask(envoy: EnvoyProcess, rid: str, headers: list[tuple[str, str]] | None = None, **body: object) -> Response:
    messages = [{"role": "user", "content": TEXT}]
    whole = json.dumps({"model": "m", "messages": messages, **body}).encode()
    return post(envoy.port, f"{CHAT}?id={rid}", whole, headers or [])


@pytest.mark.parametrize(
    "modes", [(FD, FD), (BodySendMode.BUFFERED, BodySendMode.STREAMED)], ids=["duplex", "buffered"]
)
def test_an_engine_learns_the_names_and_its_events_shorten_the_index(
    modes: tuple[BodySendMode, BodySendMode], lab: Lab, engine: PublishingEngine, picker: PickerProcess
) -> None:
    config = lab.config(request_body=modes[0], response_body=modes[1], picker_address=picker.grpc_address)
    with EnvoyProcess(config) as envoy:
        first, second, own, in_body = (fresh_id() for _ in range(4))
        for rid in (first, second):
            assert ask(envoy, rid).status == 200
        assert ask(envoy, own, [("x-session-id", "mine")]).status == 200
        assert ask(envoy, in_body, session_id="mine").status == 200
    names = [engine.recorded(rid).values("x-session-id") for rid in (first, second, own, in_body)]
    (name,), (other,) = names[:2]
    assert name != other and len(name) == len(other) == 22
    assert names[2:] == [["mine"], []], "what the client named is left alone"

    def confirmed() -> float:
        engine.publish(stored(name, 160))  # a subscription takes its time
        return picker.metric("picker_kv_confirmed_blocks")

    wait_until(lambda: confirmed() == 9, "no event reached the index")
    held = picker.metric("picker_index_blocks")
    engine.publish({"type": "BlockRemoved", "block_hashes": [64]})
    wait_until(lambda: picker.metric("picker_index_blocks") < held, "the index was not shortened")
    engine.publish({"type": "AllBlocksCleared"})
    wait_until(lambda: picker.metric("picker_index_blocks") == 0, "the index was not emptied")
