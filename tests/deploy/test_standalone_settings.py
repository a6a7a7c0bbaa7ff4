"""The chart's Envoy beside the samples of deploy/envoy: alike to clients, and each difference has its reason."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.deploy.standalone import bootstrap, listener, manager
from tests.deploy.values import Values
from tests.envoy.test_sample_configs import SAMPLES, load

pytestmark = pytest.mark.usefixtures("helm")

MODES = ["sidecar", "service"]
MONITORS = "overload.resource_monitors"

TOLD: dict[str, object] = {
    # The issue, deploy/envoy/README.md ("All of them share the following") and docs/chart.md ("What it gets right").
    "manager.request_headers_timeout": "10s",
    "manager.request_timeout": "60s",
    "manager.stream_idle_timeout": "3600s",
    "manager.use_remote_address": True,
    "manager.normalize_path": True,
    "manager.merge_slashes": True,
    "manager.path_with_escaped_slashes_action": "KEEP_UNCHANGED",
    "manager.common_http_protocol_options.headers_with_underscores_action": "DROP_HEADER",
    "manager.http_protocol_options.accept_http_10": True,
    # Envoy's own advice for an edge: https://www.envoyproxy.io/docs/envoy/latest/configuration/best_practices/edge
    "manager.http2_protocol_options.initial_stream_window_size": 64 * 1024,
    "manager.http2_protocol_options.initial_connection_window_size": 1024 * 1024,
    "listener.per_connection_buffer_limit_bytes": 256 * 1024,
    "overload.actions.shrink_heap.fixed_heap": {"threshold": {"value": 0.95}},
    "overload.actions.reset_high_memory_stream.fixed_heap": {
        "scaled": {"scaling_threshold": 0.90, "saturation_threshold": 0.98}
    },
    "overload.actions.stop_accepting_requests.fixed_heap": {"threshold": {"value": 0.98}},
    "overload.actions.stop_accepting_connections.fixed_heap": {"threshold": {"value": 0.98}},
    f"{MONITORS}.global_downstream_max_connections.typed_config.max_active_downstream_connections": 50000,
}

FORMAT = "manager.access_log.stdout.typed_config.log_format.json_format"
ABSENT = "not there"
INJECTED = "type.googleapis.com/envoy.extensions.resource_monitors.injected_resource.v3.InjectedResourceConfig"
SCALED = "type.googleapis.com/envoy.config.overload.v3.ScaleTimersOverloadActionConfig"

DIFFERENT: dict[str, tuple[object, object]] = {
    # Names: a sample has one listener, the chart's Envoy two, and its statistics name them.
    "listener.name": ("in", "requests"),
    "manager.stat_prefix": ("in", "requests"),
    # Envoy's default, spelled out.
    "manager.codec_type": (ABSENT, "AUTO"),
    # A value of the chart's (`trustedHops`); the samples say in a comment where it goes.
    "manager.xff_num_trusted_hops": (ABSENT, 0),
    # A pod is drained (docs/high-availability.md); who starts a sample ends it as they like.
    "manager.drain_timeout": (ABSENT, "2s"),
    f"{MONITORS}.injected_resource.typed_config.@type": (ABSENT, INJECTED),
    f"{MONITORS}.injected_resource.typed_config.filename": (ABSENT, "/tmp/envoy-pressure"),
    "overload.actions.reduce_timeouts.injected_resource": (ABSENT, {"threshold": {"value": 0.9}}),
    "overload.actions.reduce_timeouts.typed_config.@type": (ABSENT, SCALED),
    "overload.actions.reduce_timeouts.typed_config.timer_scale_factors": (
        ABSENT,
        [{"timer": "HTTP_DOWNSTREAM_CONNECTION_IDLE", "min_timeout": "1s"}],
    ),
    # Envoy's default, spelled out: the drain shortens it.
    "manager.common_http_protocol_options.idle_timeout": (ABSENT, "3600s"),
    # Nine tenths of the container's limit (1 GiB); a sample knows no container.
    f"{MONITORS}.fixed_heap.typed_config.max_heap_size_bytes": (2147483648, 966367641),
    # Three more fields for whoever has many clients before one Envoy.
    f"{FORMAT}.protocol": (ABSENT, "%PROTOCOL%"),
    f"{FORMAT}.client": (ABSENT, "%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%"),
    f"{FORMAT}.first_byte_ms": (ABSENT, "%RESPONSE_DURATION%"),
}
"""By the setting: what the samples have, and the chart."""

ELSEWHERE = {"route_config", "http_filters", "upgrade_configs", "filter_chains", "address"}
"""Routes and filters are the modes' own, and other tests' business; addresses are those of a machine or a pod."""


def flat(tree: dict[str, Any], path: str = "") -> Iterator[tuple[str, object]]:
    """Each leaf by its path. Envoy's extensions in a list go by the last part of their name, whatever their order."""
    for key, value in tree.items():
        place = f"{path}.{key}"
        if key in ELSEWHERE:
            continue
        if isinstance(value, list) and all("envoy." in str(member) and "name" in member for member in value):
            for member in value:
                rest = {key: item for key, item in member.items() if key != "name"}
                last = member["name"].rpartition(".")[2]
                if key == "triggers":
                    yield f"{path}.{last}", rest
                else:
                    yield from flat(rest, f"{place}.{last}")
        elif isinstance(value, dict):
            yield from flat(value, place)
        else:
            yield place, value


def edge(config: dict[str, Any], name: str) -> dict[str, object]:
    """All that a bootstrap says of its clients' connections, and of what is done under pressure."""
    return {
        path[1:]: value
        for part, tree in (
            ("listener", listener(config, name)),
            ("manager", manager(config, name)),
            ("overload", config["overload_manager"]),
        )
        for path, value in flat(tree, f".{part}")
    }


def rendered(mode: str, **standalone: object) -> dict[str, Any]:
    return bootstrap({"standalone": {"enabled": True, "mode": mode, **standalone}})


@pytest.mark.parametrize("mode", MODES)
def test_it_says_what_the_pages_say(mode: str) -> None:
    found = edge(rendered(mode), "requests")
    assert {path: found.get(path) for path in TOLD} == TOLD


@pytest.mark.parametrize("sample", SAMPLES)
@pytest.mark.parametrize("mode", MODES)
def test_it_meets_clients_as_the_samples_do(mode: str, sample: str) -> None:
    theirs, ours = edge(load(sample), "in"), edge(rendered(mode), "requests")
    differences = {
        path: (theirs.get(path, ABSENT), ours.get(path, ABSENT))
        for path in theirs.keys() | ours.keys()
        if theirs.get(path, ABSENT) != ours.get(path, ABSENT)
    }
    assert differences == DIFFERENT


MEMORY = [
    ("1Gi", 1024**3),
    ("512Mi", 512 * 1024**2),
    ("1.5Gi", 3 * 1024**3 // 2),
    ("2G", 2 * 10**9),
    ("268435456", 2**28),
]


@pytest.mark.parametrize(("limit", "size"), MEMORY)
def test_the_heap_monitor_follows_the_memory_limit(limit: str, size: int) -> None:
    """Nine tenths of it: the rest is for stacks, code and what the heap's pages waste."""
    found = edge(rendered("service", resources={"limits": {"memory": limit}}), "requests")
    assert found[f"{MONITORS}.fixed_heap.typed_config.max_heap_size_bytes"] == size * 9 // 10


def test_without_a_memory_limit_there_is_no_heap_monitor() -> None:
    values: Values = {"resources": {"limits": {"memory": None}}}
    found = edge(rendered("service", **values), "requests")
    assert not [path for path in found if "fixed_heap" in path]
    assert [path for path in found if "injected_resource" in path], "the drain's monitor stays"


def test_the_admin_interface_is_the_pods_alone() -> None:
    for mode in MODES:
        assert rendered(mode)["admin"]["address"]["socket_address"]["address"] == "127.0.0.1"
