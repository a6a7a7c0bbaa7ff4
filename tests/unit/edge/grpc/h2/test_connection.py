"""A connection's answers, frame by frame: calls, ends, faults. Expectations from RFC 9113 and gRPC's PROTOCOL-HTTP2."""

import gzip
import struct

import pytest
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    PriorityFrame,
    PushPromiseFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from picker.config import TransportLimits
from picker.edge.grpc.h2 import frames
from picker.edge.grpc.transport import Call, GrpcStatus
from tests.unit.edge.grpc.h2.wire import CALL_FIELDS, PREFACE, Echo, Wire, message


def trailers(wire: Wire, stream_id: int) -> dict[str, str]:
    """The fields of the HEADERS that ended a stream."""
    found = [each for each in wire.frames() if isinstance(each, HeadersFrame) and each.stream_id == stream_id]
    assert "END_STREAM" in found[-1].flags
    return dict(found[-1].fields)  # type: ignore[attr-defined]


def test_we_greet_after_the_peer_has() -> None:
    wire = Wire(TransportLimits(concurrent_streams_max=7, connection_window_bytes=100_000), greet=False)
    assert wire.frames() == []
    wire.send_raw(PREFACE[:5])
    assert wire.frames() == []
    wire.send_raw(PREFACE[5:])
    settings, update = wire.frames()
    assert isinstance(settings, SettingsFrame)
    assert settings.settings[SettingsFrame.MAX_CONCURRENT_STREAMS] == 7
    assert isinstance(update, WindowUpdateFrame)
    assert (update.stream_id, update.window_increment) == (0, 100_000 - 65_535)


def test_one_call_one_write_a_read() -> None:
    wire = Wire()
    writes = wire.socket.writes
    wire.send(wire.headers(1), DataFrame(1, message(b"one") + message(b"two")))
    assert wire.socket.writes == writes + 1
    headers, first, second = wire.frames()
    assert dict(headers.fields)[":status"] == "200"  # type: ignore[attr-defined]
    assert (first.data, second.data) == (message(b"one"), message(b"two"))  # type: ignore[attr-defined]
    wire.send(DataFrame(1, b"", flags=["END_STREAM"]))
    assert trailers(wire, 1) == {"grpc-status": "0"}
    assert wire.handlers[0].seen == [b"one", b"two", "half_closed", "closed"]
    assert wire.connection.streams == {}


def script(wire: Wire) -> bytes:
    """Two calls, every kind of frame between them, as one run of bytes."""
    first = wire.headers(1)  # in the order in which they are sent: HPACK
    padded = DataFrame(1, message(b"padded"), pad_length=20, flags=["PADDED"])
    with_priority = wire.headers(3)
    with_priority.flags.add("PRIORITY")
    with_priority.depends_on, with_priority.stream_weight, with_priority.exclusive = 0, 16, False
    block = wire.encoder.encode(CALL_FIELDS)
    return b"".join(
        frame if isinstance(frame, bytes) else frame.serialize()
        for frame in (
            first,
            DataFrame(1, message(b"a" * 300) + message(b"")[:3]),
            PingFrame(0, b"12345678"),
            DataFrame(1, message(b"")[3:]),
            WindowUpdateFrame(0, 1_000),
            padded,
            with_priority,
            PriorityFrame(3, depends_on=1, stream_weight=3),
            DataFrame(3, message(b"b" * 1_000)[:700]),
            b"\0\0\x08\xfb\x55\0\0\0\3whatever",  # of no type we know
            SettingsFrame(0, {SettingsFrame.INITIAL_WINDOW_SIZE: 100_000}),
            DataFrame(3, message(b"b" * 1_000)[700:], flags=["END_STREAM"]),
            DataFrame(1, b"", flags=["END_STREAM"]),
            RstStreamFrame(1, 0),
            HeadersFrame(5, block[:3], flags=["END_STREAM"]),
            ContinuationFrame(5, block[3:9]),
            ContinuationFrame(5, block[9:], flags=["END_HEADERS"]),
        )
    )


SEEN = [
    [b"a" * 300, b"", b"padded", "half_closed", "closed"],
    [b"b" * 1_000, "half_closed", "closed"],
    ["half_closed", "closed"],
]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 9, 10, 13, 50, 333, 100_000])
def test_where_reads_break_makes_no_difference(size: int) -> None:
    wire = Wire()
    data = script(wire)
    for at in range(0, len(data), size):
        wire.send_raw(data[at : at + size])
    assert [handler.seen for handler in wire.handlers] == SEEN
    assert wire.answers(1) == [b"a" * 300, b"", b"padded"]
    assert wire.answers(3) == [b"b" * 1_000]
    assert wire.errors == []
    assert wire.connection.messages.buffered == wire.shared.buffered_bytes == 0


def test_two_reads_broken_anywhere() -> None:
    length = len(script(Wire()))
    for at in range(1, length):
        wire = Wire()
        data = script(wire)
        wire.send_raw(data[:at])
        wire.send_raw(data[at:])
        assert [handler.seen for handler in wire.handlers] == SEEN, at


def test_an_end_and_then_a_reset_is_no_news() -> None:
    """Envoy ends every ext_proc stream so."""
    wire = Wire(TransportLimits(resets_max=2, resets_per_second=1))
    for number in range(500):
        stream_id = number * 2 + 1
        wire.open(stream_id, b"x", end=True)
        wire.send(RstStreamFrame(stream_id, 0))
    assert wire.goaway_code() is None
    assert len(wire.handlers) == 500


def test_a_reset_closes_the_handler() -> None:
    wire = Wire()
    wire.open(1, b"x")
    wire.frames()
    wire.send(RstStreamFrame(1, frames.CANCEL))
    assert wire.handlers[0].seen == [b"x", "closed"]
    assert wire.frames() == []


def test_a_lost_connection_closes_every_handler() -> None:
    wire = Wire()
    for stream_id in (1, 3, 5):
        wire.open(stream_id, b"x")
    wire.connection.connection_lost(None)
    assert [handler.seen for handler in wire.handlers] == [[b"x", "closed"]] * 3


def test_a_handler_that_raises_ends_its_call_alone() -> None:
    wire = Wire()
    wire.open(1, b"x")
    wire.open(3, b"raise")
    fields = trailers(wire, 3)
    assert fields["grpc-status"] == "13"
    assert "handler" not in fields["grpc-message"]
    assert [str(error) for error in wire.errors] == ["handler's own"]
    assert wire.handlers[1].seen == [b"raise", "closed"]
    wire.send(DataFrame(1, message(b"y")))
    assert wire.answers(1)[-1] == b"y"


class Broken:
    """A handler that raises wherever it can."""

    def __init__(self, call: Call) -> None:
        pass

    def receive(self, content: bytes) -> None:
        raise ValueError("receive")

    def half_closed(self) -> None:
        raise ValueError("half_closed")

    def closed(self) -> None:
        raise ValueError("closed")


def raising_maker(_call: Call) -> Broken:
    raise ValueError("maker")


@pytest.mark.parametrize(
    ("maker", "end", "errors"),
    [
        (Broken, False, ["receive", "closed"]),
        (Broken, True, ["half_closed", "closed"]),
        (raising_maker, True, ["maker"]),
    ],
)
def test_no_handler_can_hurt_the_connection(maker: object, end: bool, errors: list[str]) -> None:
    wire = Wire()
    wire.shared.methods = {**wire.shared.methods, "/broken": maker}  # type: ignore[dict-item]
    fields = [(":path", "/broken") if name == ":path" else (name, value) for name, value in CALL_FIELDS]
    wire.send(wire.headers(1, fields, ["END_STREAM"] if end else []))
    if not end:
        wire.send(DataFrame(1, message(b"x")))
    assert trailers(wire, 1)["grpc-status"] == "13"
    assert [str(error) for error in wire.errors] == errors
    wire.open(3, b"x")
    assert wire.answers(3) == [b"x"]


def test_a_handler_may_finish_in_its_constructor() -> None:
    closed: list[str] = []

    class Eager(Broken):
        def __init__(self, call: Call) -> None:
            call.finish(GrpcStatus.NOT_FOUND, "no")

        def closed(self) -> None:
            closed.append("closed")

    wire = Wire()
    wire.shared.methods = {"/test.Echo/Echo": Eager}
    wire.open(1, b"x")
    assert trailers(wire, 1)["grpc-status"] == "5"
    assert closed == ["closed"]


def test_finishing_early_tells_the_peer_to_stop_and_forgives_what_is_on_its_way() -> None:
    wire = Wire()
    wire.open(1, b"finish", b"more")
    written = wire.frames()
    assert dict(written[0].fields)["grpc-status"] == "14"  # type: ignore[attr-defined]
    assert isinstance(written[1], RstStreamFrame)
    assert written[1].error_code == frames.NO_ERROR
    wire.send(DataFrame(1, message(b"late")), wire.headers(1, [("x", "y")], ["END_STREAM"]), RstStreamFrame(1, 8))
    assert wire.frames() == []
    wire.open(3, b"x")
    assert wire.answers(3) == [b"x"]


def test_finishing_on_the_last_message_needs_no_reset() -> None:
    wire = Wire()
    wire.send(wire.headers(1), DataFrame(1, message(b"finish"), flags=["END_STREAM"]))
    assert [type(each) for each in wire.frames()] == [HeadersFrame]
    assert wire.handlers[0].seen == [b"finish", "closed"]


def test_sends_outside_a_read_leave_together() -> None:
    wire = Wire()
    wire.open(1, b"silent")
    wire.open(3, b"silent")
    writes = wire.socket.writes
    for handler in wire.handlers:
        handler.call.send(b"later")
        handler.call.finish()
    wire.turn()
    assert wire.socket.writes == writes + 1
    assert wire.answers(1) == wire.answers(3) == [b"later"]


@pytest.mark.parametrize("path", ["/test.Echo/Nope", "/nope.Nope/Echo", "*"])
def test_unknown_methods_are_unimplemented(path: str) -> None:
    wire = Wire()
    wire.send(wire.headers(1, [(":path", path) if name == ":path" else (name, value) for name, value in CALL_FIELDS]))
    assert trailers(wire, 1)["grpc-status"] == "12"


def test_a_deadline_is_kept() -> None:
    wire = Wire()
    wire.send(wire.headers(1, [*CALL_FIELDS, ("grpc-timeout", "500m")]))
    wire.pass_time(0.4)
    assert wire.handlers[0].seen == []
    wire.pass_time(0.2)
    assert wire.handlers[0].seen == ["closed"]
    assert trailers(wire, 1)["grpc-status"] == "4"


def test_a_call_that_ends_in_time_has_no_deadline_left() -> None:
    wire = Wire()
    wire.send(wire.headers(1, [*CALL_FIELDS, ("grpc-timeout", "500m")], ["END_STREAM"]))
    assert [timer.cancelled for timer in wire.timers] == [True]


def test_a_bad_timeout_is_refused() -> None:
    wire = Wire()
    wire.send(wire.headers(1, [*CALL_FIELDS, ("grpc-timeout", "soon")]))
    assert trailers(wire, 1)["grpc-status"] == "13"


def test_compressed_messages_are_refused_with_the_codes_of_the_grpc_specification() -> None:
    wire = Wire()
    squeezed = gzip.compress(b"x" * 100)
    wire.send(wire.headers(1, [*CALL_FIELDS, ("grpc-encoding", "gzip")]), DataFrame(1, message(squeezed, 1)))
    fields = trailers(wire, 1)
    assert fields["grpc-status"] == "12"
    assert fields["grpc-accept-encoding"] == "identity"
    wire.send(wire.headers(3), DataFrame(3, message(squeezed, 1)))
    assert trailers(wire, 3)["grpc-status"] == "13"
    # The encoding alone harms nobody: each message says whether it is compressed.
    wire.send(wire.headers(5, [*CALL_FIELDS, ("grpc-encoding", "gzip")]), DataFrame(5, message(b"plain")))
    assert wire.answers(5) == [b"plain"]


def test_a_stream_that_ends_inside_a_message_is_an_error() -> None:
    wire = Wire()
    wire.send(wire.headers(1), DataFrame(1, message(b"four")[:-1], flags=["END_STREAM"]))
    assert trailers(wire, 1)["grpc-status"] == "13"
    assert wire.handlers[0].seen == ["closed"]


def test_messages_above_the_limit_are_refused_before_they_are_read() -> None:
    wire = Wire(TransportLimits(message_bytes_max=1_000))
    wire.open(1, b"x" * 1_000)
    assert wire.answers(1) == [b"x" * 1_000]
    wire.send(wire.headers(3), DataFrame(3, struct.pack(">BL", 0, 1_001)))
    assert trailers(wire, 3)["grpc-status"] == "8"


def test_a_request_that_is_not_grpc_is_answered_in_http_after_its_body() -> None:
    wire = Wire()
    wire.send(wire.headers(1, [(":method", "POST"), (":scheme", "http"), (":path", "/")]))
    assert wire.frames() == []
    wire.send(DataFrame(1, b"{}", flags=["END_STREAM"]))
    headers, text, end = wire.frames()
    assert dict(headers.fields)[":status"] == "415"  # type: ignore[attr-defined]
    assert b"gRPC" in text.data  # type: ignore[attr-defined]
    assert "END_STREAM" in end.flags


def test_an_endless_body_that_is_not_grpc_is_answered_all_the_same() -> None:
    wire = Wire()
    wire.send(wire.headers(1, [(":method", "POST"), (":scheme", "http"), (":path", "/")]))
    for _ in range(5):
        wire.send(DataFrame(1, bytes(16_384)))
    written = wire.frames()
    assert dict(written[0].fields)[":status"] == "415"  # type: ignore[attr-defined]
    assert isinstance(written[-1], RstStreamFrame)
    assert wire.connection.streams == {}


@pytest.mark.parametrize(("length", "sizes"), [(4, (5,)), (4, (3,)), (4, (2, 3)), (0, (1,))])
def test_content_length_is_held_to(length: int, sizes: tuple[int, ...]) -> None:
    wire = Wire()
    wire.send(wire.headers(1, [*CALL_FIELDS, ("content-length", str(length))]))
    for number, size in enumerate(sizes):
        last = number == len(sizes) - 1
        wire.send(DataFrame(1, bytes(size), flags=["END_STREAM"] if last else []))
    assert wire.reset_codes() == {1: frames.PROTOCOL_ERROR}


def test_http_1_is_told_what_this_port_is() -> None:
    wire = Wire(greet=False)
    wire.send_raw(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    assert bytes(wire.socket.written).startswith(b"HTTP/1.1 505 ")
    assert b"gRPC" in wire.socket.written
    assert wire.socket.eof


@pytest.mark.parametrize(
    "opening",
    [b"\x16\x03\x01\x02\x00", b"PRI * HTTP/2.0\r\n\r\nXX", PREFACE + PingFrame(0, bytes(8)).serialize()],
)
def test_other_beginnings_are_protocol_errors(opening: bytes) -> None:
    wire = Wire(greet=False)
    wire.send_raw(opening)
    assert wire.goaway_code() == frames.PROTOCOL_ERROR
    assert wire.socket.eof


FAULTS = {
    "DATA on an idle stream": (DataFrame(1, b"x").serialize(), 1),
    "DATA on stream 0": (b"\0\0\1\0\0\0\0\0\0x", 1),
    "HEADERS on an even stream": (HeadersFrame(2, b"\x88", flags=["END_HEADERS"]).serialize(), 1),
    "HEADERS on stream 0": (b"\0\0\1\1\4\0\0\0\0\x88", 1),
    "RST_STREAM on an idle stream": (RstStreamFrame(1, 8).serialize(), 1),
    "RST_STREAM too short": (b"\0\0\3\3\0\0\0\0\1\0\0\0", 6),
    "SETTINGS on a stream": (b"\0\0\0\4\0\0\0\0\1", 1),
    "SETTINGS acknowledged with a payload": (b"\0\0\6\4\1\0\0\0\0\0\3\0\0\0\1", 6),
    "PUSH_PROMISE": (PushPromiseFrame(1, 2, b"\x88", flags=["END_HEADERS"]).serialize(), 1),
    "PING of 7 bytes": (b"\0\0\7\6\0\0\0\0\0" + bytes(7), 6),
    "PING on a stream": (b"\0\0\x08\6\0\0\0\0\1" + bytes(8), 1),
    "GOAWAY on a stream": (b"\0\0\x08\7\0\0\0\0\1" + bytes(8), 1),
    "GOAWAY too short": (b"\0\0\7\7\0\0\0\0\0" + bytes(7), 6),
    "WINDOW_UPDATE of 0": (b"\0\0\4\x08\0\0\0\0\0" + bytes(4), 1),
    "WINDOW_UPDATE on an idle stream": (WindowUpdateFrame(1, 5).serialize(), 1),
    "WINDOW_UPDATE too far": (WindowUpdateFrame(0, 2**31 - 1).serialize(), 3),
    "CONTINUATION without HEADERS": (ContinuationFrame(1, b"\x88").serialize(), 1),
    "PING inside a header block": (HeadersFrame(1, b"\x88").serialize() + PingFrame(0, bytes(8)).serialize(), 1),
    "a frame above the limit": (DataFrame(1, bytes(16_385)).serialize(), 6),
    "PRIORITY on stream 0": (b"\0\0\5\2\0\0\0\0\0" + bytes(5), 1),
    "HEADERS too short for its priority": (b"\0\0\1\1\x24\0\0\0\1\x88", 6),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_the_connection_ends_it_with_the_code_of_rfc_9113(name: str) -> None:
    data, code = FAULTS[name]
    wire = Wire()
    wire.send_raw(data)
    assert wire.goaway_code() == code
    assert wire.socket.eof
    wire.send_raw(PingFrame(0, bytes(8)).serialize())
    assert wire.frames() == []


def test_a_connection_fault_closes_its_calls_and_names_the_last_one() -> None:
    wire = Wire()
    wire.open(1, b"x")
    wire.open(3, b"x")
    wire.send(WindowUpdateFrame(5, 1))
    goaway = next(each for each in wire.frames() if isinstance(each, GoAwayFrame))
    assert (goaway.last_stream_id, goaway.error_code) == (3, 1)
    assert [handler.seen for handler in wire.handlers] == [[b"x", "closed"]] * 2


STREAM_FAULTS = {
    "DATA after END_STREAM": ([DataFrame(1, b"", flags=["END_STREAM"]), DataFrame(1, b"x")], frames.STREAM_CLOSED),
    "HEADERS without END_STREAM": (["headers"], frames.PROTOCOL_ERROR),
    "pseudo-fields in trailers": (["pseudo"], frames.PROTOCOL_ERROR),
    "WINDOW_UPDATE of 0": ([b"\0\0\4\x08\0\0\0\0\1" + bytes(4)], frames.PROTOCOL_ERROR),
    "WINDOW_UPDATE too far": ([WindowUpdateFrame(1, 2**31 - 1)], frames.FLOW_CONTROL_ERROR),
    "PRIORITY of 4 bytes": ([b"\0\0\4\2\0\0\0\0\1" + bytes(4)], frames.FRAME_SIZE_ERROR),
    "PRIORITY on itself": ([PriorityFrame(1, depends_on=1)], frames.PROTOCOL_ERROR),
}


@pytest.mark.parametrize("name", STREAM_FAULTS)
def test_a_fault_of_a_stream_resets_it_alone(name: str) -> None:
    steps, code = STREAM_FAULTS[name]
    wire = Wire()
    wire.open(1, b"silent")
    wire.open(3, b"silent")
    for step in steps:
        if step == "headers":
            wire.send(wire.headers(1, [("x", "y")]))
        elif step == "pseudo":
            wire.send(wire.headers(1, [(":path", "/")], ["END_STREAM"]))
        elif isinstance(step, bytes):
            wire.send_raw(step)
        else:
            wire.send(step)  # type: ignore[arg-type]
    assert wire.reset_codes() == {1: code}
    assert wire.handlers[0].seen[-1] == "closed"
    wire.send(DataFrame(3, message(b"still")))
    assert wire.answers(3) == [b"still"]


def test_trailers_from_the_peer_end_the_call() -> None:
    wire = Wire()
    wire.open(1, b"x")
    wire.send(wire.headers(1, [("some", "trailer")], ["END_STREAM"]))
    assert wire.handlers[0].seen == [b"x", "half_closed", "closed"]


def test_a_stream_that_depends_on_itself_is_reset_and_never_opened() -> None:
    wire = Wire()
    headers = wire.headers(1)
    headers.flags.add("PRIORITY")
    headers.depends_on = 1
    wire.send(headers)
    assert wire.reset_codes() == {1: frames.PROTOCOL_ERROR}
    assert wire.handlers == []


def test_ids_only_grow() -> None:
    wire = Wire()
    wire.open(5, b"x", end=True)
    wire.send(wire.headers(3))
    assert wire.goaway_code() == frames.PROTOCOL_ERROR
    wire = Wire()
    wire.open(5, b"x", end=True)
    wire.send(wire.headers(5))
    assert wire.goaway_code() == frames.STREAM_CLOSED


def test_pings_are_answered() -> None:
    wire = Wire()
    wire.send(PingFrame(0, b"abcdefgh"), PingFrame(0, b"notasked", flags=["ACK"]))
    (answer,) = wire.frames()
    assert isinstance(answer, PingFrame)
    assert (answer.opaque_data, set(answer.flags)) == (b"abcdefgh", {"ACK"})


def test_a_peer_that_shrinks_its_table_is_told_that_ours_is_empty() -> None:
    """hpack refuses the next block otherwise, and so may any strict peer (RFC 7541 section 4.2)."""
    wire = Wire()
    wire.send(SettingsFrame(0, {SettingsFrame.HEADER_TABLE_SIZE: 0}))
    wire.frames()
    wire.decoder.max_allowed_table_size = 0
    wire.open(1, b"x", end=True)
    assert wire.answers(1) == [b"x"]


def test_larger_frames_are_used_where_the_peer_takes_them() -> None:
    wire = Wire()
    wire.send(SettingsFrame(0, {SettingsFrame.MAX_FRAME_SIZE: 60_000}))
    wire.open(1, b"silent")
    wire.frames()
    wire.handlers[0].call.send(bytes(50_000))
    wire.turn()
    assert [len(each.data) for each in wire.frames() if isinstance(each, DataFrame)] == [50_005]


def test_an_exception_of_ours_ends_the_connection_and_is_reported() -> None:
    wire = Wire()
    wire.open(1, b"silent")
    wire.shared.methods = None  # type: ignore[assignment]
    wire.open(3, b"x")
    assert wire.goaway_code() == frames.INTERNAL_ERROR
    assert isinstance(wire.errors[0], AttributeError)
    assert wire.handlers[0].seen == [b"silent", "closed"]


def test_draining_accepts_what_is_under_way_then_refuses_then_closes() -> None:
    """RFC 9113 section 6.8: GOAWAY 2^31-1, a round trip, GOAWAY with the last stream."""
    wire = Wire()
    wire.open(1, b"silent")
    wire.frames()
    wire.connection.drain()
    goaway, ping = wire.frames()
    assert isinstance(goaway, GoAwayFrame)
    assert (goaway.last_stream_id, goaway.error_code) == (2**31 - 1, 0)
    assert isinstance(ping, PingFrame)
    wire.open(3, b"under way", end=True)
    assert wire.answers(3) == [b"under way"]
    wire.send(PingFrame(0, ping.opaque_data, flags=["ACK"]))
    (final,) = wire.frames()
    assert isinstance(final, GoAwayFrame)
    assert final.last_stream_id == 3
    wire.open(5, b"late")
    assert wire.reset_codes() == {5: frames.REFUSED_STREAM}
    assert not wire.socket.eof
    wire.handlers[0].call.finish()
    wire.turn()
    assert wire.socket.eof


def test_draining_does_not_wait_for_a_peer_that_answers_no_ping() -> None:
    wire = Wire()
    wire.connection.drain()
    wire.pass_time(0.5)
    assert not wire.socket.eof
    wire.pass_time(0.6)
    assert wire.socket.eof


def test_echo_keeps_its_promises_to_itself() -> None:
    """Echo's own assertions (nothing after closed) are what many tests rest on: they do fire."""
    wire = Wire()
    wire.open(1, b"x", end=True)
    with pytest.raises(AssertionError):
        Echo.receive(wire.handlers[0], b"y")
