"""Watches one endpoint: its metrics page about once a second, its /v1/models now and then.

`Surroundings` is what all watches of a scraper share. See `engine_scraper` for the invariants.
"""

import asyncio
import logging
import random
import ssl
from collections.abc import Callable

import msgspec

from picker.config import EngineMetrics
from picker.edge.bearer_token import BearerTokenFile
from picker.edge.engine_target import Target, targets
from picker.edge.http_get import HttpError, HttpGetter, Page
from picker.engines import Engine, engine_named, names, read, recognise
from picker.pool.specs import EndpointSpec, EngineSample, split_address

PAGE_BYTES_MAX = 2 * 1024 * 1024
MODELS_MAX = 4096
BACKOFF_INTERVALS_MAX = 8
JITTER = 0.1
"""Each interval is drawn from 90..110 % of the configured one."""


class _Model(msgspec.Struct):
    id: str
    parent: str | None = None
    """vLLM: the model that an adapter belongs to."""


class _ModelList(msgspec.Struct):
    data: list[_Model]


_MODELS = msgspec.json.Decoder(_ModelList)


class Surroundings:
    """Settings, sinks and limits that watches share; replaced as a whole when settings change."""

    def __init__(
        self,
        *,
        settings: EngineMetrics,
        record: Callable[[EngineSample], None],
        failed: Callable[[str, str], None],
        clock: Callable[[], float],
        rng: random.Random,
        log: logging.Logger,
        models_interval_seconds: float | None,
        gpu_utilization: Callable[[EndpointSpec], float | None] | None,
        told: set[tuple[str, str]],
    ) -> None:
        self.settings = settings
        self.record = record
        self.failed = failed
        self.clock = clock
        self.rng = rng
        self.log = log
        self.models_interval_seconds = models_interval_seconds
        self.gpu_utilization = gpu_utilization
        self.places = asyncio.Semaphore(settings.concurrency_max)
        self.token = BearerTokenFile(settings.bearer_token_file)
        self._told = told
        self._tls: ssl.SSLContext | None = None

    def jittered(self, seconds: float) -> float:
        return seconds * (1 - JITTER + 2 * JITTER * self.rng.random())

    def tls_for(self, scheme: str) -> ssl.SSLContext | None:
        if scheme != "https":
            return None
        if self._tls is None:
            self._tls = ssl.create_default_context()
            if self.settings.insecure_skip_verify:
                self._tls.check_hostname = False
                self._tls.verify_mode = ssl.CERT_NONE
        return self._tls

    def tell_missing(self, engine: Engine, missing: tuple[str, ...], address: str) -> None:
        """Once per engine and field, however many endpoints lack it."""
        for field in missing:
            if self._first_time(engine.name, field):
                self.log.warning(
                    "%s at %s does not report %s (looked for %s): it counts as unknown; "
                    "check the engine's version and metrics flags",
                    engine.name,
                    address,
                    field,
                    " or ".join(names(engine, field)),
                )

    def engine_for(self, spec: EndpointSpec) -> Engine | None:
        """The engine that the endpoint, its pod's label or the configuration names; `None`: look at the page."""
        name = spec.engine or engine_label(spec) or self.settings.engine
        engine = engine_named(name) if name else None
        if name and engine is None and self._first_time("engine", name[:64]):
            self.log.warning("%s: unknown engine %r; going by what its page shows", spec.name, name[:64])
        return engine

    def _first_time(self, kind: str, what: str) -> bool:
        first = (kind, what) not in self._told and len(self._told) < 1000
        if first:
            self._told.add((kind, what))
        return first


ENGINE_LABELS = ("llm-d.ai/engine-type", "inference.networking.k8s.io/engine-type")
"""Pod labels by which others name the engine; the first goes before the second."""


def engine_label(spec: EndpointSpec) -> str | None:
    """What the pod's label says, if anything."""
    return next((spec.labels[label] for label in ENGINE_LABELS if spec.labels.get(label)), None)


class EngineWatch:
    """One endpoint: its connections, what it turned out to be, and its failures in a row."""

    def __init__(self, around: Surroundings, spec: EndpointSpec) -> None:
        self._around = around
        self._spec = spec
        self._getters: dict[tuple[str, str, int], HttpGetter] = {}
        self._engine = around.engine_for(spec)
        self._targets: tuple[Target, ...] = ()
        self._unreadable: str | None = None
        try:
            self._targets = targets(spec, around.settings, self._engine)
        except ValueError as error:
            self._unreadable = str(error)
        self._settled: Target | None = self._targets[0] if len(self._targets) == 1 else None
        self._models: frozenset[str] | None = None
        self._adapters: frozenset[str] | None = None
        self._models_due_seconds: float | None = None
        self._timeouts = 0
        self._failing = False

    async def run(self, delay_seconds: float) -> None:
        """Scrape for ever, the first time after `delay_seconds`."""
        around = self._around
        try:
            await asyncio.sleep(delay_seconds)
            while True:
                started = around.clock()
                await self._scrape()
                backoff = min(2 ** max(0, self._timeouts - 2), BACKOFF_INTERVALS_MAX)
                due = started + around.jittered(around.settings.interval_seconds * backoff)
                await asyncio.sleep(max(0.0, due - around.clock()))
        finally:
            for getter in self._getters.values():
                getter.close()

    async def _scrape(self) -> None:
        around = self._around
        timeout_seconds = around.settings.timeout_seconds
        try:
            async with around.places, asyncio.timeout(timeout_seconds):
                sample = await self._read_metrics()
            self._timeouts = 0
        except HttpError as error:
            self._timeouts = 0
            self._fail(str(error))
            return
        except TimeoutError:
            self._timeouts = min(self._timeouts + 1, 16)
            self._fail(f"no answer within {timeout_seconds:g} s")
            return
        except Exception as error:
            # A fault of ours must not end the watch: the endpoint would look unknown for ever.
            around.log.exception("%s: scraping failed", self._spec.address)
            self._fail(f"internal error: {type(error).__name__}")
            return
        if self._failing:
            self._failing = False
            around.log.info("%s (%s): metrics are back", self._spec.name, self._spec.address)
        around.record(sample)
        await self._refresh_models()

    def _fail(self, why: str) -> None:
        if not self._failing:
            self._failing = True
            self._around.log.warning("%s (%s): metrics: %s", self._spec.name, self._spec.address, why)
        self._around.failed(self._spec.uid, why)

    async def _read_metrics(self) -> EngineSample:
        """The first target whose page is an engine's; from then on only that one."""
        if self._settled is not None:
            return await self._read_target(self._settled)
        first: HttpError | None = None
        for target in self._targets:
            try:
                sample = await self._read_target(target)
            except HttpError as error:
                first = first or error
                continue
            self._settled = target
            return sample
        raise first or HttpError(self._unreadable or "no metrics page")

    async def _read_target(self, target: Target) -> EngineSample:
        page = await self._get(target.scheme, target.host, target.port, target.path)
        if page.status != 200:
            problem = self._around.token.problem
            hint = problem or "is the metrics page switched on there?"
            raise HttpError(f"status {page.status} from {target.url}: {hint}")
        # Recognised anew each time: another engine may have taken the address over.
        engine = self._engine or recognise(page.body)
        if engine is None:
            raise HttpError(f"{target.url} shows no known engine's series; say engine_metrics.engine, .path or .port")
        result = read(engine, page.body, uid=self._spec.uid, now=self._around.clock())
        if result.missing:
            self._around.tell_missing(engine, result.missing, self._spec.address)
        gpu_utilization = self._around.gpu_utilization
        if self._models is None and gpu_utilization is None:
            return result.sample
        return msgspec.structs.replace(
            result.sample,
            models=self._models,
            adapters=self._adapters,
            gpu_utilization=gpu_utilization(self._spec) if gpu_utilization is not None else None,
        )

    async def _get(self, scheme: str, host: str, port: int, path: str) -> Page:
        getter = self._getters.get((scheme, host, port))
        if getter is None:
            getter = HttpGetter(host, port, tls=self._around.tls_for(scheme), body_bytes_max=PAGE_BYTES_MAX)
            self._getters[scheme, host, port] = getter
        return await getter.get(path, self._around.token.header(self._around.clock()))

    async def _refresh_models(self) -> None:
        around = self._around
        now = around.clock()
        if around.models_interval_seconds is None:
            return
        if self._models_due_seconds is not None and now < self._models_due_seconds:
            return
        self._models_due_seconds = now + around.jittered(around.models_interval_seconds)
        host, port = split_address(self._spec.address)
        try:
            async with around.places, asyncio.timeout(around.settings.timeout_seconds):
                page = await self._get(around.settings.scheme, host, port, "/v1/models")
            if page.status == 200:
                listed = _MODELS.decode(page.body).data[:MODELS_MAX]
                self._models = frozenset(model.id for model in listed)
                self._adapters = frozenset(model.id for model in listed if model.parent is not None)
        except (HttpError, TimeoutError, msgspec.MsgspecError) as error:
            # What was known stays, and the next round asks again.
            around.log.debug("%s: /v1/models: %s", self._spec.address, error)
