"""The pool under the names of the llm-d router (`llm_d_epp_*`): its newer names for what `pool.py` shows.

Labels that name a plug-in of the llm-d router have that plug-in's default name, because queries select by it.
`fairness_id` is that of a request that names no flow. The facts are in tests/telemetry/peer_metrics.yaml.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from math import sqrt
from typing import Final

from picker.edge.telemetry.models import FAIRNESS_ID
from picker.edge.telemetry.pool import attempt_lines, mean_of, one_per_name
from picker.edge.telemetry.series import Kind, Line, family, label_text
from picker.edge.telemetry.view import EndpointRow, PoolView
from picker.version import __version__

_PRODUCER: Final = "inflight-load-producer"
_DETECTOR: Final = "utilization-detector"
_SOURCE: Final = "metrics-data-source"
_PREFIXES: Final = "approx-prefix-cache-producer"
APPROXIMATE: Final = label_text(("plugin_name", "plugin_type"), (_PREFIXES, _PREFIXES))
"""Labels of what is known of prefixes."""

_IN_FLIGHT: Final = ("endpoint_name", "namespace", "producer_name", "fairness_id", "priority")
_GAUGES: Final[tuple[tuple[str, str, Callable[[EndpointRow], float | None]], ...]] = (
    ("kv_cache_utilization", "KV cache utilization (0..1)", lambda row: row.kv_cache_utilization),
    ("queue_size", "waiting requests", lambda row: row.waiting_requests),
    ("running_requests", "running requests", lambda row: row.running_requests),
)


def epp_parts(
    view: PoolView,
    attempts: Mapping[tuple[str, str, str], list[float]],
    admissions: Mapping[tuple[str, int], int],
    scrape_failures: float,
    openmetrics: bool,
) -> Iterator[str]:
    """`attempts`: picks by (status, model, address). `admissions`: requests by (how they fared, priority)."""
    # One after the other, so that each is a step of its own.
    families = chain(
        _pool(view),
        _by_endpoint(view, attempts),
        _admission(view, admissions),
        _itself(view, scrape_failures),
    )
    for name, help_text, kind, lines in families:
        yield from family(f"llm_d_epp_{name}", help_text, kind, lines, openmetrics)


_Family = tuple[str, str, Kind, Iterable[Line]]
"""Name after `llm_d_epp_`, help, type, lines. Its lines are read before the next is asked for."""


def _pool(view: PoolView) -> Iterator[_Family]:
    rows = view.endpoints
    pool = label_text(("name",), (view.pool_name,))

    def single(value: float | None) -> list[Line]:
        return [] if value is None else [("", pool, value)]

    for name, what, value_of in _GAUGES:
        known = [value for value in map(value_of, rows) if value is not None]
        yield f"average_{name}", f"Mean {what} of the endpoints that report it.", "gauge", single(mean_of(known))
        help_text = f"Standard deviation of {what} over the endpoints that report it."
        yield f"std_dev_{name}", help_text, "gauge", single(_deviation(known))
    yield "ready_endpoints", "Endpoints that can be picked.", "gauge", single(len(rows))
    if view.kv_events is not None:
        followed: list[Line] = [("", "", view.kv_events.endpoints)]
        help_text = "Endpoints whose KV events are followed."
        yield "kv_cache_events_active_subscribers", help_text, "gauge", followed


def _deviation(values: list[float]) -> float | None:
    """Of a sample, as the llm-d router has it; of one value it is 0."""
    mean = mean_of(values)
    if mean is None:
        return None
    return sqrt(sum((value - mean) ** 2 for value in values) / max(1, len(values) - 1))


def _by_endpoint(view: PoolView, attempts: Mapping[tuple[str, str, str], list[float]]) -> Iterator[_Family]:
    rows = view.endpoints
    lines: Iterable[Line] = attempt_lines(view, attempts, "endpoint_name")
    yield "scheduler_attempts_total", "Picks by model and endpoint.", "counter", lines
    yield (
        "per_endpoint_queue_size",
        "Waiting requests of the endpoint.",
        "gauge",
        (
            ("", label_text(("name", "model_server_endpoint"), (view.pool_name, row.name)), row.waiting_requests)
            for row in one_per_name(rows)
            if row.waiting_requests is not None
        ),
    )
    # Ports of one pod are endpoints of one name: their load adds up.
    requests: dict[tuple[str, str], float] = {}
    tokens: dict[tuple[str, str], float] = {}
    for row in rows:
        key = row.name, row.namespace
        requests[key] = requests.get(key, 0) + row.in_flight_requests
        tokens[key] = tokens.get(key, 0.0) + row.prefill_tokens
    for name, help_text, values in (
        ("inflight_requests", "Requests sent to the endpoint and not finished.", requests),
        ("inflight_tokens", "Uncached prompt tokens sent to the endpoint and not prefilled, estimated.", tokens),
    ):
        # Priorities are not told apart here, and an empty label says so.
        lines = (
            ("", label_text(_IN_FLIGHT, (*key, _PRODUCER, FAIRNESS_ID, "")), value) for key, value in values.items()
        )
        yield name, help_text, "gauge", lines


def _admission(view: PoolView, admissions: Mapping[tuple[str, int], int]) -> Iterator[_Family]:
    pool = view.pool_name
    saturation = view.saturation
    stages = ("decode", "effective") if saturation is not None else ()
    yield (
        "flow_control_pool_saturation",
        "How full the pool is; 1.0 is full.",
        "gauge",
        (("", label_text(("inference_pool", "stage"), (pool, stage)), saturation or 0.0) for stage in stages),
    )
    yield (
        "flow_control_requests_total",
        "Requests that were admitted, refused because the pool was full, or found no endpoint.",
        "counter",
        [
            ("", label_text(("outcome", "priority", "inference_pool"), (fared, str(priority), pool)), count)
            for (fared, priority), count in sorted(admissions.items())
        ],
    )
    stale = view.stale_seconds
    if stale is not None:
        ages = [row.scrape_age_seconds for row in view.endpoints]
        count = sum(age is None or age > stale for age in ages)
        lines: list[Line] = [("", label_text(("detector",), (_DETECTOR,)), count)]
        yield "flow_control_stale_endpoints", "Endpoints whose engine metrics are missing or old.", "gauge", lines


def _itself(view: PoolView, scrape_failures: float) -> Iterator[_Family]:
    failed: list[Line] = [("", label_text(("source_type",), (_SOURCE,)), scrape_failures)]
    yield "datalayer_poll_errors_total", "Engine metrics reads that failed.", "counter", failed
    yield "prefix_indexer_size", "Prefix blocks in the index.", "gauge", [("", APPROXIMATE, view.index_blocks)]
    labels = label_text(("commit", "build_ref"), ("", f"picker-{__version__}"))
    yield "info", "What runs here.", "gauge", [("", labels, 1)]
