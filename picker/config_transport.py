"""Limits of the gRPC port, as a table of the configuration. Reasons and measurements: docs/transport.md.

Sized for the usual peer, an Envoy that keeps a few long connections with one stream per HTTP
request in flight: 10,000 open streams on one connection, all ended at once, meet no limit.
"""

from typing import Annotated

import msgspec
from msgspec import Meta


class TransportLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one peer, and all peers together, may ask of the gRPC port."""

    connections_max: Annotated[
        int,
        Meta(
            ge=1,
            description="Connections at once; one more is answered GOAWAY and closed.",
        ),
    ] = 1024
    concurrent_streams_max: Annotated[
        int,
        Meta(
            ge=1,
            description=(
                "Open calls on one connection; one more is answered RST_STREAM REFUSED_STREAM (safe to retry)."
            ),
        ),
    ] = 16_384
    header_list_bytes_max: Annotated[
        int,
        Meta(
            ge=1,
            description="Decoded request headers, each counted as RFC 9113 section 6.5.2 counts (name + value + 32).",
        ),
    ] = 16_384
    header_block_bytes_max: Annotated[
        int,
        Meta(
            ge=1,
            description="Encoded request headers, HEADERS and CONTINUATION frames together.",
        ),
    ] = 32_768
    continuation_frames_max: Annotated[int, Meta(ge=1, description="CONTINUATION frames of one header block.")] = 8
    frame_bytes_max: Annotated[
        int,
        Meta(
            ge=16_384,
            le=16_777_215,
            description="Payload of one frame (SETTINGS_MAX_FRAME_SIZE).",
        ),
    ] = 16_384
    message_bytes_max: Annotated[
        int,
        Meta(ge=1, le=0x7FFFFFFF, description="One gRPC message; a longer one ends its call with RESOURCE_EXHAUSTED."),
    ] = 64 * 1024 * 1024
    stream_window_bytes: Annotated[
        int,
        Meta(
            ge=65_535, le=0x7FFFFFFF, description="Bytes a peer may send on one stream before we say that it may go on."
        ),
    ] = 1024 * 1024
    connection_window_bytes: Annotated[
        int,
        Meta(
            ge=65_535,
            le=0x7FFFFFFF,
            description="The same for a whole connection.",
        ),
    ] = 16 * 1024 * 1024
    connection_buffered_bytes_max: Annotated[
        int,
        Meta(
            ge=1,
            description=(
                "Unfinished messages of one connection; what goes beyond ends its call with RESOURCE_EXHAUSTED."
            ),
        ),
    ] = 256 * 1024 * 1024
    buffered_bytes_max: Annotated[
        int,
        Meta(
            ge=1,
            description="Unfinished messages of all connections together; the same answer.",
        ),
    ] = 1024 * 1024 * 1024
    stream_send_queue_bytes_max: Annotated[
        int,
        Meta(
            ge=1,
            description="Answers queued on one call before its peer may send no more on it (no window is granted).",
        ),
    ] = 1024 * 1024
    send_queue_bytes_max: Annotated[
        int,
        Meta(
            ge=1,
            description=(
                "Answers queued on one connection. From half of it on its peer may send no more messages; "
                "above it, the connection is closed. At least twice `connection_window_bytes`, or an "
                "honest peer could meet it."
            ),
        ),
    ] = 64 * 1024 * 1024
    resets_max: Annotated[
        int,
        Meta(
            ge=1,
            description=(
                "Calls that a peer may break off (RST_STREAM before their first answer, or a stream error) in one go."
            ),
        ),
    ] = 10_000
    resets_per_second: Annotated[
        int,
        Meta(
            ge=1,
            description="How fast that allowance comes back. A reset after an answer, as Envoy sends, never counts.",
        ),
    ] = 1_000
    idle_frames_max: Annotated[
        int,
        Meta(
            ge=1,
            description=(
                "Frames that move no data (PING, SETTINGS, PRIORITY, WINDOW_UPDATE, empty DATA, unknown) "
                "in one go. Each new call and each filled DATA frame gives eight back."
            ),
        ),
    ] = 10_000
    idle_frames_per_second: Annotated[int, Meta(ge=1, description="How fast that allowance comes back by itself.")] = (
        1_000
    )
    handshake_seconds: Annotated[
        float,
        Meta(gt=0, description="From accepting a connection to its preface and SETTINGS; TLS has the same time again."),
    ] = 10.0
    tls_handshakes_max: Annotated[
        int,
        Meta(ge=1, description="TLS handshakes in progress at a time; beyond, the oldest gives way to the newest."),
    ] = 256
    header_block_seconds: Annotated[float, Meta(gt=0, description="From HEADERS to END_HEADERS.")] = 10.0
    message_stall_seconds: Annotated[
        float,
        Meta(
            gt=0, description="A message begun may wait so long for its next byte; then its call ends with CANCELLED."
        ),
    ] = 60.0
    send_stall_seconds: Annotated[
        float,
        Meta(
            gt=0,
            description="Answers may wait so long without one byte taken by the peer; then the connection is closed.",
        ),
    ] = 60.0
    keepalive_seconds: Annotated[float, Meta(gt=0, description="A connection silent for so long is sent a PING.")] = (
        30.0
    )
    keepalive_timeout_seconds: Annotated[
        float,
        Meta(
            gt=0,
            description="And closed when nothing comes back for so long.",
        ),
    ] = 20.0
    close_seconds: Annotated[
        float,
        Meta(
            gt=0,
            description="Time for a peer to read our GOAWAY before its socket is cut.",
        ),
    ] = 2.0
