"""What a kubelet and controllers would do, by hand: pods that become Ready, terminate and go. One namespace each."""

import asyncio
import uuid
from typing import Any

from tests.kube.cluster import TestCluster

STRATEGIC = "application/strategic-merge-patch+json"
MERGE = "application/merge-patch+json"


class Namespace:
    """A namespace of a real cluster; every call is made in a thread, so the loop under test runs on."""

    def __init__(self, cluster: TestCluster, name: str) -> None:
        self.cluster = cluster
        self.name = name

    @classmethod
    async def create(cls, cluster: TestCluster) -> "Namespace":
        made = cls(cluster, f"t-{uuid.uuid4().hex[:10]}")
        await made.call("POST", "/api/v1/namespaces", {"metadata": {"name": made.name}})
        return made

    async def call(self, method: str, path: str, body: Any = None, **arguments: Any) -> Any:
        return await asyncio.to_thread(self.cluster.request, method, path, body, **arguments)

    @property
    def pods(self) -> str:
        return f"/api/v1/namespaces/{self.name}/pods"

    @property
    def pools(self) -> str:
        return f"/apis/inference.networking.k8s.io/v1/namespaces/{self.name}/inferencepools"

    async def create_pod(self, name: str, labels: dict[str, str] | None = None, port: int = 8000) -> dict[str, Any]:
        """Scheduled, not running."""
        container = {"name": "m", "image": "none", "ports": [{"containerPort": port}]}
        body = {
            "metadata": {"name": name, "labels": labels or {"app": "vllm"}},
            "spec": {"nodeName": "n1", "containers": [container]},
        }
        made: dict[str, Any] = await self.call("POST", self.pods, body)
        return made

    async def set_ready(self, name: str, ready: bool = True, ip: str = "127.0.1.1") -> None:
        """As the kubelet reports it."""
        status = {
            "phase": "Running",
            "podIP": ip,
            "podIPs": [{"ip": ip}],
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
        }
        await self.call("PATCH", f"{self.pods}/{name}/status", {"status": status}, content_type=STRATEGIC)

    async def ready_pod(self, name: str, ip: str = "127.0.1.1", labels: dict[str, str] | None = None) -> dict[str, Any]:
        made = await self.create_pod(name, labels)
        await self.set_ready(name, ip=ip)
        return made

    async def terminate(self, name: str) -> None:
        """deletionTimestamp is set; Ready stays True, as while a server drains."""
        await self.call("DELETE", f"{self.pods}/{name}")

    async def remove(self, name: str) -> None:
        """Gone at once."""
        await self.call("DELETE", f"{self.pods}/{name}?gracePeriodSeconds=0")

    async def create_pool(
        self, name: str, labels: dict[str, str] | None = None, ports: tuple[int, ...] = (8000,)
    ) -> None:
        body = {
            "apiVersion": "inference.networking.k8s.io/v1",
            "kind": "InferencePool",
            "metadata": {"name": name},
            "spec": {
                "selector": {"matchLabels": labels or {"app": "vllm"}},
                "targetPorts": [{"number": port} for port in ports],
                "endpointPickerRef": {"name": "epp", "port": {"number": 9002}},
            },
        }
        await self.call("POST", self.pools, body)

    async def edit_pool(self, name: str, spec: dict[str, Any]) -> None:
        await self.call("PATCH", f"{self.pools}/{name}", {"spec": spec}, content_type=MERGE)

    async def delete_pool(self, name: str) -> None:
        await self.call("DELETE", f"{self.pools}/{name}")

    async def allow(self, user: str, rules: list[dict[str, Any]]) -> None:
        """A Role with exactly these rules, bound to a user."""
        base = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{self.name}"
        await self.call("POST", f"{base}/roles", {"metadata": {"name": user}, "rules": rules})
        subject = {"kind": "User", "name": user, "apiGroup": "rbac.authorization.k8s.io"}
        role = {"kind": "Role", "name": user, "apiGroup": "rbac.authorization.k8s.io"}
        body = {"metadata": {"name": user}, "subjects": [subject], "roleRef": role}
        await self.call("POST", f"{base}/rolebindings", body)
