"""Several pickers behind real Envoys in every failure mode, and what clients meet when one of them goes.

One front is one Envoy with traffic of its own. All fronts watch the same event, so one death fills a row of the
table in docs/high-availability.md.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import yaml

from picker.lab.envoy import Balancing, BodySendMode, EnvoyConfig, EnvoyProcess, build
from picker.lab.model_server import ServerFaults, SimulatedServer
from picker.pool.specs import join_address, split_address
from tests.envoy.picker_process import PickerProcess
from tests.kube.serving import MANIFESTS, POOL, Cluster, envoy, knows, model_servers, serving, until_true
from tests.kube.traffic import CHAT, Call, Traffic
from tests.ports import free_ports

FD = BodySendMode.FULL_DUPLEX_STREAMED
HEALTH_CHECK_SECONDS = 1.0
"""As the chart's Envoy has it."""
CLIENTS = 2
"""At each front."""
HOLDS_MAX = 12
LONG_TOKENS = 3000
DRAIN = "drain: {accept_seconds: 4, seconds: 30}\n"
Json = dict[str, Any]

FRONTS = ("FailOpen, buffered", "FailClose, buffered", "FailOpen, duplex", "FailClose, duplex", "the chart's Envoy")
DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "high-availability.md"


def bootstraps(pickers: Sequence[str], model_servers: Sequence[str]) -> dict[str, Json]:
    """One configuration for each of `FRONTS`; they speak TLS to the pickers, as by default."""
    found = {}
    for name in FRONTS[:-1]:
        mode, _, bodies = name.partition(", ")
        config = EnvoyConfig(
            balancing=Balancing.OVERRIDE_HOST,
            endpoints=tuple(model_servers),
            picker_address=pickers[0],
            picker_tls=True,
            request_body=FD if bodies == "duplex" else BodySendMode.BUFFERED,
            response_body=FD if bodies == "duplex" else BodySendMode.STREAMED,
            failure_mode_allow=mode == "FailOpen",
            picker_health_check_seconds=HEALTH_CHECK_SECONDS,
        )
        found[name] = with_pickers(build(config), pickers)
    found[FRONTS[-1]] = with_pickers(charts_bootstrap(), pickers)
    return found


def with_pickers(bootstrap: Json, addresses: Sequence[str]) -> Json:
    """The same with all of them in the cluster `picker`."""
    (cluster,) = (each for each in bootstrap["static_resources"]["clusters"] if each["name"] == "picker")
    # What the health check has seen is then what the workers do: `Stage.see` is exact.
    cluster["common_lb_config"]["update_merge_window"] = "0s"
    cluster["load_assignment"]["endpoints"][0]["lb_endpoints"] = [
        {"endpoint": {"address": {"socket_address": {"address": host, "port_value": port}}}}
        for host, port in map(split_address, addresses)
    ]
    return bootstrap


def charts_bootstrap() -> Json:
    """The standalone Envoy of the chart's example for high availability, with free loopback ports, and addresses in
    place of a DNS name."""
    documents = (found for found in yaml.safe_load_all(MANIFESTS.read_text()) if found)
    (text,) = (found["data"]["envoy.yaml"] for found in documents if "envoy.yaml" in found.get("data", {}))
    bootstrap: Json = yaml.safe_load(text)
    bootstrap["admin"]["address"]["socket_address"]["port_value"] = 0
    for listener in bootstrap["static_resources"]["listeners"]:
        listener["address"]["socket_address"] = {"address": "127.0.0.1", "port_value": 0}
    for cluster in bootstrap["static_resources"]["clusters"]:
        if cluster.pop("cluster_type", None):
            cluster["type"] = "STATIC"
    return bootstrap


def healthy_pickers(proxy: EnvoyProcess) -> set[str]:
    """The addresses of the pickers that this Envoy's health check counts."""
    clusters = json.loads(proxy.admin("/clusters?format=json"))["cluster_statuses"]
    (hosts,) = (each["host_statuses"] for each in clusters if each["name"] == "picker")
    return {
        join_address(at["address"], at["port_value"])
        for at, health in ((host["address"]["socket_address"], host["health_status"]) for host in hosts)
        if not health.get("failed_active_health_check")
    }


class Front:
    """One Envoy and its clients."""

    def __init__(self, name: str, proxy: EnvoyProcess, traffic: Traffic) -> None:
        self.name = name
        self.proxy = proxy
        self.traffic = traffic
        self.mark = 0

    def healthy_pickers(self) -> set[str]:
        """Their addresses, as Envoy's health check sees them."""
        return healthy_pickers(self.proxy)

    def met(self) -> str:
        """The worst that requests begun since `mark` met: `200`, or what went wrong."""
        wrong = {outcome(call) for call in self.traffic.since(self.mark)} - {"200"}
        return " or ".join(sorted(wrong)) or "200"


def outcome(call: Call) -> str:
    """The status, if the answer was whole."""
    return "cut" if call.error or not call.whole else str(call.status)


class Stage:
    """Pickers, model servers, and all fronts before them."""

    def __init__(
        self, cluster: Cluster, servers: list[SimulatedServer], pickers: list[PickerProcess], candidates: list[Front]
    ) -> None:
        self.cluster = cluster
        self.servers = servers
        self.pickers = pickers
        self.fronts = candidates
        self.answers: dict[str, str] = {}
        """By front: what became of answers that ran during `underway`: `go on` or `cut`."""
        self.half_sent: dict[str, str] = {}
        """By front: the status that a half sent request met."""

    def mark(self) -> None:
        """From now on `met` counts."""
        for front in self.fronts:
            front.mark = front.traffic.mark()

    def met(self) -> dict[str, str]:
        """By front: the worst since `mark`."""
        return {front.name: front.met() for front in self.fronts}

    async def more(self, calls: int = 20) -> None:
        """So many calls more have ended at every front."""
        await asyncio.gather(*(front.traffic.more(calls) for front in self.fronts))

    async def rest(self) -> None:
        """No front has traffic, until the next `underway`."""
        await asyncio.gather(*(front.traffic.stop() for front in self.fronts))

    async def see(self, *pickers: PickerProcess) -> None:
        """The health check of every front counts these pickers, and no other."""
        wanted = {picker.grpc_address for picker in pickers}
        await until_true(lambda: all(front.healthy_pickers() == wanted for front in self.fronts), 20)

    async def _speed(self, slow: float) -> None:
        for server in self.servers:
            await server.set_faults(ServerFaults(slow=slow))

    @asynccontextmanager
    async def underway(self, victim: PickerProcess) -> AsyncIterator[None]:
        """Begun before the block and finished after it, at every front: an answer whose stream is at `victim`, and
        a request of which half is sent. Traffic begins with it."""
        async with AsyncExitStack() as stack:
            await self._speed(10.0)
            mine = {front.name: await self._hold(stack, front, victim) for front in self.fronts}
            halves = {front.name: await stack.enter_async_context(half_sent(front)) for front in self.fronts}
            await self._speed(1.0)
            for front in self.fronts:
                front.traffic.add_clients(CLIENTS)
            yield
            assert not any(ended.is_set() and outcome(call) == "200" for call, ended in mine.values())
            await self._speed(0.02)
            for name, half in halves.items():
                self.half_sent[name] = await half.finish()
        await self._speed(1.0)
        words = {"200": "go on"}
        self.answers = {name: words.get(outcome(call), outcome(call)) for name, (call, _) in mine.items()}

    async def _hold(self, stack: AsyncExitStack, front: Front, victim: PickerProcess) -> tuple[Call, asyncio.Event]:
        for _ in range(HOLDS_MAX):
            before = await asyncio.to_thread(victim.in_flight)
            held = await stack.enter_async_context(front.traffic.held(LONG_TOKENS))
            assert held[0].status == 200
            if await asyncio.to_thread(victim.in_flight) > before:
                return held
        raise AssertionError(f"{front.name}: {HOLDS_MAX} requests, and none went by this picker")


@asynccontextmanager
async def stage(
    cluster: Cluster,
    flag: str,
    *,
    names: Sequence[str],
    at: Mapping[str, int] | None = None,
    later: Sequence[str] = (),
) -> AsyncIterator[Stage]:
    """Two model servers, a picker for each name, started one after the other, and all fronts. `at`: the port at which
    a picker finds the API server. `later`: addresses of pickers that do not run yet, known to the fronts."""
    (port,) = free_ports(1)
    await cluster.namespace.create_pool(POOL, ports=(port,))
    async with AsyncExitStack() as stack:
        servers = await stack.enter_async_context(model_servers(*((f"127.0.1.{n}", port) for n in (1, 2))))
        addresses = [server.address for server in servers]
        for number, server in enumerate(servers):
            await cluster.namespace.ready_pod(f"pod-{number}", ip=server.host)
        pickers: list[PickerProcess] = []
        for name in names:
            starting = cluster.picker(flag, at=(at or {}).get(name), config=DRAIN, insecure=False)
            pickers.append(await stack.enter_async_context(starting))
            await knows(pickers[-1], *addresses)
            if len(pickers) == 1:
                await serving(pickers[0])
        candidates = []
        known = [*(picker.grpc_address for picker in pickers), *later]
        for name, configuration in bootstraps(known, addresses).items():
            proxy = await stack.enter_async_context(envoy(configuration))
            candidates.append(Front(name, proxy, await stack.enter_async_context(Traffic(proxy.url, clients=0))))
        yield Stage(cluster, servers, pickers, candidates)


class HalfSent:
    """A request of which half the body is sent."""

    BODY = json.dumps({"model": "m", "messages": [{"role": "user", "content": "half " * 40}], "max_tokens": 2}).encode()

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def start(self) -> None:
        """Head and half a body."""
        head = f"POST {CHAT} HTTP/1.1\r\nhost: t\r\ncontent-type: application/json\r\ncontent-length: {len(self.BODY)}"
        self._writer.write(head.encode() + b"\r\n\r\n" + self.BODY[:100])
        await self._writer.drain()

    async def finish(self) -> str:
        """Send the rest; the status of the answer."""
        self._writer.write(self.BODY[100:])
        async with asyncio.timeout(20):
            line = await self._reader.readline()
        return line.split()[1].decode() if line else "cut"


@asynccontextmanager
async def half_sent(front: Front) -> AsyncIterator[HalfSent]:
    """On a connection of its own; the picker has been told of it inside the block."""
    streams = "cluster.picker.upstream_rq_active"
    before = front.proxy.stats(streams)[streams]
    reader, writer = await asyncio.open_connection("127.0.0.1", front.proxy.port)
    try:
        made = HalfSent(reader, writer)
        await made.start()
        await until_true(lambda: front.proxy.stats(streams)[streams] > before)
        yield made
    finally:
        writer.close()


def table() -> dict[str, dict[str, str]]:
    """What docs/high-availability.md says: row -> front -> cell."""
    rows: dict[str, dict[str, str]] = {}
    section = DOCUMENT.read_text().partition("\n## What clients meet\n")[2].partition("\n## ")[0]
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and len(cells) == len(FRONTS) + 1 and set(cells[0]) != {"-"}:
            rows[cells[0]] = dict(zip(FRONTS, cells[1:], strict=True))
    assert list(rows.pop("What happens", {}).values()) == list(FRONTS), "the table's head has changed"
    return rows
