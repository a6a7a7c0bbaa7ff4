"""The wire format, against hyperframe and the numbers of RFC 9113."""

import pytest
from hyperframe.frame import (
    DataFrame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from picker.edge.grpc.h2 import frames


def test_frames_are_what_hyperframe_writes() -> None:
    assert frames.frame(frames.DATA, frames.END_STREAM, 5, b"x" * 70_000) == (
        DataFrame(5, b"x" * 70_000, flags=["END_STREAM"]).serialize()
    )
    assert frames.frame(frames.HEADERS, frames.END_HEADERS, 2**31 - 1, b"\x88") == (
        HeadersFrame(2**31 - 1, b"\x88", flags=["END_HEADERS"]).serialize()
    )
    assert frames.window_update(3, 2**31 - 1) == WindowUpdateFrame(3, 2**31 - 1).serialize()
    assert frames.rst_stream(7, frames.REFUSED_STREAM) == RstStreamFrame(7, 7).serialize()
    assert frames.goaway(9, frames.ENHANCE_YOUR_CALM, "why") == GoAwayFrame(0, 9, 11, b"why").serialize()
    assert frames.ping(b"12345678", ack=True) == PingFrame(0, b"12345678", flags=["ACK"]).serialize()
    assert frames.settings({3: 100, 4: 65_536}) == SettingsFrame(0, {3: 100, 4: 65_536}).serialize()


def test_settings_are_read_in_order_and_unknown_ones_kept() -> None:
    payload = bytes.fromhex("0004 00000001 ff00 00000007")
    assert frames.read_settings(payload) == [(4, 1), (0xFF00, 7)]


@pytest.mark.parametrize(
    ("payload", "code"),
    [
        (b"12345", frames.FRAME_SIZE_ERROR),
        (b"\x00\x02\x00\x00\x00\x02", frames.PROTOCOL_ERROR),  # ENABLE_PUSH 2
        (b"\x00\x04\x80\x00\x00\x00", frames.FLOW_CONTROL_ERROR),  # INITIAL_WINDOW_SIZE 2^31
        (b"\x00\x05\x00\x00\x3f\xff", frames.PROTOCOL_ERROR),  # MAX_FRAME_SIZE 16383
        (b"\x00\x05\x01\x00\x00\x00", frames.PROTOCOL_ERROR),  # MAX_FRAME_SIZE 2^24
    ],
)
def test_bad_settings_have_the_code_of_section_6_5_2(payload: bytes, code: int) -> None:
    with pytest.raises(frames.ConnectionFault) as caught:
        frames.read_settings(payload)
    assert caught.value.code == code


def test_padding_comes_off() -> None:
    padded = DataFrame(1, b"content", pad_length=9, flags=["PADDED"]).serialize()[9:]
    assert frames.without_padding(padded, frames.PADDED) == b"content"
    assert frames.without_padding(b"content", 0) == b"content"
    assert frames.without_padding(b"\x03abc", frames.PADDED) == b""


@pytest.mark.parametrize(("payload", "code"), [(b"", frames.FRAME_SIZE_ERROR), (b"\x04abc", frames.PROTOCOL_ERROR)])
def test_padding_longer_than_the_frame_is_an_error(payload: bytes, code: int) -> None:
    with pytest.raises(frames.ConnectionFault) as caught:
        frames.without_padding(payload, frames.PADDED)
    assert caught.value.code == code
