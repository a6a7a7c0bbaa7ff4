"""A picker in a cluster: started with the rights of the chart's Role, its model servers as pods on loopback."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import yaml

from picker.lab.envoy import EnvoyConfig, EnvoyProcess
from picker.lab.model_server import SimulatedServer
from tests.envoy.picker_process import PickerProcess
from tests.kube.cluster import TestCluster
from tests.kube.kubelet import Namespace

MANIFESTS = Path(__file__).resolve().parents[2] / "deploy/examples/high-availability/manifests.yaml"


def chart_rules() -> tuple[str, list[dict[str, Any]]]:
    """The pool that the chart's Role names, and its rules, word for word (tests/deploy holds them to the chart)."""
    documents = [found for found in yaml.safe_load_all(MANIFESTS.read_text()) if found]
    (role,) = (found for found in documents if found["kind"] == "Role")
    (pool,) = (found for found in documents if found["kind"] == "InferencePool")
    return pool["metadata"]["name"], role["rules"]


POOL, RULES = chart_rules()


class Cluster:
    """A namespace with the chart's Role bound to the user `picker`."""

    def __init__(self, namespace: Namespace, folder: Path) -> None:
        self.namespace = namespace
        self._folder = folder

    @classmethod
    async def create(cls, cluster: TestCluster, folder: Path) -> "Cluster":
        namespace = await Namespace.create(cluster)
        await namespace.allow("picker", RULES)
        return cls(namespace, folder)

    def kubeconfig(self, at: int | None) -> Path:
        """For the user `picker`; `at` is the API server's port when it is not its own."""
        server = self.namespace.cluster
        path = self._folder / f"kubeconfig-{at or server.port}"
        server.kubeconfig(path, server.token("picker"), self.namespace.name)
        path.write_text(path.read_text().replace(f":{server.port}", f":{at or server.port}"))
        return path

    @asynccontextmanager
    async def picker(
        self, *flags: str, pod_template_hash: str = "1", at: int | None = None, config: str = "", insecure: bool = True
    ) -> AsyncIterator[PickerProcess]:
        """`picker serve --pool` as a process of its own; the namespace is the kubeconfig's."""
        env = {
            "KUBECONFIG": str(self.kubeconfig(at)),
            "POD_NAME": "not-a-pod",
            "POD_TEMPLATE_HASH": pod_template_hash,
        }
        flags = ("--pool", POOL, *flags)
        made = await asyncio.to_thread(lambda: PickerProcess((), config, insecure=insecure, flags=flags, env=env))
        try:
            yield made
        finally:
            await asyncio.to_thread(made.close)


async def serving(picker: PickerProcess) -> None:
    """It is ready to be asked."""
    await until_true(lambda: picker.health("readiness", picker.health_address) == "SERVING", 20)


async def until_true(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """As `until`, for a condition that waits for an answer: asked in a thread, so that the loop goes on."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while not await asyncio.to_thread(condition):
        assert loop.time() < deadline, "did not happen"
        await asyncio.sleep(0.01)


def addresses(picker: PickerProcess) -> set[str]:
    """The endpoints that the picker's telemetry shows."""
    name = "picker_endpoint_in_flight_requests{"
    shown = (line for line in picker.metrics() if line.startswith(name))
    return {line.partition('address="')[2].partition('"')[0] for line in shown}


async def knows(picker: PickerProcess, *wanted: str) -> None:
    """Until its endpoints are these."""
    await until_true(lambda: addresses(picker) == set(wanted))


@asynccontextmanager
async def envoy(config: EnvoyConfig | dict[str, Any]) -> AsyncIterator[EnvoyProcess]:
    """A real Envoy."""
    made = await asyncio.to_thread(EnvoyProcess, config)
    try:
        yield made
    finally:
        await asyncio.to_thread(made.stop)


@asynccontextmanager
async def model_servers(*where: tuple[str, int]) -> AsyncIterator[list[SimulatedServer]]:
    """Simulated model servers at these (host, port)."""
    made = [SimulatedServer(host=host, port=port) for host, port in where]
    try:
        for server in made:
            await server.start()
        yield made
    finally:
        for server in made:
            await server.stop()
