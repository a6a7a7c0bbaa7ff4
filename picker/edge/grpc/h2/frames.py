"""HTTP/2 frames as bytes (RFC 9113 sections 4 and 6): numbers, packing, checked payloads.

Nothing here keeps state. What a peer gets wrong is raised as `ConnectionFault` (the whole
connection ends with GOAWAY) or `StreamFault` (one stream ends with RST_STREAM), with the error
code that RFC 9113 asks for.
"""

from struct import Struct
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

# Frame types, section 6.
DATA: Final = 0
HEADERS: Final = 1
PRIORITY: Final = 2
RST_STREAM: Final = 3
SETTINGS: Final = 4
PUSH_PROMISE: Final = 5
PING: Final = 6
GOAWAY: Final = 7
WINDOW_UPDATE: Final = 8
CONTINUATION: Final = 9

# Flags.
END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
PRIORITIZED: Final = 0x20

# Error codes, section 7.
NO_ERROR: Final = 0
PROTOCOL_ERROR: Final = 1
INTERNAL_ERROR: Final = 2
FLOW_CONTROL_ERROR: Final = 3
STREAM_CLOSED: Final = 5
FRAME_SIZE_ERROR: Final = 6
REFUSED_STREAM: Final = 7
CANCEL: Final = 8
COMPRESSION_ERROR: Final = 9
ENHANCE_YOUR_CALM: Final = 11

# Settings, section 6.5.2.
HEADER_TABLE_SIZE: Final = 1
ENABLE_PUSH: Final = 2
MAX_CONCURRENT_STREAMS: Final = 3
INITIAL_WINDOW_SIZE: Final = 4
MAX_FRAME_SIZE: Final = 5
MAX_HEADER_LIST_SIZE: Final = 6

WINDOW_DEFAULT_BYTES: Final = 65_535
WINDOW_MAX_BYTES: Final = 0x7FFFFFFF
FRAME_DEFAULT_BYTES: Final = 16_384
HEADER_TABLE_DEFAULT_BYTES: Final = 4_096
STREAM_ID_MASK: Final = 0x7FFFFFFF
FRAME_HEADER_BYTES: Final = 9

HEADER: Final = Struct(">HBBBL")
"""A frame header: length (high 16 bits, low 8 bits), type, flags, stream id (mask its top bit)."""

MESSAGE: Final = Struct(">BL")
"""A gRPC length-prefixed message's prefix: compressed flag, length."""

DATA_MESSAGE: Final = Struct(">HBBBLBL")
"""A DATA frame's header and a message's prefix, for a message that fits one frame."""

_LONG: Final = Struct(">L")
_GOAWAY: Final = Struct(">LL")
_SETTING: Final = Struct(">HL")


class ConnectionFault(Exception):
    """The peer broke the connection's rules: GOAWAY with `code`, then close."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class StreamFault(Exception):
    """The peer broke one stream's rules: RST_STREAM with `code`."""

    def __init__(self, stream_id: int, code: int) -> None:
        super().__init__(stream_id, code)
        self.stream_id = stream_id
        self.code = code


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """One whole frame."""
    length = len(payload)
    return HEADER.pack(length >> 8, length & 0xFF, kind, flags, stream_id) + payload


def settings(values: dict[int, int]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(_SETTING.pack(key, value) for key, value in values.items()))


def window_update(stream_id: int, increment: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream_id, _LONG.pack(increment))


def rst_stream(stream_id: int, code: int) -> bytes:
    return frame(RST_STREAM, 0, stream_id, _LONG.pack(code))


def goaway(last_stream_id: int, code: int, text: str = "") -> bytes:
    return frame(GOAWAY, 0, 0, _GOAWAY.pack(last_stream_id, code) + text.encode()[:200])


def ping(payload: bytes, *, ack: bool) -> bytes:
    return frame(PING, ACK if ack else 0, 0, payload)


def read_settings(payload: bytes) -> list[tuple[int, int]]:
    """A SETTINGS payload's entries in order, values checked (section 6.5.2); unknown ones stay in."""
    if len(payload) % 6:
        raise ConnectionFault(FRAME_SIZE_ERROR, "SETTINGS length is not a multiple of 6")
    entries = list(_SETTING.iter_unpack(payload))
    for key, value in entries:
        if key == ENABLE_PUSH and value > 1:
            raise ConnectionFault(PROTOCOL_ERROR, "SETTINGS_ENABLE_PUSH is neither 0 nor 1")
        if key == INITIAL_WINDOW_SIZE and value > WINDOW_MAX_BYTES:
            raise ConnectionFault(FLOW_CONTROL_ERROR, "SETTINGS_INITIAL_WINDOW_SIZE is above 2^31-1")
        if key == MAX_FRAME_SIZE and not FRAME_DEFAULT_BYTES <= value <= 0xFFFFFF:
            raise ConnectionFault(PROTOCOL_ERROR, "SETTINGS_MAX_FRAME_SIZE is outside 2^14..2^24-1")
    return entries


def read_long(payload: bytes, what: str) -> int:
    """The one 32-bit number of RST_STREAM and WINDOW_UPDATE."""
    if len(payload) != 4:
        raise ConnectionFault(FRAME_SIZE_ERROR, f"{what} is not 4 bytes long")
    value: int = _LONG.unpack(payload)[0]
    return value


def without_padding(payload: bytes, flags: int) -> bytes:
    """A DATA or HEADERS payload less its padding (section 6.1)."""
    if not flags & PADDED:
        return payload
    if not payload:
        raise ConnectionFault(FRAME_SIZE_ERROR, "a padded frame without a padding length")
    padding = payload[0]
    if padding >= len(payload):
        raise ConnectionFault(PROTOCOL_ERROR, "padding as long as the frame")
    return payload[1 : len(payload) - padding]


def without_priority(block: bytes, stream_id: int) -> tuple[bytes, bool]:
    """A HEADERS block less its priority fields, and whether the stream depends on itself (an error)."""
    if len(block) < 5:
        raise ConnectionFault(FRAME_SIZE_ERROR, "HEADERS too short for its priority fields")
    return block[5:], depends_on_itself(block, stream_id)


def depends_on_itself(payload: bytes, stream_id: int) -> bool:
    """Section 5.3.1 of RFC 7540; priorities are otherwise ignored."""
    return bool(_LONG.unpack_from(payload)[0] & STREAM_ID_MASK == stream_id)
