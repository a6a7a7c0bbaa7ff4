"""The cluster as a source of endpoints: an InferencePool and its pods, or pods by selector and port.

    InferencePool  ──▶ selector, ports ──┐
    Pods (of that selector) ─────────────┴─▶ on_endpoints(the whole list)
    InferenceObjective (optional) ─────────▶ on_objectives({name: priority})

What holds, whatever the API server does:
* the endpoints given are those of the last state it showed: an outage or a lost permission changes nothing;
* nothing is given before the first whole list of the pool *and* of its pods; then `on_synced` is called, once;
* a change of the pool's selector starts a new pod watch; until its list is whole, the pods known
  before that match the new selector go on serving;
* a burst of events becomes one callback (at most one per `PUBLISH_SECONDS`; the first at once);
* a pool that is there but cannot be read leaves the last readable one in force, with a warning.

Only GETs are sent: no write to pools or pods.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from picker.edge.kubernetes.api import KubernetesApi
from picker.edge.kubernetes.follow import Follower
from picker.kubernetes.backoff import Health
from picker.kubernetes.kubernetes_objects import (
    INFERENCE_GROUP,
    OBJECTIVE_GROUPS,
    InferenceObjective,
    Pod,
    Pool,
    read_objective,
    read_pod,
    read_pool,
)
from picker.kubernetes.listwatch import ListWatch
from picker.kubernetes.pool_endpoints import EndpointBuilder
from picker.kubernetes.watch_messages import Timing
from picker.pool.specs import EndpointSpec
from picker.rng import Rng

PUBLISH_SECONDS = 0.02
MALFORMED_NAMED_MAX = 5


class PoolTarget(msgspec.Struct, frozen=True):
    """`--pool NAME --namespace NS`."""

    name: str
    namespace: str


class SelectorTarget(msgspec.Struct, frozen=True):
    """`--selector k=v,k2=v2 --target-port N[,N] --namespace NS`: clusters without the CRD."""

    match_labels: Mapping[str, str]
    target_ports: tuple[int, ...]
    namespace: str


class LogCall(Protocol):
    """Takes a line for the log. `level` is debug, info, warning or error."""

    def __call__(self, level: str, message: str, /, **fields: object) -> None: ...


class SourceState(msgspec.Struct, frozen=True, kw_only=True):
    """The source at one moment, for telemetry and the status page."""

    synced: bool
    api_available: bool
    last_contact_seconds: float | None
    """Clock time at which the watch heard from least recently was last heard from; None before the first answer."""
    pods: int
    endpoints: int
    malformed_objects: int
    lists_total: int
    watches_total: int
    failures_total: int


def parse_label_selector(text: str) -> dict[str, str]:
    """`'app=vllm,tier=gold'` -> labels. Raises `ValueError` that names the part that is wrong."""
    labels: dict[str, str] = {}
    for part in text.split(","):
        key, equals, value = part.strip().partition("=")
        key, value = key.strip(), value.removeprefix("=").strip()
        if not equals or not key or key.endswith("!"):
            raise ValueError(f"selector {text!r}: {part.strip()!r} is not key=value")
        if labels.setdefault(key, value) != value:
            raise ValueError(f"selector {text!r}: {key!r} is given twice")
    return labels


class KubernetesSource:
    """Follows one target until `run()` is cancelled."""

    def __init__(
        self,
        target: PoolTarget | SelectorTarget,
        *,
        on_endpoints: Callable[[list[EndpointSpec]], None],
        on_objectives: Callable[[dict[str, int]], None],
        on_synced: Callable[[], None],
        log: LogCall,
        rng: Rng,
        api: KubernetesApi,
        objectives: bool = True,
        timing: Timing | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """`api` stays the caller's to close. `clock` is monotonic; the loop's by default."""
        self._target = target
        self._on_endpoints = on_endpoints
        self._on_objectives = on_objectives
        self._on_synced = on_synced
        self._log = log
        self._rng = rng
        self._api = api
        self._with_objectives = objectives
        self._timing = timing or Timing()
        self._clock = clock
        self._builder = EndpointBuilder()
        self._pool: Pool | None = None
        self._pool_follower: Follower[Pool] | None = None
        self._pods: Follower[Pod] | None = None
        self._pods_selector: Mapping[str, str] = {}
        self._pods_task: asyncio.Task[None] | None = None
        self._held: Mapping[str, Pod] = {}
        self._objective_followers: list[Follower[InferenceObjective]] = []
        self._objectives_told: bool | None = None
        self._group: asyncio.TaskGroup | None = None
        self._publishing: asyncio.TimerHandle | None = None
        self._published_at_seconds = float("-inf")
        self._endpoints: list[EndpointSpec] | None = None
        self._objectives: dict[str, int] = {}
        self._retired = (0, 0, 0)
        self._warned: frozenset[str] = frozenset()
        self.synced = False
        self.warnings: tuple[str, ...] = ()
        """What is odd now, each with its next step."""

    # Life

    async def run(self) -> None:
        """Follow until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                if isinstance(self._target, PoolTarget):
                    self._follow_pool(self._target)
                else:
                    self._pool = _pool_of(self._target)
                    self._follow_pods(self._pool.match_labels)
                if self._with_objectives:
                    self._follow_objectives()
        finally:
            self._group = None
            if self._publishing is not None:
                self._publishing.cancel()
                self._publishing = None

    def _spawn(self, follower: Follower[Any], name: str) -> asyncio.Task[None]:
        assert self._group is not None
        return self._group.create_task(follower.run(), name=f"follow {name}")

    # The pool

    def _follow_pool(self, target: PoolTarget) -> None:
        machine = ListWatch(
            read_pool, self._rng, selector={"fieldSelector": f"metadata.name={target.name}"}, timing=self._timing
        )
        self._pool_follower = Follower(
            self._api,
            f"/apis/{INFERENCE_GROUP}/v1/namespaces/{target.namespace}/inferencepools",
            machine,
            on_change=lambda _: self._pool_changed(),
            on_health=lambda: self._tell_health("inferencepools", machine),
            clock=self._clock,
        )
        self._spawn(self._pool_follower, "inferencepools")

    def _pool_changed(self) -> None:
        assert isinstance(self._target, PoolTarget) and self._pool_follower is not None
        machine = self._pool_follower.machine
        pool = next((each for each in machine.objects.values() if each.name == self._target.name), None)
        if pool is None and self._target.name in machine.malformed and self._pool is not None:
            self._tell_warnings()
            return
        self._pool = pool
        where = f"InferencePool {self._target.namespace}/{self._target.name}"
        if pool is None:
            self._stop_pods()
        else:
            ports = ", ".join(map(str, pool.target_ports))
            self._log("info", f"following {where}: {label_selector(pool.match_labels)}, target ports {ports}")
            if self._pods is None or pool.match_labels != self._pods_selector:
                self._follow_pods(pool.match_labels)
        self._publish_soon()

    # Its pods

    def _follow_pods(self, match_labels: Mapping[str, str]) -> None:
        held = self._known_pods()
        self._stop_pods()
        self._held = dict(held)
        machine = ListWatch(
            read_pod, self._rng, selector={"labelSelector": label_selector(match_labels)}, timing=self._timing
        )
        self._pods_selector = dict(match_labels)
        self._pods = Follower(
            self._api,
            f"/api/v1/namespaces/{self._target.namespace}/pods",
            machine,
            on_change=lambda _: self._publish_soon(),
            on_health=lambda: self._tell_health("pods", machine),
            clock=self._clock,
        )
        self._pods_task = self._spawn(self._pods, "pods")

    def _stop_pods(self) -> None:
        if self._pods_task is not None:
            self._pods_task.cancel()
        if self._pods is not None:
            machine = self._pods.machine
            totals = (machine.lists_total, machine.watches_total, machine.failures_total)
            self._retired = (
                self._retired[0] + totals[0],
                self._retired[1] + totals[1],
                self._retired[2] + totals[2],
            )
        self._pods, self._pods_task, self._held = None, None, {}

    def _known_pods(self) -> Mapping[str, Pod]:
        if self._pods is None:
            return {}
        return self._pods.machine.objects if self._pods.machine.synced else self._held

    # Objectives

    def _follow_objectives(self) -> None:
        for group in OBJECTIVE_GROUPS:
            machine = ListWatch(read_objective, self._rng, selector={}, timing=self._timing)
            follower = Follower(
                self._api,
                f"/apis/{group}/v1alpha2/namespaces/{self._target.namespace}/inferenceobjectives",
                machine,
                on_change=lambda _: self._publish_soon(),
                on_health=self._tell_objectives,
                clock=self._clock,
            )
            self._objective_followers.append(follower)
            self._spawn(follower, f"inferenceobjectives.{group}")

    def _tell_objectives(self) -> None:
        machines = [follower.machine for follower in self._objective_followers]
        if any(machine.health is Health.STARTING for machine in machines):
            return
        found = any(machine.synced for machine in machines)
        if found is self._objectives_told:
            return
        self._objectives_told = found
        if found:
            self._log("info", "following InferenceObjective")
        else:
            why = "; ".join(
                f"{group}: {machine.health}" for group, machine in zip(OBJECTIVE_GROUPS, machines, strict=True)
            )
            self._log("info", f"InferenceObjective cannot be read ({why}): priorities by name are off until it can")

    def _known_objectives(self) -> dict[str, int]:
        priorities: dict[str, int] = {}
        for follower in reversed(self._objective_followers):
            for objective in follower.machine.objects.values():
                if not objective.terminating and self._concerns_us(objective):
                    priorities[objective.name] = objective.priority
        return priorities

    def _concerns_us(self, objective: InferenceObjective) -> bool:
        return not isinstance(self._target, PoolTarget) or objective.concerns(self._target.name)

    # Giving it on

    def _publish_soon(self) -> None:
        if self._publishing is None:
            loop = asyncio.get_running_loop()
            wait = self._published_at_seconds + PUBLISH_SECONDS - loop.time()
            self._publishing = loop.call_later(max(0.0, wait), self._publish)

    def _publish(self) -> None:
        self._publishing = None
        self._published_at_seconds = asyncio.get_running_loop().time()
        self._publish_objectives()
        endpoints = self._current_endpoints()
        self._tell_warnings()
        if endpoints is None:
            return
        if endpoints != self._endpoints:
            self._on_endpoints(list(endpoints))
            self._endpoints = endpoints
        if not self.synced and self._pool is not None:
            self.synced = True
            self._log("info", f"synced: {len(endpoints)} endpoints")
            self._on_synced()

    def _current_endpoints(self) -> list[EndpointSpec] | None:
        """None while the pods of the first list are not all known."""
        if self._pool is None:
            return [] if self.synced else None
        if not (self.synced or (self._pods is not None and self._pods.machine.synced)):
            return None
        return self._builder.build(self._known_pods().values(), self._pool.match_labels, self._pool.target_ports)

    def _publish_objectives(self) -> None:
        objectives = self._known_objectives()
        if objectives != self._objectives:
            self._on_objectives(dict(objectives))
            self._objectives = objectives

    # Saying so

    def _tell_health(self, what: str, machine: ListWatch[Any]) -> None:
        if machine.health is Health.OK:
            self._log("info", f"{what}: in contact with the API server")
            self._tell_warnings()
            return
        kept = "choosing from the last state" if machine.synced else "not synced yet"
        level = "debug" if machine.health is Health.EXPIRED else "warning"
        self._log(level, f"{what}: {machine.health}: {machine.detail}; {kept}{_next_step(machine.health, what)}")

    def _tell_warnings(self) -> None:
        warnings = [*(self._builder.warnings if self._pool is not None else ()), *self._malformed_warnings()]
        if self._pool_follower is not None and self._pool_follower.machine.synced and self._pool is None:
            warnings.append(
                f"InferencePool {self._target.namespace}/{getattr(self._target, 'name', '')} does not exist"
            )
        warnings += self._objective_warnings()
        self.warnings = tuple(warnings)
        for warning in warnings:
            if warning not in self._warned:
                self._log("warning", warning)
        self._warned = frozenset(warnings)

    def _malformed_warnings(self) -> list[str]:
        warnings: list[str] = []
        for what, machine in self._machines():
            items = list(machine.malformed.values())
            warnings += [f"{what} {item.name} is skipped: {item.why}" for item in items[:MALFORMED_NAMED_MAX]]
            if len(items) > MALFORMED_NAMED_MAX:
                warnings.append(f"{what}: {len(items)} objects in all are skipped because they do not parse")
        return warnings

    def _objective_warnings(self) -> list[str]:
        """Objectives that name a pool of our pool's name in a way that cannot be followed, or none at all."""
        if not isinstance(self._target, PoolTarget):
            return []
        warnings: list[str] = []
        for follower in self._objective_followers:
            for objective in follower.machine.objects.values():
                if objective.terminating or objective.concerns(self._target.name):
                    continue
                if not objective.pools:
                    why = "it names no pool"
                else:
                    near = next((each for each in objective.pools if each.name == self._target.name), None)
                    if near is None:
                        continue
                    why = f"it names the {near.kind[:60]} {near.name} of the API group {near.group[:100]!r}"
                warnings.append(
                    f"InferenceObjective {objective.name} is not followed: {why}. Write poolRef: "
                    f"{{name: {self._target.name}, group: {INFERENCE_GROUP}}}"
                )
        return warnings[:MALFORMED_NAMED_MAX]

    @property
    def address_collisions(self) -> int:
        """Claims of pods to an address that another pod has."""
        return self._builder.collisions

    def _machines(self) -> Sequence[tuple[str, ListWatch[Any]]]:
        found: list[tuple[str, ListWatch[Any]]] = [
            ("inferenceobjective", each.machine) for each in self._objective_followers
        ]
        if self._pods is not None:
            found.append(("pod", self._pods.machine))
        if self._pool_follower is not None:
            found.append(("inferencepool", self._pool_follower.machine))
        return found

    def _required(self) -> list[ListWatch[Any]]:
        followers: list[Follower[Any] | None] = [self._pool_follower, self._pods]
        return [follower.machine for follower in followers if follower is not None]

    @property
    def api_available(self) -> bool:
        """The API server answers what we need of it. False also before the first answer."""
        required = self._required()
        return bool(required) and all(machine.health is Health.OK for machine in required)

    @property
    def last_contact_seconds(self) -> float | None:
        """See `SourceState.last_contact_seconds`."""
        heard = [m.last_contact_seconds for m in self._required() if m.last_contact_seconds is not None]
        return min(heard, default=None)

    def state(self) -> SourceState:
        """A snapshot for telemetry."""
        machines = [machine for _, machine in self._machines()]
        lists, watches, failures = self._retired
        return SourceState(
            synced=self.synced,
            api_available=self.api_available,
            last_contact_seconds=self.last_contact_seconds,
            pods=len(self._known_pods()),
            endpoints=len(self._endpoints or ()),
            malformed_objects=sum(len(machine.malformed) for machine in machines),
            lists_total=lists + sum(machine.lists_total for machine in machines),
            watches_total=watches + sum(machine.watches_total for machine in machines),
            failures_total=failures + sum(machine.failures_total for machine in machines),
        )


def label_selector(match_labels: Mapping[str, str]) -> str:
    """The `labelSelector` parameter of an equality selector."""
    return ",".join(f"{key}={value}" for key, value in sorted(match_labels.items()))


def _pool_of(target: SelectorTarget) -> Pool:
    return Pool(
        uid="",
        name="",
        namespace=target.namespace,
        match_labels=target.match_labels,
        target_ports=target.target_ports,
    )


def _next_step(health: Health, what: str) -> str:
    if health is Health.FORBIDDEN:
        return f". Give the service account get, list and watch on {what}"
    if health is Health.MISSING:
        return f". Install the CRD of {what}, or use --selector and --target-port"
    return ""
