"""Any bytes at all: nothing is raised, nothing hangs, nothing is held once the connection is gone.

The oracle for what is valid is hyper-h2's client: what it sends, in whatever pieces it arrives and
whatever windows it opens, is answered, and it accepts every byte of the answers.
"""

import struct

import h2.config
import h2.connection
import h2.events
import h2.settings
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from picker.config import TransportLimits
from tests.unit.edge.grpc.h2.wire import CALL_FIELDS, PREFACE, SMALL_LIMITS, Echo, Wire, message

FAST = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])

frame_headers = st.builds(
    lambda length, kind, flags, stream_id: struct.pack(">L", length)[1:] + bytes((kind, flags)) + stream_id,
    st.integers(0, 20) | st.integers(0, 2**24 - 1),
    st.integers(0, 10) | st.integers(0, 255),
    st.integers(0, 255),
    st.integers(0, 9).map(lambda number: struct.pack(">L", number)) | st.binary(min_size=4, max_size=4),
)


def whole_frame(kind: int, flags: int, stream_id: int, payload: bytes) -> bytes:
    return struct.pack(">L", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">L", stream_id) + payload


encoded = Wire(greet=False).encoder.encode(list(CALL_FIELDS))
payloads = (
    st.binary(max_size=40)
    | st.just(encoded)
    | st.binary(max_size=60).map(message)
    | st.integers(0, 2**32 - 1).map(lambda value: struct.pack(">L", value))
    | st.lists(st.tuples(st.integers(0, 7), st.integers(0, 2**32 - 1)), max_size=3).map(
        lambda entries: b"".join(struct.pack(">HL", key, value) for key, value in entries)
    )
)
frames = st.builds(
    whole_frame,
    st.integers(0, 10),
    st.sampled_from([0, 1, 4, 5, 8, 9, 12, 13, 0x20, 0x24, 0x25, 0x2D, 255]),
    st.integers(0, 9),
    payloads,
)
pieces = st.lists(frames | frame_headers | st.binary(max_size=30), max_size=30)


def check_end(wire: Wire) -> None:
    """Whatever came: no exception of ours, and nothing left once the peer is gone."""
    assert wire.errors == []
    wire.frames()  # what we wrote can be read
    wire.connection.connection_lost(None)
    wire.turn()
    assert wire.shared.budget.used == 0
    wire.shared.budget.check()
    assert wire.connection.messages.buffered == 0
    assert wire.connection.sender.queued == 0
    assert wire.connection.streams == {}
    assert wire.connection.messages.partials == {}
    for handler in wire.handlers:
        assert handler.seen.count("closed") == 1
        assert handler.seen[-1] == "closed"


class Patient(Echo):
    """Echo, without the message that raises: that one is meant to reach `on_error`."""

    def receive(self, content: bytes) -> None:
        super().receive(b"x" if content == b"raise" else content)


def fuzzed(greet: bool = True) -> Wire:
    wire = Wire(SMALL_LIMITS, greet=greet)
    wire.shared.methods = {"/test.Echo/Echo": lambda call: Patient(wire, call)}
    return wire


@FAST
@given(st.lists(st.binary(max_size=200), max_size=10))
def test_any_bytes(chunks: list[bytes]) -> None:
    wire = fuzzed(greet=False)
    for chunk in chunks:
        wire.send_raw(chunk)
    check_end(wire)


@FAST
@given(st.lists(st.binary(max_size=200), max_size=10))
def test_any_bytes_after_the_preface(chunks: list[bytes]) -> None:
    wire = fuzzed(greet=False)
    wire.send_raw(PREFACE)
    for chunk in chunks:
        wire.send_raw(chunk)
    check_end(wire)


@settings(FAST, max_examples=1_500)
@given(pieces, st.lists(st.integers(1, 60), max_size=20), st.lists(st.integers(0, 100), max_size=5))
def test_frames_that_are_almost_right(found: list[bytes], cuts: list[int], waits: list[int]) -> None:
    wire = fuzzed()
    data = b"".join(found)
    for cut in cuts:
        wire.send_raw(data[:cut])
        data = data[cut:]
        if waits:
            wire.pass_time(waits.pop())
    wire.send_raw(data)
    check_end(wire)


@settings(FAST, max_examples=500)
@given(pieces, st.integers(1, 200))
def test_where_reads_break_makes_no_difference_to_any_bytes(found: list[bytes], at: int) -> None:
    data = b"".join(found)
    whole, broken = fuzzed(), fuzzed()
    whole.send_raw(data)
    broken.send_raw(data[:at])
    broken.send_raw(data[at:])
    assert [handler.seen for handler in whole.handlers] == [handler.seen for handler in broken.handlers]
    assert bool(whole.connection.closing) == bool(broken.connection.closing)


class Script:
    """hyper-h2's client driving a `Wire`."""

    def __init__(self, limits: TransportLimits, cuts: list[int]) -> None:
        self.wire = Wire(limits, greet=False)
        self.client = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
        self.cuts = cuts
        self.answers: dict[int, bytes] = {}
        self.trailers: dict[int, dict[bytes, bytes]] = {}
        self.client.initiate_connection()
        self.swap()

    def swap(self) -> None:
        """Everything each side has to say, until neither has more; in pieces as `cuts` says."""
        while True:
            data = self.client.data_to_send()
            if not data and not self.wire.socket.written:
                return
            while data:
                cut = self.cuts[0] if self.cuts else len(data)
                self.cuts.append(self.cuts.pop(0)) if self.cuts else None
                self.wire.send_raw(data[:cut])
                data = data[cut:]
            written = bytes(self.wire.socket.written)
            self.wire.socket.written.clear()
            for event in self.client.receive_data(written):
                self.take(event)

    def take(self, event: h2.events.Event) -> None:
        assert not isinstance(event, h2.events.ConnectionTerminated), event
        if isinstance(event, h2.events.DataReceived):
            self.answers[event.stream_id] = self.answers.get(event.stream_id, b"") + event.data
            self.client.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, h2.events.TrailersReceived | h2.events.ResponseReceived):
            self.trailers[event.stream_id] = dict(event.headers)


@settings(FAST, max_examples=150)
@given(
    st.lists(st.lists(st.binary(max_size=50) | st.integers(0, 60_000).map(bytes), max_size=4), min_size=1, max_size=5),
    st.lists(st.integers(1, 5_000), max_size=6),
    st.sampled_from([65_535, 1, 17, 1_000, 16_384]),
    st.booleans(),
    st.integers(0, 255),
)
def test_whatever_hyper_h2_sends_is_answered_to_its_liking(
    calls: list[list[bytes]], cuts: list[int], window: int, interleave: bool, padding: int
) -> None:
    calls = [
        [b"z" if each in (b"raise", b"finish", b"silent") else each[: window * 40] for each in call] for call in calls
    ]
    script = Script(TransportLimits(idle_frames_max=1_000_000), cuts)
    client = script.client
    client.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: window})
    script.swap()
    for number in range(len(calls)):
        client.send_headers(number * 2 + 1, list(CALL_FIELDS))
        if not interleave:
            script.swap()
    for number, messages in enumerate(calls):
        stream_id = number * 2 + 1
        for content in messages:
            rest = message(content)
            while rest:
                script.swap()
                room = min(client.local_flow_control_window(stream_id) - 256, client.max_outbound_frame_size - 256)
                assert room > 0
                client.send_data(stream_id, rest[:room], pad_length=padding or None)
                rest = rest[room:]
        client.end_stream(stream_id)
    script.swap()
    for number, messages in enumerate(calls):
        stream_id = number * 2 + 1
        expected = b"".join(message(each) for each in messages)
        assert script.answers.get(stream_id, b"") == expected
        assert script.trailers[stream_id][b"grpc-status"] == b"0"
    assert script.wire.errors == []
    assert script.wire.connection.streams == {}
    check_end(script.wire)
