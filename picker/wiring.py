"""The only place that constructs edges and joins them to the core: what `picker serve` runs.

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
from picker.config import Config, ConfigError
from picker.director import Director
from picker.edge import tls
from picker.edge.collector import survivors_spared
from picker.edge.config_file import ConfigFile
from picker.edge.decisions import DecisionRing
from picker.edge.engine_scraper import EngineScraper
from picker.edge.ext_proc import BoundPolicy, ExtProcService
from picker.edge.followers import Followers
from picker.edge.gpu_source import GpuSource
from picker.edge.health import HealthService
from picker.edge.kubernetes import KubernetesSource, PoolTarget, SelectorTarget
from picker.edge.kubernetes_api import KubernetesApi
from picker.edge.lease import LeaseElection, identity, lease_name
from picker.edge.logs import Log, request_fields
from picker.edge.malloc import tune_malloc
from picker.edge.metrics_access import MetricsAccess
from picker.edge.metrics_server import MetricsServer
from picker.edge.static_source import StaticSource, Target
from picker.edge.telemetry import Telemetry
from picker.edge.telemetry_view import PoolView, endpoint_rows
from picker.edge.tracing import Tracer
from picker.edge.transport import MethodTable, Transport
from picker.pool.specs import EndpointSpec, EngineSample
from picker.sim.recording import Recorder

TICK_SECONDS = 0.05
CONFIG_CHECK_SECONDS = 1.0
CERTIFICATE_CHECK_SECONDS = 5.0
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
    targets: tuple[Target, ...] = ()
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
        self.director = Director(config)
        self.decisions = DecisionRing()
        self.telemetry = Telemetry(self._pool_view)
        self.followers = Followers(self.decisions, self.telemetry)
        self.tracer = (
            Tracer(config.tracing, pool_name=options.pool_name) if config.tracing.otlp_endpoint is not None else None
        )
        self.health = HealthService()
        self.policy = BoundPolicy(self.director, clock=self.clock, rng=Random())
        self.policy.ejected = lambda name: self.log(
            "warning", "endpoint ejected after failures in a row", endpoint=name
        )
        if self.tracer is not None:
            self.followers.on_end.append(self.tracer.finished)
        self.service = ExtProcService(
            self.policy,
            clock=self.clock,
            finished=self.followers.finished,
            decided=self.followers.decided,
            on_error=self._on_error,
        )
        self.certificates = _certificates(config, options)
        self.transport = self._transport(
            {**self.service.methods(), **self.health.methods}, options.grpc_port, self.certificates
        )
        self.health_transport = self._transport(self.health.methods, options.grpc_health_port, None)
        self.gpus = self._gpu_source(config)
        self.scraper = EngineScraper(
            settings=config.engine_metrics,
            endpoints=self._specs,
            record=self._record_sample,
            failed=lambda uid, why: self.telemetry.scrape_failed(),
            clock=self.clock,
            rng=Random(),
            log=logging.getLogger("picker.scraper"),
            gpu_utilization=self.gpus.utilization if self.gpus is not None else None,
        )
        self.api = KubernetesApi() if options.cluster is not None else None
        may_read = None
        if options.metrics_auth and self.api is not None:
            may_read = MetricsAccess(self.api, clock=self.clock, log=log)
        self.metrics = MetricsServer(
            telemetry=self.telemetry,
            ready=lambda: self.ready,
            host=options.host,
            port=options.metrics_port,
            log=logging.getLogger("picker.metrics"),
            routes=[web.get("/debug/decisions", self._show_decisions)],
            authorize=may_read,
        )
        self.static = (
            None
            if options.cluster is not None
            else StaticSource(
                targets=options.targets, file=options.endpoints_file, on_endpoints=self._replace_endpoints, log=log
            )
        )
        self.source: KubernetesSource | None = None
        self.election: LeaseElection | None = None
        self.recorder: Recorder | None = None
        if options.record_file is not None:
            started_at = datetime.now(UTC).isoformat(timespec="seconds")
            self.recorder = recorder = Recorder(options.record_file, started_at=started_at)
            since = self.clock()
            self.followers.keeps_hashes = True
            self.followers.on_end.append(lambda record: recorder.finished(record, now=self.clock() - since))
        if log.enabled("debug"):
            self.followers.on_end.append(lambda record: log("debug", "request", **request_fields(record)))
        self._tasks: list[asyncio.Task[Any]] = []
        self._stopping = asyncio.Event()
        self._hurry = asyncio.Event()
        self._handing_over = False
        self._signal_name = ""
        self._exit_code = 0
        self._set_health()

    # Life ----------------------------------------------------------------------------------

    async def run(self) -> int:
        """Serve until told to stop. Returns the exit code."""
        self.log("debug", tune_malloc())
        self._handle_signals()
        try:
            if self.api is not None:
                await self.api.open()
            await self.transport.start()
            await self.health_transport.start()
            await self.metrics.start()
            self._spawn(self._follow_endpoints())
            self._spawn(self.scraper.run())
            if self.gpus is not None:
                self._spawn(self.gpus.run())
            self._spawn(_every(TICK_SECONDS, self.service.tick))
            self._spawn(_every(CONFIG_CHECK_SECONDS, self._reload_config))
            self._spawn(_every(CERTIFICATE_CHECK_SECONDS, self._reload_certificates))
            with survivors_spared():
                self._announce()
                await self._stopping.wait()
                await self._drain()
        finally:
            await self._close()
        return self._exit_code

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
            on_endpoints=self._replace_endpoints,
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
        self, methods: MethodTable, port: int, certificates: "tls.CertificateFiles | tls.ServerContext | None"
    ) -> Transport:
        context = certificates.context if isinstance(certificates, tls.CertificateFiles) else certificates
        host, limits = self.options.host, self.config_file.config.transport
        if self.options.transport == "grpcio":
            from picker.edge.grpcio_transport import GrpcioTransport

            return GrpcioTransport(methods, host=host, port=port, tls=context, limits=limits, on_error=self._on_error)
        from picker.edge.h2 import H2Transport

        return H2Transport(
            methods, host=host, port=port, tls=context, limits=limits, on_error=self._on_error, on_fault=self._on_fault
        )

    def _gpu_source(self, config: Config) -> GpuSource | None:
        if config.engine_metrics.gpu_url is None:
            return None
        try:
            return GpuSource(
                url_template=config.engine_metrics.gpu_url,
                endpoints=self._specs,
                clock=self.clock,
                log=logging.getLogger("picker.gpu"),
            )
        except ValueError as error:
            raise ConfigError(f"engine_metrics.gpu_url: {error}") from None

    def _specs(self) -> list[EndpointSpec]:
        return [endpoint.spec for endpoint in self.director.datastore.endpoints]

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
        return synced and leading and not self._stopping.is_set()

    @property
    def _leads(self) -> bool:
        return self.election is not None and self.election.is_leader

    def _set_health(self) -> None:
        self.health.set("liveness", True)
        ready = self.ready
        for name in READINESS_SERVICES:
            self.health.set(name, ready)

    def _replace_endpoints(self, specs: list[EndpointSpec]) -> None:
        change = self.director.replace_endpoints(specs)
        for word, endpoints in (("joined", change.joined), ("left", change.left)):
            for endpoint in endpoints:
                self.log("info", f"endpoint {word}", endpoint=endpoint.spec.name, address=endpoint.spec.address)
        self._set_health()

    def _replace_objectives(self, objectives: dict[str, int]) -> None:
        self.director.objectives = objectives

    def _record_sample(self, sample: EngineSample) -> None:
        if self.director.record_sample(sample):
            self.log("warning", "engine restarted, its prefixes are forgotten", endpoint=sample.uid)

    def _on_error(self, error: BaseException) -> None:
        self.log.fault("a fault of the picker; the stream it hit was ended, others go on", error)

    def _on_fault(self, peer: str, reason: str) -> None:
        self.log("warning", "connection closed for what its peer did", peer=peer, reason=reason)

    def _pool_view(self) -> PoolView:
        now = self.clock()
        director = self.director
        director.ledger.expire(now)
        return PoolView(
            pool_name=self.options.pool_name,
            endpoints=endpoint_rows(director, now),
            synced=director.datastore.synced,
            requests_in_flight=director.ledger.open_charges,
            running_by_model=dict(self.followers.running_by_model),
            saturation=director.saturation(now),
            index_blocks=director.index.blocks,
            index_bytes=director.index.bytes_estimate,
            index_bytes_max=director.index.bytes_max,
            index_evictions=director.index.evicted_blocks_total,
            api_server_up=self.source.api_available if self.source is not None else None,
            leader=self._leads if self.options.leader_election else None,
        )

    async def _show_decisions(self, request: web.Request) -> web.StreamResponse:
        """GET /debug/decisions?request_id=ID | ?count=N: the last decisions, explained."""
        wanted = request.query.get("request_id")
        if wanted is not None:
            found = self.decisions.find(wanted)
            if found is None:
                return web.json_response({"error": "no decision of this request id is kept"}, status=404)
            return web.json_response(found)
        count = request.query.get("count", "20")
        return web.json_response({"decisions": self.decisions.recent(int(count) if count.isdigit() else 20)})

    # Live changes --------------------------------------------------------------------------

    def _reload_config(self) -> None:
        """Take a changed file; a bad one leaves the last good configuration in force."""
        before = self.director.config
        try:
            config = self.config_file.poll()
        except ConfigError as error:
            self.telemetry.config_reloaded(False)
            self.log("error", "configuration not usable, the last good one stays", error=str(error))
            return
        if config is None:
            return
        self.director.reconfigure(config)
        self.service.reconfigure()
        self.scraper.replace_settings(config.engine_metrics)
        self.telemetry.config_reloaded(True)
        waiting = configuration.changed_restart_only(before, config)
        self.log("info", "configuration reloaded", waits_for_restart=list(waiting))
        self._warn(config)

    def _warn(self, config: Config) -> None:
        for warning in configuration.warnings(config):
            self.log("warning", warning)

    def _reload_certificates(self) -> None:
        if not isinstance(self.certificates, tls.CertificateFiles):
            return
        try:
            context = self.certificates.reload_if_changed()
        except tls.TlsError as error:
            self.log("error", "certificate files not usable, the last good ones stay", error=str(error))
            return
        if context is not None:
            self.transport.replace_tls(context)
            self.log("info", "certificates replaced")

    # Stop ----------------------------------------------------------------------------------

    def _handle_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop, number)
        loop.add_signal_handler(signal.SIGHUP, self._reload_config)

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
        if self.recorder is not None:
            self.recorder.close()
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


def _certificates(config: Config, options: ServeOptions) -> "tls.CertificateFiles | tls.ServerContext | None":
    """Files where configured, in memory where not, nothing with --insecure."""
    if options.insecure:
        return None
    files = config.tls
    if files.certificate_file is not None and files.key_file is not None:
        return tls.CertificateFiles(files.certificate_file, files.key_file)
    return tls.server_context(tls.self_signed())
