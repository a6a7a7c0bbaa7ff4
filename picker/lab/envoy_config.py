"""An Envoy configuration from a dozen words: what the demo, the benchmarks and the tests start.

One listener, one route to the cluster `pods`, and in front of it the picker by ext_proc, or
nothing (`round_robin`, `least_request`: the baselines). `build()` gives plain dicts, and Envoy
reads JSON as readily as YAML, so nothing here writes YAML. `deploy/envoy/` holds the same
settings by hand, with the reasons, for people.

Invariants:

* Every configuration that `EnvoyConfig` lets through is one that Envoy 1.37 or newer starts with:
  FULL_DUPLEX_STREAMED always sends trailers (Envoy rejects it otherwise), a health check of the
  picker always comes with panic threshold 0 (otherwise an unhealthy picker is called anyway).
* Retries never follow an answer: connect-failure, refused-stream and reset-before-request only.
  A 5xx retried would make a second model server do the same work.
"""

from enum import StrEnum
from typing import Any

import msgspec

from picker.pool.specs import split_address

DESTINATION = "x-gateway-destination-endpoint"
SERVED = "x-gateway-destination-endpoint-served"
SUBSET = "x-gateway-destination-endpoint-subset"
RETRY_ON = "connect-failure,refused-stream,reset-before-request"
EXT_PROC_SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"

Json = dict[str, Any]


class BodySendMode(StrEnum):
    """How Envoy shows a body to the picker (ext_proc `ProcessingMode.BodySendMode`)."""

    NONE = "NONE"
    STREAMED = "STREAMED"
    BUFFERED = "BUFFERED"
    FULL_DUPLEX_STREAMED = "FULL_DUPLEX_STREAMED"


class Balancing(StrEnum):
    """How the cluster `pods` finds its endpoint."""

    ORIGINAL_DST = "original_dst"
    """Whatever address the destination header names; exactly one."""
    OVERRIDE_HOST = "override_host"
    """The picker's ordered list, among the members that Envoy knows; else round robin."""
    ROUND_ROBIN = "round_robin"
    """No picker: a baseline."""
    LEAST_REQUEST = "least_request"
    """No picker: a baseline, fewest requests of two drawn at random."""


class UpstreamProtocol(StrEnum):
    """What Envoy speaks to the endpoints."""

    HTTP1 = "http1"
    HTTP2 = "http2"
    DOWNSTREAM = "downstream"
    """The version that the client speaks."""


class EnvoyConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What to start. Times in seconds, sizes in bytes; port 0 means any free one.

    `picker_address` is `ip:port` of the ext_proc server; `None` leaves ext_proc out, which the
    baselines need and the other two kinds of balancing forbid. `endpoints` are the members
    of the cluster (ORIGINAL_DST takes none). Raises `ValueError` that names what does not fit.
    """

    balancing: Balancing = Balancing.ORIGINAL_DST
    endpoints: tuple[str, ...] = ()
    picker_address: str | None = None
    picker_tls: bool = False
    request_body: BodySendMode = BodySendMode.FULL_DUPLEX_STREAMED
    response_body: BodySendMode = BodySendMode.NONE
    trailers: bool = True
    """Show trailers to the picker, in both directions."""
    failure_mode_allow: bool = False
    message_timeout_seconds: float = 5.0
    picker_health_check_seconds: float | None = None
    """Interval of an active gRPC health check of the picker; comes with panic threshold 0."""
    picker_ping_seconds: float | None = None
    """HTTP/2 PING interval on the connection to the picker."""
    buffer_bytes_max: int | None = None
    """Listener and cluster buffer limit, and so the largest BUFFERED body. Envoy's default: 1 MiB."""
    websocket: bool = True
    websocket_headers_only: bool = True
    """Show the picker only the headers of a WebSocket, whatever the body modes. BUFFERED needs it:
    Envoy would wait for the end of a body that has none."""
    strip_destination: bool = True
    """Remove a destination header that the client sent, before any filter sees it."""
    subset_header: str | None = None
    """Tests: a request header whose value becomes the subset hint, as a string; with the suffix
    `-list`, as a base64 `google.protobuf.Value`."""
    retries_max: int = 0
    upstream_protocol: UpstreamProtocol = UpstreamProtocol.HTTP1
    listener_port: int = 0
    admin_port: int = 0

    def __post_init__(self) -> None:
        picked = self.balancing in (Balancing.ORIGINAL_DST, Balancing.OVERRIDE_HOST)
        if picked and self.picker_address is None:
            raise ValueError(f"balancing {self.balancing} needs picker_address: nobody else names the destination")
        if not picked and self.picker_address is not None:
            raise ValueError(f"balancing {self.balancing} is a baseline: leave picker_address out")
        if self.balancing is Balancing.ORIGINAL_DST and self.endpoints:
            raise ValueError("balancing original_dst goes wherever the header says: leave endpoints out")
        if self.balancing is not Balancing.ORIGINAL_DST and not self.endpoints:
            raise ValueError(f"balancing {self.balancing} needs endpoints")
        for address in (*self.endpoints, *((self.picker_address,) if self.picker_address else ())):
            split_address(address)


def build(config: EnvoyConfig) -> Json:
    """The bootstrap configuration, ready for `json.dumps`."""
    clusters = [_pods_cluster(config)]
    if config.picker_address is not None:
        clusters.append(_picker_cluster(config, config.picker_address))
    return {
        "admin": {"address": _socket_address("127.0.0.1", config.admin_port)},
        "static_resources": {"listeners": [_listener(config)], "clusters": clusters},
        # Unlimited on purpose, said aloud: Envoy warns at start when nothing limits connections.
        "overload_manager": {
            "resource_monitors": [
                {
                    "name": "envoy.resource_monitors.global_downstream_max_connections",
                    "typed_config": {
                        "@type": "type.googleapis.com/envoy.extensions.resource_monitors."
                        "downstream_connections.v3.DownstreamConnectionsConfig",
                        "max_active_downstream_connections": 65536,
                    },
                }
            ]
        },
    }


def _listener(config: EnvoyConfig) -> Json:
    listener: Json = {
        "name": "in",
        "address": _socket_address("127.0.0.1", config.listener_port),
        "filter_chains": [
            {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": _manager(config)}]}
        ],
    }
    if config.buffer_bytes_max is not None:
        listener["per_connection_buffer_limit_bytes"] = config.buffer_bytes_max
    return listener


def _manager(config: EnvoyConfig) -> Json:
    route: Json = {"cluster": "pods", "timeout": "0s"}
    if config.retries_max:
        route["retry_policy"] = {"retry_on": RETRY_ON, "num_retries": config.retries_max}
    manager: Json = {
        "@type": _type("filters.network.http_connection_manager.v3.HttpConnectionManager"),
        "stat_prefix": "in",
        "codec_type": "AUTO",
        "stream_idle_timeout": "0s",
        "http_protocol_options": {"enable_trailers": config.trailers},
        "route_config": {
            "virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [{"match": {"prefix": "/"}, "route": route}]}]
        },
        "http_filters": _filters(config),
    }
    if config.websocket:
        upgrade: Json = {"upgrade_type": "websocket"}
        if config.websocket_headers_only:
            none = BodySendMode.NONE
            upgrade["filters"] = _filters(msgspec.structs.replace(config, request_body=none, response_body=none))
        manager["upgrade_configs"] = [upgrade]
    if config.strip_destination:
        manager["early_header_mutation_extensions"] = [
            {
                "name": "envoy.http.early_header_mutation.header_mutation",
                "typed_config": {
                    "@type": _type("http.early_header_mutation.header_mutation.v3.HeaderMutation"),
                    "mutations": [{"remove": DESTINATION}],
                },
            }
        ]
    return manager


def _filters(config: EnvoyConfig) -> list[Json]:
    filters = []
    if config.subset_header is not None:
        filters.append(_subset_filter(config.subset_header))
    if config.picker_address is not None:
        filters.append(_ext_proc_filter(config))
    router = {"@type": _type("filters.http.router.v3.Router")}
    return [*filters, {"name": "envoy.filters.http.router", "typed_config": router}]


def _ext_proc_filter(config: EnvoyConfig) -> Json:
    duplex = BodySendMode.FULL_DUPLEX_STREAMED
    sends = {True: "SEND", False: "SKIP"}
    return {
        "name": "envoy.filters.http.ext_proc",
        "typed_config": {
            "@type": _type("filters.http.ext_proc.v3.ExternalProcessor"),
            "grpc_service": {"envoy_grpc": {"cluster_name": "picker", "authority": "picker"}},
            "failure_mode_allow": config.failure_mode_allow,
            "status_on_error": {"code": "ServiceUnavailable"},
            "message_timeout": _duration(config.message_timeout_seconds),
            "processing_mode": {
                "request_header_mode": "SEND",
                "response_header_mode": "SEND",
                "request_body_mode": str(config.request_body),
                "response_body_mode": str(config.response_body),
                "request_trailer_mode": sends[config.trailers or config.request_body is duplex],
                "response_trailer_mode": sends[config.trailers or config.response_body is duplex],
            },
            "metadata_options": {
                "forwarding_namespaces": {"untyped": ["envoy.lb", "envoy.lb.subset_hint"]},
                "receiving_namespaces": {"untyped": ["envoy.lb"]},
            },
        },
    }


def _subset_filter(header: str) -> Json:
    def rule(name: str, **value: str) -> Json:
        entry = {"metadata_namespace": "envoy.lb.subset_hint", "key": SUBSET, **value}
        return {"header": name, "on_header_present": entry, "remove": True}

    return {
        "name": "envoy.filters.http.header_to_metadata",
        "typed_config": {
            "@type": _type("filters.http.header_to_metadata.v3.Config"),
            "request_rules": [
                rule(header, type="STRING"),
                rule(f"{header}-list", type="PROTOBUF_VALUE", encode="BASE64"),
            ],
        },
    }


def _pods_cluster(config: EnvoyConfig) -> Json:
    cluster: Json = {"name": "pods", "connect_timeout": "2s", **_balancing(config)}
    if config.endpoints:
        cluster["load_assignment"] = _load_assignment("pods", config.endpoints)
    if config.buffer_bytes_max is not None:
        cluster["per_connection_buffer_limit_bytes"] = config.buffer_bytes_max
    http1 = {"http_protocol_options": {"enable_trailers": config.trailers}}
    match config.upstream_protocol:
        case UpstreamProtocol.HTTP1:
            options: Json = {"explicit_http_config": http1}
        case UpstreamProtocol.HTTP2:
            options = {"explicit_http_config": {"http2_protocol_options": {}}}
        case UpstreamProtocol.DOWNSTREAM:
            options = {"use_downstream_protocol_config": {**http1, "http2_protocol_options": {}}}
    cluster["typed_extension_protocol_options"] = _http_options(options)
    # Envoy's default of 1,024 would answer 503 by itself under a burst.
    limits = {"max_connections": 65536, "max_pending_requests": 65536, "max_requests": 65536, "max_retries": 1024}
    cluster["circuit_breakers"] = {"thresholds": [limits]}
    return cluster


def _balancing(config: EnvoyConfig) -> Json:
    match config.balancing:
        case Balancing.ORIGINAL_DST:
            return {
                "type": "ORIGINAL_DST",
                "lb_policy": "CLUSTER_PROVIDED",
                "original_dst_lb_config": {"use_http_header": True, "http_header_name": DESTINATION},
            }
        case Balancing.OVERRIDE_HOST:
            return {"type": "STATIC", "load_balancing_policy": _override_host()}
        case Balancing.ROUND_ROBIN:
            return {"type": "STATIC", "lb_policy": "ROUND_ROBIN"}
        case Balancing.LEAST_REQUEST:
            return {"type": "STATIC", "lb_policy": "LEAST_REQUEST"}


def _override_host() -> Json:
    def policy(name: str, message: str, **fields: Any) -> Json:
        config = {"@type": _type(f"load_balancing_policies.{name}.v3.{message}"), **fields}
        return {
            "policies": [
                {"typed_extension_config": {"name": f"envoy.load_balancing_policies.{name}", "typed_config": config}}
            ]
        }

    return policy(
        "override_host",
        "OverrideHost",
        override_host_sources=[
            {"metadata": {"key": "envoy.lb", "path": [{"key": DESTINATION}]}},
            {"header": DESTINATION},
        ],
        selected_host_key={"key": "envoy.lb", "path": [{"key": SERVED}]},
        fallback_policy=policy("round_robin", "RoundRobin"),
    )


def _picker_cluster(config: EnvoyConfig, address: str) -> Json:
    http2: Json = {}
    if config.picker_ping_seconds is not None:
        http2["connection_keepalive"] = {"interval": _duration(config.picker_ping_seconds), "timeout": "5s"}
    cluster: Json = {
        "name": "picker",
        "type": "STATIC",
        "connect_timeout": "1s",
        "typed_extension_protocol_options": _http_options({"explicit_http_config": {"http2_protocol_options": http2}}),
        "load_assignment": _load_assignment("picker", (address,)),
        "circuit_breakers": {
            "thresholds": [{"max_connections": 65536, "max_pending_requests": 65536, "max_requests": 65536}]
        },
    }
    if config.picker_tls:
        # The picker's certificate is self-signed unless it is given one: encrypted, not authenticated.
        cluster["transport_socket"] = {
            "name": "envoy.transport_sockets.tls",
            "typed_config": {
                "@type": _type("transport_sockets.tls.v3.UpstreamTlsContext"),
                "common_tls_context": {"alpn_protocols": ["h2"]},
            },
        }
    if config.picker_health_check_seconds is not None:
        interval = _duration(config.picker_health_check_seconds)
        cluster["common_lb_config"] = {"healthy_panic_threshold": {"value": 0}}
        cluster["health_checks"] = [
            {
                "timeout": "1s",
                "interval": interval,
                "no_traffic_interval": interval,
                "unhealthy_interval": interval,
                "unhealthy_threshold": 2,
                "healthy_threshold": 1,
                "grpc_health_check": {"service_name": EXT_PROC_SERVICE},
            }
        ]
    return cluster


def _load_assignment(cluster: str, addresses: tuple[str, ...]) -> Json:
    endpoints = [{"endpoint": {"address": _socket_address(*split_address(address))}} for address in addresses]
    return {"cluster_name": cluster, "endpoints": [{"lb_endpoints": endpoints}]}


def _http_options(options: Json) -> Json:
    name = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
    return {name: {"@type": f"type.googleapis.com/{name}", **options}}


def _socket_address(host: str, port: int) -> Json:
    return {"socket_address": {"address": host, "port_value": port}}


def _duration(seconds: float) -> str:
    return f"{seconds:g}s"


def _type(name: str) -> str:
    return f"type.googleapis.com/envoy.extensions.{name}"
