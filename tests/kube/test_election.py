"""Leader election by two real processes on a real API server, one of them killed in each way there is."""

import asyncio
import contextlib
import random
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from picker.edge.kubernetes.api import KubernetesApi
from picker.edge.kubernetes.credentials import Credentials
from picker.edge.kubernetes.lease import LeaseElection, LeaseName, identity, lease_name
from picker.lab.child import dying_with_us
from tests.kube.cluster import ApiFailure, TestCluster
from tests.kube.kubelet import Namespace
from tests.kube.relay import relay
from tests.kube.rig import until, with_loop

REPOSITORY = Path(__file__).resolve().parents[2]
LEASES = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "create", "update"]}
LIST_PODS = {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}
TAKE_OVER_SECONDS_MAX = 5.0


class Participant:
    """One process, and what it said."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.said: list[str] = []
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            self.said.append(line.decode().strip())

    async def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()
        await self._reading


@contextlib.asynccontextmanager
async def participants(namespace: Namespace, folder: Path, *names: str) -> AsyncIterator[list[Participant]]:
    """Started one after the other, so that the first leads."""
    await namespace.allow("picker", [LEASES])
    kubeconfig = namespace.cluster.kubeconfig(folder / "kubeconfig", namespace.cluster.token("picker"))
    running: list[Participant] = []
    try:
        for name in names:
            command = [sys.executable, "-m", "tests.kube.participant", str(kubeconfig), namespace.name, "epp", name]
            process = await asyncio.create_subprocess_exec(
                *dying_with_us(command),
                cwd=REPOSITORY,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
            )
            running.append(Participant(process))
            await until(lambda: f"lease epp: held by {names[0]}" in running[-1].said, 20)
        yield running
    finally:
        for each in running:
            await each.end()


async def lease(namespace: Namespace) -> dict[str, Any]:
    path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace.name}/leases/epp"
    answer: dict[str, Any] = await namespace.call("GET", path)
    return answer["spec"]


@with_loop
async def test_kill_9_of_the_leader_is_followed_within_five_seconds(cluster: TestCluster, tmp_path: Path) -> None:
    namespace = await Namespace.create(cluster)
    async with participants(namespace, tmp_path, "one", "two") as (one, two):
        await asyncio.sleep(1.0)
        one.process.kill()
        await until(lambda: "leading" in two.said, TAKE_OVER_SECONDS_MAX)
        spec = await lease(namespace)
        assert (spec["holderIdentity"], spec["leaseTransitions"], spec["leaseDurationSeconds"]) == ("two", 1, 3)


@with_loop
async def test_sigterm_hands_over_at_once(cluster: TestCluster, tmp_path: Path) -> None:
    namespace = await Namespace.create(cluster)
    async with participants(namespace, tmp_path, "one", "two") as (one, two):
        one.process.terminate()
        await until(lambda: "leading" in two.said, 2.0)
        assert await one.process.wait() == 0
        await until(lambda: one.said[-2:] == ["following", "lease epp: held by nobody"])


@with_loop
async def test_a_leader_that_is_killed_alone_comes_back_under_another_identity(
    cluster: TestCluster, tmp_path: Path
) -> None:
    namespace = await Namespace.create(cluster)
    assert identity("pod-1") != identity("pod-1")
    async with participants(namespace, tmp_path, "one_first") as (one,):
        one.process.kill()
        async with in_process(cluster, namespace, tmp_path, "one_second") as (election, changes):
            await until(lambda: election.is_leader, TAKE_OVER_SECONDS_MAX)
            assert changes == [True]


@contextlib.asynccontextmanager
async def in_process(
    cluster: TestCluster, namespace: Namespace, folder: Path, name: str, port: int | None = None
) -> AsyncIterator[tuple[LeaseElection, list[bool]]]:
    """A participant of this process, whose API server is at `port`."""
    with contextlib.suppress(ApiFailure):  # bound already
        await namespace.allow("picker", [LEASES])
    path = cluster.kubeconfig(folder / f"kubeconfig-{name}", cluster.token("picker"))
    path.write_text(path.read_text().replace(f":{cluster.port}", f":{port or cluster.port}"))
    changes: list[bool] = []
    async with KubernetesApi(Credentials(kubeconfig=str(path))) as api:
        election = LeaseElection(
            api,
            namespace=namespace.name,
            lease=LeaseName("epp"),
            identity=name,
            on_change=changes.append,
            log=lambda level, message, /, **_: None,
            rng=random.Random(name),
        )
        task = asyncio.create_task(election.run())
        try:
            yield election, changes
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


@with_loop
async def test_a_cut_off_leader_leads_until_it_sees_the_other(cluster: TestCluster, tmp_path: Path) -> None:
    namespace = await Namespace.create(cluster)
    async with (
        relay(cluster.port) as network,
        in_process(cluster, namespace, tmp_path, "one", network.port) as (one, _),
    ):
        await until(lambda: one.is_leader)
        async with in_process(cluster, namespace, tmp_path, "two") as (two, _):
            await until(lambda: two.machine.holder == "one")
            network.freeze()
            await until(lambda: two.is_leader, TAKE_OVER_SECONDS_MAX)
            assert one.is_leader
            network.reset()
            network.thaw()
            await until(lambda: not one.is_leader)
            assert two.is_leader


@with_loop
async def test_an_outage_of_the_api_server_moves_nothing(cluster: TestCluster, tmp_path: Path) -> None:
    namespace = await Namespace.create(cluster)
    async with in_process(cluster, namespace, tmp_path, "one") as (one, one_changes):
        await until(lambda: one.is_leader)
        async with in_process(cluster, namespace, tmp_path, "two") as (two, two_changes):
            await until(lambda: two.machine.holder == "one")
            await asyncio.to_thread(cluster.kill_api_server)
            await until(lambda: one.machine.failures > 2 and two.machine.failures > 2)
            await asyncio.sleep(3.5)  # longer than the lease
            await asyncio.to_thread(cluster.start_api_server)
            await until(lambda: one.machine.failures == 0 and two.machine.failures == 0, 30)
            await asyncio.sleep(1.5)
            assert (one_changes, two_changes) == ([True], [])


@with_loop
async def test_without_the_right_nobody_leads_and_it_is_said(cluster: TestCluster, tmp_path: Path) -> None:
    namespace = await Namespace.create(cluster)
    kubeconfig = cluster.kubeconfig(tmp_path / "kubeconfig", cluster.token("other"))
    words: list[str] = []
    async with KubernetesApi(Credentials(kubeconfig=str(kubeconfig))) as api:
        election = LeaseElection(
            api,
            namespace=namespace.name,
            lease=LeaseName("epp"),
            identity="x",
            on_change=lambda _: None,
            log=lambda level, message, /, **_: words.append(message),
            rng=random.Random(1),
        )
        task = asyncio.create_task(election.run())
        await until(lambda: election.machine.failures > 2)
        await election.release()
        await task
    assert len(words) == 1
    assert "get, create and update on leases" in words[0]


@with_loop
async def test_the_lease_is_named_after_and_owned_by_the_replica_set(cluster: TestCluster, tmp_path: Path) -> None:
    namespace = await Namespace.create(cluster)
    await namespace.allow("picker", [LEASES, LIST_PODS])
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "epp-7d4b9c", "uid": "1-2-3", "controller": True}
    body = {
        "metadata": {
            "name": "epp-7d4b9c-x2x7q",
            "labels": {"pod-template-hash": "7d4b9c"},
            "ownerReferences": [owner],
        },
        "spec": {"containers": [{"name": "m", "image": "none"}]},
    }
    await namespace.call("POST", namespace.pods, body)
    kubeconfig = cluster.kubeconfig(tmp_path / "kubeconfig", cluster.token("picker"))
    async with KubernetesApi(Credentials(kubeconfig=str(kubeconfig))) as api:
        found = await lease_name(api, namespace.name, "epp", "epp-7d4b9c-x2x7q")
        assert found.name == "epp-7d4b9c"
        assert found.owner == {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "epp-7d4b9c", "uid": "1-2-3"}
        assert await lease_name(api, namespace.name, "epp", "gone", "7d4b9c") == LeaseName("epp-7d4b9c")
        assert await lease_name(api, namespace.name, "epp", "gone") == LeaseName("epp")
        election = LeaseElection(
            api,
            namespace=namespace.name,
            lease=found,
            identity="x",
            on_change=lambda _: None,
            log=lambda level, message, /, **_: None,
            rng=random.Random(1),
        )
        task = asyncio.create_task(election.run())
        await until(lambda: election.is_leader)
        path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace.name}/leases/epp-7d4b9c"
        made = await namespace.call("GET", path)
        assert made["metadata"]["ownerReferences"] == [found.owner]
        await election.release()
        await task
        assert "holderIdentity" not in (await namespace.call("GET", path))["spec"]
