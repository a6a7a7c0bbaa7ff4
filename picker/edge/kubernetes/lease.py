"""Leader election over the API server: drives the machine of kubernetes/election.py, and names the lease.

One Lease per ReplicaSet (`<base>-<pod-template-hash>`): during a rollout the new pods elect a leader of
their own instead of waiting, unready, for an old one that Kubernetes will not stop before they are ready.
The Lease is owned by that ReplicaSet, so Kubernetes deletes it with the revision.
"""

import asyncio
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from picker.edge.kubernetes.api import AnswerTooLargeError, ApiAnswer, ApiUnreachableError, KubernetesApi
from picker.edge.kubernetes.source import LogCall
from picker.kubernetes.backoff import Fault, Health
from picker.kubernetes.election import Election, LeaseRole, LeaseTiming, LeaseWait, Read, Write, read_lease
from picker.rng import Rng

REQUEST_SECONDS = 2.0
NAME_LENGTH_MAX = 253
OWNER_KEYS = ("apiVersion", "kind", "name", "uid")


class LeaseName(msgspec.Struct, frozen=True):
    """Which Lease, and who owns it (an entry of metadata.ownerReferences)."""

    name: str
    owner: Mapping[str, Any] | None = None


class _PodMeta(msgspec.Struct, rename="camel"):
    labels: dict[str, str] | None = None
    owner_references: list[dict[str, Any]] | None = None


class _PodOwners(msgspec.Struct):
    metadata: _PodMeta


class _PodList(msgspec.Struct):
    items: list[_PodOwners]


async def lease_name(
    api: KubernetesApi, namespace: str, base: str, pod_name: str, pod_template_hash: str = ""
) -> LeaseName:
    """The Lease of the ReplicaSet that `pod_name` belongs to; plain `base` for a pod of none.

    Reads the pod with the `list` verb, which the endpoint watch needs anyway. Where that fails, the hash
    that the downward API gave decides (`metadata.labels['pod-template-hash']`), and the Lease has no owner.
    """
    try:
        params = {"fieldSelector": f"metadata.name={pod_name}"}
        answer = await api.request("GET", f"/api/v1/namespaces/{namespace}/pods", params)
        pods = msgspec.json.decode(answer.body, type=_PodList).items if answer.ok else []
    except (ApiUnreachableError, AnswerTooLargeError, msgspec.MsgspecError):
        pods = []
    meta = pods[0].metadata if pods else _PodMeta()
    digest = (meta.labels or {}).get("pod-template-hash") or pod_template_hash
    if not digest:
        return LeaseName(base)
    for owner in meta.owner_references or ():
        if owner.get("kind") == "ReplicaSet":
            return LeaseName(_joined(base, digest), {key: owner.get(key) for key in OWNER_KEYS})
    return LeaseName(_joined(base, digest))


def _joined(base: str, digest: str) -> str:
    return f"{base[: NAME_LENGTH_MAX - len(digest) - 1]}-{digest}"


def identity(pod_name: str) -> str:
    """Unique to this process: a container that restarted in the same pod is another candidate."""
    return f"{pod_name}_{uuid.uuid4()}"


class LeaseElection:
    """One candidate. `run()` until cancelled, or until `release()` is done."""

    def __init__(
        self,
        api: KubernetesApi,
        *,
        namespace: str,
        lease: LeaseName,
        identity: str,
        on_change: Callable[[bool], None],
        log: LogCall,
        rng: Rng,
        timing: LeaseTiming | None = None,
        clock: Callable[[], float] | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`on_change(is_leader)` is called on each change, on the event loop. `api` stays the caller's."""
        self.machine = Election(identity, rng, timing=timing)
        self._api = api
        self._path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._namespace = namespace
        self._lease = lease
        self._on_change = on_change
        self._log = log
        self._clock = clock
        self._wall = wall
        self._wake = asyncio.Event()
        self._released = asyncio.Event()
        self._running = False
        self._told_leader = False
        self._told_health = Health.STARTING
        self._holder: str | None = None
        self._fresh_credentials = False

    @property
    def is_leader(self) -> bool:
        """We serve."""
        return self.machine.is_leader

    async def run(self) -> None:
        """Take part. Returns after `release()`. Cancelled, it leaves the lease as it is, like a crash."""
        self._running = True
        try:
            while True:
                action = self.machine.next_action(self._now(), self._wall())
                if action is None:
                    return
                if isinstance(action, LeaseWait):
                    await self._sleep(action.until_seconds - self._now())
                else:
                    await self._do(action)
                self._tell()
        finally:
            self._running = False
            self._released.set()
            self._tell()

    async def release(self) -> None:
        """Give the lease up now; returns when that is done, or could not be done within a few seconds."""
        self.machine.release()
        self._wake.set()
        if self._running:
            await self._released.wait()

    async def _sleep(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._wake.wait(), max(0.0, seconds))
        except TimeoutError:
            pass

    async def _do(self, action: Read | Write) -> None:
        try:
            answer = await (self._read() if isinstance(action, Read) else self._write(action))
        except (ApiUnreachableError, AnswerTooLargeError) as error:
            self._failed(Fault(str(error)))
            return
        record = read_lease(answer.body) if answer.ok else None
        if record is not None:
            self._tell_health(Health.OK, "")
            (self.machine.seen if isinstance(action, Read) else self.machine.written)(record, self._now())
        elif answer.status == 404 and isinstance(action, Read):
            self._tell_health(Health.OK, "")
            self.machine.absent(self._now())
        elif answer.status in (404, 409):
            self.machine.conflict(self._now())
        else:
            self._failed(answer.fault)

    async def _read(self) -> ApiAnswer:
        return await self._request("GET", f"{self._path}/{self._lease.name}", None)

    async def _write(self, action: Write) -> ApiAnswer:
        metadata: dict[str, Any] = {"name": self._lease.name, "namespace": self._namespace}
        if self._lease.owner is not None:
            metadata["ownerReferences"] = [dict(self._lease.owner)]
        body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": action.spec}
        if action.resource_version is None:
            return await self._request("POST", self._path, body)
        metadata["resourceVersion"] = action.resource_version
        return await self._request("PUT", f"{self._path}/{self._lease.name}", body)

    async def _request(self, method: str, path: str, body: Any) -> ApiAnswer:
        fresh, self._fresh_credentials = self._fresh_credentials, False
        answer = await self._api.request(
            method, path, body=body, fresh_credentials=fresh, timeout_seconds=REQUEST_SECONDS
        )
        self._fresh_credentials = answer.status == 401
        return answer

    def _failed(self, fault: Fault) -> None:
        self.machine.failed(self._now())
        self._tell_health(fault.health, fault.detail)

    # Saying so

    def _tell(self) -> None:
        leader = self.machine.is_leader
        if leader is not self._told_leader:
            self._told_leader = leader
            self._log("info", f"lease {self._lease.name}: {'leading' if leader else 'not leading'}")
            self._on_change(leader)
        if self.machine.holder != self._holder:
            self._holder = self.machine.holder
            self._log("info", f"lease {self._lease.name}: held by {self._holder or 'nobody'}")

    def _tell_health(self, health: Health, detail: str) -> None:
        if health is self._told_health:
            return
        self._told_health = health
        if health is Health.OK:
            self._log("info", f"lease {self._lease.name}: in contact with the API server")
            return
        kept = "leading until another holder is seen" if self.machine.role is LeaseRole.LEADER else "not leading"
        step = ". Give the service account get, create and update on leases" if health is Health.FORBIDDEN else ""
        self._log("warning", f"lease {self._lease.name}: {health}: {detail}; {kept}{step}")

    def _now(self) -> float:
        return self._clock() if self._clock is not None else asyncio.get_running_loop().time()
