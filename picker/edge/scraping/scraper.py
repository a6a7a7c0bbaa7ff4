"""Reads every endpoint's /metrics about once a second, an idle one's less often, and its /v1/models every 30 seconds.

One task an endpoint, so that a slow one delays no other; a semaphore bounds how many requests are
under way. Each scrape is one small step of the loop (a page is interpreted in a tenth of a
millisecond), jittered so that the steps do not bunch; where hundreds of endpoints come or go at once, they
begin and end some at a time. What comes out are plain values.

An endpoint is idle while no request of ours is in flight there and its last page told of none. Of such a one a page
can only tell that somebody else began to use it, or that it started anew: so in pools of hundreds it is read more
rarely.

Invariants: an endpoint that leaves is not asked again and nothing more is recorded for it; a
scrape ends in exactly one `record` or one `failed`; one that times out is asked less often (it
holds a place that others need), up to `BACKOFF_INTERVALS_MAX` intervals.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from picker.config import EngineMetrics
from picker.edge.scraping.watch import EngineWatch, Surroundings, engine_label
from picker.pool.specs import EndpointSpec, EngineSample

MODELS_INTERVAL_SECONDS = 30.0
RECONCILE_SECONDS = 0.25
WATCHES_A_STEP = 40
"""So many begin or end in one turn of the loop: some 25 us each."""


class _Watched(NamedTuple):
    spec: EndpointSpec
    around: Surroundings
    watch: EngineWatch
    task: asyncio.Task[None]


class EngineScraper:
    """`run()` until cancelled. `record` gets each sample, `failed` each failure as (uid, why).

    `port_answers` gets (uid, whether the endpoint's own port took a connection), each time that it is tried.
    """

    def __init__(
        self,
        *,
        settings: EngineMetrics,
        endpoints: Callable[[], Sequence[EndpointSpec]],
        record: Callable[[EngineSample], None],
        failed: Callable[[str, str], None],
        clock: Callable[[], float],
        rng: random.Random,
        log: logging.Logger,
        port_answers: Callable[[str, bool], None] = lambda uid, accepts: None,
        models_interval_seconds: float | None = MODELS_INTERVAL_SECONDS,
        gpu_utilization: Callable[[EndpointSpec], float | None] | None = None,
        busy: Callable[[], AbstractSet[str]] | None = None,
    ) -> None:
        """`models_interval_seconds=None`: /v1/models is not asked for. `clock`: monotonic seconds.

        `busy`: the uids of endpoints that have requests of ours; `None`: all count as such.
        `gpu_utilization`: `GpuSource.utilization`, where GPU metrics are configured.
        """
        self._endpoints = endpoints
        self._busy = busy
        told: set[tuple[str, str]] = set()

        def surroundings(settings: EngineMetrics) -> Surroundings:
            return Surroundings(
                settings=settings,
                record=record,
                failed=failed,
                port_answers=port_answers,
                clock=clock,
                rng=rng,
                log=log,
                models_interval_seconds=models_interval_seconds,
                gpu_utilization=gpu_utilization,
                told=told,
                rests=busy is not None,
            )

        self._surroundings = surroundings
        self._around = surroundings(settings)
        self._watches: dict[str, _Watched] = {}

    def replace_settings(self, settings: EngineMetrics) -> None:
        """Live reload: every endpoint is watched anew with the new settings."""
        if settings != self._around.settings:
            self._around = self._surroundings(settings)

    async def run(self) -> None:
        """Watch whatever `endpoints()` lists, until cancelled."""
        try:
            while True:
                await self._reconcile()
                await asyncio.sleep(min(RECONCILE_SECONDS, self._around.settings.interval_seconds))
        finally:
            tasks = [watched.task for watched in self._watches.values()]
            for task in tasks:
                task.cancel()
            self._watches.clear()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _reconcile(self) -> None:
        wanted = {spec.uid: spec for spec in self._endpoints()}
        self._around.set_pool_size(len(wanted))
        ended = 0
        for uid, watched in list(self._watches.items()):
            spec = wanted.get(uid)
            if watched.around is self._around:
                if spec is watched.spec:
                    continue
                if spec is not None and _identity(spec) == _identity(watched.spec):
                    self._watches[uid] = watched._replace(spec=spec)
                    continue
            del self._watches[uid]
            watched.task.cancel()
            ended += 1
            if ended % WATCHES_A_STEP == 0:
                await asyncio.sleep(0)
        new = [spec for uid, spec in wanted.items() if uid not in self._watches]
        around = self._around
        # A handful of newcomers is read at once; a whole pool is spread over an interval.
        spread_seconds = around.settings.interval_seconds * min(1.0, (len(new) - 1) / around.settings.concurrency_max)
        for begun, spec in enumerate(new, 1):
            watch = EngineWatch(around, spec)
            task = asyncio.create_task(watch.run(spread_seconds * around.rng.random()), name=f"scrape {spec.address}")
            self._watches[spec.uid] = _Watched(spec, around, watch, task)
            if begun % WATCHES_A_STEP == 0:
                await asyncio.sleep(0)
        if self._busy is not None:
            for uid in self._busy():
                busy = self._watches.get(uid)
                if busy is not None:
                    busy.watch.hasten()


def _identity(spec: EndpointSpec) -> tuple[object, ...]:
    """What a watch depends on: another changed label does not start it anew."""
    return spec.address, spec.name, spec.node, spec.engine, engine_label(spec), spec.metrics_url
