"""Several pickers, real Envoys that health-check them, and everything that can befall one of them in the middle of
streams. What clients meet is a table in docs/high-availability.md, and every cell of it is asserted here."""

import asyncio
import contextlib
import signal
from pathlib import Path

import aiohttp
import pytest

from picker.lab.envoy import BodySendMode, EnvoyConfig
from picker.lab.model_server import ServerFaults
from tests.envoy.picker_process import PickerProcess
from tests.kube.cluster import TestCluster
from tests.kube.relay import relay
from tests.kube.replicas import DRAIN, Stage, outcome, stage, table
from tests.kube.rig import with_loop
from tests.kube.serving import POOL, Cluster, envoy, knows, model_servers, until_true
from tests.kube.traffic import Traffic
from tests.ports import free_ports

TAKE_OVER_SECONDS_MAX = 5.0
"""From the death of a leader to the readiness of the next."""
LEADER = "--leader-election"
ACTIVE = "--active-active"


def readiness(picker: PickerProcess) -> str:
    """As a kubelet asks."""
    return picker.health("readiness", picker.health_address)


def leads(picker: PickerProcess) -> bool:
    return picker.metric("picker_leader") == 1


def asserted(row: str, measured: dict[str, str]) -> None:
    """The document says what was measured."""
    print(f"| {row} | {' | '.join(measured.values())} |")  # with pytest -s: the table, as it is now
    assert table()[row] == measured


async def takes_over(picker: PickerProcess) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    await until_true(lambda: readiness(picker) == "SERVING", TAKE_OVER_SECONDS_MAX)
    print(f"ready after {loop.time() - began:.2f} s")


async def follower_is_whole(on: Stage, follower: PickerProcess) -> None:
    """Synced, scraping, alive, and not ready; nobody asks it."""
    assert readiness(follower) == "NOT_SERVING"
    assert follower.health("liveness", follower.health_address) == "SERVING"
    assert (follower.metric("picker_synced"), follower.metric("picker_leader")) == (1, 0)
    assert follower.metric("picker_ready_endpoints") == len(on.servers)
    await until_true(lambda: follower.metric("picker_unread_endpoints") == 0)
    assert follower.ended() == 0


def test_every_row_of_the_document_is_measured() -> None:
    source = Path(__file__).read_text()
    assert [row for row in table() if f'asserted("{row}"' not in source] == []


@with_loop
async def test_kill_9_of_the_leader_and_then_of_the_last(cluster: TestCluster, tmp_path: Path) -> None:
    made = await Cluster.create(cluster, tmp_path)
    async with stage(made, LEADER, names=("one", "two")) as on:
        one, two = on.pickers
        await on.see(one)
        async with on.underway(one):
            await on.more()
            await follower_is_whole(on, two)
            one.kill()
            on.mark()
            await on.more(1)  # while nobody leads
            await takes_over(two)
            await on.see(two)
            await on.more(1)
            during = on.met()
        asserted("leader killed: running answers", on.answers)
        asserted("leader killed: requests half sent", on.half_sent)
        asserted("leader killed: new requests, until the next one serves", during)
        on.mark()
        await on.more()
        assert set(on.met().values()) == {"200"}
        await until_true(lambda: two.in_flight() < 10)
        two.kill()
        await on.see()
        on.mark()
        await on.more()
        asserted("no picker left: new requests", on.met())


@with_loop
async def test_sigterm_of_the_leader(cluster: TestCluster, tmp_path: Path) -> None:
    made = await Cluster.create(cluster, tmp_path)
    async with stage(made, LEADER, names=("one", "two")) as on:
        one, two = on.pickers
        await on.see(one)
        on.mark()
        async with on.underway(one):
            await on.more()
            one.terminate()
            await takes_over(two)
            assert readiness(one) == "SERVING", "a gap: the proxy may not have seen the next one yet"
            await on.see(one, two)
            await on.see(two)
            assert readiness(one) == "NOT_SERVING"
            await on.more()
        asserted("leader stopped: running answers", on.answers)
        asserted("leader stopped: requests half sent", on.half_sent)
        asserted("leader stopped: new requests", on.met())
        assert await asyncio.to_thread(one.process.wait, 20) == 0


@with_loop
async def test_a_leader_without_the_api_server(cluster: TestCluster, tmp_path: Path) -> None:
    """It serves until it sees another holder: two serve for a while, and nobody is harmed."""
    made = await Cluster.create(cluster, tmp_path)
    async with (
        relay(cluster.port) as network,
        stage(made, LEADER, names=("one", "two"), at={"one": network.port}) as on,
    ):
        one, two = on.pickers
        await on.see(one)
        on.mark()
        async with on.underway(one):
            network.freeze()
            await takes_over(two)
            assert (readiness(one), leads(one), leads(two)) == ("SERVING", True, True)
            await on.see(one, two)
            await on.more()
            network.reset()
            network.thaw()
            await until_true(lambda: readiness(one) == "NOT_SERVING")
            assert one.health("liveness", one.health_address) == "SERVING"
            await on.see(two)
            await on.more()
        asserted("leader cut off from the API server: running answers", on.answers)
        asserted("leader cut off from the API server: requests half sent", on.half_sent)
        asserted("leader cut off from the API server: new requests", on.met())
        await until_true(lambda: one.in_flight() == 0)


@with_loop
async def test_a_leader_that_is_frozen_and_comes_back(cluster: TestCluster, tmp_path: Path) -> None:
    """As when its node loses the network: open connections say nothing, new ones are not answered."""
    made = await Cluster.create(cluster, tmp_path)
    async with stage(made, LEADER, names=("one", "two")) as on:
        one, two = on.pickers
        await on.see(one)
        async with on.underway(one):
            await on.more(2)
            one.process.send_signal(signal.SIGSTOP)
            asked = {front.name: asyncio.create_task(front.traffic.ask()) for front in on.fronts}
            await takes_over(two)
            await on.see(two)
            on.mark()
            for front in on.fronts:
                front.traffic.add_clients(1)  # those before may all be waiting
            await on.more()
            after = on.met()
            await asyncio.wait(asked.values(), timeout=6.0)
            met = {name: outcome(task.result()) if task.done() else "waits" for name, task in asked.items()}
            one.process.send_signal(signal.SIGCONT)
            await until_true(lambda: readiness(one) == "NOT_SERVING")
        asserted("leader frozen: running answers", on.answers)
        asserted("leader frozen: requests that it was asked about", met)
        asserted("leader frozen: new requests, once the next one serves", after)
        await asyncio.gather(*asked.values())


@with_loop
async def test_active_active_one_stops_and_one_dies(cluster: TestCluster, tmp_path: Path) -> None:
    made = await Cluster.create(cluster, tmp_path)
    async with stage(made, ACTIVE, names=("one", "two", "three")) as on:
        one, two, three = on.pickers
        await on.see(one, two, three)
        on.mark()
        async with on.underway(one):
            await on.more()
            assert all(picker.ended() > 0 for picker in on.pickers), "all are asked"
            one.terminate()
            await on.see(two, three)
            await on.more()
        asserted("active-active, one stopped: its running answers", on.answers)
        asserted("active-active, one stopped: new requests", on.met())
        assert await asyncio.to_thread(one.process.wait, 20) == 0
        await on.rest()  # what comes to `two` while it is asked whose answer it holds would be taken for the answer
        async with on.underway(two):
            await on.more()
            two.kill()
            on.mark()
            await on.see(three)
            await on.more(1)
            during = on.met()
        asserted("active-active, one killed: its running answers", on.answers)
        asserted("active-active, one killed: new requests, until it is missed", during)


@with_loop
async def test_an_upgrade_under_load(cluster: TestCluster, tmp_path: Path) -> None:
    """The steps of a Deployment with maxSurge 1 and maxUnavailable 1, two replicas old and new, pod by pod."""
    made = await Cluster.create(cluster, tmp_path)
    ports = free_ports(2)
    names = ("old leader", "old follower")
    async with (
        contextlib.AsyncExitStack() as stack,
        stage(made, LEADER, names=names, later=[f"127.0.0.1:{port}" for port in ports]) as on,
    ):

        async def new(port: int) -> PickerProcess:
            flags = (LEADER, "--grpc-port", str(port))
            starting = made.picker(*flags, pod_template_hash="2", config=DRAIN, insecure=False)
            return await stack.enter_async_context(starting)

        leader, follower = on.pickers
        await on.see(leader)
        on.mark()
        async with on.underway(leader):
            first = await new(ports[0])
            follower.terminate()  # not ready: the first to go
            await takes_over(first)
            assert readiness(leader) == "SERVING", (
                "the old one waits for nobody: the new ones have a Lease of their own"
            )
            leader.terminate()
            second = await new(ports[1])
            await on.see(first)
            await on.more()
        asserted("upgrade: running answers", on.answers)
        asserted("upgrade: requests half sent", on.half_sent)
        asserted("upgrade: new requests", on.met())
        for old in on.pickers:
            assert await asyncio.to_thread(old.process.wait, 20) == 0
        assert (leads(first), leads(second)) == (True, False)
        assert await leases(made) == {f"picker-{POOL}-1": False, f"picker-{POOL}-2": True}


async def leases(made: Cluster) -> dict[str, bool]:
    """Which there are, and whether somebody holds them."""
    path = f"/apis/coordination.k8s.io/v1/namespaces/{made.namespace.name}/leases"
    found = await made.namespace.call("GET", path)
    return {each["metadata"]["name"]: bool(each["spec"].get("holderIdentity")) for each in found["items"]}


LONG_PROMPTS = 12
LONG_PROMPT = "word " * 8000
STUCK = ServerFaults(slow=10_000.0)
PATIENT = "{epsilon: 0, limits: {decision_seconds: 5}, engine_metrics: {stale_seconds: 60}}"
"""A request that explores would stay at the stuck server, and a machine that starves the picker must not blind it."""
PREFILL_TOKENS_PER_SECOND = 10_000
BYTES_PER_TOKEN = 4
"""What the picker assumes before it has learned (its configuration reference)."""


@with_loop
async def test_active_active_each_sees_the_load_of_the_other(cluster: TestCluster, tmp_path: Path) -> None:
    """One picker loads an endpoint. The other has nothing in its books, and turns away all the same; the first does
    not count its own requests a second time because the engine reports them too."""
    made = await Cluster.create(cluster, tmp_path)
    (port,) = free_ports(1)
    await made.namespace.create_pool(POOL, ports=(port,))
    async with contextlib.AsyncExitStack() as stack:
        enter = stack.enter_async_context
        busy, idle = await enter(model_servers(("127.0.1.1", port), ("127.0.1.2", port)))
        await made.namespace.ready_pod("busy", ip=busy.host)
        await made.namespace.ready_pod("idle", ip=idle.host)
        pickers, through = [], []
        for _ in range(2):
            pickers.append(await enter(made.picker(ACTIVE, config=PATIENT)))
            await knows(pickers[-1], busy.address, idle.address)
            config = EnvoyConfig(
                picker_address=pickers[-1].grpc_address,
                response_body=BodySendMode.FULL_DUPLEX_STREAMED,
                subset_header="x-subset",
            )
            through.append(await enter(Traffic((await enter(envoy(config))).url, clients=0)))
        one, two = pickers
        await shared_out(through[1], {busy.address, idle.address})

        await busy.set_faults(STUCK)
        heavy = [
            asyncio.create_task(through[0].ask(subset=busy.address, text=f"{number} {LONG_PROMPT}"))
            for number in range(LONG_PROMPTS)
        ]
        await until_true(lambda: one.in_flight() == LONG_PROMPTS)
        for picker in pickers:  # both have read what the engine says
            await until_true(lambda picker=picker: waiting_at("busy", picker) >= LONG_PROMPTS / 2)
        assert two.in_flight() == 0
        served = [(await through[1].ask()).served_by for _ in range(20)]
        assert served.count(idle.address) >= 17, "one request in a hundred explores, the rest turn away"
        await counts_the_queue(through[1], two, busy.address)
        assert (await through[0].ask()).served_by == idle.address
        own = LONG_PROMPTS * len(LONG_PROMPT) / BYTES_PER_TOKEN / PREFILL_TOKENS_PER_SECOND
        assert await queue_seconds(one, busy.address) == pytest.approx(own, rel=0.05)

        await busy.set_faults(ServerFaults(slow=0.01))
        assert {outcome(call) for call in await asyncio.gather(*heavy)} == {"200"}
        await until_true(lambda: waiting_at("busy", two) == 0)
        await busy.set_faults(ServerFaults())
        await shared_out(through[1], {busy.address, idle.address})


async def shared_out(traffic: Traffic, candidates: set[str]) -> None:
    """Twenty requests that find equals go to all of them; what a scrape said last may take a second to pass."""
    for _ in range(10):
        served = {(await traffic.ask()).served_by for _ in range(20)}
        if served == candidates:
            return
        await asyncio.sleep(0.5)
    assert served == candidates


def waiting_at(pod: str, picker: PickerProcess) -> float:
    """As the picker last read it."""
    return picker.metric("inference_pool_per_pod_queue_size", model_server_pod=pod)


async def counts_the_queue(traffic: Traffic, picker: PickerProcess, address: str) -> None:
    """A decision does; not necessarily the last one: a scrape that was late leaves the queue unknown for a moment."""
    for _ in range(40):
        if await queue_seconds(picker, address) > 0:
            return
        await asyncio.sleep(0.25)
        with contextlib.suppress(TimeoutError):  # while it is unknown, a request may go there and stay
            await asyncio.wait_for(traffic.ask(), 2.0)
    raise AssertionError(f"forty decisions took nothing for the queue at {address}")


async def queue_seconds(picker: PickerProcess, address: str) -> float:
    """What its last decision took for the queue at an endpoint."""
    async with (
        aiohttp.ClientSession() as http,
        http.get(f"http://{picker.metrics_address}/debug/decisions?count=1") as page,
    ):
        (decision,) = (await page.json())["decisions"]
    return next(each["seconds"]["queue"] for each in decision["endpoints"] if each["address"] == address)
