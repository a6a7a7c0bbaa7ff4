"""Kubernetes objects reduced to what the picker looks at, and a pool with its pods as endpoints.

`read_pod`, `read_pool`, `read_objective` are projections for listwatch.py: raw JSON in, a small frozen
struct or a `Malformed` out. They are total: whatever the bytes are, nothing is raised. Fields that
nobody reads (managedFields, volumes, environment) are skipped by the JSON decoder, never built.

Two readings of one object are equal exactly when nothing changed that matters here, so that a
kubelet's heartbeats are no news. Sources: core/v1 Pod, inference.networking.k8s.io/v1 InferencePool,
inference.networking.x-k8s.io/v1alpha2 InferenceObjective.
"""

from collections.abc import Mapping
from ipaddress import ip_address
from typing import Any

import msgspec

from picker.pool.watch_messages import Malformed, Sighting

INFERENCE_GROUP = "inference.networking.k8s.io"
OBJECTIVE_GROUPS = ("inference.networking.x-k8s.io", "llm-d.ai")
"""Where InferenceObjective v1alpha2 is served: the first group, and the one it moved to. The first wins."""


class Pod(msgspec.Struct, frozen=True, kw_only=True):
    """What decides whether, where and as what a pod serves."""

    uid: str
    name: str
    namespace: str
    labels: Mapping[str, str]
    ip: str | None
    """The primary address: status.podIP, also on a dual-stack cluster."""
    ready: bool
    terminating: bool
    ended: bool
    """Phase Succeeded or Failed."""
    active_ports: str | None
    """The annotation that restricts the pool's target ports to those that serve now, as written."""
    container_ports: frozenset[int]
    node: str | None = None
    """The node's address: status.hostIP."""

    @property
    def serves(self) -> bool:
        """Ready, with an address, and not on its way out (a terminating pod often stays Ready for a while)."""
        return self.ready and self.ip is not None and not self.terminating and not self.ended


class Pool(msgspec.Struct, frozen=True, kw_only=True):
    """The part of an InferencePool v1 that a picker follows."""

    uid: str
    name: str
    namespace: str
    match_labels: Mapping[str, str]
    target_ports: tuple[int, ...]


class Objective(msgspec.Struct, frozen=True, kw_only=True):
    """An InferenceObjective: the priority that requests may ask for by its name."""

    uid: str
    name: str
    namespace: str
    priority: int
    pool_group: str
    pool_name: str
    terminating: bool


class _Annotations(msgspec.Struct):
    active_ports: str | None = msgspec.field(default=None, name="llm-d.ai/active-ports")
    active_ports_before: str | None = msgspec.field(default=None, name="inference.networking.k8s.io/active-ports")


class _Meta(msgspec.Struct, rename="camel"):
    uid: str
    name: str
    namespace: str = ""
    resource_version: str = ""
    deletion_timestamp: str | None = None
    labels: dict[str, str] | None = None
    annotations: _Annotations | None = None


class _Port(msgspec.Struct, rename="camel"):
    container_port: int


class _Container(msgspec.Struct):
    ports: list[_Port] | None = None


class _PodSpec(msgspec.Struct, rename="camel"):
    containers: list[_Container] | None = None
    init_containers: list[_Container] | None = None


class _Condition(msgspec.Struct):
    type: str
    status: str


class _PodIp(msgspec.Struct):
    ip: str = ""


class _PodStatus(msgspec.Struct):
    phase: str = ""
    conditions: list[_Condition] | None = None
    pod_ip: str | None = msgspec.field(default=None, name="podIP")
    host_ip: str | None = msgspec.field(default=None, name="hostIP")
    pod_ips: list[_PodIp] | None = msgspec.field(default=None, name="podIPs")


class _RawPod(msgspec.Struct):
    metadata: _Meta
    spec: _PodSpec = msgspec.field(default_factory=_PodSpec)
    status: _PodStatus = msgspec.field(default_factory=_PodStatus)


class _Selector(msgspec.Struct, rename="camel"):
    match_labels: dict[str, str] = msgspec.field(default_factory=dict)


class _TargetPort(msgspec.Struct):
    number: int


class _PoolSpec(msgspec.Struct, rename="camel"):
    selector: _Selector
    target_ports: list[_TargetPort]


class _RawPool(msgspec.Struct):
    metadata: _Meta
    spec: _PoolSpec


class _PoolRef(msgspec.Struct):
    name: str
    group: str = INFERENCE_GROUP


class _ObjectiveSpec(msgspec.Struct, rename="camel"):
    pool_ref: _PoolRef
    priority: int | None = None


class _RawObjective(msgspec.Struct):
    metadata: _Meta
    spec: _ObjectiveSpec


_POD = msgspec.json.Decoder(_RawPod)
_POOL = msgspec.json.Decoder(_RawPool)
_OBJECTIVE = msgspec.json.Decoder(_RawObjective)


def read_pod(raw: bytes | msgspec.Raw) -> Sighting[Pod] | Malformed:
    """A core/v1 Pod."""
    try:
        pod = _POD.decode(raw)
    except (msgspec.MsgspecError, UnicodeError) as error:
        return _malformed(raw, str(error))
    if not (pod.metadata.uid and pod.metadata.name):
        return _malformed(raw, "metadata.uid or metadata.name is empty")
    ip = pod.status.pod_ip or (pod.status.pod_ips[0].ip if pod.status.pod_ips else "")
    if ip and not _is_address(ip):
        # It would go into a header as it is.
        return _malformed(raw, f"status.podIP {ip[:60]!r} is not an IP address")
    return Sighting(pod.metadata.resource_version, _project_pod(pod, ip or None))


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return "%" not in text


def _project_pod(pod: _RawPod, ip: str | None) -> Pod:
    meta, status = pod.metadata, pod.status
    ports = {
        port.container_port
        for containers in (pod.spec.containers, pod.spec.init_containers)  # a native sidecar is an init container
        for container in containers or ()
        for port in container.ports or ()
    }
    notes = meta.annotations or _Annotations()
    return Pod(
        uid=meta.uid,
        name=meta.name,
        namespace=meta.namespace,
        labels=meta.labels or {},
        ip=ip,
        ready=any(each.type == "Ready" and each.status == "True" for each in status.conditions or ()),
        terminating=meta.deletion_timestamp is not None,
        ended=status.phase in ("Succeeded", "Failed"),
        active_ports=notes.active_ports if notes.active_ports is not None else notes.active_ports_before,
        container_ports=frozenset(ports),
        node=status.host_ip or None,
    )


def read_pool(raw: bytes | msgspec.Raw) -> Sighting[Pool] | Malformed:
    """An inference.networking.k8s.io/v1 InferencePool."""
    try:
        pool = _POOL.decode(raw)
    except (msgspec.MsgspecError, UnicodeError) as error:
        return _malformed(raw, str(error))
    meta, spec = pool.metadata, pool.spec
    if not (meta.uid and meta.name):
        return _malformed(raw, "metadata.uid or metadata.name is empty")
    ports = tuple(dict.fromkeys(port.number for port in spec.target_ports))
    if not ports or not all(0 < port < 65536 for port in ports):
        return _malformed(raw, f"spec.targetPorts {list(ports)} are not one or more of 1..65535")
    if not spec.selector.match_labels:
        # The schema asks for at least one; an empty selector would match every pod of the namespace.
        return _malformed(raw, "spec.selector.matchLabels is empty")
    seen = Pool(
        uid=meta.uid,
        name=meta.name,
        namespace=meta.namespace,
        match_labels=spec.selector.match_labels,
        target_ports=ports,
    )
    return Sighting(meta.resource_version, seen)


def read_objective(raw: bytes | msgspec.Raw) -> Sighting[Objective] | Malformed:
    """A v1alpha2 InferenceObjective of either group. No priority means 0 (its type's documentation)."""
    try:
        objective = _OBJECTIVE.decode(raw)
    except (msgspec.MsgspecError, UnicodeError) as error:
        return _malformed(raw, str(error))
    meta, spec = objective.metadata, objective.spec
    if not (meta.uid and meta.name):
        return _malformed(raw, "metadata.uid or metadata.name is empty")
    seen = Objective(
        uid=meta.uid,
        name=meta.name,
        namespace=meta.namespace,
        priority=spec.priority or 0,
        pool_group=spec.pool_ref.group,
        pool_name=spec.pool_ref.name,
        terminating=meta.deletion_timestamp is not None,
    )
    return Sighting(meta.resource_version, seen)


def _malformed(raw: bytes | msgspec.Raw, why: str) -> Malformed:
    """Names a bad object as far as it can be read."""
    try:
        decoded: Any = msgspec.json.decode(raw)
    except (msgspec.MsgspecError, UnicodeError):
        decoded = None
    meta = decoded.get("metadata") if isinstance(decoded, dict) else None
    known: dict[Any, Any] = meta if isinstance(meta, dict) else {}
    uid, name, version = (
        value if isinstance(value := known.get(key), str) else "" for key in ("uid", "name", "resourceVersion")
    )
    return Malformed(uid=uid, name=name or "(unnamed)", resource_version=version, why=why)
