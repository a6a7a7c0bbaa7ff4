"""A leader that is killed with -9 while pickers share what they know: the next one serves, and it is warm."""

import asyncio
from pathlib import Path

from tests.kube.cluster import TestCluster
from tests.kube.replicas import healthy_pickers
from tests.kube.rig import with_loop
from tests.kube.serving import POOL, Cluster, envoy, knows, model_servers, serving, until_true
from tests.ports import free_ports
from tests.sharing import stage
from tests.sharing.redis_server import RedisServer, any_store

SESSIONS = 32
SERVERS = 4
TAKE_OVER_SECONDS_MAX = 10.0
"""From the death of a leader to the last answer of a whole round of sessions that the next one placed."""


@with_loop
async def test_kill_9_of_a_leader_that_shares_costs_no_hit_rate(cluster: TestCluster, tmp_path: Path) -> None:
    any_store()
    made = await Cluster.create(cluster, tmp_path)
    (port,) = free_ports(1)
    await made.namespace.create_pool(POOL, ports=(port,))
    with RedisServer() as store:
        config = stage.shared_config(store.url)
        async with (
            model_servers(*((f"127.0.1.{number}", port) for number in range(1, SERVERS + 1))) as servers,
            made.picker("--leader-election", config=config) as one,
        ):
            for number, server in enumerate(servers):
                await made.namespace.ready_pod(f"pod-{number}", ip=server.host)
            await knows(one, *(server.address for server in servers))
            await serving(one)
            async with (
                made.picker("--leader-election", config=config) as two,
                envoy(stage.envoy_over([one.grpc_address, two.grpc_address])) as proxy,
            ):
                await knows(two, *(server.address for server in servers))
                await until_true(lambda: two.metric("picker_shared_pickers") == 1)
                url = f"http://127.0.0.1:{proxy.port}"
                await stage.converse(url, range(SESSIONS))
                placed, before = await stage.converse(url, range(SESSIONS))
                assert before > 0.9 and len(set(placed)) == SERVERS
                assert two.health("readiness", two.health_address) == "NOT_SERVING"
                loop = asyncio.get_running_loop()
                killed_at = loop.time()
                one.kill()
                await until_true(
                    lambda: two.health("readiness", two.health_address) == "SERVING", TAKE_OVER_SECONDS_MAX
                )
                await until_true(lambda: healthy_pickers(proxy) == {two.grpc_address}, TAKE_OVER_SECONDS_MAX)
                found, after = await stage.converse(url, range(SESSIONS))
                print(f"hit rate {before:.3f}, then {after:.3f}; {loop.time() - killed_at:.1f} s after the kill")
                assert after >= 0.95 * before
                assert found == placed, "each session is where it was"
                assert loop.time() - killed_at < TAKE_OVER_SECONDS_MAX
