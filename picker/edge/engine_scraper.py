"""Reads every endpoint's /metrics about once a second, and its /v1/models now and then.

One task an endpoint, so that a slow one delays nobody; a semaphore bounds how many requests are
under way. Each scrape is one small step of the loop (a page is interpreted in a fifth of a
millisecond), jittered so that the steps do not bunch. What comes out are plain values.

Invariants: an endpoint that leaves is not asked again and nothing more is recorded for it; a
scrape ends in exactly one `record` or one `failed`; one that times out is asked less often (it
holds a place that others need), up to `BACKOFF_INTERVALS_MAX` intervals.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

from picker.config import EngineMetrics
from picker.edge.engine_watch import EngineWatch, Surroundings, engine_label
from picker.pool.specs import EndpointSpec, EngineSample

MODELS_INTERVAL_SECONDS = 30.0
RECONCILE_SECONDS = 0.25


class _Watched(NamedTuple):
    identity: tuple[object, ...]
    task: asyncio.Task[None]


class EngineScraper:
    """`run()` until cancelled. `record` gets each sample, `failed` each failure as (uid, why)."""

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
        models_interval_seconds: float | None = MODELS_INTERVAL_SECONDS,
        gpu_utilization: Callable[[EndpointSpec], float | None] | None = None,
    ) -> None:
        """`models_interval_seconds=None`: /v1/models is not asked for. `clock`: monotonic seconds.

        `gpu_utilization`: `GpuSource.utilization`, where GPU metrics are configured.
        """
        self._endpoints = endpoints
        told: set[tuple[str, str]] = set()

        def surroundings(settings: EngineMetrics) -> Surroundings:
            return Surroundings(
                settings=settings,
                record=record,
                failed=failed,
                clock=clock,
                rng=rng,
                log=log,
                models_interval_seconds=models_interval_seconds,
                gpu_utilization=gpu_utilization,
                told=told,
            )

        self._surroundings = surroundings
        self._around = surroundings(settings)
        self._watches: dict[str, _Watched] = {}

    def replace_settings(self, settings: EngineMetrics) -> None:
        """Live reload: every endpoint is watched anew with the new settings."""
        if settings != self._around.settings:
            self._around = self._surroundings(settings)
            self._stop_watches()

    async def run(self) -> None:
        """Watch whatever `endpoints()` lists, until cancelled."""
        try:
            while True:
                self._reconcile()
                await asyncio.sleep(min(RECONCILE_SECONDS, self._around.settings.interval_seconds))
        finally:
            tasks = [watched.task for watched in self._watches.values()]
            self._stop_watches()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _stop_watches(self) -> None:
        for watched in self._watches.values():
            watched.task.cancel()
        self._watches.clear()

    def _reconcile(self) -> None:
        wanted = {spec.uid: spec for spec in self._endpoints()}
        for uid, watched in list(self._watches.items()):
            spec = wanted.get(uid)
            if spec is None or _identity(spec) != watched.identity:
                del self._watches[uid]
                watched.task.cancel()
        new = [spec for uid, spec in wanted.items() if uid not in self._watches]
        settings = self._around.settings
        # A handful of newcomers is read at once; a whole pool is spread over an interval.
        spread_seconds = settings.interval_seconds * min(1.0, (len(new) - 1) / settings.concurrency_max)
        for spec in new:
            watch = EngineWatch(self._around, spec)
            delay_seconds = spread_seconds * self._around.rng.random()
            task = asyncio.create_task(watch.run(delay_seconds), name=f"scrape {spec.address}")
            self._watches[spec.uid] = _Watched(_identity(spec), task)


def _identity(spec: EndpointSpec) -> tuple[object, ...]:
    """What a watch depends on: another changed label does not start it anew."""
    return spec.address, spec.name, spec.node, spec.engine, engine_label(spec), spec.metrics_url
