"""A pool and its pods -> the endpoints that serve now, with warnings. A pure function, made cheap.

Each (serving pod, active target port) is one endpoint. With several target ports (data-parallel
ranks) the name is `<pod>-rank-<position of the port>`, as llm-d's picker names it, so dashboards
keep working; with one it is the pod's name.

`EndpointBuilder` remembers the endpoints of each pod as long as the very same `Pod` value and ports
come again: rebuilding a list of 1,000 pods after one event then costs one dictionary look-up a pod.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from picker.pool.kubernetes_objects import Pod
from picker.pool.specs import EndpointSpec, join_address

PORT_MAX = 65535


class PodEndpoints(msgspec.Struct, frozen=True):
    """What one pod contributes."""

    endpoints: tuple[EndpointSpec, ...]
    undeclared_ports: tuple[int, ...] = ()
    """Target ports in use that no container of the pod declares."""
    bad_annotation: str | None = None


def matches(labels: Mapping[str, str], match_labels: Mapping[str, str]) -> bool:
    """Kubernetes equality selector: every pair is there."""
    return all(labels.get(key) == value for key, value in match_labels.items())


def pod_endpoints(pod: Pod, target_ports: Sequence[int]) -> PodEndpoints:
    """The endpoints of one pod, none unless it serves."""
    if not pod.serves or pod.ip is None:
        return PodEndpoints(())
    active, bad_annotation = _active_ports(pod.active_ports)
    several = len(target_ports) > 1
    ports = [(rank, port) for rank, port in enumerate(target_ports) if active is None or port in active]
    endpoints = tuple(
        EndpointSpec(
            address=join_address(pod.ip, port),
            uid=f"{pod.uid}/{port}",
            name=f"{pod.name}-rank-{rank}" if several else pod.name,
            namespace=pod.namespace,
            labels=pod.labels,
            node=pod.node,
        )
        for rank, port in ports
    )
    undeclared = tuple(port for _, port in ports if port not in pod.container_ports)
    return PodEndpoints(endpoints, undeclared, bad_annotation)


def _active_ports(annotation: str | None) -> tuple[frozenset[int] | None, str | None]:
    """`'8000, 8001'` -> the ports; None when nothing is said. An empty text says: no port yet."""
    if annotation is None:
        return None, None
    ports: set[int] = set()
    bad: str | None = None
    for part in annotation.split(","):
        text = part.strip()
        if text.isascii() and text.isdigit() and len(text) <= 5 and 0 < int(text) <= PORT_MAX:
            ports.add(int(text))
        elif text:
            bad = text[:40]
    return frozenset(ports), bad


NOTHING = PodEndpoints(())


class EndpointBuilder:
    """Turns pods into the full list of endpoints, again and again."""

    def __init__(self) -> None:
        self._target: tuple[Mapping[str, str], tuple[int, ...]] = ({}, ())
        self._built: dict[str, tuple[Pod, PodEndpoints]] = {}
        self.warnings: tuple[str, ...] = ()
        """About the last list, each with its next step. At most one of a kind and port."""

    def build(
        self, pods: Iterable[Pod], match_labels: Mapping[str, str], target_ports: tuple[int, ...]
    ) -> list[EndpointSpec]:
        """All endpoints of those pods that match, in the pods' order."""
        if self._target != (match_labels, target_ports):
            self._target, self._built, self.warnings = (dict(match_labels), target_ports), {}, ()
        before, now = self._built, dict[str, tuple[Pod, PodEndpoints]]()
        endpoints: list[EndpointSpec] = []
        fresh = 0
        for pod in pods:
            known = before.get(pod.uid)
            if known is None or known[0] is not pod:
                known = (pod, pod_endpoints(pod, target_ports) if matches(pod.labels, match_labels) else NOTHING)
                fresh += 1
            now[pod.uid] = known
            endpoints += known[1].endpoints
        if fresh or len(now) != len(before):
            self.warnings = _warnings(now.values())
        self._built = now
        return endpoints


def _warnings(built: Iterable[tuple[Pod, PodEndpoints]]) -> tuple[str, ...]:
    undeclared: dict[int, str] = {}
    annotated: str | None = None
    for pod, result in built:
        for port in result.undeclared_ports:
            undeclared.setdefault(port, pod.name)
        if result.bad_annotation is not None and annotated is None:
            annotated = f"pod {pod.name}: annotation active-ports has {result.bad_annotation!r}, which is not a port"
    found = [
        f"no container of pod {name} declares the target port {port}; it is used all the same."
        f" If nothing listens there, correct targetPorts or the container's ports"
        for port, name in sorted(undeclared.items())
    ]
    return (*found, annotated) if annotated is not None else tuple(found)
