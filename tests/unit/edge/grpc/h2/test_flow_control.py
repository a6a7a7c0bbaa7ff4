"""Windows in both directions: what waits, in which order it goes, and what is held back (RFC 9113 section 5.2)."""

import pytest
from hyperframe.frame import DataFrame, HeadersFrame, RstStreamFrame, SettingsFrame, WindowUpdateFrame

from picker.config import TransportLimits
from picker.edge.grpc.h2 import frames
from picker.edge.grpc.h2.sending import ROOM_BYTES
from tests.unit.edge.grpc.h2.wire import Wire, message


def narrow(stream_window: int, limits: TransportLimits | None = None) -> Wire:
    """A peer that lets each stream send so much."""
    wire = Wire(limits)
    wire.send(SettingsFrame(0, {SettingsFrame.INITIAL_WINDOW_SIZE: stream_window}))
    wire.frames()
    return wire


def data_sizes(wire: Wire) -> list[tuple[int, int]]:
    return [(each.stream_id, len(each.data)) for each in wire.frames() if isinstance(each, DataFrame)]


def test_a_closed_window_holds_everything_but_headers() -> None:
    wire = narrow(0)
    wire.open(1, b"hello", end=True)
    assert [type(each) for each in wire.frames()] == [HeadersFrame]
    assert wire.handlers[0].seen == [b"hello", "half_closed", "closed"]
    assert list(wire.connection.streams) == [1]
    wire.widen(1, 3)
    assert data_sizes(wire) == [(1, 3)]
    wire.widen(1, 100)
    written = wire.frames()
    assert [type(each) for each in written] == [DataFrame, HeadersFrame]
    assert "END_STREAM" in written[-1].flags
    assert wire.answers(1) == [b"hello"]
    assert wire.connection.streams == {}
    assert wire.connection.sender.queued == wire.shared.buffered_bytes == 0


def test_messages_keep_their_order_through_a_queue() -> None:
    wire = narrow(7)
    wire.open(1, b"first", b"", b"third", end=True)
    for _ in range(30):
        wire.widen(1, 1)
    assert wire.answers(1) == [b"first", b"", b"third"]
    assert wire.connection.streams == {}


def test_the_initial_window_may_move_both_ways_and_below_zero() -> None:
    """Section 6.9.2's own example: 60 KB sent, 16 KB set, the window is -44 KB."""
    wire = narrow(60_000)
    wire.open(1, b"silent")
    wire.handlers[0].call.send(bytes(59_995))
    wire.turn()
    assert sum(size for _, size in data_sizes(wire)) == 60_000
    wire.send(SettingsFrame(0, {SettingsFrame.INITIAL_WINDOW_SIZE: 16_000}))
    wire.handlers[0].call.send(b"x")
    wire.turn()
    wire.widen(1, 44_000)
    assert data_sizes(wire) == []
    wire.widen(1, 6)
    assert data_sizes(wire) == [(1, 6)]


def test_widening_every_stream_frees_what_waits_on_each() -> None:
    wire = narrow(0)
    wire.open(1, b"one")
    wire.open(3, b"two")
    wire.frames()
    wire.send(SettingsFrame(0, {SettingsFrame.INITIAL_WINDOW_SIZE: 100}))
    assert wire.answers(1) == [b"one"]
    assert wire.answers(3) == [b"two"]


def test_a_window_above_the_maximum_by_settings_is_an_error() -> None:
    wire = narrow(0)
    wire.open(1, b"silent")
    wire.widen(1, 2**31 - 1)
    wire.send(SettingsFrame(0, {SettingsFrame.INITIAL_WINDOW_SIZE: 1}))
    assert wire.goaway_code() == frames.FLOW_CONTROL_ERROR


def test_the_connection_window_is_shared_in_turns() -> None:
    """Three streams, each with 100 KB to send, 65,535 bytes of window: nobody waits behind a whole answer."""
    wire = narrow(10_000_000)
    for stream_id in (1, 3, 5):
        wire.open(stream_id, b"silent")
    wire.frames()
    for handler in wire.handlers:
        handler.call.send(bytes(100_000))
    wire.turn()
    data_sizes(wire)
    for _ in range(6):
        wire.widen(0, 16_384)
    sent = data_sizes(wire)
    assert [size for _, size in sent] == [16_384] * 6
    assert sorted(stream_id for stream_id, _ in sent) == [1, 1, 3, 3, 5, 5]
    wire.widen(0, 1_000_000)
    assert [wire.answers(stream_id) for stream_id in (1, 3, 5)] == [[bytes(100_000)]] * 3


def test_a_stream_whose_own_window_is_closed_does_not_hold_up_the_others() -> None:
    wire = Wire()
    wire.send(WindowUpdateFrame(0, 10_000_000))
    wire.open(1, b"silent")
    wire.open(3, b"silent")
    wire.handlers[0].call.send(bytes(200_000))
    wire.turn()
    wire.handlers[1].call.send(b"through")
    wire.turn()
    assert wire.answers(3) == [b"through"]
    assert wire.answers(1) == []


def test_a_reset_gives_its_queue_back() -> None:
    wire = narrow(0)
    wire.open(1, b"x" * 1_000)
    wire.open(3, b"y" * 10)
    assert wire.connection.sender.queued == 1_005 + 15
    wire.send(RstStreamFrame(1, 8))
    assert wire.connection.sender.queued == wire.shared.buffered_bytes == 15
    wire.send(SettingsFrame(0, {SettingsFrame.INITIAL_WINDOW_SIZE: 100}))
    assert wire.answers(3) == [b"y" * 10]
    assert wire.answers(1) == []


def test_a_lost_connection_gives_everything_back() -> None:
    wire = narrow(0)
    wire.open(1, b"x" * 1_000)
    wire.send(wire.headers(3), DataFrame(3, message(b"y" * 500)[:-1]))
    assert wire.shared.buffered_bytes == 1_005 + 499
    wire.connection.connection_lost(None)
    assert wire.shared.buffered_bytes == 0


def test_windows_are_granted_by_halves() -> None:
    limits = TransportLimits(stream_window_bytes=65_535, connection_window_bytes=200_000)
    wire = Wire(limits)
    wire.open(1, b"silent")
    wire.frames()
    granted = {0: 0, 1: 0}
    sent = 0
    wire.send(DataFrame(1, message(bytes(400_000))[:5]))
    wire.frames()
    for _ in range(39):
        wire.send(DataFrame(1, bytes(10_000)))
        sent += 10_000
        for each in wire.frames():
            assert isinstance(each, WindowUpdateFrame)
            granted[each.stream_id] += each.window_increment
        assert sent - granted[1] <= 32_767 + 10_000
        assert sent - granted[0] <= 100_000 + 10_000
    assert granted[1] > 300_000


def large_read(stream_id: int = 1) -> list[DataFrame]:
    """131,072 bytes of a message's middle in frames of full size: what Envoy writes at once."""
    return [DataFrame(stream_id, bytes(16_384))] * 8


def test_the_middle_of_a_large_message_is_granted_as_it_comes() -> None:
    wire = Wire(TransportLimits(stream_window_bytes=200_000, connection_window_bytes=300_000))
    wire.open(1, b"silent")
    wire.send(DataFrame(1, message(bytes(2_000_000))[:5]))
    wire.frames()
    granted = {0: 0, 1: 0}
    for count in range(1, 13):
        wire.send(*large_read())
        for each in wire.frames():
            assert isinstance(each, WindowUpdateFrame)
            granted[each.stream_id] += each.window_increment
        assert 131_072 * count - 100_000 < granted[1] <= 131_072 * count + 16  # and what opened the message
        assert 131_072 * count - 150_000 < granted[0] <= 131_072 * count + 16
        assert wire.shared.buffered_bytes == 131_072 * count


@pytest.mark.parametrize("narrower", ["stream_window_bytes", "connection_window_bytes"])
def test_a_large_read_may_not_exceed_a_window_either(narrower: str) -> None:
    windows = {"stream_window_bytes": 1_000_000, "connection_window_bytes": 1_000_000, narrower: 100_000}
    wire = Wire(TransportLimits(**windows))
    wire.open(1, b"silent")
    wire.send(DataFrame(1, message(bytes(2_000_000))[:5]))
    wire.send(*large_read())
    assert wire.goaway_code() == frames.FLOW_CONTROL_ERROR


def test_what_large_reads_leave_unfinished_is_bounded() -> None:
    wire = Wire(TransportLimits(connection_buffered_bytes_max=300_000))
    wire.open(1, b"silent")
    wire.send(DataFrame(1, message(bytes(2_000_000))[:5]))
    for count in (1, 2):
        wire.send(*large_read())
        assert wire.shared.buffered_bytes == 131_072 * count
        assert not [each for each in wire.frames() if isinstance(each, HeadersFrame) and ended(each)]
    wire.send(*large_read())
    (status,) = [ended(each) for each in wire.frames() if isinstance(each, HeadersFrame)]
    assert status == "8"  # RESOURCE_EXHAUSTED
    assert wire.shared.buffered_bytes == 0


def ended(frame: HeadersFrame) -> str | None:
    """The gRPC status that trailers bring."""
    return dict(frame.fields).get("grpc-status")  # type: ignore[attr-defined]


def test_padding_counts() -> None:
    wire = Wire(TransportLimits(stream_window_bytes=65_535))
    wire.open(1, b"silent")
    for _ in range(130):
        wire.send(DataFrame(1, b"", pad_length=255, flags=["PADDED"]))
    updates = [each for each in wire.frames() if isinstance(each, WindowUpdateFrame)]
    # 13 bytes of message, then 256 a frame (one says how long the padding is): past the half with the 128th.
    assert [(each.stream_id, each.window_increment) for each in updates] == [(1, 11 + 128 * 256)]


def test_more_than_the_window_is_an_error() -> None:
    """The call's queue is full, so no window is granted, and its peer sends on."""
    limits = TransportLimits(stream_window_bytes=65_535, stream_send_queue_bytes_max=1)
    wire = narrow(0, limits)
    wire.open(1, b"x" * 15_000)
    wire.send(DataFrame(1, message(bytes(100_000))[:5]))
    for _ in range(4):
        wire.send(DataFrame(1, bytes(12_000)))
    assert not [each for each in wire.frames() if isinstance(each, WindowUpdateFrame)]
    assert wire.connection.closing is False
    wire.send(DataFrame(1, bytes(12_000)))
    assert wire.goaway_code() == frames.FLOW_CONTROL_ERROR


def test_a_stream_whose_answers_pile_up_gets_no_window_until_they_are_taken() -> None:
    limits = TransportLimits(stream_window_bytes=65_535, stream_send_queue_bytes_max=30_000)
    wire = narrow(0, limits)
    wire.open(1, *[b"x" * 10_000] * 6)
    assert not [each for each in wire.frames() if isinstance(each, WindowUpdateFrame)]
    wire.widen(1, 100_000)
    updates = [each for each in wire.frames() if isinstance(each, WindowUpdateFrame)]
    assert [(each.stream_id, each.window_increment) for each in updates] == [(1, 60_030)]


def test_a_full_queue_of_one_call_leaves_the_connection_its_window() -> None:
    limits = TransportLimits(connection_window_bytes=100_000, send_queue_bytes_max=60_000)
    wire = narrow(0, limits)
    wire.open(1, *[b"x" * 10_000] * 6)
    wire.open(3, *[b"silent" * 1_000] * 20)
    assert {each.stream_id for each in wire.frames() if isinstance(each, WindowUpdateFrame)} == {0}


def test_no_more_is_written_than_the_socket_has_room_for() -> None:
    wire = narrow(10_000_000)
    wire.send(WindowUpdateFrame(0, 100_000_000))
    for stream_id in (1, 3, 5):
        wire.open(stream_id, b"silent")
    wire.frames()
    wire.socket.takes = 200_000
    for handler in wire.handlers:
        handler.call.send(bytes(3_000_000))
    wire.turn()
    assert wire.socket.unsent <= ROOM_BYTES + 16_384
    assert wire.connection.sender.queued > 7_000_000
    wire.handlers[0].call.send(b"behind")
    turns = 0
    while wire.connection.sender.queued:
        wire.socket.take(200_000)
        if wire.socket.unsent < 100_000:
            wire.connection.resume_writing()
        wire.turn()
        assert wire.socket.unsent <= ROOM_BYTES + 16_384
        turns += 1
    assert turns > 30
    assert wire.answers(1) == [bytes(3_000_000), b"behind"]
    assert wire.answers(5) == [bytes(3_000_000)]
    wire.shared.budget.check()


def test_a_peer_that_does_not_read_its_socket_is_not_read_from() -> None:
    wire = Wire()
    wire.connection.pause_writing()
    assert wire.socket.reading is False
    wire.connection.resume_writing()
    assert wire.socket.reading is True
