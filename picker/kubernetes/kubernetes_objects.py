"""Kubernetes objects reduced to what the picker looks at, and a pool with its pods as endpoints.

`read_pod`, `read_pool`, `read_objective` are projections for listwatch.py: raw JSON in, a small frozen
struct or an `Unreadable` out. They are total: whatever the bytes are, nothing is raised. Fields that
nobody reads (managedFields, volumes, environment) are skipped by the JSON decoder, never built.

Two readings of one object are equal exactly when nothing changed that matters here, so that a
kubelet's heartbeats are no news. Sources: core/v1 Pod, inference.networking.k8s.io/v1 InferencePool,
inference.networking.x-k8s.io/v1alpha2 InferenceObjective.
"""

from collections.abc import Mapping
from ipaddress import ip_address
from typing import Any

import msgspec

from picker.kubernetes.watch_messages import Sighting, Unreadable

INFERENCE_GROUP = "inference.networking.k8s.io"
OBJECTIVE_GROUPS = ("inference.networking.x-k8s.io", "llm-d.ai")
"""Where InferenceObjective v1alpha2 is served: the first group, and the one it moved to. The first wins."""
POOL_GROUPS = (INFERENCE_GROUP, "inference.networking.x-k8s.io", "llm-d.ai")
"""What objectives call the pool's group: today's, that of its alpha, and that of the project it moved to. An objective
written before the pool was graduated means the same pool."""
POOL_KIND = "InferencePool"


class Pod(msgspec.Struct, frozen=True, kw_only=True):
    """What decides whether, where and as what a pod serves."""

    uid: str
    name: str
    namespace: str
    labels: Mapping[str, str]
    ip: str | None
    """The primary address: status.podIP, also on a dual-stack cluster."""
    other_ips: tuple[str, ...] = ()
    """Further addresses of a dual-stack pod."""
    host_network: bool = False
    """It shares its address with the other pods of its node that do so, and with the node."""
    created: str = ""
    """metadata.creationTimestamp, as written: texts of one form, which sort as times do."""
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


class InferenceObjective(msgspec.Struct, frozen=True, kw_only=True):
    """An InferenceObjective: the priority that requests may ask for by its name."""

    uid: str
    name: str
    namespace: str
    priority: int
    pools: tuple["PoolReference", ...]
    terminating: bool

    def concerns(self, pool_name: str) -> bool:
        """Whether it is about the pool of that name."""
        return any(each.name == pool_name and each.known for each in self.pools)


class PoolReference(msgspec.Struct, frozen=True):
    """How an objective names a pool: one `poolRef`, or several `poolRefs`."""

    name: str
    group: str = INFERENCE_GROUP
    kind: str = POOL_KIND

    @property
    def known(self) -> bool:
        """It can be a pool that is followed here."""
        return self.group in POOL_GROUPS and self.kind == POOL_KIND


class _Annotations(msgspec.Struct):
    active_ports: str | None = msgspec.field(default=None, name="llm-d.ai/active-ports")
    active_ports_before: str | None = msgspec.field(default=None, name="inference.networking.k8s.io/active-ports")


class _Meta(msgspec.Struct, rename="camel"):
    uid: str
    name: str
    namespace: str = ""
    resource_version: str = ""
    creation_timestamp: str = ""
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
    host_network: bool = False


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


class _ObjectiveSpec(msgspec.Struct, rename="camel"):
    pool_ref: PoolReference | None = None
    pool_refs: list[PoolReference] | None = None
    priority: int | None = None


class _RawObjective(msgspec.Struct):
    metadata: _Meta
    spec: _ObjectiveSpec


_POD = msgspec.json.Decoder(_RawPod)
_POOL = msgspec.json.Decoder(_RawPool)
_OBJECTIVE = msgspec.json.Decoder(_RawObjective)


def read_pod(raw: bytes | msgspec.Raw) -> Sighting[Pod] | Unreadable:
    """A core/v1 Pod."""
    try:
        pod = _POD.decode(raw)
    except (msgspec.MsgspecError, UnicodeError) as error:
        return _malformed(raw, str(error))
    if not (pod.metadata.uid and pod.metadata.name):
        return _malformed(raw, "metadata.uid or metadata.name is empty")
    status = pod.status
    ips = [each.ip for each in status.pod_ips or () if each.ip]
    if status.pod_ip:
        ips = [status.pod_ip, *(each for each in ips if each != status.pod_ip)]
    if ips and not _is_address(ips[0]):
        # It would go into a header as it is.
        return _malformed(raw, f"status.podIP {ips[0][:60]!r} is not an IP address")
    ips = [each for each in ips if _is_address(each)]
    return Sighting(pod.metadata.resource_version, _project_pod(pod, ips))


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return "%" not in text


def _project_pod(pod: _RawPod, ips: list[str]) -> Pod:
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
        ip=ips[0] if ips else None,
        other_ips=tuple(ips[1:]),
        host_network=pod.spec.host_network,
        created=meta.creation_timestamp,
        ready=any(each.type == "Ready" and each.status == "True" for each in status.conditions or ()),
        terminating=meta.deletion_timestamp is not None,
        ended=status.phase in ("Succeeded", "Failed"),
        active_ports=notes.active_ports if notes.active_ports is not None else notes.active_ports_before,
        container_ports=frozenset(ports),
        node=status.host_ip or None,
    )


def read_pool(raw: bytes | msgspec.Raw) -> Sighting[Pool] | Unreadable:
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


def read_objective(raw: bytes | msgspec.Raw) -> Sighting[InferenceObjective] | Unreadable:
    """A v1alpha2 InferenceObjective of either group. No priority means 0 (its type's documentation)."""
    try:
        objective = _OBJECTIVE.decode(raw)
    except (msgspec.MsgspecError, UnicodeError) as error:
        return _malformed(raw, str(error))
    meta, spec = objective.metadata, objective.spec
    if not (meta.uid and meta.name):
        return _malformed(raw, "metadata.uid or metadata.name is empty")
    seen = InferenceObjective(
        uid=meta.uid,
        name=meta.name,
        namespace=meta.namespace,
        priority=spec.priority or 0,
        pools=tuple(([spec.pool_ref] if spec.pool_ref is not None else []) + (spec.pool_refs or [])),
        terminating=meta.deletion_timestamp is not None,
    )
    return Sighting(meta.resource_version, seen)


def _malformed(raw: bytes | msgspec.Raw, why: str) -> Unreadable:
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
    return Unreadable(uid=uid, name=name or "(unnamed)", resource_version=version, why=why)
