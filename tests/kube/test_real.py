"""The source against a real kube-apiserver and etcd, with exactly the rights the chart's Role gives."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import yaml

from picker.edge.kubernetes.credentials import Credentials
from picker.edge.kubernetes.source import PoolTarget, SelectorTarget
from picker.kubernetes.watch_messages import Timing
from tests.kube.cluster import CRDS, ApiFailure, TestCluster
from tests.kube.kubelet import Namespace
from tests.kube.relay import Relay, relay
from tests.kube.rig import Rig, running, until, with_loop

REAL = Timing()
WATCHED = [
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]},
    {
        "apiGroups": ["inference.networking.k8s.io"],
        "resources": ["inferencepools"],
        "resourceNames": ["p"],
        "verbs": ["list", "watch"],
    },
    {
        "apiGroups": ["inference.networking.x-k8s.io", "llm-d.ai"],
        "resources": ["inferenceobjectives"],
        "verbs": ["list", "watch"],
    },
]


@contextlib.asynccontextmanager
async def following(
    cluster: TestCluster,
    folder: Path,
    *,
    rules: list[dict[str, Any]] | None = None,
    target: PoolTarget | SelectorTarget | None = None,
    objectives: bool = False,
) -> AsyncIterator[tuple[Namespace, Rig]]:
    """A source as the user `picker`, in a new namespace, for the pool `p` that does not exist yet."""
    namespace = await Namespace.create(cluster)
    await namespace.allow("picker", WATCHED if rules is None else rules)
    kubeconfig = cluster.kubeconfig(folder / "kubeconfig", cluster.token("picker"))
    at = target or PoolTarget("p", namespace.name)
    if isinstance(at, SelectorTarget):
        at = SelectorTarget(at.match_labels, at.target_ports, namespace.name)
    credentials = Credentials(kubeconfig=str(kubeconfig))
    async with running(credentials, at, timing=REAL, objectives=objectives) as rig:
        yield namespace, rig


@with_loop
async def test_a_pod_serves_while_ready_and_not_terminating(cluster: TestCluster, tmp_path: Path) -> None:
    async with following(cluster, tmp_path) as (ns, rig):
        await until(lambda: rig.said("does not exist"))
        assert not rig.source.synced
        await ns.create_pool("p")
        await until(lambda: rig.source.synced)
        made = await ns.create_pod("a")
        await ns.set_ready("a", ip="127.0.1.1")
        await until(lambda: rig.addresses == ["127.0.1.1:8000"])
        assert rig.lists[-1][0].uid == f"{made['metadata']['uid']}/8000"
        await ns.set_ready("a", ready=False)
        await until(lambda: rig.addresses == [])
        await ns.set_ready("a")
        await until(lambda: rig.addresses == ["127.0.1.1:8000"])
        await ns.terminate("a")
        await until(lambda: rig.addresses == [])
        thing = await ns.call("GET", f"{ns.pods}/a")
        assert thing["status"]["conditions"][-1]["status"] == "True"
        await ns.remove("a")
        again = await ns.ready_pod("a", ip="127.0.1.2")
        await until(lambda: rig.addresses == ["127.0.1.2:8000"])
        assert again["metadata"]["uid"] != made["metadata"]["uid"]


@with_loop
async def test_the_pool_is_edited_deleted_and_created_again(cluster: TestCluster, tmp_path: Path) -> None:
    async with following(cluster, tmp_path) as (ns, rig):
        await ns.ready_pod("a", ip="127.0.1.1")
        await ns.ready_pod("b", ip="127.0.1.2", labels={"app": "vllm", "tier": "gold"})
        await ns.create_pool("p")
        await until(lambda: rig.names == ["a", "b"])
        await ns.edit_pool("p", {"targetPorts": [{"number": 8000}, {"number": 8001}]})
        await until(lambda: rig.names == ["a-rank-0", "a-rank-1", "b-rank-0", "b-rank-1"])
        await until(lambda: rig.said("declares the target port 8001"))
        await ns.edit_pool("p", {"selector": {"matchLabels": {"app": None, "tier": "gold"}}})
        await until(lambda: rig.names == ["b-rank-0", "b-rank-1"])
        await ns.ready_pod("c", ip="127.0.1.3", labels={"app": "sglang", "tier": "gold"})
        await until(lambda: "c-rank-0" in rig.names)
        await ns.delete_pool("p")
        await until(lambda: rig.names == [])
        await ns.create_pool("p")
        await until(lambda: rig.names == ["a", "b"])
        assert len(rig.synced_after) == 1


@with_loop
async def test_a_label_that_stops_matching_takes_the_pod_out(cluster: TestCluster, tmp_path: Path) -> None:
    async with following(cluster, tmp_path) as (ns, rig):
        await ns.create_pool("p")
        await ns.ready_pod("a")
        await until(lambda: rig.names == ["a"])
        patch = {"metadata": {"labels": {"app": "else"}}}
        await ns.call("PATCH", f"{ns.pods}/a", patch, content_type="application/merge-patch+json")
        await until(lambda: rig.names == [])


@with_loop
async def test_without_the_crd_a_selector_and_ports_do(cluster: TestCluster, tmp_path: Path) -> None:
    target = SelectorTarget({"app": "vllm"}, (8000, 9000), "")
    async with following(cluster, tmp_path, target=target, rules=WATCHED[:1]) as (ns, rig):
        await until(lambda: rig.source.synced)
        assert rig.lists == [[]]
        await ns.ready_pod("a", ip="fd00::1")
        await until(lambda: rig.addresses == ["[fd00::1]:8000", "[fd00::1]:9000"])


@contextlib.asynccontextmanager
async def through(
    cluster: TestCluster, folder: Path, timing: Timing = REAL
) -> AsyncIterator[tuple[Namespace, Rig, Relay]]:
    """A source whose network to the API server can fail; one ready pod `a`."""
    namespace = await Namespace.create(cluster)
    await namespace.allow("picker", WATCHED[:1])
    await namespace.ready_pod("a")
    async with relay(cluster.port) as network:
        path = cluster.kubeconfig(folder / "kubeconfig", cluster.token("picker"))
        path.write_text(path.read_text().replace(f":{cluster.port}", f":{network.port}"))
        target = SelectorTarget({"app": "vllm"}, (8000,), namespace.name)
        async with running(Credentials(kubeconfig=str(path)), target, timing=timing) as rig:
            await until(lambda: rig.names == ["a"] and rig.source.state().watches_total == 1)
            yield namespace, rig, network


@with_loop
async def test_410_for_real_by_a_restart_while_the_watch_could_not_follow(cluster: TestCluster, tmp_path: Path) -> None:
    async with through(cluster, tmp_path) as (ns, rig, network):
        network.freeze()
        await ns.ready_pod("b", ip="127.0.1.2")
        await ns.remove("a")
        await asyncio.to_thread(cluster.restart_api_server)
        assert rig.names == ["a"]
        lists = rig.source.state().lists_total
        network.reset()
        network.thaw()
        await until(lambda: rig.names == ["b"], 30)
        assert rig.said("pods: expired: the watch ended: too old resource version") == 1
        assert rig.source.state().lists_total == lists + 1


@with_loop
async def test_a_black_hole_is_noticed_by_the_silence(cluster: TestCluster, tmp_path: Path) -> None:
    async with through(cluster, tmp_path, Timing(idle_seconds=1.0)) as (ns, rig, network):
        network.freeze()
        await ns.remove("a")
        await until(lambda: rig.said("no answer in time"))
        assert (rig.names, rig.source.synced) == (["a"], True)
        network.thaw()
        await until(lambda: rig.names == [], 30)


@with_loop
async def test_a_crash_of_the_api_server_changes_nothing_and_afterwards_all_is_followed(
    cluster: TestCluster, tmp_path: Path
) -> None:
    async with through(cluster, tmp_path) as (ns, rig, _):
        await asyncio.to_thread(cluster.kill_api_server)
        await until(lambda: not rig.source.api_available)
        assert (rig.names, rig.source.synced) == (["a"], True)
        await asyncio.to_thread(cluster.start_api_server)
        await ns.ready_pod("b", ip="127.0.1.2")
        await ns.set_ready("a", ready=False)
        await until(lambda: rig.names == ["b"], 30)
        await until(lambda: rig.source.api_available, 30)


# Rights


@with_loop
async def test_the_charts_role_is_enough_and_no_more_than_needed(cluster: TestCluster, tmp_path: Path) -> None:
    with contextlib.suppress(ApiFailure):  # another test may have been first
        await asyncio.to_thread(cluster.apply_crd, CRDS / "inferenceobjectives.yaml")
    async with following(cluster, tmp_path, objectives=True) as (ns, rig):
        await ns.create_pool("p")
        await ns.ready_pod("a")
        await until(lambda: rig.names == ["a"])
        body = {
            "apiVersion": "inference.networking.x-k8s.io/v1alpha2",
            "kind": "InferenceObjective",
            "metadata": {"name": "batch"},
            "spec": {"priority": -10, "poolRef": {"name": "p"}},
        }
        path = f"/apis/inference.networking.x-k8s.io/v1alpha2/namespaces/{ns.name}/inferenceobjectives"
        await ns.call("POST", path, body)
        await until(lambda: rig.objectives and rig.objectives[-1] == {"batch": -10})
        await ns.call("DELETE", f"{path}/batch")
        await until(lambda: rig.objectives[-1] == {})
        assert rig.said("forbidden") == 0
        await _refused(ns, "PATCH", f"{ns.pods}/a", {"metadata": {"labels": {"x": "y"}}})
        await _refused(ns, "DELETE", f"{ns.pools}/p")


async def _refused(namespace: Namespace, method: str, path: str, body: Any = None) -> None:
    token = namespace.cluster.token("picker")
    try:
        await namespace.call(method, path, body, token=token, content_type="application/merge-patch+json")
    except ApiFailure as failure:
        assert failure.status == 403
    else:
        raise AssertionError(f"{method} {path} was allowed")


@with_loop
async def test_a_missing_right_is_said_with_the_next_step_and_followed_when_given(
    cluster: TestCluster, tmp_path: Path
) -> None:
    async with following(cluster, tmp_path, rules=WATCHED[1:]) as (ns, rig):
        await ns.create_pool("p")
        await ns.ready_pod("a")
        await until(lambda: rig.said("pods: forbidden") and rig.said("Give the service account get, list and watch"))
        assert not rig.source.synced
        path = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{ns.name}/roles/picker"
        await ns.call("PUT", path, {"metadata": {"name": "picker"}, "rules": WATCHED})
        await until(lambda: rig.names == ["a"], 20)


@with_loop
async def test_a_right_that_is_taken_away_leaves_the_last_state(cluster: TestCluster, tmp_path: Path) -> None:
    async with following(cluster, tmp_path) as (ns, rig):
        await ns.create_pool("p")
        await ns.ready_pod("a")
        await until(lambda: rig.names == ["a"])
        path = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{ns.name}/roles/picker"
        await ns.call("PUT", path, {"metadata": {"name": "picker"}, "rules": []})
        await asyncio.to_thread(cluster.restart_api_server)  # an open watch is not cut by a Role's edit
        await until(lambda: rig.said("forbidden"), 30)
        assert (rig.names, rig.source.synced, rig.source.api_available) == (["a"], True, False)


# Credentials of real shapes


@with_loop
async def test_a_real_service_account_token_in_cluster(cluster: TestCluster, tmp_path: Path) -> None:
    namespace = await Namespace.create(cluster)
    await namespace.call("POST", f"/api/v1/namespaces/{namespace.name}/serviceaccounts", {"metadata": {"name": "epp"}})
    user = f"system:serviceaccount:{namespace.name}:epp"
    await namespace.allow(user, WATCHED)
    token = await asyncio.to_thread(cluster.service_account_token, namespace.name, "epp")
    (tmp_path / "token").write_text(token)
    (tmp_path / "ca.crt").write_bytes(cluster.ca_file.read_bytes())
    environ = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(cluster.port)}
    credentials = Credentials(service_account=tmp_path, environ=environ)
    at = PoolTarget("p", namespace.name)
    async with running(credentials, at, timing=REAL, check_files_seconds=0) as rig:
        await namespace.create_pool("p")
        await namespace.ready_pod("a")
        await until(lambda: rig.names == ["a"])
        (tmp_path / "token").write_text("nonsense")
        await asyncio.to_thread(cluster.restart_api_server)
        await until(lambda: rig.said("unauthorized"), 30)
        assert rig.names == ["a"]
        (tmp_path / "token").write_text(await asyncio.to_thread(cluster.service_account_token, namespace.name, "epp"))
        await namespace.remove("a")
        await until(lambda: rig.names == [], 60)


@with_loop
async def test_a_kubeconfig_with_its_ca_inside(cluster: TestCluster, tmp_path: Path) -> None:
    import base64

    namespace = await Namespace.create(cluster)
    path = cluster.kubeconfig(tmp_path / "kubeconfig")
    config = yaml.safe_load(path.read_text())
    inside = {
        "server": cluster.url,
        "certificate-authority-data": base64.b64encode(cluster.ca_file.read_bytes()).decode(),
    }
    config["clusters"][0]["cluster"] = inside
    path.write_text(yaml.safe_dump(config))
    target = SelectorTarget({"app": "vllm"}, (8000,), namespace.name)
    async with running(Credentials(kubeconfig=str(path)), target, timing=REAL) as rig:
        await until(lambda: rig.source.synced)
