"""Reads one endpoint's metrics page about once a second, less often an idle one's, and its /v1/models every 30.

`Surroundings` is what all watches of a scraper share. See `engine_scraper` for the invariants.
"""

import asyncio
import logging
import random
import ssl
from collections.abc import Callable

import msgspec

from picker.config import EngineMetrics
from picker.edge.scraping.answer import moved_to, plain_body, refusal
from picker.edge.scraping.bearer_token import BearerTokenFile
from picker.edge.scraping.http_get import Fetched, HttpError, HttpGetter
from picker.edge.scraping.target import Target, targets
from picker.edge.scraping.tls import ScrapeTls
from picker.engines import Engine, PageReader, engine_named, names, recognise
from picker.pool.specs import EndpointSpec, EngineSample, split_address

PAGE_BYTES_MAX = 2 * 1024 * 1024
MODELS_MAX = 4096
MODEL_CHARS_MAX = 512
MODEL_OBJECTS_MAX = 8 * MODELS_MAX
"""Of a list of models, with what is nested in it: each costs a quarter of a microsecond. vLLM has two a model."""
BACKOFF_INTERVALS_MAX = 8
JITTER = 0.1
"""Each interval is drawn from 90..110 % of the configured one."""
IDLE_READS_A_SECOND = 250.0
"""Of idle endpoints together, where that leaves none alone for too long: a small pool saves nothing by it, and would
learn later what other senders do (docs/scale.md)."""
REST_SHARE_MAX = 0.6
"""Of the time after which a reading is old: nothing is left alone for longer."""


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
        port_answers: Callable[[str, bool], None],
        clock: Callable[[], float],
        rng: random.Random,
        log: logging.Logger,
        models_interval_seconds: float | None,
        gpu_utilization: Callable[[EndpointSpec], float | None] | None,
        told: set[tuple[str, str]],
        rests: bool = False,
    ) -> None:
        """`rests`: who is idle is read less often, and somebody says when it no longer is (`EngineWatch.hasten`)."""
        self.settings = settings
        self.idle_interval_seconds = settings.interval_seconds
        self._rests = rests
        self.record = record
        self.failed = failed
        self.port_answers = port_answers
        self.clock = clock
        self.rng = rng
        self.log = log
        self.models_interval_seconds = models_interval_seconds
        self.gpu_utilization = gpu_utilization
        self.places = asyncio.Semaphore(settings.concurrency_max)
        self.token = BearerTokenFile(settings.bearer_token_file)
        self.tls = ScrapeTls(settings)
        self._told = told

    def set_pool_size(self, endpoints: int) -> None:
        """How long an idle one is left alone depends on how many there are."""
        settings = self.settings
        if self._rests:
            longest = min(settings.idle_interval_seconds, REST_SHARE_MAX * settings.stale_seconds)
            seconds = min(longest, endpoints / IDLE_READS_A_SECOND)
            self.idle_interval_seconds = max(settings.interval_seconds, seconds)

    def jittered(self, seconds: float) -> float:
        return seconds * (1 - JITTER + 2 * JITTER * self.rng.random())

    def tls_context(self) -> ssl.SSLContext:
        """Raises `HttpError` where the configured files have never been usable."""
        context = self.tls.context(self.clock())
        if self.tls.problem is not None and self.first_time("tls", self.tls.problem[:500]):
            self.log.error("%s", self.tls.problem)
        if context is None:
            raise HttpError(self.tls.problem or "no TLS context")
        return context

    def tell_missing(self, engine: Engine, missing: tuple[str, ...], address: str) -> None:
        """Once per engine and field, however many endpoints lack it."""
        for field in missing:
            if self.first_time(engine.name, field):
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
        if name and engine is None and self.first_time("engine", name[:64]):
            self.log.warning("%s: unknown engine %r; going by what its page shows", spec.name, name[:64])
        return engine

    def first_time(self, kind: str, what: str) -> bool:
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
        self._pages = PageReader(spec.uid)
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
        self._began_seconds = 0.0
        self._told_of_none = False
        """The last page told that nothing runs or waits there, and no request of ours began since."""
        self._alarm: asyncio.TimerHandle | None = None
        self._resting: asyncio.Future[None] | None = None
        self._moved: dict[Target, Target] = {}
        """Where a redirect of the same server led to a page."""

    async def run(self, delay_seconds: float) -> None:
        """Scrape for ever, the first time after `delay_seconds`."""
        around = self._around
        try:
            await asyncio.sleep(delay_seconds)
            while True:
                self._began_seconds = started = around.clock()
                await self._scrape()
                seconds = around.settings.interval_seconds
                if self._told_of_none:
                    seconds = around.idle_interval_seconds
                seconds *= min(2 ** max(0, self._timeouts - 2), BACKOFF_INTERVALS_MAX)
                await self._rest(started + around.jittered(seconds))
        finally:
            for getter in self._getters.values():
                getter.close()

    async def _rest(self, due_seconds: float) -> None:
        loop = asyncio.get_running_loop()
        self._resting = resting = loop.create_future()
        self._alarm = loop.call_later(max(0.0, due_seconds - self._around.clock()), _wake, resting)
        try:
            await resting
        finally:
            self._alarm.cancel()
            self._alarm = None

    def hasten(self) -> None:
        """A request is there of which the last page did not tell: what it does to the engine is worth knowing."""
        if self._alarm is None or self._resting is None or not self._told_of_none:
            return
        self._told_of_none = False
        around = self._around
        seconds = self._began_seconds + around.jittered(around.settings.interval_seconds) - around.clock()
        if seconds < 0.0:  # long ago: many may begin at once
            seconds = around.settings.interval_seconds * around.rng.random()
        self._alarm.cancel()
        self._alarm = asyncio.get_running_loop().call_later(seconds, _wake, self._resting)

    async def _scrape(self) -> None:
        around = self._around
        timeout_seconds = around.settings.timeout_seconds
        self._told_of_none = False
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
        self._told_of_none = sample.running_requests == 0 and sample.waiting_requests == 0
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
        body = await self._read_page(target)
        # Recognised anew each time: another engine may have taken the address over.
        engine = self._engine or recognise(body)
        if engine is None:
            raise HttpError(f"{target.url} shows no known engine's series; say engine_metrics.engine, .path or .port")
        result = self._pages.read(engine, body, now=self._around.clock())
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

    async def _read_page(self, target: Target) -> bytes:
        place = self._moved.get(target, target)
        page = await self._get(place.scheme, place.host, place.port, place.path)
        if place is target and (moved := moved_to(page, target)) is not None:
            place = moved
            page = await self._get(place.scheme, place.host, place.port, place.path)
        if page.status != 200:
            self._moved.pop(target, None)
            token = self._around.token
            has_token = self._around.settings.bearer_token_file is not None
            raise HttpError(refusal(page, place, has_token=has_token, token_problem=token.problem))
        if place is not target:
            self._moved[target] = place
        return plain_body(page, bytes_max=PAGE_BYTES_MAX)

    async def _get(self, scheme: str, host: str, port: int, path: str) -> Fetched:
        getter = self._getters.get((scheme, host, port))
        if getter is None:
            getter = HttpGetter(
                host,
                port,
                tls=self._around.tls_context if scheme == "https" else None,
                server_name=self._around.tls.server_name,
                body_bytes_max=PAGE_BYTES_MAX,
            )
            self._getters[scheme, host, port] = getter
        own = (host, port) == split_address(self._spec.address)
        try:
            page = await getter.get(path, self._around.token.header(self._around.clock()))
        except HttpError as error:
            if own and isinstance(error.__cause__, ConnectionRefusedError):
                self._around.port_answers(self._spec.uid, False)
            raise
        if own:
            self._around.port_answers(self._spec.uid, True)
        return page

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
            if page.status in (401, 403) and around.first_time("models", "refused"):
                around.log.warning(
                    "%s: status %d from /v1/models: which models it serves is not known, so it counts as serving all; "
                    "give a token with engine_metrics.bearer_token_file",
                    self._spec.address,
                    page.status,
                )
            if page.status == 200:
                body = plain_body(page, bytes_max=PAGE_BYTES_MAX)
                if body.count(b"{") > MODEL_OBJECTS_MAX:
                    raise HttpError(f"more than {MODEL_OBJECTS_MAX:,} objects")
                listed = _MODELS.decode(body).data[:MODELS_MAX]
                listed = [model for model in listed if len(model.id) <= MODEL_CHARS_MAX]
                self._models = frozenset(model.id for model in listed)
                self._adapters = frozenset(model.id for model in listed if model.parent is not None)
        except (HttpError, TimeoutError, msgspec.MsgspecError) as error:
            # What was known stays, and the next round asks again.
            around.log.debug("%s: /v1/models: %s", self._spec.address, error)


def _wake(resting: "asyncio.Future[None]") -> None:
    if not resting.done():
        resting.set_result(None)
