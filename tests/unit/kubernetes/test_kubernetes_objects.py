"""Kubernetes objects as they are read, and a pool with pods as endpoints."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from picker.kubernetes.kubernetes_objects import Pod, PoolReference, read_objective, read_pod, read_pool
from picker.kubernetes.pool_endpoints import EndpointBuilder, pod_endpoints
from picker.kubernetes.watch_messages import Sighting, Unreadable

# As a kube-apiserver 1.37 returns a running pod, shortened only in the parts nobody reads.
POD: dict[str, Any] = {
    "metadata": {
        "name": "vllm-7d4b9c-x2x7q",
        "namespace": "models",
        "uid": "3c9b0a66-6d0e-4d56-9f0e-0a8a1c1f6a10",
        "resourceVersion": "4711",
        "labels": {"app": "vllm", "pod-template-hash": "7d4b9c"},
        "annotations": {"kubectl.kubernetes.io/restartedAt": "2026-01-01T00:00:00Z"},
        "managedFields": [{"manager": "kubelet", "fieldsV1": {"f:status": {"f:podIP": {}}}}],
    },
    "spec": {
        "nodeName": "n1",
        "containers": [
            {"name": "vllm", "image": "vllm", "ports": [{"containerPort": 8000, "protocol": "TCP"}]},
            {"name": "log", "image": "log"},
        ],
    },
    "status": {
        "phase": "Running",
        "podIP": "10.0.0.7",
        "podIPs": [{"ip": "10.0.0.7"}, {"ip": "fd00::7"}],
        "conditions": [
            {"type": "Initialized", "status": "True"},
            {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"},
        ],
    },
}


def changed(*path_and_value: Any) -> dict[str, Any]:
    """`POD` with one field replaced (removed with `...`)."""
    copy: dict[str, Any] = json.loads(json.dumps(POD))
    *path, last, value = path_and_value
    node = copy
    for key in path:
        node = node[key]
    if value is ...:
        del node[last]
    else:
        node[last] = value
    return copy


def read(thing: dict[str, Any]) -> Pod:
    seen = read_pod(json.dumps(thing).encode())
    assert isinstance(seen, Sighting), seen
    return seen.object


def test_a_running_pod() -> None:
    seen = read_pod(json.dumps(POD).encode())
    assert isinstance(seen, Sighting)
    assert seen.resource_version == "4711"
    pod = seen.object
    assert (pod.uid, pod.name, pod.namespace) == (
        "3c9b0a66-6d0e-4d56-9f0e-0a8a1c1f6a10",
        "vllm-7d4b9c-x2x7q",
        "models",
    )
    assert pod.ip == "10.0.0.7"
    assert pod.labels["app"] == "vllm"
    assert pod.container_ports == {8000}
    assert pod.serves


@pytest.mark.parametrize(
    "thing",
    [
        changed("status", "conditions", [{"type": "Ready", "status": "False"}]),
        changed("status", "conditions", [{"type": "Ready", "status": "Unknown"}]),
        changed("status", "conditions", [{"type": "ContainersReady", "status": "True"}]),
        changed("status", "conditions", None),
        changed("status", "conditions", ...),
        changed("status", ...),
        changed("metadata", "deletionTimestamp", "2026-01-01T00:00:30Z"),
        changed("status", "phase", "Succeeded"),
        changed("status", "phase", "Failed"),
    ],
)
def test_not_ready_terminating_or_ended_does_not_serve(thing: dict[str, Any]) -> None:
    assert not read(thing).serves


def test_without_address_it_does_not_serve_even_when_ready() -> None:
    thing = changed("status", "podIP", ...)
    del thing["status"]["podIPs"]
    assert not read(thing).serves


def test_the_primary_address_of_a_dual_stack_pod_is_the_first() -> None:
    assert read(changed("status", "podIP", ...)).ip == "10.0.0.7"
    six = changed("status", "podIP", "fd00::7")
    (endpoint,) = pod_endpoints(read(six), (8000,)).endpoints
    assert endpoint.address == "[fd00::7]:8000"
    assert endpoint.aliases == ("10.0.0.7:8000",)


def test_the_second_address_of_a_dual_stack_pod_finds_it_and_is_never_its_name() -> None:
    (endpoint,) = pod_endpoints(read(POD), (8000,)).endpoints
    assert (endpoint.address, endpoint.aliases) == ("10.0.0.7:8000", ("[fd00::7]:8000",))
    alone = changed("status", "podIPs", [{"ip": "10.0.0.7"}])
    assert pod_endpoints(read(alone), (8000,)).endpoints[0].aliases == ()
    odd = changed("status", "podIPs", [{"ip": "10.0.0.7"}, {"ip": "x\r\ny"}, {"ip": ""}])
    assert pod_endpoints(read(odd), (8000,)).endpoints[0].aliases == ()


def test_heartbeats_and_managed_fields_make_no_other_pod() -> None:
    beat = changed("status", "conditions", 1, "lastProbeTime", "2026-01-01T00:01:00Z")
    beat["metadata"]["resourceVersion"] = "4712"
    beat["metadata"]["managedFields"] = []
    assert read(beat) == read(POD)


@pytest.mark.parametrize(
    ("thing", "named"),
    [
        (changed("status", "conditions", "yes"), "vllm-7d4b9c-x2x7q"),
        (changed("metadata", "labels", ["app"]), "vllm-7d4b9c-x2x7q"),
        (changed("status", "podIP", "10.0.0.7\r\nx: y"), "vllm-7d4b9c-x2x7q"),
        (changed("status", "podIP", "fe80::1%eth0"), "vllm-7d4b9c-x2x7q"),
        (changed("status", "podIP", "localhost"), "vllm-7d4b9c-x2x7q"),
        (changed("metadata", "uid", ""), "vllm-7d4b9c-x2x7q"),
        (changed("metadata", "uid", ...), "vllm-7d4b9c-x2x7q"),
        (changed("metadata", "name", 7), "(unnamed)"),
        (changed("metadata", ...), "(unnamed)"),
        ({"metadata": []}, "(unnamed)"),
    ],
)
def test_a_pod_that_does_not_parse_is_named_as_far_as_it_can_be(thing: dict[str, Any], named: str) -> None:
    seen = read_pod(json.dumps(thing).encode())
    assert isinstance(seen, Unreadable)
    assert seen.name == named
    assert seen.why


@given(st.binary() | st.recursive(st.none() | st.integers() | st.text(), lambda c: st.dictionaries(st.text(), c)))
def test_reading_is_total(thing: Any) -> None:
    raw = thing if isinstance(thing, bytes) else json.dumps(thing).encode()
    for reader in (read_pod, read_pool, read_objective):
        assert isinstance(reader(raw), Unreadable)


POOL: dict[str, Any] = {
    "metadata": {"name": "llama", "namespace": "models", "uid": "u1", "resourceVersion": "9"},
    "spec": {
        "selector": {"matchLabels": {"app": "vllm"}},
        "targetPorts": [{"number": 8000}, {"number": 8001}],
        "endpointPickerRef": {"name": "epp", "port": {"number": 9002}},
    },
}


def test_a_pool() -> None:
    seen = read_pool(json.dumps(POOL).encode())
    assert isinstance(seen, Sighting)
    assert (seen.object.match_labels, seen.object.target_ports) == ({"app": "vllm"}, (8000, 8001))


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"targetPorts": []}, "targetPorts"),
        ({"targetPorts": [{"number": 0}]}, "1..65535"),
        ({"targetPorts": [{"number": 65536}]}, "1..65535"),
        ({"targetPorts": [{"number": "http"}]}, "targetPorts"),
        ({"selector": {"matchLabels": {}}}, "matchLabels is empty"),
        ({"selector": {}}, "matchLabels is empty"),
    ],
)
def test_a_pool_that_cannot_be_followed_says_why(spec: dict[str, Any], words: str) -> None:
    seen = read_pool(json.dumps(POOL | {"spec": POOL["spec"] | spec}).encode())
    assert isinstance(seen, Unreadable)
    assert words in seen.why


@pytest.mark.parametrize(("priority", "read_as"), [(10, 10), (-5, -5), (None, 0), (..., 0)])
def test_objective_priority_defaults_to_zero(priority: Any, read_as: int) -> None:
    spec: dict[str, Any] = {"poolRef": {"name": "llama"}}
    if priority is not ...:
        spec["priority"] = priority
    raw = json.dumps({"metadata": {"name": "o", "uid": "u"}, "spec": spec}).encode()
    seen = read_objective(raw)
    assert isinstance(seen, Sighting)
    assert seen.object.priority == read_as
    assert seen.object.pools == (PoolReference("llama", "inference.networking.k8s.io", "InferencePool"),)
    assert seen.object.concerns("llama") and not seen.object.concerns("another")


@pytest.mark.parametrize(
    ("spec", "concerns"),
    [
        ({"poolRef": {"name": "p", "group": "inference.networking.k8s.io", "kind": "InferencePool"}}, True),
        ({"poolRef": {"name": "p", "group": "inference.networking.x-k8s.io"}}, True),
        ({"poolRef": {"name": "p", "group": "llm-d.ai"}}, True),
        ({"poolRef": {"name": "p", "group": "example.com"}}, False),
        ({"poolRef": {"name": "p", "kind": "Service"}}, False),
        ({"poolRefs": [{"name": "other"}, {"name": "p"}]}, True),
        ({"poolRef": {"name": "other"}, "poolRefs": [{"name": "p"}]}, True),
        ({"poolRef": {"name": "other"}, "poolRefs": []}, False),
        ({"poolRef": None, "poolRefs": None}, False),
        ({}, False),
    ],
)
def test_an_objective_names_its_pools_in_every_way_in_use(spec: dict[str, Any], concerns: bool) -> None:
    seen = read_objective(json.dumps({"metadata": {"name": "o", "uid": "u"}, "spec": spec}).encode())
    assert isinstance(seen, Sighting)
    assert seen.object.concerns("p") is concerns


# A pool's endpoints


def test_one_port_one_endpoint_named_like_the_pod() -> None:
    (endpoint,) = pod_endpoints(read(POD), (8000,)).endpoints
    assert endpoint.address == "10.0.0.7:8000"
    assert endpoint.uid == "3c9b0a66-6d0e-4d56-9f0e-0a8a1c1f6a10/8000"
    assert endpoint.name == "vllm-7d4b9c-x2x7q"
    assert endpoint.namespace == "models"
    assert endpoint.labels["app"] == "vllm"


def test_each_port_of_several_is_an_endpoint_named_by_rank() -> None:
    endpoints = pod_endpoints(read(POD), (8000, 8001, 8002)).endpoints
    assert [(each.name, each.address) for each in endpoints] == [
        ("vllm-7d4b9c-x2x7q-rank-0", "10.0.0.7:8000"),
        ("vllm-7d4b9c-x2x7q-rank-1", "10.0.0.7:8001"),
        ("vllm-7d4b9c-x2x7q-rank-2", "10.0.0.7:8002"),
    ]


@pytest.mark.parametrize(
    ("notes", "ports"),
    [
        ({}, [8000, 8001, 8002]),
        ({"llm-d.ai/active-ports": "8000,8002"}, [8000, 8002]),
        ({"llm-d.ai/active-ports": " 8002 , 8000 "}, [8000, 8002]),
        ({"inference.networking.k8s.io/active-ports": "8001"}, [8001]),
        (
            {"llm-d.ai/active-ports": "8000", "inference.networking.k8s.io/active-ports": "8001"},
            [8000],
        ),
        ({"llm-d.ai/active-ports": "9999"}, []),
        ({"llm-d.ai/active-ports": ""}, []),
        ({"llm-d.ai/active-ports": "8001,http,99999999999999999999"}, [8001]),
    ],
)
def test_the_active_ports_annotation_restricts_and_keeps_the_rank(notes: dict[str, str], ports: list[int]) -> None:
    endpoints = pod_endpoints(read(changed("metadata", "annotations", notes)), (8000, 8001, 8002)).endpoints
    assert [int(each.address.rpartition(":")[2]) for each in endpoints] == ports
    assert all(each.name.endswith(f"-rank-{each.uid[-1]}") for each in endpoints)


def test_a_bad_entry_of_the_annotation_is_a_warning() -> None:
    builder = EndpointBuilder()
    builder.build([read(changed("metadata", "annotations", {"llm-d.ai/active-ports": "8000,http"}))], {}, (8000,))
    (warning,) = builder.warnings
    assert "'http'" in warning


def test_a_port_that_no_container_declares_is_used_with_a_warning() -> None:
    builder = EndpointBuilder()
    (endpoint,) = builder.build([read(POD)], {"app": "vllm"}, (8080,))
    assert endpoint.address == "10.0.0.7:8080"
    (warning,) = builder.warnings
    assert "8080" in warning
    assert "vllm-7d4b9c-x2x7q" in warning
    builder.build([read(POD)], {"app": "vllm"}, (8000,))
    assert builder.warnings == ()


def test_a_native_sidecar_declares_its_port_too() -> None:
    proxy = {"name": "proxy", "restartPolicy": "Always", "ports": [{"containerPort": 8080}]}
    builder = EndpointBuilder()
    builder.build([read(changed("spec", "initContainers", [proxy]))], {}, (8080,))
    assert builder.warnings == ()


def test_pods_that_do_not_match_the_selector_are_left_out() -> None:
    builder = EndpointBuilder()
    assert builder.build([read(POD)], {"app": "vllm", "tier": "gold"}, (8000,)) == []
    assert builder.build([read(changed("metadata", "labels", None))], {"app": "vllm"}, (8000,)) == []


def test_unchanged_pods_give_the_same_endpoints_again() -> None:
    builder, one, two = EndpointBuilder(), read(POD), read(changed("metadata", "uid", "other"))
    before = builder.build([one, two], {}, (8000,))
    after = builder.build([one, read(changed("metadata", "uid", "other"))], {}, (8000,))
    assert after[0] is before[0]
    assert after == before
    assert [each.address for each in builder.build([one], {}, (9000,))] == ["10.0.0.7:9000"]


# Pods on the host's network


def hosted(name: str, *ports: int, ready: bool = True, created: str = "2026-01-01T00:00:00Z") -> Pod:
    """A pod that has its node's address, which all of these share."""
    thing = changed("metadata", "name", name)
    thing["metadata"] |= {"uid": f"uid-{name}", "creationTimestamp": created}
    thing["spec"] |= {
        "hostNetwork": True,
        "containers": [{"name": "c", "ports": [{"containerPort": port} for port in ports]}],
    }
    thing["status"]["podIPs"] = [{"ip": "10.0.0.7"}]
    thing["status"]["conditions"] = [{"type": "Ready", "status": str(ready)}]
    return read(thing)


def claims(builder: EndpointBuilder, *pods: Pod) -> list[tuple[str, str]]:
    return [(each.name, each.address) for each in builder.build(pods, {"app": "vllm"}, (8000, 8001))]


def test_pods_of_one_node_serve_the_ports_that_they_declare() -> None:
    builder = EndpointBuilder()
    a, b = hosted("a", 8000, 9999), hosted("b", 8001)
    assert claims(builder, a, b) == [("a-rank-0", "10.0.0.7:8000"), ("b-rank-1", "10.0.0.7:8001")]
    assert (builder.warnings, builder.collisions) == ((), 0)
    not_ready = hosted("a", 8000, ready=False)
    assert claims(builder, not_ready, b) == [("b-rank-1", "10.0.0.7:8001")]
    assert claims(builder, b) == [("b-rank-1", "10.0.0.7:8001")]
    both = hosted("both", 8000, 8001)
    assert claims(builder, both) == [("both-rank-0", "10.0.0.7:8000"), ("both-rank-1", "10.0.0.7:8001")]


def test_a_pod_that_declares_nothing_takes_what_no_other_of_its_node_declares() -> None:
    builder = EndpointBuilder()
    silent = hosted("silent")
    assert [name for name, _ in claims(builder, silent)] == ["silent-rank-0", "silent-rank-1"]
    for ready in (True, False):
        owner = hosted("owner", 8000, ready=ready)
        found = claims(builder, silent, owner)
        assert ("silent-rank-1", "10.0.0.7:8001") in found
        assert (("owner-rank-0", "10.0.0.7:8000") in found) is ready
        assert len(found) == 1 + ready
        assert builder.collisions == 0


def test_what_is_active_by_annotation_goes_before_what_is_declared() -> None:
    pod = hosted("a", 8000)
    active = msgspec.structs.replace(pod, active_ports="8001")
    assert claims(EndpointBuilder(), active) == [("a-rank-1", "10.0.0.7:8001")]


def test_an_address_that_two_pods_claim_is_one_endpoint_and_is_told() -> None:
    builder = EndpointBuilder()
    old, young = hosted("old", 8000), hosted("young", 8000, created="2026-01-02T00:00:00Z")
    for pods in ((old, young), (young, old)):
        assert claims(builder, *pods) == [("young-rank-0", "10.0.0.7:8000")]
        assert builder.collisions == 1
        (warning,) = builder.warnings
        assert "young and old both claim 10.0.0.7:8000" in warning and "declare" in warning
    # An address that went from a pod that is not gone yet to a new one; the port that is declared goes first.
    undeclared = read(changed("metadata", "uid", "other"))
    declared = read(changed("spec", "containers", [{"name": "c", "ports": [{"containerPort": 8001}]}]))
    found = builder.build([undeclared, declared], {}, (8001,))
    assert [each.uid for each in found] == [f"{declared.uid}/8001"]
