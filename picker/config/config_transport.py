"""Limits of the gRPC port, as a table of the configuration. Reasons and measurements: docs/transport.md.

Sized for the usual peer, an Envoy that keeps a few long connections with one stream per HTTP
request in flight: 10,000 open streams on one connection, all ended at once, meet no limit.
"""

from typing import Annotated

import msgspec
from msgspec import Meta


class TransportLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one peer, and all peers together, may ask of the gRPC port.

    The defaults suit an Envoy that keeps a few long connections, so leave them alone behind one. Lower
    them where strangers can reach the port; docs/transport.md says what each one is for.
    """

    connections_max: Annotated[
        int,
        Meta(
            ge=1,
            description="Connections at once. For one more, the connection that was idle longest is closed. If none "
            "is idle, the new one is answered GOAWAY and closed.",
        ),
    ] = 1024
    concurrent_streams_max: Annotated[
        int,
        Meta(
            ge=1,
            description=(
                "Open calls on one connection. One more is answered RST_STREAM REFUSED_STREAM, which is safe to retry."
            ),
        ),
    ] = 16_384
    header_list_bytes_max: Annotated[
        int,
        Meta(
            ge=1,
            description=(
                "Bytes of decoded request headers, each counted as RFC 9113 section 6.5.2 counts: name + value + 32."
            ),
        ),
    ] = 16_384
    header_block_bytes_max: Annotated[
        int,
        Meta(
            ge=1,
            description="Bytes of encoded request headers, HEADERS and CONTINUATION frames together.",
        ),
    ] = 32_768
    continuation_frames_max: Annotated[
        int, Meta(ge=1, description="CONTINUATION frames that one header block may have.")
    ] = 8
    frame_bytes_max: Annotated[
        int,
        Meta(
            ge=16_384,
            le=16_777_215,
            description="Bytes of one frame's payload (SETTINGS_MAX_FRAME_SIZE).",
        ),
    ] = 16_384
    message_bytes_max: Annotated[
        int,
        Meta(
            ge=1,
            le=0x7FFFFFFF,
            description="Bytes of one gRPC message. A longer one ends its call with RESOURCE_EXHAUSTED.",
        ),
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
            description="Bytes a peer may send on all streams of a connection before we say that it may go on.",
        ),
    ] = 16 * 1024 * 1024
    connection_buffered_bytes_max: Annotated[
        int,
        Meta(
            ge=1,
            description=(
                "Bytes of unfinished messages of one connection. Beyond it, the largest of them ends with "
                "RESOURCE_EXHAUSTED."
            ),
        ),
    ] = 256 * 1024 * 1024
    buffered_bytes_max: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(
            description=(
                "Bytes held for all peers together: unfinished messages, bodies that wait for their end, answers "
                "not yet taken, open calls. Beyond it, the largest and slowest ends. null: what "
                "limits.memory_bytes_max leaves beside the index."
            ),
        ),
    ] = None
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
                "Bytes of answers queued on one connection. If more wait and do not get fewer within a second, the "
                "call with most of them ends."
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
        Meta(
            gt=0,
            description=(
                "How long a new connection may take to send its preface and SETTINGS. TLS has the same time "
                "before that."
            ),
        ),
    ] = 10.0
    tls_handshakes_max: Annotated[
        int,
        Meta(
            ge=1, description="TLS handshakes in progress at a time. Beyond that, the oldest gives way to the newest."
        ),
    ] = 256
    header_block_seconds: Annotated[
        float, Meta(gt=0, description="How long a header block may take, from HEADERS to END_HEADERS.")
    ] = 10.0
    message_stall_seconds: Annotated[
        float,
        Meta(
            gt=0,
            description=(
                "How long a message may take to come, besides the time that its bytes take at "
                "message_bytes_per_second_min. Then its call ends with CANCELLED."
            ),
        ),
    ] = 20.0
    message_bytes_per_second_min: Annotated[
        int, Meta(ge=1, description="Rate at which an unfinished message has to come, in bytes a second.")
    ] = 65_536
    send_stall_seconds: Annotated[
        float,
        Meta(
            gt=0,
            description="How long answers may wait without one byte taken by the peer. Then the connection is closed.",
        ),
    ] = 60.0
    keepalive_seconds: Annotated[
        float, Meta(gt=0, description="A connection that was silent for so long is sent a PING.")
    ] = 30.0
    keepalive_timeout_seconds: Annotated[
        float,
        Meta(
            gt=0,
            description="The connection is closed when nothing comes back for so long after the PING.",
        ),
    ] = 20.0
    close_seconds: Annotated[
        float,
        Meta(
            gt=0,
            description="Time for a peer to read our GOAWAY before its socket is cut.",
        ),
    ] = 2.0
