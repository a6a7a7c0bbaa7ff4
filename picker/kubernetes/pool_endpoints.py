"""A pool and its pods -> the endpoints that serve now, with warnings. A pure function, made cheap.

Each (serving pod, active target port) is one endpoint. With several target ports (data-parallel
ranks) the name is `<pod>-rank-<position of the port>`, as llm-d's picker names it, so dashboards
keep working; with one it is the pod's name.

Pods on the host's network share one address with all such pods of their node, so that a port there is one pod's,
whoever is ready: such a pod serves the target ports that its containers declare, and where it declares none of them,
those that no other such pod of the node declares. Where two claim an address all the same, one gets it, and it is told.

`EndpointBuilder` remembers the endpoints of each pod as long as the very same `Pod` value and ports
come again: rebuilding a list of 1,000 pods after one event then costs one dictionary look-up a pod.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from picker.kubernetes.kubernetes_objects import Pod
from picker.pool.specs import EndpointSpec, join_address

PORT_MAX = 65535
COLLISIONS_NAMED_MAX = 5


class PodEndpoints(msgspec.Struct, frozen=True):
    """What one pod contributes."""

    endpoints: tuple[EndpointSpec, ...]
    undeclared_ports: tuple[int, ...] = ()
    """Target ports in use that no container of the pod declares."""
    bad_annotation: str | None = None
    guessed: bool = False
    """Of a pod on the host's network that declares none of the target ports: others of its node go first."""


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
    guessed = False
    if pod.host_network and active is None:
        declared = [(rank, port) for rank, port in ports if port in pod.container_ports]
        guessed = not declared
        ports = declared or ports
    endpoints = tuple(
        EndpointSpec(
            address=join_address(pod.ip, port),
            uid=f"{pod.uid}/{port}",
            name=f"{pod.name}-rank-{rank}" if several else pod.name,
            namespace=pod.namespace,
            labels=pod.labels,
            node=pod.node,
            aliases=tuple(join_address(ip, port) for ip in pod.other_ips),
        )
        for rank, port in ports
    )
    undeclared = tuple(port for _, port in ports if port not in pod.container_ports)
    return PodEndpoints(endpoints, undeclared, bad_annotation, guessed)


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
        self.collisions = 0
        """Claims in the last list to an address that another pod has."""

    def build(
        self, pods: Iterable[Pod], match_labels: Mapping[str, str], target_ports: tuple[int, ...]
    ) -> list[EndpointSpec]:
        """All endpoints of those pods that match, in the pods' order, each address once."""
        if self._target != (match_labels, target_ports):
            self._target, self._built, self.warnings = (dict(match_labels), target_ports), {}, ()
        before, now = self._built, dict[str, tuple[Pod, PodEndpoints]]()
        endpoints: list[EndpointSpec] = []
        hosted: list[Pod] = []
        fresh = 0
        for pod in pods:
            known = before.get(pod.uid)
            if known is None or known[0] is not pod:
                known = (pod, pod_endpoints(pod, target_ports) if matches(pod.labels, match_labels) else NOTHING)
                fresh += 1
            now[pod.uid] = known
            endpoints += known[1].endpoints
            if pod.host_network and matches(pod.labels, match_labels):
                hosted.append(pod)
        if hosted:
            endpoints = _without_guesses(endpoints, hosted, now)
        collisions: list[Collision] = []
        if len({each.address for each in endpoints}) < len(endpoints):
            endpoints, collisions = _settled(endpoints, now)
        self.collisions = len(collisions)
        if fresh or len(now) != len(before):
            self.warnings = (*_warnings(now.values()), *_collision_warnings(collisions))
        self._built = now
        return endpoints


class Collision(NamedTuple):
    """Two pods claim one address."""

    address: str
    kept: str
    dropped: str


Built = Mapping[str, tuple[Pod, PodEndpoints]]


def _pod_of(endpoint: EndpointSpec, built: Built) -> tuple[Pod, PodEndpoints]:
    return built[endpoint.uid.rpartition("/")[0]]


def _port(endpoint: EndpointSpec) -> int:
    return int(endpoint.uid.rpartition("/")[2])


def _without_guesses(endpoints: list[EndpointSpec], hosted: Sequence[Pod], built: Built) -> list[EndpointSpec]:
    """A port that a pod of the node declares is that pod's, also while it is not ready: nobody else listens there."""
    declared = {(pod.ip, port) for pod in hosted if not pod.ended for port in pod.container_ports}
    return [
        each
        for each in endpoints
        if not (found := _pod_of(each, built))[1].guessed or (found[0].ip, _port(each)) not in declared
    ]


def _settled(endpoints: list[EndpointSpec], built: Built) -> tuple[list[EndpointSpec], list[Collision]]:
    """One endpoint an address: of the pod that declares the port, then of the youngest, as an address is given to
    another pod when the one before is gone."""
    winners: dict[str, EndpointSpec] = {}
    collisions: list[Collision] = []

    def claim(endpoint: EndpointSpec) -> tuple[bool, str, str]:
        pod, _ = _pod_of(endpoint, built)
        return _port(endpoint) in pod.container_ports, pod.created, pod.name

    for endpoint in endpoints:
        other = winners.setdefault(endpoint.address, endpoint)
        if other is not endpoint:
            kept, dropped = sorted((other, endpoint), key=claim, reverse=True)
            winners[endpoint.address] = kept
            names = (_pod_of(each, built)[0].name for each in (kept, dropped))
            collisions.append(Collision(endpoint.address, *names))
    return [each for each in endpoints if winners[each.address] is each], collisions


def _collision_warnings(collisions: Sequence[Collision]) -> Iterator[str]:
    for address, kept, dropped in collisions[:COLLISIONS_NAMED_MAX]:
        yield (
            f"pods {kept} and {dropped} both claim {address}; it counts as {kept}'s. If they share their node's "
            "network, declare in each pod's containers the port that it listens on"
        )
    if len(collisions) > COLLISIONS_NAMED_MAX:
        yield f"{len(collisions)} addresses in all are claimed by two pods"


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
