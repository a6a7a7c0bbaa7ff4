"""Large messages put together from frames and cut into them: the kernel and the list, against frames by hyperframe."""

import tracemalloc
from collections.abc import Callable
from random import Random

import pytest
from hyperframe.frame import DataFrame, Frame, PingFrame, SettingsFrame, WindowUpdateFrame
from hypothesis import given, settings
from hypothesis import strategies as st

from picker.edge.grpc.h2 import bulk
from tests.unit.edge.grpc.h2.wire import Wire

ASSEMBLIES = pytest.mark.parametrize("assembly", [bulk.ListAssembly, bulk.new_assembly], ids=["list", "default"])
KERNEL = pytest.mark.skipif(bulk.data_frames is None, reason="the kernel is of the compiled build")

OTHERS = (
    PingFrame(0, b"12345678"),
    DataFrame(5, b"another call's"),
    DataFrame(3, b""),
    DataFrame(3, b"x", flags=["END_STREAM"]),
    DataFrame(3, b"x", pad_length=3, flags=["PADDED"]),
    DataFrame(3, b"x" * 101),
)
"""None of them is for `take`: 100 bytes a frame are allowed below."""


@ASSEMBLIES
@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(1, 100), min_size=1, max_size=20), st.data())
def test_frames_are_taken_up_to_the_first_that_is_another_or_the_last(assembly, lengths, data):
    content = Random(1).randbytes(sum(lengths))
    ends = [sum(lengths[:at]) for at in range(len(lengths) + 1)]
    frames: list[Frame] = [DataFrame(3, content[ends[at] : ends[at + 1]]) for at in range(len(lengths))]
    other = data.draw(st.integers(0, len(frames)))
    frames.insert(other, data.draw(st.sampled_from(OTHERS)))
    wire = b"".join(frame.serialize() for frame in frames)
    cut = data.draw(st.integers(0, len(wire)))
    lead = b"lead"

    whole_frames, at = 0, 0
    while whole_frames < min(other, len(lengths) - 1) and at + 9 + lengths[whole_frames] <= cut:
        at += 9 + lengths[whole_frames]
        whole_frames += 1

    made = assembly(len(content))
    found = made.take(memoryview(lead + wire), len(lead), len(lead) + cut, 3, 100)
    assert found == (len(lead) + at, whole_frames)
    if ends[whole_frames] < len(content):
        with pytest.raises(ValueError, match="not whole"):
            made.whole()
    for start in range(ends[whole_frames], len(content), 7):
        made.add(content, start, min(start + 7, len(content)))
    assert made.whole() == content


@ASSEMBLIES
def test_an_empty_message_is_whole_at_once(assembly):
    assert assembly(0).whole() == b""


@ASSEMBLIES
def test_more_than_the_message_has_is_refused(assembly):
    made = assembly(3)
    made.add(b"ab", 0, 2)
    with pytest.raises(ValueError, match="more than the message has"):
        made.add(b"cd", 0, 2)
    made.add(b"cd", 0, 1)
    assert made.whole() == b"abc"


@ASSEMBLIES
def test_memory_follows_what_has_come(assembly: Callable[[int], bulk.Assembly]):
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        made = assembly(64 * 1024 * 1024)
        made.add(bytes(10_000), 0, 10_000)
        assert tracemalloc.get_traced_memory()[0] - before < 50_000
    finally:
        tracemalloc.stop()


@ASSEMBLIES
@pytest.mark.parametrize("size", [1, 7, 100, 4_095])
def test_small_pieces_take_no_more_than_twice_their_size(assembly: Callable[[int], bulk.Assembly], size: int):
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        made = assembly(300_000)
        data = bytes(range(256)) * 1_200
        for at in range(0, 300_000, size):
            made.add(data, at, min(at + size, 300_000))
        assert tracemalloc.get_traced_memory()[0] - before - len(data) < 700_000
    finally:
        tracemalloc.stop()
    assert made.whole() == data[:300_000]


@ASSEMBLIES
def test_what_a_read_brings_for_others_takes_no_memory(assembly: Callable[[int], bulk.Assembly]):
    wire = DataFrame(3, b"x").serialize() + DataFrame(5, bytes(200_000)).serialize()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        made = assembly(64 * 1024 * 1024)
        assert made.take(wire, 10, len(wire), 3, 1 << 20) == (10, 0)
        assert made.take(wire, 0, len(wire), 3, 1 << 20) == (10, 1)
        assert tracemalloc.get_traced_memory()[0] - before < 5_000
    finally:
        tracemalloc.stop()


@KERNEL
def test_the_kernel_refuses_what_it_cannot_read():
    made = bulk.new_assembly(10)
    for start, stop in ((-1, 1), (2, 1), (0, 4)):
        with pytest.raises(ValueError, match="no such slice"):
            made.add(b"abc", start, stop)
        with pytest.raises(ValueError, match="no such slice"):
            made.take(b"abc", start, stop, 1, 100)
    for arguments in (("abc", 0, 1), (b"abc", "0", 1), (b"abc", 0)):
        with pytest.raises(TypeError):
            made.add(*arguments)
        with pytest.raises(TypeError):
            made.take(*arguments, 1, 100)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="not negative"):
        bulk.new_assembly(-1)
    for length_max in (0, 1 << 24):
        with pytest.raises(ValueError, match="a frame has"):
            bulk.data_frames([], 1, length_max, b"", b"")
    for arguments in (  # type: ignore[assignment]
        ([], 1, 100, "", b""),
        ([], 1, 100, b"", ""),
        ([], "1", 100, b"", b""),
        ((), 1, 100, b"", b""),
        ([], 1, 100, b""),
    ):
        with pytest.raises(TypeError):
            bulk.data_frames(*arguments)


@pytest.mark.parametrize("data_frame", [bulk.framed, bulk.data_frame], ids=["struct", "default"])
@settings(deadline=None)
@given(st.integers(1, 2**31 - 1), st.binary(max_size=300), st.integers(0, 70_000))
def test_a_small_message_begins_its_frame_and_its_body_may_follow(data_frame, stream_id, message, body_bytes):
    body = bytes(body_bytes)
    wire = memoryview(data_frame(stream_id, message, body_bytes) + body)
    frame, length = Frame.parse_frame_header(wire[:9])
    frame.parse_body(wire[9:])
    assert isinstance(frame, DataFrame) and frame.stream_id == stream_id and not frame.flags
    assert length == len(wire) - 9
    content = b"".join((message, body))
    assert frame.data == b"\0" + len(content).to_bytes(4, "big") + content  # gRPC over HTTP/2: flag, length, message


@KERNEL
def test_the_kernel_frames_no_more_than_a_frame_holds():
    for message, body_bytes in ((b"", -1), (b"", 1 << 24), (bytes(10), 0xFFFFFF - 14)):
        with pytest.raises(ValueError, match="more than a frame holds"):
            bulk.data_frame(1, message, body_bytes)
    assert bulk.data_frame(1, bytes(10), 0xFFFFFF - 15)[:3] == b"\xff\xff\xff"
    for arguments in ((1, "", 0), ("1", b"", 0), (1, b"", "0"), (1, b"")):
        with pytest.raises(TypeError):
            bulk.data_frame(*arguments)


@KERNEL
@settings(deadline=None)
@given(st.binary(max_size=300), st.binary(max_size=300), st.integers(1, 100), st.integers(1, 2**31 - 1))
def test_a_message_is_cut_into_full_frames(head, body, length_max, stream_id):
    out = [b"before"]
    bulk.data_frames(out, stream_id, length_max, head, memoryview(body))  # type: ignore[arg-type]
    assert out.pop(0) == b"before" and all(out)
    assert all(piece.obj is body for piece in out if isinstance(piece, memoryview)), "nothing of a body is copied"  # type: ignore[attr-defined]
    wire = memoryview(b"".join(out))
    contents = []
    while wire:
        frame, length = Frame.parse_frame_header(wire[:9])
        frame.parse_body(wire[9 : 9 + length])
        assert isinstance(frame, DataFrame) and frame.stream_id == stream_id and not frame.flags
        contents.append(frame.data)
        wire = wire[9 + length :]
    assert b"".join(contents) == head + body
    assert all(len(content) == length_max for content in contents[:-1]) and all(contents)


@KERNEL
@pytest.mark.parametrize("tls", [None, object()])
def test_a_socket_takes_the_pieces_of_a_body_and_tls_one_whole(tls):
    wire = Wire(tls=tls)
    wire.send(SettingsFrame(0, {SettingsFrame.INITIAL_WINDOW_SIZE: 1 << 20}), WindowUpdateFrame(0, 1 << 20))
    wire.open(1, b"silent")
    body = Random(1).randbytes(100_000)
    wire.handlers[0].call.send(b"head", memoryview(body))
    wire.handlers[0].call.send(b"more")
    wire.turn()
    assert wire.answers(1) == [b"head" + body, b"more"]
    wire.handlers[0].call.send(b"small")
    wire.turn()
    assert wire.socket.gathered_writes == (1 if tls is None else 0)
