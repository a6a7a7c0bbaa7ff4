"""The source against an API server that misbehaves on command: what it keeps, how often it asks, how it comes back."""

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from picker.edge.kubernetes.credentials import Credentials
from picker.edge.kubernetes.source import PoolTarget, SelectorTarget
from picker.kubernetes.watch_messages import Timing
from tests.kube.cluster import write_ca, write_server_certificate
from tests.kube.rig import (
    NS,
    OBJECTIVES,
    OBJECTIVES_LLMD,
    PODS,
    POOLS,
    QUICK,
    Rig,
    pod,
    pool,
    running,
    until,
    with_loop,
    write_kubeconfig,
)
from tests.kube.scripted_api import Mood, ScriptedApi, scripted_api
from tests.kube.store import Store

POOL = PoolTarget("p", NS)
SELECTOR = SelectorTarget({"app": "vllm"}, (8000,), NS)
REAL = Timing()


@contextlib.asynccontextmanager
async def following(
    tmp_path: Path, target: PoolTarget | SelectorTarget = SELECTOR, **arguments: Any
) -> AsyncIterator[tuple[ScriptedApi, Rig]]:
    """A scripted server with one ready pod and a pool, and a synced source on it."""
    async with scripted_api() as api:
        api.stores = {PODS: Store(), POOLS: Store()}
        api.stores[PODS].put(pod("a"))
        api.stores[POOLS].put(pool())
        kubeconfig = write_kubeconfig(tmp_path / "kubeconfig", api.url, {"token": "t"})
        async with running(Credentials(kubeconfig=str(kubeconfig)), target, **arguments) as rig:
            await until(lambda: rig.source.synced and api.watches(PODS))
            yield api, rig


@with_loop
async def test_events_are_followed(tmp_path: Path) -> None:
    async with following(tmp_path, POOL) as (api, rig):
        assert (rig.names, rig.synced_after) == (["a"], [1])
        api.stores[PODS].put(pod("b", ip="10.0.0.2"))
        api.push()
        await until(lambda: rig.addresses == ["10.0.0.1:8000", "10.0.0.2:8000"])
        api.stores[PODS].put(pod("a", ready=False))
        api.push()
        await until(lambda: rig.names == ["b"])
        api.stores[PODS].delete("b")
        api.push()
        await until(lambda: rig.names == [])
        assert rig.synced_after == [1]
        assert {each.method for each in api.requests} == {"GET"}


@with_loop
async def test_a_pod_deleted_while_the_watch_was_broken_is_gone(tmp_path: Path) -> None:
    async with following(tmp_path) as (api, rig):
        api.drop_watches()
        api.stores[PODS].delete("a")
        await until(lambda: rig.names == [])


@pytest.mark.parametrize("mood", [Mood.GONE, Mood.GONE_EVENT])
@with_loop
async def test_410_lists_anew(tmp_path: Path, mood: Mood) -> None:
    async with following(tmp_path) as (api, rig):
        lists = len(api.lists(PODS))
        api.mood = mood
        api.stores[PODS].delete("a")
        api.stores[PODS].put(pod("b"))
        api.stores[PODS].compact()
        api.drop_watches()
        await until(lambda: rig.names == ["b"])
        assert len(api.lists(PODS)) > lists
        api.mood = Mood.FINE
        await until(lambda: rig.source.api_available)


@pytest.mark.parametrize("mood", [Mood.HTML_503, Mood.HTML_200, Mood.FORBIDDEN, Mood.RETRY_AFTER, Mood.SILENT])
@with_loop
async def test_an_api_server_that_gives_no_answer_changes_nothing_and_is_said(tmp_path: Path, mood: Mood) -> None:
    async with following(tmp_path) as (api, rig):
        api.mood = mood
        api.stores[PODS].delete("a")
        api.drop_watches()
        await until(lambda: rig.said("choosing from the last state"))
        assert not rig.source.api_available
        assert rig.names == ["a"]
        assert rig.source.synced
        api.mood = Mood.FINE
        await until(lambda: rig.names == [])
        await until(lambda: rig.source.api_available)


@pytest.mark.parametrize("mood", [Mood.CLOSE, Mood.HTML_503, Mood.HTML_200, Mood.GONE, Mood.GONE_EVENT, Mood.FORBIDDEN])
@with_loop
async def test_no_answer_makes_a_hot_loop(tmp_path: Path, mood: Mood) -> None:
    """With the real waits: their sum after n failures is n draws below 0.5, 1, 2, 4 s..."""
    async with following(tmp_path, timing=REAL) as (api, rig):
        before = len(api.requests)
        api.mood = mood
        api.drop_watches()
        await asyncio.sleep(2.0)
        assert 1 <= len(api.requests) - before <= 20
        assert rig.names == ["a"]


@with_loop
async def test_a_half_open_connection_is_given_up_after_the_idle_time(tmp_path: Path) -> None:
    async with following(tmp_path) as (api, rig):
        api.freeze()
        api.stores[PODS].delete("a")
        await until(lambda: rig.names == [])


@with_loop
async def test_a_watch_that_opens_and_never_says_anything_still_converges(tmp_path: Path) -> None:
    async with following(tmp_path) as (api, rig):
        api.mood = Mood.HALF_OPEN
        api.stores[PODS].delete("a")
        api.drop_watches()
        await until(lambda: rig.names == [])


@with_loop
async def test_bookmarks_move_the_place_to_resume_from(tmp_path: Path) -> None:
    async with following(tmp_path) as (api, rig):
        other = pod("other", labels={"app": "else"})
        for _ in range(3):
            api.stores[PODS].put(other)
        api.bookmark()
        contact = rig.source.last_contact_seconds
        await until(lambda: rig.source.last_contact_seconds != contact)
        api.stores[PODS].compact()
        lists = len(api.lists(PODS))
        api.drop_watches()
        await until(lambda: len(api.watches(PODS)) == 2)
        assert api.watches(PODS)[1].params["resourceVersion"] == api.stores[PODS].version
        assert len(api.lists(PODS)) == lists


@pytest.mark.parametrize("clean", [True, False])
@with_loop
async def test_half_an_event_is_none(tmp_path: Path, clean: bool) -> None:
    async with following(tmp_path) as (api, rig):
        store = api.stores[PODS]
        revision = store.revision
        store.put(pod("b"))
        line = store.since(revision)
        api.send_raw(line[: len(line) // 2])
        await asyncio.sleep(0.05)
        assert rig.names == ["a"]
        api.drop_watches(clean=clean)
        await until(lambda: rig.names == ["a", "b"])


@with_loop
async def test_objects_that_do_not_parse_are_skipped_counted_and_named(tmp_path: Path) -> None:
    async with following(tmp_path) as (api, rig):
        bad = pod("bad") | {"status": {"conditions": 7}}
        api.stores[PODS].put(bad)
        api.stores[PODS].put(pod("b"))
        api.push()
        await until(lambda: rig.names == ["a", "b"])
        assert rig.source.state().malformed_objects == 1
        await until(lambda: rig.said("pod bad is skipped"))


@with_loop
async def test_the_server_away_at_the_start_comes_later(tmp_path: Path) -> None:
    async with scripted_api() as api:
        api.stores = {PODS: Store()}
        api.stores[PODS].put(pod("a"))
        await api.stop()
        kubeconfig = write_kubeconfig(tmp_path / "kubeconfig", api.url, {"token": "t"})
        async with running(Credentials(kubeconfig=str(kubeconfig)), SELECTOR) as rig:
            await until(lambda: rig.said("unreachable"))
            assert (rig.lists, rig.source.synced, rig.source.api_available) == ([], False, False)
            await api.start()
            await until(lambda: rig.source.synced)
            assert rig.names == ["a"]


# Credentials


@with_loop
async def test_no_cluster_configuration_says_what_to_give(tmp_path: Path) -> None:
    async with running(Credentials(environ={"KUBECONFIG": str(tmp_path / "none")}), SELECTOR) as rig:
        await until(lambda: rig.said("set KUBECONFIG, or name the model servers with --endpoints"))


@with_loop
async def test_a_rotated_token_is_read_again_after_a_401(tmp_path: Path) -> None:
    async with scripted_api(token="old") as api:
        api.stores = {PODS: Store()}
        (tmp_path / "token").write_text("old\n")
        kubeconfig = write_kubeconfig(tmp_path / "kubeconfig", api.url, {"tokenFile": "token"})
        async with running(Credentials(kubeconfig=str(kubeconfig)), SELECTOR, check_files_seconds=3600) as rig:
            await until(lambda: rig.source.synced)
            (tmp_path / "token").write_text("new\n")
            api.token = "new"
            api.drop_watches()
            await until(lambda: api.requests[-1].headers["authorization"] == "Bearer new")
            api.stores[PODS].put(pod("b"))
            await until(lambda: len(api.watches(PODS)) > 1)
            api.push()
            await until(lambda: rig.names == ["b"])


@with_loop
async def test_a_rotated_token_is_noticed_before_it_is_refused(tmp_path: Path) -> None:
    async with scripted_api() as api:
        api.stores = {PODS: Store()}
        (tmp_path / "token").write_text("old")
        kubeconfig = write_kubeconfig(tmp_path / "kubeconfig", api.url, {"tokenFile": "token"})
        async with running(Credentials(kubeconfig=str(kubeconfig)), SELECTOR, check_files_seconds=0) as rig:
            await until(lambda: rig.source.synced)
            (tmp_path / "token").write_text("newer")
            api.drop_watches()
            await until(lambda: api.requests[-1].headers["authorization"] == "Bearer newer")


@with_loop
async def test_an_exec_plugin_is_run_again_after_a_401(tmp_path: Path) -> None:
    async with scripted_api(token="old") as api:
        api.stores = {PODS: Store()}
        credential = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential"}
        answer = tmp_path / "answer"
        answer.write_text(json.dumps(credential | {"status": {"token": "old"}}))
        plugin = {"apiVersion": "client.authentication.k8s.io/v1", "command": "cat", "args": [str(answer)]}
        kubeconfig = write_kubeconfig(tmp_path / "kubeconfig", api.url, {"exec": plugin})
        async with running(Credentials(kubeconfig=str(kubeconfig)), SELECTOR) as rig:
            await until(lambda: rig.source.synced)
            answer.write_text(json.dumps(credential | {"status": {"token": "new"}}))
            api.token = "new"
            api.drop_watches()
            await until(lambda: api.requests[-1].headers["authorization"] == "Bearer new")


@with_loop
async def test_in_cluster_token_and_ca_rotate_while_it_runs(tmp_path: Path) -> None:
    account = tmp_path / "serviceaccount"
    account.mkdir()
    (account / "token").write_text("old")
    async with scripted_api(token="old", tls=_new_ca(account)) as api:
        api.stores = {PODS: Store()}
        environ = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(api.port)}
        credentials = Credentials(service_account=account, environ=environ)
        async with running(credentials, SELECTOR, check_files_seconds=0) as rig:
            await until(lambda: rig.source.synced)
            await api.stop()
            (account / "token").write_text("new")
            api.token = "new"
            api._tls = _new_ca(account)
            api.stores[PODS].put(pod("b"))
            await api.start()
            await until(lambda: rig.names == ["b"])


@with_loop
async def test_a_server_of_another_ca_is_not_talked_to(tmp_path: Path) -> None:
    account = tmp_path / "serviceaccount"
    account.mkdir()
    (account / "token").write_text("secret")
    async with scripted_api(tls=_new_ca(account)) as api:
        _new_ca(account)
        environ = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(api.port)}
        async with running(Credentials(service_account=account, environ=environ), SELECTOR) as rig:
            await until(lambda: rig.said("certificate verify failed"))
            assert api.requests == []


def _new_ca(account: Path) -> ssl.SSLContext:
    """A CA whose certificate is the service account's, and a server's context signed by it."""
    key, certificate = write_ca(account)
    write_server_certificate(account, key, certificate)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(account / "tls.crt", account / "tls.key")
    return context


# The pool


@with_loop
async def test_a_pool_created_late_deleted_and_created_again(tmp_path: Path) -> None:
    async with scripted_api() as api:
        api.stores = {PODS: Store(), POOLS: Store()}
        api.stores[PODS].put(pod("a"))
        kubeconfig = write_kubeconfig(tmp_path / "kubeconfig", api.url, {"token": "t"})
        async with running(Credentials(kubeconfig=str(kubeconfig)), POOL) as rig:
            await until(lambda: rig.said("ns/p does not exist"))
            assert (rig.source.synced, rig.lists) == (False, [])
            await until(lambda: api.watches(POOLS))
            api.stores[POOLS].put(pool())
            api.push()
            await until(lambda: rig.source.synced)
            assert rig.names == ["a"]
            api.stores[POOLS].delete("p")
            api.push()
            await until(lambda: rig.names == [])
            assert rig.source.synced
            api.stores[POOLS].put(pool(uid="other"))
            api.push()
            await until(lambda: rig.names == ["a"])
            assert len(rig.synced_after) == 1


@with_loop
async def test_ports_and_selector_are_edited_live(tmp_path: Path) -> None:
    async with following(tmp_path, POOL) as (api, rig):
        api.stores[PODS].put(pod("gold", ip="10.0.0.9", labels={"app": "vllm", "tier": "gold"}))
        api.push()
        await until(lambda: rig.names == ["a", "gold"])
        api.stores[POOLS].put(pool(ports=(8000, 8001)))
        api.push()
        await until(lambda: rig.names == ["a-rank-0", "a-rank-1", "gold-rank-0", "gold-rank-1"])
        api.stores[POOLS].put(pool(ports=(8001,), labels={"tier": "gold"}))
        api.push()
        await until(lambda: rig.addresses == ["10.0.0.9:8001"])
        await until(lambda: api.watches(PODS)[-1].params["labelSelector"] == "tier=gold")


@with_loop
async def test_while_the_pods_of_a_new_selector_are_unknown_the_known_ones_that_match_serve(tmp_path: Path) -> None:
    async with following(tmp_path, POOL) as (api, rig):
        api.stores[PODS].put(pod("gold", ip="10.0.0.9", labels={"app": "vllm", "tier": "gold"}))
        api.push()
        await until(lambda: rig.names == ["a", "gold"])
        api.mood = Mood.SILENT
        api.stores[POOLS].put(pool(labels={"tier": "gold"}))
        api.push()
        await until(lambda: rig.names == ["gold"])


@with_loop
async def test_another_pool_of_the_namespace_is_not_ours(tmp_path: Path) -> None:
    async with following(tmp_path, POOL) as (api, rig):
        api.stores[POOLS].put(pool("another", uid="v", ports=(9999,)))
        api.stores[PODS].put(pod("b", ip="10.0.0.2"))
        api.push()
        await until(lambda: rig.names == ["a", "b"])
        assert rig.addresses == ["10.0.0.1:8000", "10.0.0.2:8000"]


@with_loop
async def test_a_pool_that_no_longer_parses_leaves_the_last_one_in_force(tmp_path: Path) -> None:
    async with following(tmp_path, POOL) as (api, rig):
        spoiled = pool()
        spoiled["spec"]["targetPorts"] = []
        api.stores[POOLS].put(spoiled)
        api.push()
        await until(lambda: rig.said("inferencepool p is skipped"))
        assert rig.names == ["a"]


# Objectives


def objective(name: str, priority: int, pool_name: str = "p") -> dict[str, Any]:
    spec = {"priority": priority, "poolRef": {"name": pool_name}}
    return {"metadata": {"name": name, "uid": f"uid-{name}", "namespace": NS}, "spec": spec}


@with_loop
async def test_without_the_crd_objectives_are_off_told_once_and_looked_for_again(tmp_path: Path) -> None:
    async with following(tmp_path, POOL, objectives=True) as (api, rig):
        await until(lambda: len(api.lists(OBJECTIVES)) > 2 and len(api.lists(OBJECTIVES_LLMD)) > 2)
        assert rig.said("InferenceObjective cannot be read") == 1
        assert rig.source.api_available
        api.stores[OBJECTIVES_LLMD] = Store()
        api.stores[OBJECTIVES_LLMD].put(objective("batch", -10))
        api.stores[OBJECTIVES_LLMD].put(objective("theirs", 5, pool_name="another"))
        await until(lambda: rig.objectives == [{"batch": -10}])
        assert rig.said("following InferenceObjective") == 1


@with_loop
async def test_an_objective_that_names_the_pool_as_it_was_called_before_counts_and_a_strange_one_is_told(
    tmp_path: Path,
) -> None:
    async with following(tmp_path, POOL, objectives=True) as (api, rig):
        api.stores[OBJECTIVES] = Store()
        store = api.stores[OBJECTIVES]
        for name, spec in {
            "alpha": {"priority": -1, "poolRef": {"name": "p", "group": "inference.networking.x-k8s.io"}},
            "several": {"priority": -2, "poolRefs": [{"name": "other"}, {"name": "p"}]},
            "strange": {"priority": -3, "poolRef": {"name": "p", "group": "example.com"}},
            "nobodys": {"priority": -4},
            "theirs": {"priority": -5, "poolRef": {"name": "other", "group": "example.com"}},
        }.items():
            store.put(objective(name, 0) | {"spec": spec})
        await until(lambda: rig.objectives and rig.objectives[-1] == {"alpha": -1, "several": -2})
        await until(lambda: rig.said("InferenceObjective strange is not followed"))
        assert rig.said("'example.com'") == 1
        assert rig.said("InferenceObjective nobodys is not followed: it names no pool") == 1
        assert rig.said("theirs") == 0


@with_loop
async def test_pods_of_one_nodes_network_never_get_each_others_ports(tmp_path: Path) -> None:
    def hosted(name: str, port: int, ready: bool = True) -> dict[str, Any]:
        thing = pod(name, ip="10.9.0.1", ready=ready)
        thing["spec"] = {"hostNetwork": True, "containers": [{"name": "m", "ports": [{"containerPort": port}]}]}
        return thing

    async with following(tmp_path, POOL) as (api, rig):
        api.stores[POOLS].put(pool(ports=(8001, 8002)))
        api.stores[PODS].put(hosted("x", 8001))
        api.stores[PODS].put(hosted("y", 8002))
        api.push()
        both = {"x-rank-0": "10.9.0.1:8001", "y-rank-1": "10.9.0.1:8002"}

        def given() -> dict[str, str]:
            return {each.name: each.address for each in rig.lists[-1] if each.address.startswith("10.9.")}

        await until(lambda: given() == both)
        api.stores[PODS].put(hosted("x", 8001, ready=False))
        api.push()
        await until(lambda: given() == {"y-rank-1": "10.9.0.1:8002"})
        api.stores[PODS].delete("x")
        api.stores[PODS].put(hosted("y", 8001))  # it declares the port of the one that is gone
        api.push()
        await until(lambda: given() == {"y-rank-0": "10.9.0.1:8001"})
        api.stores[PODS].put(hosted("z", 8001))
        api.push()
        await until(lambda: rig.source.address_collisions == 1)
        assert rig.said("both claim 10.9.0.1:8001") == 1


@with_loop
async def test_the_first_group_wins_where_both_have_an_objective(tmp_path: Path) -> None:
    async with following(tmp_path, POOL, objectives=True) as (api, rig):
        api.stores[OBJECTIVES_LLMD] = Store()
        api.stores[OBJECTIVES_LLMD].put(objective("chat", 1))
        await until(lambda: rig.objectives and rig.objectives[-1] == {"chat": 1})
        api.stores[OBJECTIVES] = Store()
        api.stores[OBJECTIVES].put(objective("chat", 2))
        await until(lambda: rig.objectives[-1] == {"chat": 2})
        await until(lambda: api.watches(OBJECTIVES))
        api.stores[OBJECTIVES].delete("chat")
        api.push()
        await until(lambda: rig.objectives[-1] == {"chat": 1})


# Size


def _big_pod(number: int) -> dict[str, Any]:
    """As large as real ones: about 7 KB, most of it of no interest."""
    ip = f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"
    thing = pod(f"p{number}", ip=ip)
    thing["metadata"]["managedFields"] = [{"manager": "m", "fieldsV1": {f"f:field{i}": {} for i in range(150)}}]
    thing["spec"]["containers"][0]["env"] = [{"name": f"VARIABLE_{i}", "value": "x" * 20} for i in range(60)]
    return thing


@with_loop
async def test_ten_thousand_pods(tmp_path: Path) -> None:
    async with scripted_api() as api:
        api.stores = {PODS: Store()}
        for number in range(10_000):
            api.stores[PODS].put(_big_pod(number))
        kubeconfig = write_kubeconfig(tmp_path / "kubeconfig", api.url, {"token": "t"})
        async with running(Credentials(kubeconfig=str(kubeconfig)), SELECTOR, timing=REAL) as rig:
            await until(lambda: rig.source.synced, 60)
            assert len(rig.lists[-1]) == 10_000
            assert len({each.address for each in rig.lists[-1]}) == 10_000
            assert len(api.lists(PODS)) == 20


@with_loop
async def test_an_hour_of_events_in_a_burst(tmp_path: Path) -> None:
    """1,000 pods, 18,000 events (5 a second for an hour) as fast as they can be read: few callbacks, the right end."""
    async with following(tmp_path) as (api, rig):
        store = api.stores[PODS]
        for round_ in range(18):
            for number in range(1000):
                ready = (number + round_) % 3 != 0
                store.put(pod(f"p{number}", ip=f"10.1.{number >> 8}.{number & 255}", ready=ready))
            api.push()
            await asyncio.sleep(0)
        expected = sorted(["a", *(f"p{number}" for number in range(1000) if (number + 17) % 3 != 0)])
        await until(lambda: rig.names == expected, 60)
        assert len(rig.lists) < 500
        assert rig.source.state().failures_total == 0


def test_quick_timing_is_quick_and_real_timing_is_not() -> None:
    assert QUICK.backoff.most_seconds < 1 < REAL.backoff.most_seconds
