"""What sources and scrapers tell of the pool, as values: an endpoint's description and one reading of its engine.

An *address* is `ip:port`, IPv6 in brackets (`[fd00::1]:8000`): exactly what goes into the
destination header, so nothing downstream reformats it. Unknown is `None`, never 0.
"""

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

NO_LABELS: Mapping[str, str] = MappingProxyType({})


class EndpointSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One `ip:port` that can serve, as a source (Kubernetes, file, flags) describes it.

    `uid` tells a re-created endpoint from the old one at the same address: a Kubernetes
    source uses `<pod uid>/<port>`, a static source the address itself.
    `engine` and `metrics_url` override what configuration and recognition would say. `node` is
    the address of the machine it runs on, where the source knows it (GPU exporters listen there). `aliases` are
    further addresses of the same server (dual stack): it is found by them, and never named by one.
    """

    address: str
    uid: str
    name: str
    namespace: str = ""
    labels: Mapping[str, str] = NO_LABELS
    engine: str | None = None
    metrics_url: str | None = None
    node: str | None = None
    aliases: tuple[str, ...] = ()


class EngineSample(msgspec.Struct, frozen=True, kw_only=True):
    """What one model server reported at one moment. A plain value: it can cross a process.

    Times: `taken_at_seconds` is on the picker's monotonic clock, `started_at_seconds` is the
    engine's own wall clock (`process_start_time_seconds`) and is only ever compared with itself.
    Counters (`prompt_tokens_total`, ...) serve to notice a restart: they fall. `models` is what the
    server lists, `adapters` those of them that it lists as children of another.
    """

    uid: str
    taken_at_seconds: float
    engine: str
    waiting_requests: int | None = None
    running_requests: int | None = None
    kv_cache_utilization: float | None = None
    kv_capacity_tokens: int | None = None
    block_size_tokens: int | None = None
    started_at_seconds: float | None = None
    prompt_tokens_total: float | None = None
    prefix_queries_total: float | None = None
    prefix_hits_total: float | None = None
    adapters_max: int | None = None
    adapters_running: frozenset[str] | None = None
    adapters_waiting: frozenset[str] | None = None
    adapters_loaded: frozenset[str] | None = None
    models: frozenset[str] | None = None
    adapters: frozenset[str] | None = None
    gpu_utilization: float | None = None


def split_address(address: str) -> tuple[str, int]:
    """`'10.0.0.1:8000'` -> `('10.0.0.1', 8000)`; `'[::1]:80'` -> `('::1', 80)`.

    Raises `ValueError` that names what is wrong.
    """
    host, colon, port_text = address.rpartition(":")
    if not colon or not host:
        raise ValueError(f"{address!r} is not host:port")
    if not (port_text.isascii() and port_text.isdigit() and 0 < int(port_text) < 65536):
        raise ValueError(f"{address!r}: port {port_text!r} is not in 1..65535")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"{address!r}: write an IPv6 address in brackets, [{host}]:{port_text}")
    return host, int(port_text)


def join_address(host: str, port: int) -> str:
    """The inverse of `split_address`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
