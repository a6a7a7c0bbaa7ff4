"""The frames that carry no request: what each asks of a connection (RFC 9113 section 6).

One function a frame type, all of one shape: `(connection, flags, stream_id, payload)`.
"""

from typing import TYPE_CHECKING

from picker.edge.grpc.h2 import frames
from picker.edge.grpc.h2.frames import ConnectionFault, StreamFault

if TYPE_CHECKING:
    from picker.edge.grpc.h2.connection import Connection


def priority(connection: "Connection", _flags: int, stream_id: int, payload: bytes) -> None:
    """Checked and ignored (section 5.3.2)."""
    connection.floods.spend_idle(1)
    if not stream_id:
        raise ConnectionFault(frames.PROTOCOL_ERROR, "PRIORITY on stream 0")
    if len(payload) != 5:
        raise StreamFault(stream_id, frames.FRAME_SIZE_ERROR)
    if frames.depends_on_itself(payload, stream_id):
        raise StreamFault(stream_id, frames.PROTOCOL_ERROR)


def rst_stream(connection: "Connection", _flags: int, stream_id: int, payload: bytes) -> None:
    """The peer breaks a call off.

    Only a call that has not been answered counts against `resets_max`. Envoy ends its calls this way: it
    resets each, with INTERNAL_ERROR and without END_STREAM, as soon as the HTTP response has passed. The
    peer has then sent as much as for any call and got what it asked for, so nothing is gained by resetting.
    """
    connection.floods.spend_idle(1)
    frames.read_long(payload, "RST_STREAM")
    if connection.is_idle_stream(stream_id):
        raise ConnectionFault(frames.PROTOCOL_ERROR, "RST_STREAM on an idle stream")
    call = connection.streams.get(stream_id)
    if call is not None:
        if not call.headers_sent and not call.ended:
            connection.floods.spend_reset()
        connection.forget(call)  # as the connection's own loop does for a call that was answered


def settings(connection: "Connection", flags: int, stream_id: int, payload: bytes) -> None:
    if stream_id:
        raise ConnectionFault(frames.PROTOCOL_ERROR, "SETTINGS on a stream")
    if flags & frames.ACK:
        if payload:
            raise ConnectionFault(frames.FRAME_SIZE_ERROR, "SETTINGS acknowledgement with a payload")
        connection.floods.spend_idle(1)
        return
    entries = frames.read_settings(payload)
    connection.floods.spend_idle(1 + len(entries) // 8)
    sender = connection.sender
    stream_window = sender.stream_window
    for key, value in entries:
        if key == frames.INITIAL_WINDOW_SIZE:
            stream_window = value  # only where it ends up matters: one pass over the streams, not one an entry
        elif key == frames.MAX_FRAME_SIZE:
            sender.frame_bytes_max = value
        elif key == frames.HEADER_TABLE_SIZE and value < frames.HEADER_TABLE_DEFAULT_BYTES:
            sender.table_emptied_due = True
    sender.out.append(frames.frame(frames.SETTINGS, frames.ACK, 0))
    if stream_window != sender.stream_window:
        _change_stream_window(connection, stream_window)


def _change_stream_window(connection: "Connection", value: int) -> None:
    """SETTINGS_INITIAL_WINDOW_SIZE moves every stream's window (section 6.9.2)."""
    sender = connection.sender
    wider = value > sender.stream_window
    sender.stream_window = value
    if not wider:
        return
    calls = list(connection.streams.values())
    connection.floods.spend_idle(len(calls) // 64)
    if any(value + call.window_offset > frames.WINDOW_MAX_BYTES for call in calls):
        raise ConnectionFault(frames.FLOW_CONTROL_ERROR, "a stream's window above 2^31-1")
    sender.make_all_ready(calls)


def push_promise(_connection: "Connection", _flags: int, _stream_id: int, _payload: bytes) -> None:
    raise ConnectionFault(frames.PROTOCOL_ERROR, "a client cannot push")


def ping(connection: "Connection", flags: int, stream_id: int, payload: bytes) -> None:
    connection.floods.spend_idle(1)
    if stream_id:
        raise ConnectionFault(frames.PROTOCOL_ERROR, "PING on a stream")
    if len(payload) != 8:
        raise ConnectionFault(frames.FRAME_SIZE_ERROR, "PING is not 8 bytes long")
    if flags & frames.ACK:
        connection.upkeep.ping_answered(payload)
    else:
        connection.sender.out.append(frames.ping(payload, ack=True))


def goaway(connection: "Connection", _flags: int, stream_id: int, payload: bytes) -> None:
    """The peer will open no more calls; those it has go on, and it closes the connection."""
    connection.floods.spend_idle(1)
    if stream_id:
        raise ConnectionFault(frames.PROTOCOL_ERROR, "GOAWAY on a stream")
    if len(payload) < 8:
        raise ConnectionFault(frames.FRAME_SIZE_ERROR, "GOAWAY is shorter than 8 bytes")


def window_update(connection: "Connection", _flags: int, stream_id: int, payload: bytes) -> None:
    connection.floods.spend_idle(1)
    increment = frames.read_long(payload, "WINDOW_UPDATE") & frames.WINDOW_MAX_BYTES
    sender = connection.sender
    if not stream_id:
        if not increment:
            raise ConnectionFault(frames.PROTOCOL_ERROR, "WINDOW_UPDATE of 0")
        sender.window += increment
        if sender.window > frames.WINDOW_MAX_BYTES:
            raise ConnectionFault(frames.FLOW_CONTROL_ERROR, "the connection's window above 2^31-1")
        sender.send_ready()
        return
    if connection.is_idle_stream(stream_id):
        raise ConnectionFault(frames.PROTOCOL_ERROR, "WINDOW_UPDATE on an idle stream")
    call = connection.streams.get(stream_id)
    if call is None:
        return
    if not increment:
        raise StreamFault(stream_id, frames.PROTOCOL_ERROR)
    call.window_offset += increment
    if sender.stream_window + call.window_offset > frames.WINDOW_MAX_BYTES:
        raise StreamFault(stream_id, frames.FLOW_CONTROL_ERROR)
    if call.queue is not None:
        sender.make_ready(call)
