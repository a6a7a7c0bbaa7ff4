"""The page's gauges: pool, index and the picker's own state, read off one `PoolView`.

An average is over the endpoints whose value is known; where none is, the series is left out.
"""

from collections.abc import Iterable, Iterator, Mapping

from picker.edge.telemetry.series import Line, family, label_text
from picker.edge.telemetry.shared import shared_parts
from picker.edge.telemetry.view import EndpointRow, KvEventCounts, PoolView
from picker.pool.specs import split_address
from picker.version import __version__


def pool_parts(
    view: PoolView, attempts: Mapping[tuple[str, str, str], list[float]], openmetrics: bool
) -> Iterator[str]:
    """`attempts`: picks by (status, model, address)."""
    for name, help_text, value in _single(view):
        yield from family(name, help_text, "gauge", [("", "", value)], openmetrics)
    yield from family(
        "picker_index_evictions_total",
        "Prefix blocks that left the index for want of room.",
        "counter",
        [("", "", view.index_evictions)],
        openmetrics,
    )
    for name, help_text, count in (
        ("picker_recorded_requests_total", "Requests that a recording has on disk.", view.recorded_requests),
        ("picker_recording_lost_total", "Requests that a recording could not write.", view.recording_lost),
        ("picker_usage_lines_total", "Requests that the usage file has on disk.", view.usage_lines),
        ("picker_usage_lost_total", "Requests that the usage file could not write.", view.usage_lost),
    ):
        if count is not None:
            yield from family(name, help_text, "counter", [("", "", count)], openmetrics)
    yield from family(
        "picker_memory_bytes",
        "Memory that is accounted for, by what it is held for.",
        "gauge",
        [("", label_text(("part",), (part,)), size) for part, size in view.memory_bytes.items()],
        openmetrics,
    )
    yield from family(
        "picker_memory_gave_way_total",
        "Requests and connections that ended because memory was full and they held most of it for longest.",
        "counter",
        [("", "", view.gave_way)],
        openmetrics,
    )
    pool = label_text(("name",), (view.pool_name,))
    for name, help_text, average in _averages(view):
        yield from family(name, help_text, "gauge", [] if average is None else [("", pool, average)], openmetrics)
    yield from _by_endpoint(view, openmetrics)
    if view.shared is not None:
        yield from shared_parts(view.shared, openmetrics)
    yield from _attempts(view, attempts, openmetrics)
    yield from _saturation(view, openmetrics)
    yield from _served(view, openmetrics)
    if view.kv_events is not None:
        yield from _kv_events(view.kv_events, openmetrics)
    yield from family(
        "inference_extension_info",
        "What runs here.",
        "gauge",
        [("", label_text(("commit", "build_ref"), ("", f"picker-{__version__}")), 1)],
        openmetrics,
    )


def _single(view: PoolView) -> Iterator[tuple[str, str, float]]:
    rows = view.endpoints
    yield "picker_ready_endpoints", "Endpoints that can be picked.", len(rows)
    yield "picker_ejected_endpoints", "Endpoints put aside after failures.", sum(row.ejected for row in rows)
    closed = view.closed_endpoints
    yield "picker_closed_endpoints", "Endpoints whose own port refuses connections: others are preferred.", closed
    unread = sum(row.scrape_age_seconds is None for row in rows)
    yield "picker_unread_endpoints", "Ready endpoints whose engine metrics were never read.", unread
    yield (
        "picker_address_collisions",
        "Pods or entries that claim an address which another one has; the log names them.",
        view.address_collisions,
    )
    yield "picker_synced", "1 once the source of endpoints has been read in full.", int(view.synced)
    yield "picker_requests_in_flight", "Requests sent to endpoints and not finished.", view.requests_in_flight
    yield "picker_index_blocks", "Prefix blocks in the index.", view.index_blocks
    yield "picker_index_bytes", "Memory that the prefix index takes, as it accounts for itself.", view.index_bytes
    yield "picker_index_bytes_max", "Memory that the prefix index may take.", view.index_bytes_max
    yield "picker_memory_bytes_max", "Memory that all parts together may take.", view.memory_bytes_max
    yield "inference_extension_prefix_indexer_size", "Prefix blocks in the index.", view.index_blocks
    if view.saturation is not None:
        yield "picker_pool_saturation", "How full the pool is: 1 is full, and it goes beyond.", view.saturation
    if view.wanted_replicas is not None:
        yield "picker_wanted_replicas", "Replicas that the work which arrives keeps busy.", view.wanted_replicas
    if view.api_server_up is not None:
        yield "picker_api_server_up", "1 while the Kubernetes API server answers.", int(view.api_server_up)
    if view.leader is not None:
        yield "picker_leader", "1 while this replica leads.", int(view.leader)


def _averages(view: PoolView) -> Iterator[tuple[str, str, float | None]]:
    rows = view.endpoints
    yield (
        "inference_pool_average_kv_cache_utilization",
        "Mean KV cache utilization (0..1) of the endpoints that report it.",
        mean_of(row.kv_cache_utilization for row in rows),
    )
    yield (
        "inference_pool_average_queue_size",
        "Mean waiting requests of the endpoints that report them.",
        mean_of(row.waiting_requests for row in rows),
    )
    yield (
        "inference_pool_average_running_requests",
        "Mean running requests of the endpoints that report them.",
        mean_of(row.running_requests for row in rows),
    )
    yield "inference_pool_ready_pods", "Endpoints that can be picked.", len(rows)


def mean_of(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _by_endpoint(view: PoolView, openmetrics: bool) -> Iterator[str]:
    rows = view.endpoints
    name = view.pool_name
    labels = [label_text(("endpoint", "address"), (row.name, row.address)) for row in rows]

    def column(values: Iterable[float | None]) -> Iterator[Line]:
        return (("", text, value) for text, value in zip(labels, values, strict=True) if value is not None)

    for family_name, help_text, values in (
        (
            "picker_endpoint_scrape_age_seconds",
            "Time since the endpoint's engine metrics were read.",
            (row.scrape_age_seconds for row in rows),
        ),
        (
            "picker_endpoint_in_flight_requests",
            "Requests sent to the endpoint and not finished.",
            (row.in_flight_requests for row in rows),
        ),
    ):
        yield from family(family_name, help_text, "gauge", column(values), openmetrics)
    yield from family(
        "inference_pool_per_pod_queue_size",
        "Waiting requests of the endpoint.",
        "gauge",
        (
            ("", label_text(("name", "model_server_pod"), (name, row.name)), row.waiting_requests)
            for row in one_per_name(rows)
            if row.waiting_requests is not None
        ),
        openmetrics,
    )


def one_per_name(rows: Iterable[EndpointRow]) -> Iterable[EndpointRow]:
    """A pod with several ports is several endpoints of one name: their first speaks for it."""
    return {row.name: row for row in reversed(list(rows))}.values()


def _attempts(view: PoolView, attempts: Mapping[tuple[str, str, str], list[float]], openmetrics: bool) -> Iterator[str]:
    lines = attempt_lines(view, attempts, "pod_name")
    name = "inference_extension_scheduler_attempts_total"
    yield from family(name, "Picks by model and endpoint.", "counter", lines, openmetrics)


def attempt_lines(
    view: PoolView, attempts: Mapping[tuple[str, str, str], list[float]], endpoint_label: str
) -> Iterator[Line]:
    """`endpoint_label`: what the name of an endpoint is called."""
    rows = {row.address: row for row in view.endpoints}
    labels = ("status", "target_model_name", endpoint_label, "namespace", "port")
    for (status, model, address), count in list(attempts.items()):
        row = rows.get(address)
        if row is not None or not address:
            where = (row.name, row.namespace, str(split_address(address)[1])) if row else ("", "", "")
            yield "", label_text(labels, (status, model, *where)), count[0]


def _saturation(view: PoolView, openmetrics: bool) -> Iterator[str]:
    pool = label_text(("inference_pool",), (view.pool_name,))
    lines: list[Line] = [] if view.saturation is None else [("", pool, view.saturation)]
    name = "inference_extension_flow_control_pool_saturation"
    yield from family(name, "How full the pool is; 1.0 is full.", "gauge", lines, openmetrics)


def _served(view: PoolView, openmetrics: bool) -> Iterator[str]:
    picked = view.served_told - view.served_another - view.served_unknown
    rows = (("picked", picked), ("another", view.served_another), ("unknown", view.served_unknown))
    yield from family(
        "picker_served_total",
        "Answers of which the proxy told who gave them: the pick, another endpoint, or an address not in the pool.",
        "counter",
        (("", label_text(("by",), (by,)), count) for by, count in rows),
        openmetrics,
    )


def _kv_events(counts: KvEventCounts, openmetrics: bool) -> Iterator[str]:
    yield from family(
        "picker_kv_events_total",
        "KV events of engines that were read, by kind.",
        "counter",
        (("", label_text(("kind",), (kind,)), count) for kind, count in counts.events.items()),
        openmetrics,
    )
    totals = (
        ("picker_kv_event_gaps_total", "Times that batches of KV events were lost.", counts.gaps),
        (
            "picker_kv_event_replayed_batches_total",
            "Lost batches of KV events that came when asked for again.",
            counts.replayed_batches,
        ),
        ("picker_kv_event_malformed_total", "Batches and KV events that could not be read.", counts.malformed),
        (
            "picker_kv_event_unmatched_blocks_total",
            "Blocks that engines stored for a request that the picker does not know.",
            counts.unmatched_blocks,
        ),
    )
    for name, help_text, value in totals:
        yield from family(name, help_text, "counter", [("", "", value)], openmetrics)
    gauges = (
        ("picker_kv_event_endpoints", "Endpoints whose KV events are followed.", counts.endpoints),
        ("picker_kv_event_whole_endpoints", "Of these, the ones of which no event is missing.", counts.whole_endpoints),
        ("picker_kv_confirmed_blocks", "Prefix blocks that engines themselves said to hold.", counts.confirmed_blocks),
    )
    for name, help_text, value in gauges:
        yield from family(name, help_text, "gauge", [("", "", value)], openmetrics)
    if counts.lag_seconds is not None:
        help_text = "From an engine's clock to the picker's, at the last batch of KV events."
        yield from family(
            "picker_kv_event_lag_seconds", help_text, "gauge", [("", "", counts.lag_seconds)], openmetrics
        )
