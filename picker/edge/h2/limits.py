"""Every limit of the gRPC port, in one frozen value. Defaults and their reasons: docs/transport.md.

Sized for the usual peer, an Envoy that keeps a few long connections with one stream per HTTP
request in flight: 10,000 open streams on one connection, all ended at once, meet no limit.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

Positive = Annotated[int, Meta(ge=1)]
PositiveSeconds = Annotated[float, Meta(gt=0)]


class H2Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one peer, and all peers together, may ask of the gRPC port."""

    connections_max: Positive = 1024
    """Connections at once; one more is answered GOAWAY and closed."""

    concurrent_streams_max: Positive = 16_384
    """Open calls on one connection; one more is answered RST_STREAM REFUSED_STREAM (safe to retry)."""

    header_list_bytes_max: Positive = 16_384
    """Decoded request headers, each counted as RFC 9113 section 6.5.2 counts (name + value + 32)."""

    header_block_bytes_max: Positive = 32_768
    """Encoded request headers, HEADERS and CONTINUATION frames together."""

    continuation_frames_max: Positive = 8
    """CONTINUATION frames of one header block."""

    frame_bytes_max: Annotated[int, Meta(ge=16_384, le=16_777_215)] = 16_384
    """Payload of one frame (SETTINGS_MAX_FRAME_SIZE)."""

    message_bytes_max: Annotated[int, Meta(ge=1, le=0x7FFFFFFF)] = 64 * 1024 * 1024
    """One gRPC message; a longer one ends its call with RESOURCE_EXHAUSTED."""

    stream_window_bytes: Annotated[int, Meta(ge=65_535, le=0x7FFFFFFF)] = 1024 * 1024
    """Bytes a peer may send on one stream before we say that it may go on."""

    connection_window_bytes: Annotated[int, Meta(ge=65_535, le=0x7FFFFFFF)] = 16 * 1024 * 1024
    """The same for a whole connection."""

    connection_buffered_bytes_max: Positive = 256 * 1024 * 1024
    """Unfinished messages of one connection; what goes beyond ends its call with RESOURCE_EXHAUSTED."""

    buffered_bytes_max: Positive = 1024 * 1024 * 1024
    """Unfinished messages of all connections together; the same answer."""

    stream_send_queue_bytes_max: Positive = 1024 * 1024
    """Answers queued on one call before its peer may send no more on it (no window is granted)."""

    send_queue_bytes_max: Positive = 64 * 1024 * 1024
    """Answers queued on one connection. From half of it on its peer may send no more messages; above it,
    the connection is closed. At least twice `connection_window_bytes`, or an honest peer could meet it."""

    resets_max: Positive = 10_000
    """Calls that a peer may break off (RST_STREAM before its call ended, or a stream error) in one go."""

    resets_per_second: Positive = 1_000
    """How fast that allowance comes back. A reset after the end, Envoy's habit, never counts."""

    idle_frames_max: Positive = 10_000
    """Frames that move no data (PING, SETTINGS, PRIORITY, WINDOW_UPDATE, empty DATA, unknown) in one go.
    Each new call and each filled DATA frame gives eight back."""

    idle_frames_per_second: Positive = 1_000
    """How fast that allowance comes back by itself."""

    handshake_seconds: PositiveSeconds = 10.0
    """From accepting a connection to its preface and SETTINGS; TLS has the same time again."""

    header_block_seconds: PositiveSeconds = 10.0
    """From HEADERS to END_HEADERS."""

    message_stall_seconds: PositiveSeconds = 60.0
    """A message begun may wait so long for its next byte; then its call ends with CANCELLED."""

    send_stall_seconds: PositiveSeconds = 60.0
    """Answers may wait so long without one byte taken by the peer; then the connection is closed."""

    keepalive_seconds: PositiveSeconds = 30.0
    """A connection silent for so long is sent a PING."""

    keepalive_timeout_seconds: PositiveSeconds = 20.0
    """And closed when nothing comes back for so long."""

    close_seconds: PositiveSeconds = 2.0
    """Time for a peer to read our GOAWAY before its socket is cut."""
