"""Clients and model servers that leave, at any point: nothing stays in flight, nobody else notices."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from picker.lab.envoy import Balancing, BodySendMode, EnvoyProcess
from tests.envoy.clients import Http1Client, Http2Client, post
from tests.envoy.lab import BODY, CHAT, FD, MIB, Lab
from tests.envoy.picker_process import PickerProcess, wait_until
from tests.envoy.upstream import sse_events

JSON = [("content-type", "application/json")]
LENGTH = [*JSON, ("content-length", str(len(BODY)))]


Leave = Callable[[EnvoyProcess, Lab, str], None]


class Shown:
    """Waits until Envoy has told the picker of one more request: only then is there something to leave."""

    def __init__(self, envoy: EnvoyProcess) -> None:
        self._envoy = envoy
        self._before = self._sent()

    def _sent(self) -> int:
        return self._envoy.stats("ext_proc.streams_started").get("http.in.ext_proc.streams_started", 0)

    def wait(self) -> None:
        wait_until(lambda: self._sent() > self._before, "the picker was not asked")


def before_the_body(envoy: EnvoyProcess, lab: Lab, rid: str) -> None:
    with Http1Client(envoy.port) as client:
        shown = Shown(envoy)
        client.head("POST", f"{CHAT}?id={rid}", LENGTH)
        shown.wait()
        client.abort()


def within_the_body(envoy: EnvoyProcess, lab: Lab, rid: str) -> None:
    with Http1Client(envoy.port) as client:
        shown = Shown(envoy)
        client.head("POST", f"{CHAT}?id={rid}", LENGTH)
        client.send(BODY[:30])
        shown.wait()
        client.abort()


def within_a_large_body(envoy: EnvoyProcess, lab: Lab, rid: str) -> None:
    """Megabytes into a body that streams through: the model server has its share already."""
    with Http1Client(envoy.port) as client:
        shown = Shown(envoy)
        client.head("POST", f"/v1/files?id={rid}", [*JSON, ("content-length", "8000000")])
        client.send(b"x" * 3_000_000)
        shown.wait()
        client.abort()


def while_waiting(envoy: EnvoyProcess, lab: Lab, rid: str) -> None:
    """The request is with the model server, which has not answered."""
    with Http1Client(envoy.port) as client:
        client.head("POST", f"{CHAT}?id={rid}&do=hang", LENGTH)
        client.send(BODY)
        wait_until(lambda: any(upstream.saw(rid) for upstream in lab.upstreams), "request did not arrive")
        client.abort()
    assert lab.upstream_of(rid).recorded(rid).gone.wait(10), "the model server was not told"


def within_the_answer(envoy: EnvoyProcess, lab: Lab, rid: str) -> None:
    with Http1Client(envoy.port) as client:
        client.head("POST", f"{CHAT}?id={rid}&do=sse&n=9&stall=2", LENGTH)
        client.send(BODY)
        assert client.read_head().status == 200
        assert client.read_chunk()
        client.abort()
    assert lab.upstream_of(rid).recorded(rid).gone.wait(10), "the model server was not told"


def reset_within_the_body(envoy: EnvoyProcess, lab: Lab, rid: str) -> None:
    """HTTP/2: the stream goes, the connection stays."""
    with Http2Client(envoy.port) as client:
        shown = Shown(envoy)
        stream = client.start("POST", f"{CHAT}?id={rid}", JSON)
        client.data(stream, BODY[:30])
        shown.wait()
        client.reset(stream)
        after = client.start("GET", "/v1/models", end=True)
        assert client.response(after).status == 200


def reset_within_the_answer(envoy: EnvoyProcess, lab: Lab, rid: str) -> None:
    with Http2Client(envoy.port) as client:
        stream = client.start("POST", f"{CHAT}?id={rid}&do=sse&n=9&stall=1", JSON)
        client.data(stream, BODY, end=True)
        client.read_some(stream, len(sse_events(1)[0]))
        client.reset(stream)
        after = client.start("GET", "/v1/models", end=True)
        assert client.response(after).status == 200
    assert lab.upstream_of(rid).recorded(rid).gone.wait(10), "the model server was not told"


LEAVING = [
    before_the_body,
    within_the_body,
    within_a_large_body,
    while_waiting,
    within_the_answer,
    reset_within_the_body,
    reset_within_the_answer,
]
WITHIN_THE_ANSWER = (within_the_answer, reset_within_the_answer)


@pytest.mark.parametrize("leave", LEAVING, ids=lambda leave: leave.__name__)
def test_client_leaves(lab: Lab, proxy: EnvoyProcess, rid: str, leave: Leave) -> None:
    """Told as aborted, but where response bodies are not shown: there the end of the stream is all there is."""
    before = lab.picker.metric("picker_requests_total", outcome="aborted")
    ended = lab.picker.ended()
    leave(proxy, lab, rid)
    wait_until(lambda: lab.picker.ended() > ended, "the request never ended")
    lab.picker.wait_idle()
    unseen = lab.config_of(proxy).response_body is BodySendMode.NONE and leave in WITHIN_THE_ANSWER
    if not unseen:
        wait_until(lambda: lab.picker.metric("picker_requests_total", outcome="aborted") == before + 1, "not aborted")
    assert post(proxy.port, f"{CHAT}?id={rid}-next", BODY).status == 200


def test_half_closed_client(lab: Lab, proxy: EnvoyProcess, rid: str) -> None:
    """A client that shuts its sending side after the request still gets its answer, or is cut off; either
    way nothing stays."""
    with Http1Client(proxy.port) as client:
        client.head("POST", f"{CHAT}?id={rid}", LENGTH)
        client.send(BODY)
        client.socket.shutdown(1)
        client._file.read(1)
    lab.picker.wait_idle()


@pytest.mark.parametrize("manner", ["close", "half"])
def test_model_server_breaks(lab: Lab, proxy: EnvoyProcess, rid: str, manner: str) -> None:
    """The connection breaks before, or within, the answer. A cut answer must look cut."""
    with Http2Client(proxy.port) as client:
        stream = client.start("POST", f"{CHAT}?id={rid}&do={manner}", JSON)
        client.data(stream, BODY, end=True)
        if manner == "close":
            assert client.response(stream).status == 503
        else:
            client.read_some(stream, len(sse_events(1)[0]))
            lab.upstream_of(rid).recorded(rid).release.set()
            with pytest.raises(AssertionError, match="stream was reset"):
                client.response(stream)
    lab.picker.wait_idle()
    assert post(proxy.port, f"{CHAT}?id={rid}-next", BODY).status == 200


def test_others_go_on(lab: Lab, either: EnvoyProcess, rid: str) -> None:
    """Ten clients stream, ten leave in between: the ten get all of it."""
    with Http2Client(either.port) as client:
        streams = {}
        for number in range(20):
            stream = client.start("POST", f"{CHAT}?id={rid}.{number}&do=sse&n=50&stall=25", JSON)
            client.data(stream, BODY, end=True)
            streams[stream] = f"{rid}.{number}"
        for stream in streams:
            client.read_some(stream, len(b"".join(sse_events(50)[:25])))
        for stream in list(streams)[::2]:
            client.reset(stream)
        for name in streams.values():
            lab.upstream_of(name).recorded(name).release.set()
        for stream in list(streams)[1::2]:
            assert client.response(stream).body == b"".join(sse_events(50))
    lab.picker.wait_idle()


def test_a_hundred_aborts(lab: Lab, either: EnvoyProcess, rid: str) -> None:
    """However they fall, the ledger is empty afterwards."""
    for number in range(100):
        with Http2Client(either.port) as client:
            stream = client.start("POST", f"{CHAT}?id={rid}.{number}&do=sse&n=5", JSON)
            client.data(stream, BODY[: number % len(BODY)], end=number % 3 == 0)
            if number % 2:
                client.reset(stream)
    lab.picker.wait_idle()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_is_flat_over_thousands_of_aborts(lab: Lab) -> None:
    """Cut anywhere, with prompts that nobody repeats: after a first thousand, five thousand and more add nothing."""
    with PickerProcess(lab.addresses, "limits: {index_bytes_max: 1048576}\n") as picker:
        config = lab.config(picker_address=picker.grpc_address, response_body=FD, balancing=Balancing.OVERRIDE_HOST)
        with EnvoyProcess(config) as envoy:
            abort_many(envoy, range(25))
            wait_until(lambda: picker.in_flight() == 0, "in flight")
            before = resident_bytes(picker)
            reached, rounds = 0.0, 25
            while reached <= 5_000:  # how many of them the proxy shows is a matter of how soon they are cut
                assert rounds < 1_000, "too few reached the picker"
                abort_many(envoy, range(rounds, rounds + 125))
                rounds += 125
                wait_until(lambda: picker.in_flight() == 0, "in flight")
                reached = picker.metric("picker_requests_total", outcome="aborted")
            assert resident_bytes(picker) - before < 4 * MIB


def abort_many(envoy: EnvoyProcess, rounds: range) -> None:
    """Forty requests a round on one connection, a third with whole bodies, half reset, all left behind."""
    for number in rounds:
        with Http2Client(envoy.port) as client:
            for each in range(40):
                body = b'{"prompt":"' + f"{number}-{each} ".encode() * 400 + b'"}'
                stream = client.start("POST", "/v1/completions?do=sse", JSON)
                whole = each % 3 == 0
                client.data(stream, body if whole else body[: each * 37], end=whole)
                if each % 2:
                    client.reset(stream)


def resident_bytes(picker: PickerProcess) -> int:
    """Memory of the picker's process."""
    pages = Path(f"/proc/{picker.process.pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")
