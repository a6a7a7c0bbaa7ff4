"""The only place that constructs edges and joins them to the core: what `picker serve` runs.

Start order: configuration, director, source and scraper, services, ports; then one line on
standard output that names the ports. Readiness follows the source: SERVING once it is synced,
also with no endpoint in it. On SIGTERM: readiness NOT_SERVING at once, new streams still accepted
for `drain.accept_seconds` (a proxy needs that long to notice), then none, then
`drain.seconds` for those that run, exit 0. SIGINT drains without the first wait; a second signal
ends it at once.
"""

import asyncio
import gc
import logging
import signal
import traceback
from collections.abc import Callable, Coroutine
from pathlib import Path
from random import Random
from typing import Any, Literal

import msgspec

from picker import config as configuration
from picker.config import Config, ConfigError
from picker.decision import Finished, Picked
from picker.director import Director
from picker.edge import tls
from picker.edge.config_file import ConfigFile
from picker.edge.decisions import DecisionRing
from picker.edge.engine_scraper import EngineScraper
from picker.edge.ext_proc import BoundPolicy, ExtProcService
from picker.edge.grpcio_transport import GrpcioTransport
from picker.edge.h2 import H2Transport
from picker.edge.health import HealthService
from picker.edge.static_source import StaticSource, Target
from picker.edge.transport import Transport
from picker.pool.endpoint import EndpointSpec, EngineSample

TICK_SECONDS = 0.05
CONFIG_CHECK_SECONDS = 1.0
CERTIFICATE_CHECK_SECONDS = 5.0

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
    transport: Literal["h2", "grpcio"] = "h2"
    pool_name: str = "default"


class Picker:
    """One running picker."""

    def __init__(self, options: ServeOptions, *, log: "Log") -> None:
        """Reads the configuration; binds nothing yet. Raises `ConfigError`, `TlsError`, `SourceError`."""
        self.options = options
        self.log = log
        self.config_file = ConfigFile(options.config_file)
        config = self.config_file.config
        for warning in configuration.warnings(config):
            log("warning", warning)
        loop = asyncio.get_running_loop()
        self.clock = loop.time
        self.director = Director(config)
        self.decisions = DecisionRing()
        self.health = HealthService()
        self.health.set("liveness", True)
        self.service = ExtProcService(
            BoundPolicy(self.director, clock=self.clock, rng=Random()),
            clock=self.clock,
            finished=self._finished,
            decided=self._decided,
            on_error=self._on_error,
        )
        self.certificates = _certificates(config, options)
        self.scraper = EngineScraper(
            settings=config.engine_metrics,
            endpoints=lambda: [endpoint.spec for endpoint in self.director.datastore.endpoints],
            record=self._record_sample,
            failed=self._scrape_failed,
            clock=self.clock,
            rng=Random(),
            log=logging.getLogger("picker.scraper"),
        )
        self.transport = self._transport()
        self.health_transport = GrpcioTransport(
            self.health.methods, host=options.host, port=options.grpc_health_port, on_error=self._on_error
        )
        self._tasks: list[asyncio.Task[Any]] = []
        self._stopping = asyncio.Event()
        self._hurry = asyncio.Event()
        self._signal_name = ""

    async def run(self) -> int:
        """Serve until told to stop. Returns the exit code."""
        self._handle_signals()
        await self.transport.start()
        await self.health_transport.start()
        self._set_ready(False)
        self._spawn(self._source())
        self._spawn(self.scraper.run())
        self._spawn(_every(TICK_SECONDS, self.service.tick))
        self._spawn(_every(CONFIG_CHECK_SECONDS, self._reload_config))
        self._spawn(_every(CERTIFICATE_CHECK_SECONDS, self._reload_certificates))
        gc.collect()
        gc.freeze()  # what lives from the start on need not be walked again
        host = "127.0.0.1" if self.options.host in ("0.0.0.0", "::") else self.options.host
        print(
            f"listening grpc={host}:{self.transport.port} health={host}:{self.health_transport.port} metrics={host}:0",
            flush=True,
        )
        await self._stopping.wait()
        await self._drain()
        return 0

    # Edges ---------------------------------------------------------------------------------

    def _transport(self) -> Transport:
        methods = {**self.service.methods(), **self.health.methods}
        kind = H2Transport if self.options.transport == "h2" else GrpcioTransport
        context = (
            self.certificates.context if isinstance(self.certificates, tls.CertificateFiles) else self.certificates
        )
        return kind(methods, host=self.options.host, port=self.options.grpc_port, tls=context, on_error=self._on_error)

    async def _source(self) -> None:
        source = StaticSource(
            targets=self.options.targets,
            file=self.options.endpoints_file,
            on_endpoints=self._replace_endpoints,
            log=self.log,
        )
        await source.run()

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.create_task(work)
        task.add_done_callback(self._task_ended)
        self._tasks.append(task)

    def _task_ended(self, task: "asyncio.Task[Any]") -> None:
        if not task.cancelled() and task.exception() is not None:
            self._on_error(task.exception() or RuntimeError("a task ended"))

    # What edges tell -----------------------------------------------------------------------

    def _replace_endpoints(self, specs: list[EndpointSpec]) -> None:
        change = self.director.replace_endpoints(specs)
        for endpoint in change.joined:
            self.log("info", "endpoint joined", endpoint=endpoint.spec.name, address=endpoint.spec.address)
        for endpoint in change.left:
            self.log("info", "endpoint left", endpoint=endpoint.spec.name, address=endpoint.spec.address)
        self._set_ready(not self._stopping.is_set())

    def _record_sample(self, sample: EngineSample) -> None:
        if self.director.record_sample(sample):
            self.log("warning", "engine restarted, its prefixes are forgotten", endpoint=sample.uid)

    def _scrape_failed(self, uid: str, why: str) -> None:
        self.log("debug", "scrape failed", endpoint=uid, why=why)

    def _decided(self, picked: Picked, record: Finished) -> None:
        self.decisions.add(picked, record)

    def _finished(self, record: Finished) -> None:
        if self.log.enabled("debug"):
            self.log("debug", "request", **_loggable(record))

    def _on_error(self, error: BaseException) -> None:
        self.log.fault("a fault of the picker; the stream it hit was ended, others go on", error)

    def _set_ready(self, ready: bool) -> None:
        for name in READINESS_SERVICES:
            self.health.set(name, ready)

    # Live changes --------------------------------------------------------------------------

    def _reload_config(self) -> None:
        """Take a changed file; a bad one leaves the last good configuration in force."""
        before = self.director.config
        try:
            config = self.config_file.poll()
        except ConfigError as error:
            self.log("error", "configuration not usable, the last good one stays", error=str(error))
            return
        if config is None:
            return
        self.director.reconfigure(config)
        self.scraper.replace_settings(config.engine_metrics)
        waiting = configuration.changed_restart_only(before, config)
        self.log("info", "configuration reloaded", waits_for_restart=list(waiting))
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
        self._set_ready(False)
        self._stopping.set()

    async def _drain(self) -> None:
        drain = self.director.config.drain
        self.log("info", "draining", signal=self._signal_name, open_streams=self.transport.open_calls)
        if self._signal_name == "SIGTERM":
            await self._pause(drain.accept_seconds)
        self.transport.refuse_new_calls()
        await asyncio.wait(
            [
                asyncio.ensure_future(self.transport.wait_idle(drain.seconds)),
                asyncio.ensure_future(self._hurry.wait()),
            ],
            return_when=asyncio.FIRST_COMPLETED,
        )
        left = self.transport.open_calls
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.transport.stop()
        await self.health_transport.stop()
        self.log("info", "stopped", streams_cut=left)

    async def _pause(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._hurry.wait(), seconds)
        except TimeoutError:
            pass


async def _every(seconds: float, step: Callable[[], None]) -> None:
    while True:
        await asyncio.sleep(seconds)
        step()


def _certificates(config: Config, options: ServeOptions) -> "tls.CertificateFiles | tls.ServerContext | None":
    """Files where configured, in memory where not, nothing with --insecure."""
    if options.insecure:
        return None
    files = config.tls
    if files.certificate_file is not None and files.key_file is not None:
        return tls.CertificateFiles(files.certificate_file, files.key_file)
    return tls.server_context(tls.self_signed())


def _loggable(record: Finished) -> dict[str, Any]:
    return {
        name: value
        for name, value in msgspec.structs.asdict(record).items()
        if value is not None and not callable(value)
    }


class Log:
    """Structured words for the standard `logging`: `log(level, message, **fields)`."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger

    def __call__(self, level: str, message: str, /, **fields: object) -> None:
        """One line. Fields are never a prompt."""
        self._logger.log(logging.getLevelName(level.upper()), message, extra={"fields": fields})

    def enabled(self, level: str) -> bool:
        """Whether a line of this level would be written."""
        return self._logger.isEnabledFor(logging.getLevelName(level.upper()))

    def fault(self, message: str, error: BaseException) -> None:
        """A fault of ours: its type and where, without values that a client sent."""
        frames = traceback.extract_tb(error.__traceback__)
        where = [f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in frames]
        self("error", message, error=type(error).__name__, where=where)
