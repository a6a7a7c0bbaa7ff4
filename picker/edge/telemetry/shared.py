"""The page's series about what pickers tell each other. Left out where they do not."""

from collections.abc import Iterator

from picker.edge.telemetry.series import Line, family, label_text
from picker.sharing.status import SharedStatus


def shared_parts(view: SharedStatus, openmetrics: bool) -> Iterator[str]:
    """One family after the other."""
    gauges: tuple[tuple[str, str, float | None], ...] = (
        ("up", "1 while the store takes what this picker tells, and gives what others tell.", int(view.up)),
        ("warm", "1 once this picker knows what the others know, or waited long enough for it.", int(view.warm)),
        ("pickers", "Other pickers that were heard lately.", view.pickers),
        ("lag_seconds", "Age of what was heard last of a picker, where that is most.", view.lag_seconds),
        ("requests_in_flight", "Requests in flight of the other pickers, as they told them.", view.requests_in_flight),
        ("snapshot_seconds", "How long the last snapshot of another picker took to read.", view.snapshot_seconds),
    )
    for name, help_text, value in gauges:
        lines: list[Line] = [] if value is None else [("", "", value)]
        yield from family(f"picker_shared_{name}", help_text, "gauge", lines, openmetrics)
    counters: tuple[tuple[str, str, list[Line]], ...] = (
        ("bytes_sent", "Bytes told to the store.", [("", "", view.bytes_sent)]),
        ("bytes_received", "Bytes heard from the store.", [("", "", view.bytes_received)]),
        ("snapshots_written", "Snapshots written for other pickers.", [("", "", view.snapshots_written)]),
        ("snapshots_read", "Snapshots of other pickers that were taken over.", [("", "", view.snapshots_read)]),
        ("records_sent", "What was told, by kind.", _labelled("kind", view.sent)),
        ("records_received", "What was heard, by kind.", _labelled("kind", view.received)),
        ("dropped", "What was told or heard and left out, by why.", _labelled("why", view.dropped)),
    )
    for name, help_text, lines in counters:
        yield from family(f"picker_shared_{name}_total", help_text, "counter", lines, openmetrics)


def _labelled(label: str, values: "dict[str, int]") -> list[Line]:
    return [("", label_text((label,), (name,)), value) for name, value in values.items()]
