"""How it stands between this picker and the others: for telemetry. Counts since the start."""

import msgspec


class SharedStatus(msgspec.Struct, frozen=True, kw_only=True):
    """At one moment. Unknown is `None`."""

    up: bool
    warm: bool
    pickers: int
    lag_seconds: float | None
    requests_in_flight: int
    snapshot_seconds: float | None
    bytes_sent: int
    bytes_received: int
    snapshots_written: int
    snapshots_read: int
    sent: dict[str, int]
    received: dict[str, int]
    dropped: dict[str, int]
