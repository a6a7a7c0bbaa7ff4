"""What cannot work, though each value by itself is in its range; and what works, but hardly as it was meant.

`values` and `impossible` are refused, by `picker check` and at every load; `doubtful` is a warning with its fix.
"""

import math
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from picker.config.config_objectives import priorities
from picker.config.urls import check_gpu_url, check_text, check_url

if TYPE_CHECKING:
    from picker.config.config import Config, EngineMetrics
    from picker.config.config_transport import TransportLimits

WHOLE_MAX: Final = 2**53
"""Beyond it a whole number is no longer exact everywhere that it goes (metrics, JSON, floats)."""
SECONDS_MAX: Final = 366 * 86_400.0
"""Timers of an event loop overflow far above; nobody waits for longer."""

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
"""And halves of characters, which no encoder takes."""
_TAKEN_NAMESPACES: Final = ("envoy.lb", "envoy.lb.subset_hint")
"""Of the Endpoint Picker Protocol."""
_SECRETS: Final = frozenset({"authorization", "proxy-authorization", "cookie", "x-api-key", "api-key"})
"""Headers that name nobody: what stands in them would stand in metrics, traces and files."""
_LEAST: Final = {
    "header_list_bytes_max": 2048,
    "header_block_bytes_max": 2048,
    "message_bytes_max": 65_536,
    "connection_buffered_bytes_max": 65_536,
    "buffered_bytes_max": 65_536,
    "stream_send_queue_bytes_max": 65_536,
    "send_queue_bytes_max": 131_072,
}
"""What one request with 60 KiB of headers, Envoy's default limit, and one chunk of an echoed body take."""


def values(tree: Any, path: str = "") -> Iterator[str]:
    """Of a parsed file: numbers that no machine can use, and texts that no header, path or label can hold."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            inner = f"{path}.{key}" if path else str(key)
            if isinstance(key, str) and _CONTROL.search(key):
                yield f"{inner!r}: a name with control characters (a line end, say) or half a character cannot be used"
            yield from values(value, inner)
    elif isinstance(tree, list):
        for value in tree:
            yield from values(value, path)
    elif isinstance(tree, str):
        if _CONTROL.search(tree):
            yield f"{path}: {tree!r} has control characters (a line end, say) or half a character, which cannot be used"
    elif isinstance(tree, int | float) and not isinstance(tree, bool):
        yield from _number(tree, path)


def _number(value: int | float, path: str) -> Iterator[str]:
    if not math.isfinite(value):
        yield f"{path}: {value} is not a number that can be used"
    elif abs(value) > WHOLE_MAX:
        yield f"{path}: {value:.3g} is beyond what can be counted; the most is {WHOLE_MAX}"
    elif "seconds" in path.rpartition(".")[2] and "per_second" not in path and value > SECONDS_MAX:
        yield f"{path}: {value:g} seconds are more than a year"


def impossible(config: "Config") -> Iterator[str]:
    """What cannot work, each with the key and the bound."""
    yield from _transport(config.transport)
    yield from _urls(config)
    files = config.engine_metrics.tls
    if (files.certificate_file is None) != (files.key_file is None):
        yield "engine_metrics.tls needs both certificate_file and key_file, or neither"
    if config.proxy_metadata.namespace in _TAKEN_NAMESPACES:
        yield (
            f"proxy_metadata.namespace: {config.proxy_metadata.namespace} carries the destination itself; "
            "take another, `inference-picker` for example"
        )
    if config.tenants.header is not None and config.tenants.header.lower() in _SECRETS:
        yield (
            f"tenants.header: {config.tenants.header} holds a secret, and a tenant's name is shown in metrics and "
            "files; let the gateway set a header of its own, `x-tenant` for example"
        )
    for name, priority in priorities(config.objectives).items():
        if not -(2**31) <= priority < 2**31:
            yield f"objectives.{name}: {priority} is no priority of Kubernetes, which has 32 bits"


def doubtful(config: "Config") -> Iterator[str]:
    """What works, but hardly as it was meant, each with the fix."""
    yield from _scraping(config.engine_metrics)
    yield from _hurried(config)
    body, message = config.limits.request_body_bytes_max, config.transport.message_bytes_max
    if message < body:
        yield (
            f"transport.message_bytes_max {message} is below limits.request_body_bytes_max {body}: a buffered body "
            "between the two ends its call where it should be read; raise the first"
        )


def _hurried(config: "Config") -> Iterator[str]:
    limits = config.limits
    if limits.decision_seconds < 0.002:
        yield (
            f"limits.decision_seconds {limits.decision_seconds:g}: nearly every body comes too late to be read, and is "
            "sent by load; 0.2 is the default"
        )
    if limits.body_wait_seconds < 1:
        yield (
            f"limits.body_wait_seconds {limits.body_wait_seconds:g}: bodies that take longer are sent by load, "
            "unread; 60 is the default"
        )
    transport = config.transport
    if transport.send_queue_bytes_max < 2 * transport.connection_window_bytes:
        yield (
            f"transport.send_queue_bytes_max {transport.send_queue_bytes_max} is below twice "
            "transport.connection_window_bytes: large bodies of a proxy that does nothing wrong can be ended"
        )


def _transport(limits: "TransportLimits") -> Iterator[str]:
    """Limits below what one request needs."""
    for name, least in _LEAST.items():
        value = getattr(limits, name)
        if value is not None and value < least:
            yield f"transport.{name}: {value} is below what one request can need; the least is {least}"
    for name in limits.__struct_fields__:
        value = getattr(limits, name)
        if name.endswith("_seconds") and value < 0.01:
            yield f"transport.{name}: {value:g} seconds are over before a peer can answer; the least is 0.01"


def _urls(config: "Config") -> Iterator[str]:
    metrics = config.engine_metrics
    try:
        check_text("engine_metrics.path", metrics.path)
        if metrics.gpu_url is not None:
            check_gpu_url(metrics.gpu_url)
        if config.tracing.otlp_endpoint is not None:
            check_text("tracing.otlp_endpoint", config.tracing.otlp_endpoint)
            check_url("tracing.otlp_endpoint", config.tracing.otlp_endpoint, ("http", "https"))
    except ValueError as error:
        yield str(error)


def _scraping(metrics: "EngineMetrics") -> Iterator[str]:
    """Readings that are old before the next comes, and keys without effect."""
    interval, timeout, stale = metrics.interval_seconds, metrics.timeout_seconds, metrics.stale_seconds
    # A reading is as old as the jittered interval and the scrape itself when the next one comes.
    if interval * 1.1 > stale:
        yield (
            f"engine_metrics.interval_seconds {interval:g} against engine_metrics.stale_seconds {stale:g}: every "
            "reading counts as unknown before the next one comes; make stale_seconds three intervals or more"
        )
    elif timeout > stale:
        yield (
            f"engine_metrics.timeout_seconds {timeout:g} is above engine_metrics.stale_seconds {stale:g}: a reading "
            "may be old when it comes; lower the timeout, or raise stale_seconds"
        )
    files = metrics.tls
    if files.ca_file is not None and metrics.insecure_skip_verify:
        yield (
            "engine_metrics.tls.ca_file has no effect with engine_metrics.insecure_skip_verify: remove that to have "
            "certificates verified"
        )
    if metrics.insecure_skip_verify and metrics.bearer_token_file is not None:
        yield (
            "engine_metrics.insecure_skip_verify with bearer_token_file: whoever stands between gets the token; "
            "verify with engine_metrics.tls.ca_file"
        )
