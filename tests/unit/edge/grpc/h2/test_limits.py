"""Every limit, attacked, while a second connection of the same server stays served.

An attack is a function from a `Wire` to how it has to end: a GOAWAY code, "cut" (no goodbye), or
a check of its own. `test_every_limit_is_attacked` sees to it that none is forgotten.
"""

from collections.abc import Callable
from itertools import count

import hpack
import msgspec
import pytest
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    HeadersFrame,
    PingFrame,
    PriorityFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from picker.config import TransportLimits
from picker.edge.grpc.h2 import frames
from tests.unit.edge.grpc.h2.wire import CALL_FIELDS, Wire, message

CALM = frames.ENHANCE_YOUR_CALM
ATTACKS: dict[str, tuple[TransportLimits, Callable[[Wire], int | str | None]]] = {}


def attack(limit: str, **limits: object) -> Callable[[Callable[[Wire], int | str | None]], None]:
    """Register an attack on a limit under the limits it runs with."""

    def register(run: Callable[[Wire], int | str | None]) -> None:
        ATTACKS[f"{limit}: {run.__name__.replace('_', ' ')}"] = (TransportLimits(**limits), run)  # type: ignore[arg-type]

    return register


def status(wire: Wire, stream_id: int) -> str | None:
    """The grpc-status that ended a call."""
    for each in wire.frames():
        if isinstance(each, HeadersFrame) and each.stream_id == stream_id and "END_STREAM" in each.flags:
            return dict(each.fields).get("grpc-status")  # type: ignore[attr-defined]
    return None


@attack("concurrent_streams_max", concurrent_streams_max=100)
def more_calls_than_allowed(wire: Wire) -> None:
    for number in range(150):
        wire.open(number * 2 + 1, b"silent")
    assert wire.reset_codes() == {number * 2 + 1: frames.REFUSED_STREAM for number in range(100, 150)}
    assert len(wire.connection.streams) == 100
    wire.send(RstStreamFrame(1, 8))
    wire.open(301, b"room again")
    assert wire.answers(301) == [b"room again"]


@attack("header_list_bytes_max", header_list_bytes_max=4_096)
def a_long_list(wire: Wire) -> int:
    wire.send(wire.headers(1, [*CALL_FIELDS, *((f"x-{number}", "y" * 50) for number in range(100))]))
    return CALM


@attack("header_list_bytes_max")
def an_hpack_bomb(wire: Wire) -> int:
    """One entry of 3 KB, then a byte for each copy of it."""
    wire.send(wire.headers(1, [*CALL_FIELDS, ("bomb", "y" * 3_000)]))
    wire.send(HeadersFrame(3, b"\xbe" * 16_000, flags=["END_HEADERS"]))
    return CALM


@attack("header_block_bytes_max", header_block_bytes_max=20_000, continuation_frames_max=1_000)
def a_long_block(wire: Wire) -> int:
    wire.send(HeadersFrame(1, bytes(16_000)), ContinuationFrame(1, bytes(4_001)))
    return CALM


@attack("continuation_frames_max")
def a_continuation_flood(wire: Wire) -> int:
    """CVE-2024-27316 and its kin: empty CONTINUATION frames without an end."""
    wire.send(HeadersFrame(1, b"\x88"), *[ContinuationFrame(1, b"")] * 9)
    return CALM


@attack("frame_bytes_max")
def a_frame_too_long_is_refused_by_its_header(wire: Wire) -> int:
    wire.send_raw(b"\xff\xff\xff\x00\x00\x00\x00\x00\x01")
    return frames.FRAME_SIZE_ERROR


@attack("message_bytes_max", message_bytes_max=1_000)
def a_message_too_long_is_refused_by_its_prefix(wire: Wire) -> None:
    wire.send(wire.headers(1), DataFrame(1, message(bytes(1_001))[:5]))
    assert status(wire, 1) == "8"


@attack("stream_window_bytes", stream_window_bytes=65_535, stream_send_queue_bytes_max=1)
def a_stream_beyond_its_window(wire: Wire) -> int:
    wire.send(SettingsFrame(0, {SettingsFrame.INITIAL_WINDOW_SIZE: 0}))
    wire.open(1, b"xy")
    wire.send(DataFrame(1, message(bytes(1_000_000))[:5]), *[DataFrame(1, bytes(16_384))] * 4)
    return frames.FLOW_CONTROL_ERROR


@attack("connection_window_bytes", connection_window_bytes=65_535)
def a_connection_beyond_its_window(wire: Wire) -> int:
    wire.open(1, b"silent")
    wire.send(DataFrame(1, message(bytes(1_000_000))[:5]))
    wire.send(*[DataFrame(1, bytes(16_384))] * 8)
    return frames.FLOW_CONTROL_ERROR


@attack("connection_buffered_bytes_max", connection_buffered_bytes_max=100_000)
def unfinished_messages_of_many_calls(wire: Wire) -> None:
    for number in range(20):
        stream_id = number * 2 + 1
        wire.send(wire.headers(stream_id), DataFrame(stream_id, message(bytes(10_001))[:-1]))
        assert wire.connection.messages.buffered <= 100_000
    assert len(wire.connection.streams) == 10
    wire.send(wire.headers(41), DataFrame(41, message(bytes(5_000))[:-1]))  # a smaller one: not it ends
    assert 41 in wire.connection.streams
    assert len(wire.connection.streams) == 10


@attack("buffered_bytes_max", buffered_bytes_max=200_000)
def unfinished_messages_of_many_connections(wire: Wire) -> None:
    """The one that has held most for longest ends; who asks for little does not."""
    others = [Wire(beside=wire) for _ in range(15)]
    for other in others:
        other.now = wire.now = wire.now + 1
        other.send(other.headers(1), DataFrame(1, message(bytes(15_001))[:-1]))
        assert wire.shared.budget.used <= 200_000
    assert status(others[0], 1) == "8"
    assert status(others[-1], 1) is None
    wire.open(1, b"small")
    assert wire.answers(1) == [b"small"]
    for other in others:
        other.connection.connection_lost(None)
    assert wire.shared.buffered_bytes == 0


@attack("buffered_bytes_max", buffered_bytes_max=1_000_000)
def answers_that_pile_up_on_many_connections(wire: Wire) -> None:
    """The calls with much in their queues pay, not their connections; one with little does not."""
    others = [Wire(beside=wire) for _ in range(10)]
    for other in others:
        other.send(SettingsFrame(0, {SettingsFrame.INITIAL_WINDOW_SIZE: 0}))
        other.open(1, *[b"x" * 9_000] * 20)
        other.open(3, b"x" * 10)
    assert not any(other.connection.closing for other in others)
    assert sum(1 in other.connection.streams for other in others) in (4, 5)
    assert all(3 in other.connection.streams for other in others)
    assert wire.shared.budget.used <= 1_000_000
    wire.shared.budget.check()
    for other in others:
        other.connection.connection_lost(None)


@attack("buffered_bytes_max", buffered_bytes_max=2_000_000)
def a_hundred_thousand_calls_of_which_nothing_comes(wire: Wire) -> None:
    """An open call counts, and the oldest of those without an answer goes first; one that is answered stays."""
    wire.open(1, b"answered")
    for number in range(1, 1_000):
        wire.now += 0.001
        wire.send(wire.headers(number * 2 + 1))
    assert wire.shared.budget.used <= 2_000_000
    assert 1 in wire.connection.streams
    assert 3 not in wire.connection.streams
    assert 1_999 in wire.connection.streams
    for stream_id in list(wire.connection.streams):
        wire.send(RstStreamFrame(stream_id, 8))


@attack("buffered_bytes_max", buffered_bytes_max=600_000)
def a_socket_that_keeps_what_is_written(wire: Wire) -> str:
    """What the socket has not taken is in the ledger, and no more than its room is written to it."""
    wire.send(SettingsFrame(0, {SettingsFrame.INITIAL_WINDOW_SIZE: 10_000_000}), WindowUpdateFrame(0, 10_000_000))
    wire.open(1, b"silent")
    wire.socket.unsent = 500_000
    wire.pass_time(1)
    assert wire.shared.budget.answers == 500_000
    wire.handlers[-1].call.send(bytes(120_000))
    wire.socket.unsent = 620_000
    wire.pass_time(1)
    return "cut"


@attack("stream_send_queue_bytes_max", stream_send_queue_bytes_max=20_000, stream_window_bytes=65_535)
def one_call_that_takes_no_answers(wire: Wire) -> None:
    wire.send(SettingsFrame(0, {SettingsFrame.INITIAL_WINDOW_SIZE: 0}))
    wire.open(1, *[b"x" * 6_000] * 10)
    assert not [each for each in wire.frames() if isinstance(each, WindowUpdateFrame)]
    wire.open(3, b"silent")  # another call of the connection goes on
    assert wire.handlers[-1].seen == [b"silent"]


@attack("send_queue_bytes_max", send_queue_bytes_max=100_000)
def answers_never_taken(wire: Wire) -> None:
    """The call that holds most ends; another of its connection goes on."""
    wire.send(SettingsFrame(0, {SettingsFrame.INITIAL_WINDOW_SIZE: 0}))
    wire.open(1, *[b"x" * 10_000] * 9)
    wire.open(3, *[b"x" * 10_000] * 2)
    wire.pass_time(1)
    wire.pass_time(1)
    assert list(wire.connection.streams) == [3]
    assert wire.reset_codes() == {1: CALM}
    wire.widen(3, 100_000)
    assert wire.answers(3) == [b"x" * 10_000] * 2


@attack("send_queue_bytes_max", send_queue_bytes_max=100_000)
def answers_taken_as_fast_as_the_window_opens(wire: Wire) -> None:
    """Much more than fits at once, echoed as it is taken: nobody ends."""
    wire.send(SettingsFrame(0, {SettingsFrame.INITIAL_WINDOW_SIZE: 0}), WindowUpdateFrame(0, 10_000_000))
    wire.open(1, *[b"x" * 10_000] * 50)
    for _ in range(50):
        wire.pass_time(1)
        wire.widen(1, 10_005)
    assert wire.answers(1) == [b"x" * 10_000] * 50


@attack("resets_max", resets_max=100, resets_per_second=1)
def rapid_reset(wire: Wire) -> int:
    """CVE-2023-44487: open and break off, again and again."""
    for number in range(101):
        wire.send(wire.headers(number * 2 + 1), RstStreamFrame(number * 2 + 1, 8))
    assert len(wire.handlers) <= 101
    return CALM


@attack("resets_max", resets_max=100, resets_per_second=1)
def resets_that_we_are_made_to_send(wire: Wire) -> int:
    """CVE-2025-8671: the peer's mistake makes us reset, and costs the same."""
    for number in range(101):
        stream_id = number * 2 + 1
        wire.send_raw(wire.headers(stream_id).serialize() + b"\0\0\4\x08\0" + stream_id.to_bytes(4, "big") + bytes(4))
    return CALM


@attack("resets_per_second", resets_max=10, resets_per_second=5)
def resets_faster_than_they_come_back(wire: Wire) -> int:
    for number in range(30):
        wire.send(wire.headers(number * 2 + 1), RstStreamFrame(number * 2 + 1, 8))
        assert not wire.connection.closing
        wire.pass_time(0.2)
    for number in range(30, 45):
        wire.send(wire.headers(number * 2 + 1), RstStreamFrame(number * 2 + 1, 8))
    return CALM


def test_resets_are_how_envoy_ends_its_calls() -> None:
    """As recorded from Envoy 1.40: each call is answered, then reset with INTERNAL_ERROR and without END_STREAM."""
    wire = Wire(TransportLimits(resets_max=10, resets_per_second=1))
    for number in range(1_000):
        stream_id = number * 2 + 1
        wire.open(stream_id, b"a request of more than a few bytes")
        wire.send(RstStreamFrame(stream_id, 2))
        assert wire.handlers[-1].seen[-1] == "closed"
    assert not wire.connection.closing
    wire.open(2_001, b"still served")
    assert wire.answers(2_001) == [b"still served"]


FLOODS = {
    "pings": PingFrame(0, bytes(8)).serialize(),
    "settings": SettingsFrame(0).serialize(),
    "settings acknowledgements": SettingsFrame(0, flags=["ACK"]).serialize(),
    "priorities": PriorityFrame(1, depends_on=3).serialize(),
    "window updates": WindowUpdateFrame(0, 1).serialize(),
    "frames of no type we know": b"\0\0\1\xfb\0\0\0\0\0x",
    "empty data": DataFrame(1, b"").serialize(),
    "empty messages": DataFrame(1, message(b"") * 100).serialize(),
    "goaways": b"\0\0\x08\7\0\0\0\0\0" + bytes(8),
    "resets of calls long over": RstStreamFrame(1, 8).serialize(),
}


@pytest.mark.parametrize("name", FLOODS)
def test_floods_of_frames_that_move_no_data(name: str) -> None:
    limits = TransportLimits(idle_frames_max=200, idle_frames_per_second=10)
    wire = Wire(limits)
    bystander = Wire(beside=wire)
    wire.open(1, b"silent")
    sent = 0
    while not wire.connection.closing and sent < 1_000:
        wire.send_raw(FLOODS[name])
        sent += 1
        bystander.send(PingFrame(0, b"stillit?"))
        assert len(bystander.frames()) == 1 or sent > 190
    assert sent <= 300
    assert wire.goaway_code() == CALM


@attack("idle_frames_max", idle_frames_max=100)
def a_ping_flood_in_one_read(wire: Wire) -> int:
    wire.send(*[PingFrame(0, bytes(8))] * 101)
    return CALM


@attack("idle_frames_max", idle_frames_max=100)
def one_settings_frame_of_2_700_entries(wire: Wire) -> int:
    wire.send_raw(b"\0\x3f\x48\4\0\0\0\0\0" + b"\0\4\0\0\0\1" * 2_700)
    return CALM


@attack("idle_frames_max", idle_frames_max=100)
def header_blocks_that_are_dear_to_decode(wire: Wire) -> int:
    """12 KB of Huffman code each, never the same."""
    for number in range(10):
        field = ("x", f"{number}" + "e" * 16_000)
        encoder = hpack.Encoder()
        encoder.header_table_size = 0
        block = encoder.encode([*CALL_FIELDS, field])
        wire.send(HeadersFrame(number * 2 + 1, block, flags=["END_HEADERS"]))
        if wire.connection.closing:
            break
    assert number < 9
    return CALM


@attack("idle_frames_per_second", idle_frames_max=10, idle_frames_per_second=5)
def pings_faster_than_they_come_back(wire: Wire) -> int:
    for _ in range(30):
        wire.send(PingFrame(0, bytes(8)))
        assert not wire.connection.closing
        wire.pass_time(0.2)
    wire.send(*[PingFrame(0, bytes(8))] * 15)
    return CALM


@attack("header_block_seconds")
def a_header_block_never_finished(wire: Wire) -> int:
    wire.send(HeadersFrame(1, b"\x88"))
    wire.pass_time(9)
    assert not wire.connection.closing
    wire.pass_time(2)
    return CALM


@attack("message_stall_seconds", keepalive_seconds=1_000)
def a_message_never_finished(wire: Wire) -> None:
    wire.send(wire.headers(1), DataFrame(1, message(b"x" * 100)[:50]))
    wire.pass_time(19)
    assert len(wire.connection.streams) == 1
    wire.send(DataFrame(1, b"x"))
    wire.pass_time(2)
    assert status(wire, 1) == "1"
    assert wire.shared.buffered_bytes == 0


@attack("message_bytes_per_second_min", message_bytes_per_second_min=100_000, keepalive_seconds=1_000)
def a_byte_now_and_then(wire: Wire) -> None:
    """A message that comes at the rate takes as long as it takes; one that stops coming does not."""
    wire.open(1)
    wire.open(3)
    wire.send(DataFrame(1, message(bytes(60_000_000))[:5]))
    wire.send(DataFrame(3, message(bytes(60_000_000))[:5]), *[DataFrame(3, bytes(10_000))] * 10)
    for _ in range(60):
        wire.send(*[DataFrame(1, bytes(10_000))] * 10)
        wire.send(DataFrame(3, b"x"))
        wire.pass_time(1)
    assert list(wire.connection.streams) == [1]
    assert status(wire, 3) == "1"


@attack("message_stall_seconds")
def a_prefix_never_finished(wire: Wire) -> None:
    wire.send(wire.headers(1), DataFrame(1, b"\0\0"))
    wire.pass_time(15)
    wire.send(PingFrame(0, bytes(8)))
    wire.pass_time(6)
    assert status(wire, 1) == "1"


@attack("send_stall_seconds", keepalive_seconds=1_000)
def a_socket_that_takes_nothing(wire: Wire) -> str:
    wire.socket.unsent = 5
    for _ in range(8):
        wire.pass_time(10)
    return "cut"


@attack("send_stall_seconds", keepalive_seconds=1_000)
def a_connection_window_that_never_opens(wire: Wire) -> str:
    wire.send(SettingsFrame(0, {SettingsFrame.INITIAL_WINDOW_SIZE: 10_000_000}))
    wire.open(1, b"silent")
    wire.handlers[-1].call.send(bytes(100_000))
    wire.turn()
    for _ in range(8):
        wire.pass_time(10)
    return "cut"


@attack("send_stall_seconds", keepalive_seconds=1_000)
def one_slow_call_is_no_attack(wire: Wire) -> None:
    wire.open(1, b"silent")
    wire.send(WindowUpdateFrame(0, 10_000_000))
    wire.handlers[-1].call.send(bytes(100_000))
    wire.turn()
    for _ in range(30):
        wire.pass_time(10)
    wire.widen(1, 100_000)
    assert wire.answers(1) == [bytes(100_000)]


@attack("keepalive_timeout_seconds")
def a_dead_peer(wire: Wire) -> str:
    wire.open(1, b"silent")
    wire.frames()
    wire.pass_time(31)
    assert [type(each) for each in wire.frames()] == [PingFrame]
    wire.pass_time(21)
    return "cut"


@attack("keepalive_seconds")
def a_silent_peer_that_answers_pings_stays(wire: Wire) -> None:
    for _ in range(10):
        wire.pass_time(31)
        (ping,) = wire.frames()
        assert isinstance(ping, PingFrame)
        wire.pass_time(1)
        wire.send(PingFrame(0, ping.opaque_data, flags=["ACK"]))
    assert not wire.connection.closing


@attack("close_seconds")
def a_peer_that_does_not_leave(wire: Wire) -> str:
    wire.send_raw(b"\xff\xff\xff\x00\x00\x00\x00\x00\x01")
    assert wire.socket.eof
    assert not wire.socket.aborted
    for _ in range(100):
        wire.send_raw(bytes(1_000))
    wire.pass_time(2.1)
    return "cut"


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_ends_as_it_should_and_a_second_connection_stays_served(name: str) -> None:
    limits, run = ATTACKS[name]
    wire = Wire(limits)
    bystander = Wire(beside=wire)
    bystander.open(1, b"ok")
    assert bystander.answers(1) == [b"ok"]
    outcome = run(wire)
    if outcome == "cut":
        assert wire.socket.aborted
    elif outcome is None:
        assert not wire.connection.closing
    else:
        assert wire.goaway_code() == outcome
        assert wire.socket.eof
    assert bool(wire.faults) == (outcome is not None)  # operators hear of it
    assert {peer for peer, _ in wire.faults} <= {"127.0.0.1:1234"}
    assert not bystander.connection.closing
    bystander.send(DataFrame(1, message(b"ok")))
    assert bystander.answers(1) == [b"ok"] * 2
    assert wire.errors == []
    for handler in wire.handlers:
        assert handler.seen.count("closed") <= 1


@pytest.mark.parametrize("seconds", [10.5])
def test_a_connection_that_says_nothing(seconds: float) -> None:
    """handshake_seconds."""
    wire = Wire(greet=False)
    wire.pass_time(9)
    assert not wire.connection.closing
    wire.pass_time(seconds - 9)
    assert wire.goaway_code() == CALM
    half = Wire(greet=False)
    half.send_raw(b"PRI * HTTP/2.0\r\n")
    half.pass_time(seconds)
    assert half.connection.closing


def test_the_usual_load_meets_no_limit() -> None:
    """10,000 calls open on one connection, pinged every 10 s meanwhile, and all broken off at once."""
    wire = Wire()
    for number in range(10_000):
        wire.send(wire.headers(number * 2 + 1), DataFrame(number * 2 + 1, message(b"silent")))
    for _ in range(60):
        wire.pass_time(10)
        wire.send(PingFrame(0, bytes(8)))
    for number in range(9_999):
        wire.send(RstStreamFrame(number * 2 + 1, 8))
    assert wire.goaway_code() is None
    assert len(wire.connection.streams) == 1


def test_window_updates_in_step_with_data_meet_no_limit() -> None:
    """A peer that answers every frame of ours with two WINDOW_UPDATEs, for a long time."""
    wire = Wire(TransportLimits(idle_frames_max=100, idle_frames_per_second=1))
    wire.open(1, b"x")
    for _ in range(2_000):
        wire.send(DataFrame(1, message(b"c" * 100)), WindowUpdateFrame(1, 105), WindowUpdateFrame(0, 105))
    assert wire.goaway_code() is None


def test_every_limit_is_attacked() -> None:
    attacked = {name.partition(":")[0] for name in ATTACKS}
    elsewhere = {"handshake_seconds", "connections_max", "tls_handshakes_max"}  # above, and where there are sockets
    assert attacked | elsewhere == {field.name for field in msgspec.structs.fields(TransportLimits)}


def test_limits_are_checked_when_they_come_from_a_file() -> None:
    with pytest.raises(msgspec.ValidationError, match="frame_bytes_max"):
        msgspec.convert({"frame_bytes_max": 1_000}, TransportLimits)
    with pytest.raises(msgspec.ValidationError, match="unknown field"):
        msgspec.convert({"streams": 1}, TransportLimits)


def test_connections_with_much_to_read_take_turns() -> None:
    """One of them goes on in a turn of the loop; who has little to say waits for none of them."""
    first = Wire(TransportLimits(concurrent_streams_max=2000))
    flooding = [first, Wire(beside=first), Wire(beside=first)]
    small = Wire(beside=first)
    ticks = count()
    first.shared.clock = lambda: 1000.0 + 0.002 * next(ticks)  # the third slice is too late
    calls = 300
    for wire in flooding:
        ids = range(1, 2 * calls, 2)
        opened = (frame for each in ids for frame in (wire.headers(each), DataFrame(each, message(b"silent" * 40))))
        data = b"".join(frame.serialize() for frame in opened)
        assert 80_000 < len(data) < 262_144
        wire.connection.get_buffer(-1)[: len(data)] = data
        wire.connection.buffer_updated(len(data))

    def taken() -> list[int]:
        return [len(wire.connection.streams) for wire in flooding]

    assert 0 < taken()[0] < calls and taken()[1:] == [0, 0]
    assert not any(wire.socket.reading for wire in flooding)
    data = small.headers(1).serialize() + DataFrame(1, message(b"me")).serialize()
    small.connection.get_buffer(-1)[: len(data)] = data
    small.connection.buffer_updated(len(data))
    assert small.answers(1) == [b"me"]
    grew = []
    while first.soon:
        before = taken()
        first.soon.pop(0)()
        grew.append([now - then for now, then in zip(taken(), before, strict=True)])
    assert all(sum(more > 0 for more in each) <= 1 for each in grew)
    assert [next(number for number, more in enumerate(each) if more) for each in grew[:3]] == [0, 1, 2]
    assert taken() == [calls] * 3
    assert all(wire.socket.reading for wire in flooding)
