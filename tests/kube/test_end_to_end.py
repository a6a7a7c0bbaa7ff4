"""The whole of it: real API server, real Envoy, the picker with the chart's rights, model servers as pods, under load.

What is held, whatever happens to pods and pool:
* no request that begins after the picker let go of an endpoint is served there, and none arrives there any more
  once those begun before have ended: the count is the model server's own;
* a request that runs there meanwhile comes to its end, and the picker's books are even afterwards;
* no client sees anything but 200, except while the pool has no endpoint: then 503, by the picker, with its reason.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from picker.lab.envoy import BodySendMode, EnvoyConfig
from picker.lab.load_client import LoadClient
from picker.lab.model_server import ServerFaults, SimulatedServer
from picker.sim.draws import Lengths
from picker.sim.statistics import Sample
from picker.sim.workloads import Agents, sessions
from tests.envoy.picker_process import PickerProcess
from tests.kube.cluster import ApiFailure, TestCluster
from tests.kube.kubelet import Namespace
from tests.kube.relay import relay
from tests.kube.rig import until, with_loop
from tests.kube.serving import POOL, Cluster, addresses, envoy, knows, model_servers, serving, until_true
from tests.kube.traffic import Call, Traffic
from tests.ports import free_ports

SLOWLY, QUICKLY, AS_USUAL = ServerFaults(slow=20.0), ServerFaults(slow=0.02), ServerFaults()
LONG_TOKENS = 400
VLLM = {"app": "vllm"}


class Scene:
    """A picker in a cluster behind an Envoy, with traffic."""

    def __init__(self, namespace: Namespace, picker: PickerProcess, traffic: Traffic) -> None:
        self.namespace = namespace
        self.picker = picker
        self.traffic = traffic

    async def pod(self, name: str, server: SimulatedServer, labels: dict[str, str] | None = None) -> None:
        """The pod of a model server becomes Ready."""
        await self.namespace.ready_pod(name, ip=server.host, labels=labels or VLLM)

    async def joins(self, server: SimulatedServer, seconds: float = 10.0) -> None:
        """It is known, and then asked."""
        await until_true(lambda: server.address in addresses(self.picker), seconds)
        mark = self.traffic.mark()
        await until(lambda: server.address in self.traffic.where(mark), 20)

    async def gone(self, server: SimulatedServer, seconds: float = 10.0) -> int:
        """The picker shows it no more. Returns the moment."""
        await until_true(lambda: server.address not in addresses(self.picker), seconds)
        return self.traffic.mark()

    async def not_asked(self, server: SimulatedServer, mark: int, calls: int = 60) -> None:
        """Nothing begun after `mark` went there, and nothing arrives there."""
        await self.traffic.settled(mark)
        arrived = server.requests_total
        later = await self.traffic.more(calls)
        assert server.requests_total == arrived
        assert server.address not in self.traffic.where(mark)
        assert len(self.traffic.since(later)) >= calls

    @asynccontextmanager
    async def running_on(self, server: SimulatedServer) -> AsyncIterator[None]:
        """A long answer runs there during the block and comes to its end after it."""
        async with self.traffic.held(LONG_TOKENS, subset=server.address) as (call, ended):
            assert call.served_by == server.address
            await server.set_faults(SLOWLY)
            yield
            assert not ended.is_set(), "the answer was over too soon to show anything"
            await server.set_faults(QUICKLY)
        await server.set_faults(AS_USUAL)
        assert (call.status, call.whole, call.error) == (200, True, None)

    async def even(self) -> None:
        """After the last request: nothing is left in the books."""
        await self.traffic.stop()
        await until_true(lambda: self.picker.in_flight() == 0, 10)
        assert [call for call in self.traffic.calls if call.error or not call.whole] == []
        assert "fault of the picker" not in self.picker.log()


def strange(calls: list[Call]) -> list[Call]:
    """Those that met anything but success."""
    return [call for call in calls if call.status != 200 or not call.whole]


def may_list(cluster: TestCluster, namespace: Namespace) -> bool:
    """Whether the API server knows its roles: for a moment after its start it knows none."""
    try:
        cluster.request("GET", namespace.pods, token=cluster.token("picker"))
    except ApiFailure:
        return False
    return True


def in_front_of(picker: PickerProcess) -> EnvoyConfig:
    """Full duplex both ways; a test may say where a request has to go."""
    return EnvoyConfig(
        picker_address=picker.grpc_address,
        response_body=BodySendMode.FULL_DUPLEX_STREAMED,
        subset_header="x-subset",
    )


@asynccontextmanager
async def scene(cluster: Cluster, at: int | None = None) -> AsyncIterator[Scene]:
    """Traffic begins when the picker is ready; whoever uses this has the pool and its pods made. `at`: the port
    where the picker finds the API server."""
    async with cluster.picker("--log-level", "debug", at=at) as picker, envoy(in_front_of(picker)) as proxy:
        await serving(picker)
        async with Traffic(proxy.url) as traffic:
            yield Scene(cluster.namespace, picker, traffic)


@with_loop
async def test_pods_come_and_go_under_load(cluster: TestCluster, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    made = await Cluster.create(cluster, tmp_path)
    namespace = made.namespace
    async with model_servers(*((f"127.0.1.{n}", port) for n in (1, 2, 3))) as (one, two, three):
        await namespace.create_pool(POOL, ports=(port,))
        await namespace.ready_pod("one", ip=one.host)
        await namespace.ready_pod("two", ip=two.host)
        async with scene(made) as on:
            await knows(on.picker, one.address, two.address)

            await on.pod("three", three)
            await on.joins(three)

            async with on.running_on(two):
                await namespace.set_ready("two", ready=False, ip=two.host)
                await on.not_asked(two, await on.gone(two))
            await namespace.set_ready("two", ip=two.host)
            await on.joins(two)

            async with on.running_on(one):  # deletionTimestamp is set, Ready still True
                await namespace.terminate("one")
                await on.not_asked(one, await on.gone(one))
            await namespace.remove("one")
            await one.stop()

            async with on.running_on(three):  # without a grace period
                await namespace.remove("three")
                await on.not_asked(three, await on.gone(three))
            await on.pod("three", three)  # the same name and address, another uid
            await on.joins(three)

            await on.even()
            assert strange(on.traffic.calls) == []


@with_loop
async def test_the_pool_is_edited_deleted_and_made_again_under_load(cluster: TestCluster, tmp_path: Path) -> None:
    ports = tuple(free_ports(2))
    made = await Cluster.create(cluster, tmp_path)
    namespace = made.namespace
    where = [("127.0.1.1", ports[0]), ("127.0.1.2", ports[0]), ("127.0.1.2", ports[1])]
    async with (
        model_servers(*where) as (plain, gold, gold_second),
        made.picker("--log-level", "debug") as picker,
        envoy(in_front_of(picker)) as proxy,
    ):
        await until_true(lambda: "does not exist" in picker.log())
        assert picker.health("readiness", picker.health_address) == "NOT_SERVING"
        assert picker.health("liveness", picker.health_address) == "SERVING"
        await namespace.ready_pod("plain", ip=plain.host)
        await namespace.ready_pod("gold", ip=gold.host, labels={"app": "vllm", "tier": "gold"})
        await namespace.create_pool(POOL, ports=ports[:1])  # created late
        await serving(picker)
        await knows(picker, plain.address, gold.address)
        async with Traffic(proxy.url) as traffic:
            on = Scene(namespace, picker, traffic)
            await on.joins(plain)

            async with on.running_on(plain):
                await namespace.edit_pool(POOL, {"selector": {"matchLabels": {"tier": "gold"}}})
                await on.not_asked(plain, await on.gone(plain))
            assert traffic.where(await traffic.more(20)) == {gold.address}

            async with on.running_on(gold):
                await namespace.edit_pool(POOL, {"targetPorts": [{"number": ports[1]}]})
                await on.not_asked(gold, await on.gone(gold))
            await namespace.edit_pool(POOL, {"targetPorts": [{"number": port} for port in ports]})
            await on.joins(gold)
            assert addresses(picker) == {gold.address, gold_second.address}
            assert strange(traffic.calls) == []

            await namespace.delete_pool(POOL)
            mark = await on.gone(gold)
            await on.not_asked(gold, mark)
            assert {(call.status, call.reason) for call in traffic.since(mark)} == {(503, "no_endpoints")}
            assert picker.health("readiness", picker.health_address) == "SERVING"

            await namespace.create_pool(POOL, ports=ports[:1])
            await on.joins(plain)
            await on.joins(gold)
            assert strange(traffic.since(await traffic.more(40))) == []
            await on.even()
            assert {call.status for call in traffic.calls} == {200, 503}


@with_loop
async def test_the_api_server_dies_and_comes_back_under_load(cluster: TestCluster, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    made = await Cluster.create(cluster, tmp_path)
    namespace = made.namespace
    async with (
        model_servers(*((f"127.0.1.{n}", port) for n in (1, 2, 3))) as (one, two, three),
        relay(cluster.port) as network,
    ):
        await namespace.create_pool(POOL, ports=(port,))
        await namespace.ready_pod("one", ip=one.host)
        await namespace.ready_pod("two", ip=two.host)
        async with scene(made, at=network.port) as on:

            def api_server_up() -> bool:
                return on.picker.metric("picker_api_server_up") == 1

            # A restart that the picker cannot follow: its watch is then from a version that is too old, 410.
            await until_true(api_server_up)
            network.freeze()
            await namespace.terminate("one")
            await asyncio.to_thread(cluster.restart_api_server)
            await until_true(lambda: may_list(cluster, namespace), 30)
            assert one.address in addresses(on.picker)
            network.reset()
            network.thaw()
            await on.not_asked(one, await on.gone(one, 30))
            assert "pods: expired: the watch ended: too old resource version" in on.picker.log()
            await until_true(api_server_up, 30)

            # Killed: everything goes on from the last state, and says so.
            await asyncio.to_thread(cluster.kill_api_server)
            await until_true(lambda: not api_server_up())
            mark = await on.traffic.more(100)
            assert on.traffic.where(mark) == {two.address}
            assert on.picker.health("readiness", on.picker.health_address) == "SERVING"
            assert on.picker.metric("picker_synced") == 1

            # Back: followed again.
            await asyncio.to_thread(cluster.start_api_server)
            await on.pod("three", three)
            await on.joins(three, 30)
            await until_true(api_server_up, 30)
            await on.even()
            assert strange(on.traffic.calls) == []


NEW_SESSIONS = 48
AGENTS = Agents(turns_mean=2.0, turns_max=4, pause_seconds=Lengths(0.2, 0.5, 0.05, 1.0))
"""One preamble of 6,000 tokens for all: what pulls new sessions to where it already lies."""


@with_loop
async def test_a_replica_that_joins_under_load_gets_its_share_of_new_sessions(
    cluster: TestCluster, tmp_path: Path
) -> None:
    (port,) = free_ports(1)
    made = await Cluster.create(cluster, tmp_path)
    async with model_servers(*((f"127.0.1.{n}", port) for n in (1, 2, 3, 4))) as servers:
        *first, late = servers
        await made.namespace.create_pool(POOL, ports=(port,))
        for number, server in enumerate(first):
            await made.namespace.ready_pod(f"pod-{number}", ip=server.host)
        async with made.picker() as picker, envoy(in_front_of(picker)) as proxy:
            await serving(picker)
            client = LoadClient(proxy.url)
            driving = asyncio.create_task(client.run(sessions("agents", 7, 50.0, AGENTS)))
            try:
                await until(lambda: len(client.samples) > 80, 20)
                await made.namespace.ready_pod("late", ip=late.host)
                await knows(picker, *(server.address for server in servers))
                # Later than any that can have begun by now.
                last = max(sample.session for sample in client.samples) + client.in_flight
                await until(lambda: len(begun_after(client, last)) >= NEW_SESSIONS, 30)
            finally:
                driving.cancel()
                await asyncio.gather(driving, return_exceptions=True)
            by = Counter(sample.endpoint for sample in begun_after(client, last)[:NEW_SESSIONS])
            assert [sample.error for sample in client.samples if sample.error] == []
            assert by[late.address] >= NEW_SESSIONS / len(servers) / 2


def begun_after(client: LoadClient, session: int) -> list[Sample]:
    """First requests of later sessions."""
    return [sample for sample in client.samples if sample.turn == 0 and sample.session > session]
