"""Coverage-guided fuzzing of the frame layer: any bytes, in any pieces, to one connection.

Opt-in, because atheris brings a compiler's runtime with it (tests/fuzz/README.md). The input's
first byte says whether our greeting comes first and how the rest is cut into reads; then come
bytes as a peer sends them. After each input: nothing of ours was raised, every frame that we wrote can be
read (hyperframe, hpack), no more is held than the limits allow, and nothing is left once the peer is gone.
"""

import struct
import sys
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).parent.parent.parent))
with atheris.instrument_imports(include=["picker.edge.grpc.h2"]):
    from picker.edge.grpc.h2 import connection as _  # noqa: F401

from tests.unit.edge.grpc.h2.wire import CALL_FIELDS, PREFACE, SMALL_LIMITS, Echo, Wire, message

CUTS = (1, 5, 9, 10, 23, 64, 1_000, 1 << 20)
"""Bytes a read."""


def one_input(data: bytes) -> None:
    if len(data) < 2:
        return
    wire = Wire(SMALL_LIMITS, greet=bool(data[0] & 0x80))
    size = CUTS[data[0] & 7]
    for at in range(1, len(data), size):
        wire.send_raw(data[at : at + size])
        if data[0] & 0x40 and at % 7 == 0:
            wire.pass_time(0.5)
        connection = wire.connection
        assert wire.errors == [] or all("handler's own" in str(error) for error in wire.errors), wire.errors
        assert len(connection.streams) <= SMALL_LIMITS.concurrent_streams_max
        assert connection.messages.buffered <= SMALL_LIMITS.connection_buffered_bytes_max + SMALL_LIMITS.frame_bytes_max
    wire.frames()
    wire.connection.connection_lost(None)
    wire.turn()
    assert wire.connection.streams == {}
    assert wire.shared.budget.used == 0
    wire.shared.budget.check()
    for handler in wire.handlers:
        assert isinstance(handler, Echo)
        assert handler.seen.count("closed") == 1, handler.seen


def seeds(folder: Path) -> None:
    """Whole calls and one of each kind of frame, so that the search starts behind the preface."""

    def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
        return struct.pack(">L", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">L", stream_id) + payload

    block = Wire(greet=False).encoder.encode(list(CALL_FIELDS))
    call = frame(1, 4, 1, block) + frame(0, 0, 1, message(b"hello") + message(b"finish")[:7])
    others = [
        frame(0, 1, 1, message(b"bye")),
        frame(0, 9, 1, b"\x03" + message(b"padded") + b"\0\0\0"),
        frame(1, 0, 3, block[:4]) + frame(9, 4, 3, block[4:]),
        frame(1, 0x2D, 5, b"\x01\0\0\0\0\x10" + block + b"\0"),
        frame(2, 0, 1, b"\0\0\0\0\x10"),
        frame(3, 0, 1, b"\0\0\0\x08"),
        frame(4, 0, 0, struct.pack(">HLHL", 4, 100, 5, 20_000)),
        frame(4, 1, 0),
        frame(6, 0, 0, b"12345678"),
        frame(7, 0, 0, b"\0\0\0\0\0\0\0\0"),
        frame(8, 0, 0, b"\0\0\xff\xff") + frame(8, 0, 1, b"\0\0\xff\xff"),
        frame(0xFA, 0, 0, b"unknown"),
    ]
    folder.mkdir(parents=True, exist_ok=True)
    greeting = PREFACE + frame(4, 0, 0)
    (folder / "whole").write_bytes(b"\x07" + greeting + call + b"".join(others))
    for number, other in enumerate(others):
        for first in (0x87, 0x82, 0xC4):
            (folder / f"{number}-{first:x}").write_bytes(bytes((first,)) + call + other)


if __name__ == "__main__":
    corpus = [argument for argument in sys.argv[1:] if not argument.startswith("-")]
    if corpus:
        seeds(Path(corpus[0]))
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
