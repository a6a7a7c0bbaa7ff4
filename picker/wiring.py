"""What `picker serve` runs: the only place that constructs edges and joins them to the core.

Start order: configuration, director, services, credentials, ports, source and scraper; then one line
on standard output that names the ports. Readiness follows the source: SERVING once it is synced,
also with no endpoint in it, and, with leader election, only while leading; only a synced replica
stands for election. On SIGTERM: readiness NOT_SERVING at once, new streams still accepted for
`drain.accept_seconds` (a proxy needs that long to notice), then none, then `drain.seconds` for
those that run, exit 0. A leader gives its lease up at once and stays SERVING for
`HANDOVER_SECONDS` more, so that the proxy finds the next one ready before it leaves this one. SIGINT
drains without these waits; a second signal ends it at once.
"""

import asyncio
import logging
import os
import signal
import time
from collections.abc import Callable, Coroutine, Iterable
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any, Literal

import msgspec
from aiohttp import web

from picker import config as configuration
from picker.budget import Budget
from picker.config import Config, ConfigError
from picker.director import Director
from picker.edge import kvevents
from picker.edge.grpc import tls
from picker.edge.grpc.ext_proc import ExtProcService
from picker.edge.grpc.health import HealthService
from picker.edge.grpc.transport import MethodTable, Transport
from picker.edge.kubernetes.api import KubernetesApi
from picker.edge.kubernetes.lease import LeaseElection, identity, lease_name
from picker.edge.kubernetes.source import KubernetesSource, PoolTarget, SelectorTarget
from picker.edge.kubernetes.token_review import MetricsAccess
from picker.edge.membership import Membership
from picker.edge.process.config_file import ConfigFile
from picker.edge.process.gc_freeze import heap_frozen
from picker.edge.process.line_watch import LineWatch
from picker.edge.process.loop_watch import LoopWatch, in_time
from picker.edge.process.malloc import Trimmer, tune_malloc
from picker.edge.process.memory import plan
from picker.edge.scraping.gpu import GpuSource
from picker.edge.scraping.scraper import EngineScraper
from picker.edge.sharing.partnership import Partnership
from picker.edge.static_endpoints import StaticSource, StaticTarget
from picker.edge.telemetry.decision_page import decision_routes
from picker.edge.telemetry.decisions import DecisionRing
from picker.edge.telemetry.faults import Faults
from picker.edge.telemetry.live.history import History
from picker.edge.telemetry.live.live import Live
from picker.edge.telemetry.live.routes import OPEN_PATHS, LiveRoutes
from picker.edge.telemetry.logs import Log, request_fields, say_build
from picker.edge.telemetry.observers import Observers
from picker.edge.telemetry.page import Telemetry
from picker.edge.telemetry.server import MetricsServer
from picker.edge.telemetry.tracing import Tracer
from picker.edge.telemetry.usage_file import UsageFile
from picker.edge.telemetry.view import PoolView, pool_view
from picker.files.line_writer import LineWriter
from picker.listening import KEPT_FILES, Files
from picker.pool.specs import EndpointSpec, EngineSample
from picker.recording import Recorder

TICK_SECONDS = 0.05
HEALTH_CONNECTIONS_MAX = 64
OUT_OF_FILES = "out of files: nobody can connect; raise the limit of open files"
CONFIG_CHECK_SECONDS = 1.0
CERTIFICATE_CHECK_SECONDS = 5.0
LINES_CHECK_SECONDS = 1.0
RELEASE_SECONDS = 3.0
HANDOVER_SECONDS = 4.0
"""A follower polls the lease twice a second; a proxy or kubelet asks for its readiness every one or two."""

READINESS_SERVICES = ("", "readiness", "envoy.service.ext_proc.v3.ExternalProcessor", "inference-extension")
"""Health service names that follow readiness; the last is the peer's old one."""


class ServeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line says. Flags beat the file; the file's knobs are `config.Config`."""

    host: str = "0.0.0.0"
    grpc_port: int = 9002
    grpc_health_port: int = 9003
    metrics_port: int = 9090
    config_file: Path | None = None
    insecure: bool = False
    targets: tuple[StaticTarget, ...] = ()
    endpoints_file: Path | None = None
    record_file: Path | None = None
    cluster: PoolTarget | SelectorTarget | None = None
    leader_election: bool = False
    active_active: bool = False
    """Several replicas serve. Choosing is the same: what engines report beyond our own books always counts."""
    metrics_auth: bool = False
    transport: Literal["h2", "grpcio"] = "h2"

    @property
    def pool_name(self) -> str:
        """The label of the pool's telemetry."""
        return self.cluster.name if isinstance(self.cluster, PoolTarget) else "default"


class Picker:
    """One running picker."""

    def __init__(self, options: ServeOptions, *, log: Log) -> None:
        """Reads the configuration; binds nothing yet. Raises `ConfigError`, `TlsError`, `SourceError`."""
        self.options = options
        self.log = log
        self.config_file = ConfigFile(options.config_file)
        config = self.config_file.config
        self._warn(config)
        self.clock = time.monotonic  # that of the transports' `received_at_seconds`
        self.memory = plan(config)
        self.budget = Budget(self.memory.held_bytes_max)
        self.files = Files(lambda port, limit: log("error", OUT_OF_FILES, port=port, limit=limit))
        self.director = Director(self.memory.fit(config))
        pool = options.pool_name if options.cluster is None else f"{options.cluster.namespace}/{options.pool_name}"
        self.partnership = Partnership(
            config.shared_state, self.director, pool, clock=self.clock, log=log, on_warm=self._set_health
        )
        self.membership = Membership(
            self.director,
            log=log,
            changed=self._set_health,
            call_soon=lambda step: asyncio.get_running_loop().call_soon(step),
        )
        self.decisions = DecisionRing(told=self.partnership.told, clock=time.time)
        self.telemetry = Telemetry(
            self._pool_view,
            listed=self.director.datastore.models.lists,
            tenants_max=config.tenants.tenants_max,
            tenant_named=lambda name: name in self.director.metering.names,
        )
        self.telemetry.objectives.reconfigure(config)
        self.observers = Observers(self.decisions, self.telemetry)
        self.tracer = (
            Tracer(config.tracing, pool_name=options.pool_name) if config.tracing.otlp_endpoint is not None else None
        )
        self.kv_events = kvevents.make_follower(self.director, self._specs, self.clock)
        self.health = HealthService()
        self.director.on_ejected = lambda name: self.log(
            "warning", "endpoint ejected after failures in a row", endpoint=name
        )
        self.faults = Faults(log, count=self.telemetry.faulted, clock=self.clock)
        if self.tracer is not None:
            self.observers.on_decided.append(self.tracer.decided)
            self.observers.on_end.append(self.tracer.finished)
        self.service = ExtProcService(
            self.director,
            clock=self.clock,
            rng=Random(),
            finished=self.observers.finished,
            decided=self.observers.decided,
            faulted=self.faults,
        )
        self.certificates = tls.certificates(config.tls, insecure=options.insecure)
        self.transport = self._transport(
            {**self.service.methods(), **self.health.methods}, options.grpc_port, self.certificates
        )
        self.health_transport = self._transport(self.health.methods, options.grpc_health_port, None, spare=True)
        self.gpus = self._gpu_source(config)
        self.scraper = EngineScraper(
            settings=config.engine_metrics,
            endpoints=self._specs,
            record=self._record_sample,
            failed=lambda uid, why: self.telemetry.scrape_failed(),
            port_answers=self._port_answers,
            clock=self.clock,
            rng=Random(),
            log=logging.getLogger("picker.scraper"),
            gpu_utilization=self.gpus.utilization if self.gpus is not None else None,
            busy=self._busy,
        )
        self.api = KubernetesApi() if options.cluster is not None else None
        may_read = None
        if options.metrics_auth and self.api is not None:
            may_read = MetricsAccess(self.api, clock=self.clock, log=log)
        self.history, self.live, page_routes = self._page()
        self.metrics = MetricsServer(
            telemetry=self.telemetry,
            ready=lambda: self.ready,
            host=options.host,
            port=options.metrics_port,
            log=logging.getLogger("picker.metrics"),
            routes=[*decision_routes(self.decisions), *page_routes],
            authorize=may_read,
            open_paths=OPEN_PATHS,
            files=self.files,
        )
        self.static = (
            None
            if options.cluster is not None
            else StaticSource(
                targets=options.targets, file=options.endpoints_file, on_endpoints=self.membership.replace, log=log
            )
        )
        self.source: KubernetesSource | None = None
        self.election: LeaseElection | None = None
        self.recorder: Recorder | None = None
        self.usage_file: UsageFile | None = None
        self.line_watches: list[LineWatch] = []
        self._open_line_files(options, config)
        if log.enabled("debug"):
            self.observers.on_end.append(lambda record: log("debug", "request", **request_fields(record)))
        self._tasks: list[asyncio.Task[Any]] = []
        self._stopping = asyncio.Event()
        self._hurry = asyncio.Event()
        self._handing_over = False
        self._signal_name = ""
        self._exit_code = 0
        self._set_health()

    def _open_line_files(self, options: ServeOptions, config: Config) -> None:
        """What requests leave on disk, where that is wanted."""
        if options.record_file is not None:
            started_at = datetime.now(UTC).isoformat(timespec="seconds")
            self.recorder = recorder = Recorder(options.record_file, started_at=started_at)
            since = self.clock()
            self.observers.keeps_hashes = True
            self.observers.on_end.append(lambda record: recorder.finished(record, now=self.clock() - since))
        if config.usage_file is not None:
            try:
                self.usage_file = UsageFile(Path(config.usage_file), clock=lambda: datetime.now(UTC))
            except OSError as error:
                raise ConfigError(f"usage_file: {error}") from None
            self.observers.on_end.append(self.usage_file.finished)
        for what, writer in (("recording", self.recorder), ("usage file", self.usage_file)):
            if writer is not None:
                self.line_watches.append(LineWatch(writer, what, log=self.log, clock=self.clock))

    # Life ----------------------------------------------------------------------------------

    async def run(self) -> int:
        """Serve until told to stop. Returns the exit code."""
        say_build(self.log)
        self.log("debug", tune_malloc())
        self.log("info", "memory", **self.memory._asdict())
        self._handle_signals()
        try:
            if self.api is not None:
                await self.api.open()
            await self.transport.start()
            await self.health_transport.start()
            await self.metrics.start()
            self._spawn(self._follow_endpoints())
            self._spawn(self.scraper.run())
            self._spawn(self.partnership.run())
            self._spawn(self.history.run())
            self._spawn(self.live.run())
            if self.gpus is not None:
                self._spawn(self.gpus.run())
            if self.kv_events is not None:
                self._spawn(self.kv_events.run())
            self._spawn(LoopWatch(self.clock, self.telemetry.loop_lagged).run())
            self._spawn(in_time(self.clock, TICK_SECONDS, self.service.tick, self.service.forgive))
            self._spawn(_every(1.0, self.files.refill))
            self._spawn(_every(1.0, Trimmer(lambda: self.budget.used).tick))
            self._spawn(_every(CONFIG_CHECK_SECONDS, self._check_who_serves))
            for watch in self.line_watches:
                self._spawn(_every(LINES_CHECK_SECONDS, watch.look))
            self._follow_files()
            with heap_frozen():
                self._announce()
                await self._stopping.wait()
                await self._drain()
        finally:
            await self._close()
        return self._exit_code

    def _follow_files(self) -> None:
        self._spawn(
            self.config_file.follow(CONFIG_CHECK_SECONDS, changed=self._reload_config, refused=self._refuse_config)
        )
        if isinstance(self.certificates, tls.CertificateFiles):
            replaced, refused = self._replace_certificates, self._refuse_certificates
            self._spawn(self.certificates.follow(CERTIFICATE_CHECK_SECONDS, replaced=replaced, refused=refused))

    def _announce(self) -> None:
        host = "127.0.0.1" if self.options.host in ("0.0.0.0", "::") else self.options.host
        ports = {"grpc": self.transport.port, "health": self.health_transport.port, "metrics": self.metrics.port}
        print("listening", *(f"{name}={host}:{port}" for name, port in ports.items()), flush=True)

    async def _follow_endpoints(self) -> None:
        if self.static is not None:
            await self.static.run()
            return
        assert self.options.cluster is not None and self.api is not None
        self.source = KubernetesSource(
            self.options.cluster,
            on_endpoints=self.membership.replace,
            on_objectives=self._replace_objectives,
            on_synced=self._source_synced,
            log=self.log,
            rng=Random(),
            api=self.api,
        )
        await self.source.run()

    def _source_synced(self) -> None:
        """The first whole list is here: this replica may serve, or lead."""
        self._set_health()
        if self.options.leader_election:
            assert self.options.cluster is not None and self.api is not None
            self._spawn(self._elect(self.api, self.options.cluster.namespace))
        elif self.options.active_active:
            self.log("info", "active-active: serving beside other replicas; their load shows in the engines' metrics")

    async def _elect(self, api: KubernetesApi, namespace: str) -> None:
        pod = os.environ.get("POD_NAME", os.uname().nodename)
        lease = await lease_name(
            api, namespace, f"picker-{self.options.pool_name}", pod, os.environ.get("POD_TEMPLATE_HASH", "")
        )
        if self._stopping.is_set():
            return  # who is leaving does not stand
        self.election = LeaseElection(
            api,
            namespace=namespace,
            lease=lease,
            identity=identity(pod),
            on_change=lambda leader: self._set_health(),
            log=self.log,
            rng=Random(),
        )
        await self.election.run()

    def _transport(
        self,
        methods: MethodTable,
        port: int,
        certificates: "tls.CertificateFiles | tls.ServerContext | None",
        *,
        spare: bool = False,
    ) -> Transport:
        """`spare`: the port may use all of the reserve of files, and needs few connections."""
        context = certificates.context if isinstance(certificates, tls.CertificateFiles) else certificates
        host, limits, budget = self.options.host, self.config_file.config.transport, self.budget
        if self.options.transport == "grpcio":
            from picker.edge.grpc.grpcio_transport import GrpcioTransport

            return GrpcioTransport(
                methods,
                host=host,
                port=port,
                tls=context,
                limits=limits,
                on_error=self._on_error,
                budget=budget,
            )
        from picker.edge.grpc.h2 import H2Transport

        if spare:
            limits = msgspec.structs.replace(limits, connections_max=HEALTH_CONNECTIONS_MAX)
        return H2Transport(
            methods,
            host=host,
            port=port,
            tls=context,
            limits=limits,
            on_error=self._on_error,
            on_fault=self._on_fault,
            budget=budget,
            files=self.files,
            keep=0 if spare else KEPT_FILES,
        )

    def _page(self) -> tuple[History, Live, list[web.RouteDef]]:
        """The page that people look at: its history, its stream, its routes."""
        director, decisions, clock = self.director, self.decisions, self.clock

        def enabled() -> bool:
            return director.config.debug.page

        history = History(self.telemetry, director, clock=clock, wall=time.time, enabled=enabled, faulted=self.faults)
        live = Live(
            director,
            decisions,
            history,
            pool_name=self.options.pool_name,
            instance=os.urandom(8).hex(),
            clock=clock,
            wall=time.time,
            enabled=enabled,
            faulted=self.faults,
        )
        routes = LiveRoutes(live, director, decisions, clock=clock, enabled=enabled)
        return history, live, routes.routes()

    def _gpu_source(self, config: Config) -> GpuSource | None:
        if config.engine_metrics.gpu_url is None:
            return None
        return GpuSource(
            url_template=config.engine_metrics.gpu_url,
            endpoints=self._specs,
            clock=self.clock,
            log=logging.getLogger("picker.gpu"),
        )

    def _specs(self) -> list[EndpointSpec]:
        return [endpoint.spec for endpoint in self.director.datastore.endpoints]

    def _busy(self) -> set[str]:
        """The endpoints that have requests of this picker, or of one that tells it."""
        endpoints = self.director.datastore.endpoints
        return {each.spec.uid for each in endpoints if each.in_flight_requests or each.others.requests}

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.create_task(work)
        task.add_done_callback(self._task_ended)
        self._tasks.append(task)

    def _task_ended(self, task: "asyncio.Task[Any]") -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self.log("error", "stopping: a part of the picker cannot go on", error=str(error) or type(error).__name__)
            self._exit_code = 1
            self._stop(signal.SIGINT)

    # What edges tell -----------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Synced, not leaving, and leading where there is an election."""
        synced = (
            self.source.synced if self.options.cluster is not None and self.source else self.director.datastore.synced
        )
        if self._handing_over:
            return synced
        leading = not self.options.leader_election or self._leads
        return synced and leading and self.partnership.warm and not self._stopping.is_set()

    @property
    def _leads(self) -> bool:
        return self.election is not None and self.election.is_leader

    def _set_health(self) -> None:
        self.health.set("liveness", True)
        ready = self.ready
        for name in READINESS_SERVICES:
            self.health.set(name, ready)

    def _replace_objectives(self, objectives: dict[str, int]) -> None:
        self.director.objectives = objectives

    def _record_sample(self, sample: EngineSample) -> None:
        if self.director.record_sample(sample):
            self.log("warning", "engine restarted, its prefixes are forgotten", endpoint=sample.uid)

    def _on_error(self, error: BaseException) -> None:
        self.faults("transport", error)

    def _port_answers(self, uid: str, accepts: bool) -> None:
        if accepts:
            self.director.datastore.accepted(uid)
        else:
            self.director.datastore.refused(uid)

    def _check_who_serves(self) -> None:
        warning = self.director.served.warning()
        if warning is not None:
            self.log("warning", warning)

    def _on_fault(self, peer: str, reason: str) -> None:
        self.log("warning", "connection closed for what its peer did", peer=peer, reason=reason)

    def _pool_view(self) -> PoolView:
        return pool_view(
            self.director,
            self.budget,
            self.clock(),
            pool_name=self.options.pool_name,
            running_by_model=dict(self.observers.running_by_model),
            running_by_priority=dict(self.observers.running_by_priority),
            api_server_up=self.source.api_available if self.source is not None else None,
            leader=self._leads if self.options.leader_election else None,
            address_collisions=self._address_collisions,
            recording=self.recorder,
            usage_file=self.usage_file,
            shared=self.partnership.status(),
            kv_events=self.kv_events.heard if self.kv_events else None,
        )

    @property
    def _address_collisions(self) -> int:
        source = self.static or self.source
        return source.address_collisions if source is not None else 0

    # Live changes --------------------------------------------------------------------------

    def _refuse_config(self, error: ConfigError) -> None:
        self.telemetry.config_reloaded(False)
        self.log("error", "configuration not usable, the last good one stays", error=str(error))

    def _reload_config(self, config: Config) -> None:
        before = self.director.config
        config = self.memory.fit(config)
        self.director.reconfigure(config)
        self.service.reconfigure()
        self.telemetry.objectives.reconfigure(config)
        self.scraper.replace_settings(config.engine_metrics)
        self.telemetry.config_reloaded(True)
        waiting = configuration.changed_restart_only(before, config)
        self.log("info", "configuration reloaded", waits_for_restart=list(waiting))
        self._warn(config)

    def _warn(self, config: Config) -> None:
        for warning in configuration.warnings(config):
            self.log("warning", warning)

    def _replace_certificates(self, context: tls.ServerContext) -> None:
        self.transport.replace_tls(context)
        self.log("info", "certificates replaced")

    def _refuse_certificates(self, error: tls.TlsError) -> None:
        self.log("error", "certificate files not usable, the last good ones stay", error=str(error))

    # Stop ----------------------------------------------------------------------------------

    def _handle_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop, number)
        loop.add_signal_handler(signal.SIGHUP, self.config_file.look)

    def _stop(self, number: signal.Signals) -> None:
        if self._stopping.is_set():
            self._hurry.set()
        self._signal_name = number.name
        self._handing_over = number is signal.SIGTERM and self._leads and not self._hurry.is_set()
        self._stopping.set()
        self._set_health()

    async def _drain(self) -> None:
        drain = self.director.config.drain
        self.log("info", "draining", signal=self._signal_name, open_streams=self.transport.open_calls)
        if self.election is not None:
            await _first(self.election.release(), asyncio.sleep(RELEASE_SECONDS))
        if self._handing_over:
            await _first(self._hurry.wait(), asyncio.sleep(min(HANDOVER_SECONDS, drain.accept_seconds)))
            self._handing_over = False
            self._set_health()
        if self._signal_name == "SIGTERM":
            await _first(self._hurry.wait(), asyncio.sleep(drain.accept_seconds))
        self.transport.refuse_new_calls()
        await _first(self._hurry.wait(), self.transport.wait_idle(drain.seconds))
        self.log("info", "stopping", streams_cut=self.transport.open_calls)

    async def _close(self) -> None:
        for task in self._tasks:
            task.remove_done_callback(self._task_ended)
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for server in (self.transport, self.health_transport, self.metrics):
            await server.stop()
        self.files.close()
        writers: tuple[LineWriter | None, ...] = (self.recorder, self.usage_file)
        for writer in writers:
            if writer is not None:
                await asyncio.to_thread(writer.close)
        if self.api is not None:
            await self.api.close()
        if self.tracer is not None:
            await self.tracer.close()


async def _every(seconds: float, step: Callable[[], None]) -> None:
    while True:
        await asyncio.sleep(seconds)
        step()


async def _first(*works: Coroutine[Any, Any, Any]) -> None:
    """Until one of them is done; the others are cancelled."""
    tasks: Iterable[asyncio.Task[Any]] = [asyncio.create_task(work) for work in works]
    _, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)
