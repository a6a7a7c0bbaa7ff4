"""The page's gauges: pool, index and the picker's own state, read off one `PoolView`.

An average is over the endpoints whose value is known; where none is, the series is left out.
"""

from collections.abc import Iterable, Iterator, Mapping

from picker.edge.telemetry_series import Line, family, label_text
from picker.edge.telemetry_view import EndpointRow, PoolView
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
    pool = label_text(("name",), (view.pool_name,))
    for name, help_text, average in _averages(view):
        yield from family(name, help_text, "gauge", [] if average is None else [("", pool, average)], openmetrics)
    yield from _by_endpoint(view, openmetrics)
    yield from _attempts(view, attempts, openmetrics)
    yield from _queue(view, openmetrics)
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
    unread = sum(row.scrape_age_seconds is None for row in rows)
    yield "picker_unread_endpoints", "Ready endpoints whose engine metrics were never read.", unread
    yield "picker_synced", "1 once the source of endpoints has been read in full.", int(view.synced)
    yield "picker_requests_in_flight", "Requests sent to endpoints and not finished.", view.requests_in_flight
    yield "picker_index_blocks", "Prefix blocks in the index.", view.index_blocks
    yield "picker_index_bytes", "Memory that the prefix index takes, as it accounts for itself.", view.index_bytes
    yield "picker_index_bytes_max", "Memory that the prefix index may take.", view.index_bytes_max
    yield "inference_extension_prefix_indexer_size", "Prefix blocks in the index.", view.index_blocks
    if view.api_server_up is not None:
        yield "picker_api_server_up", "1 while the Kubernetes API server answers.", int(view.api_server_up)
    if view.leader is not None:
        yield "picker_leader", "1 while this replica leads.", int(view.leader)


def _averages(view: PoolView) -> Iterator[tuple[str, str, float | None]]:
    rows = view.endpoints
    yield (
        "inference_pool_average_kv_cache_utilization",
        "Mean KV cache utilization (0..1) of the endpoints that report it.",
        _mean(row.kv_cache_utilization for row in rows),
    )
    yield (
        "inference_pool_average_queue_size",
        "Mean waiting requests of the endpoints that report them.",
        _mean(row.waiting_requests for row in rows),
    )
    yield (
        "inference_pool_average_running_requests",
        "Mean running requests of the endpoints that report them.",
        _mean(row.running_requests for row in rows),
    )
    yield "inference_pool_ready_pods", "Endpoints that can be picked.", len(rows)


def _mean(values: Iterable[float | None]) -> float | None:
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
            for row in _one_per_name(rows)
            if row.waiting_requests is not None
        ),
        openmetrics,
    )


def _one_per_name(rows: Iterable[EndpointRow]) -> Iterable[EndpointRow]:
    """A pod with several ports is several endpoints of one name: their first speaks for it."""
    return {row.name: row for row in reversed(list(rows))}.values()


def _attempts(view: PoolView, attempts: Mapping[tuple[str, str, str], list[float]], openmetrics: bool) -> Iterator[str]:
    rows = {row.address: row for row in view.endpoints}

    def lines() -> Iterator[Line]:
        for (status, model, address), count in list(attempts.items()):
            row = rows.get(address)
            if row is not None or not address:
                where = (row.name, row.namespace, str(split_address(address)[1])) if row else ("", "", "")
                values = (status, model, *where)
                yield "", label_text(("status", "target_model_name", "pod_name", "namespace", "port"), values), count[0]

    name = "inference_extension_scheduler_attempts_total"
    yield from family(name, "Picks by model and endpoint.", "counter", lines(), openmetrics)


def _queue(view: PoolView, openmetrics: bool) -> Iterator[str]:
    names = ("fairness_id", "priority", "inference_pool", "model_name", "target_model_name")
    rows = [
        (label_text(names, (row.fairness_id, str(row.priority), view.pool_name, row.model, row.model)), row)
        for row in view.queued
    ]
    for name, help_text, lines in (
        ("queue_size", "Requests held back.", [("", text, row.requests) for text, row in rows]),
        ("queue_bytes", "Bytes of the requests held back.", [("", text, row.bytes) for text, row in rows]),
        (
            "pool_saturation",
            "How full the pool is; 1.0 is full.",
            []
            if view.saturation is None
            else [("", label_text(("inference_pool",), (view.pool_name,)), view.saturation)],
        ),
    ):
        yield from family(f"inference_extension_flow_control_{name}", help_text, "gauge", lines, openmetrics)
