"""Messages of any size, interleaved and read in any pieces, arrive whole and once; their echoes are what was sent."""

from random import Random

import hypothesis.strategies as st
from hyperframe.frame import DataFrame, PingFrame, SettingsFrame, WindowUpdateFrame
from hypothesis import given, settings

from picker.config import TransportLimits
from tests.unit.edge.grpc.h2.wire import Wire, message

sizes = st.sampled_from([0, 1, 100, 16_379, 16_384, 40_000, 65_536, 130_000, 300_000]) | st.integers(0, 500_000)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(sizes, max_size=3), min_size=1, max_size=4),
    st.sampled_from([16_384, 16_384, 1_000, 9_999]),
    st.sampled_from([1_000, 20_000, 65_536, 262_144]),
    st.sampled_from([65_535, 1 << 20, 1 << 28]),
    st.integers(0, 2**32),
)
def test_every_message_arrives_whole_and_is_echoed(calls, frame_bytes, read_bytes, window, seed):
    rng = Random(seed)
    wire = Wire(
        TransportLimits(stream_window_bytes=1 << 28, connection_window_bytes=1 << 28, send_queue_bytes_max=1 << 30)
    )
    wire.send(SettingsFrame(0, settings={SettingsFrame.INITIAL_WINDOW_SIZE: window}))
    wire.send(WindowUpdateFrame(0, window_increment=1 << 28))
    sent = {2 * at + 1: [rng.randbytes(size) for size in of_call] for at, of_call in enumerate(calls)}
    for stream_id in sent:
        wire.open(stream_id)
    left = {stream_id: b"".join(map(message, messages)) for stream_id, messages in sent.items()}
    frames = []
    while any(left.values()):
        stream_id = rng.choice([each for each, rest in left.items() if rest])
        for _ in range(rng.choice((1, 1, 3, 40))):
            if left[stream_id]:
                size = frame_bytes if rng.random() < 0.9 else rng.randrange(1, frame_bytes + 1)
                frames.append(DataFrame(stream_id, left[stream_id][:size]))
                left[stream_id] = left[stream_id][size:]
        if rng.random() < 0.1:
            frames.append(PingFrame(0, b"12345678"))
    data = b"".join(frame.serialize() for frame in frames)
    for at in range(0, len(data), read_bytes):
        wire.send_raw(data[at : at + read_bytes])

    handlers = dict(zip(sent, wire.handlers, strict=True))
    assert {each: handler.seen for each, handler in handlers.items()} == sent
    assert not wire.errors and not wire.faults
    assert wire.shared.buffered_bytes == wire.connection.sender.queued
    wire.frames()
    assert all(len(data) <= window for data in wire.data.values()), "more than the peer's window"
    if window < 1 << 28:
        for stream_id in sent:
            wire.send(WindowUpdateFrame(stream_id, window_increment=1 << 28))
    wire.frames()
    assert {each: wire.data.get(each, b"") for each in sent} == {
        each: b"".join(map(message, messages)) for each, messages in sent.items()
    }
    assert wire.shared.buffered_bytes == 0
