"""KV events of the whole pool: who publishes, one subscriber each, as endpoints come and go.

With `enabled: auto` an engine is asked whether and where it publishes, first every `ASK_SECONDS`, then ever more
rarely; one that does not answer costs nothing else. Endpoints that left are unsubscribed within a second.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

import aiohttp
import zmq.asyncio

from picker.config import KvEvents
from picker.edge.kvevents.listening import Listening
from picker.edge.kvevents.sources import PATH, EventSource, configured, listened, told
from picker.edge.kvevents.subscriber import EventListener, Subscriber
from picker.pool.specs import EndpointSpec
from picker.residency.heard import Heard
from picker.residency.residency import Residency
from picker.residency.wire import EventBatch

RECONCILE_SECONDS = 1.0
ASK_SECONDS = 60.0
ASK_AT_LEAST = 16
"""Times that, at most, between two questions to an engine that has nothing to tell."""
ASK_TIMEOUT_SECONDS = 2.0
PAGE_BYTES_MAX = 65_536


class KvEventFollower:
    """`run()` until cancelled."""

    def __init__(
        self,
        settings: KvEvents,
        residency: Residency,
        *,
        endpoints: Callable[[], Sequence[EndpointSpec]],
        slot_of: Callable[[str], int | None],
        clock: Callable[[], float],
        scheme: str = "http",
        log: logging.Logger,
        ask_seconds: float = ASK_SECONDS,
    ) -> None:
        """`slot_of`: an endpoint's slot by its uid, `None` once it left."""
        self.heard = Heard()
        self._settings = settings
        self._residency = residency
        self._endpoints = endpoints
        self._slot_of = slot_of
        self._clock = clock
        self._scheme = scheme
        self._log = log
        self._ask_seconds = ask_seconds
        self._tasks: dict[tuple[str, str], asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Follow whatever `endpoints()` lists."""
        context = zmq.asyncio.Context()
        listening: list[asyncio.Task[None]] = []
        try:
            async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=ASK_TIMEOUT_SECONDS)) as session:
                listening = [asyncio.create_task(self._listen(context, *each)) for each in listened(self._settings)]
                while True:
                    self._reconcile(context, session)
                    await asyncio.sleep(RECONCILE_SECONDS)
        finally:
            tasks = [*self._tasks.values(), *listening]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            context.destroy(linger=0)

    @property
    def followed(self) -> int:
        """Endpoints whose engines are listened to."""
        return sum(
            slot is not None and self._residency.tells(slot)
            for slot in (self._slot_of(spec.uid) for spec in self._endpoints())
        )

    def _reconcile(self, context: "zmq.asyncio.Context", session: aiohttp.ClientSession) -> None:
        wanted = {(spec.uid, spec.address): spec for spec in self._endpoints()}
        for key in [key for key in self._tasks if key not in wanted]:
            self._tasks.pop(key).cancel()
        for key, spec in wanted.items():
            if key not in self._tasks:
                self._tasks[key] = asyncio.create_task(self._follow(context, session, spec))

    async def _follow(self, context: "zmq.asyncio.Context", session: aiohttp.ClientSession, spec: EndpointSpec) -> None:
        sources = await self._sources(session, spec)
        seconds = self._ask_seconds
        while not sources:
            await asyncio.sleep(seconds)
            seconds = min(2 * seconds, ASK_AT_LEAST * self._ask_seconds)
            sources = await self._sources(session, spec)
        self._log.info("%s: KV events at %s", spec.name, ", ".join(source.address for source in sources))
        try:
            async with asyncio.TaskGroup() as group:
                for source in sources:
                    group.create_task(self._subscriber(context, source, spec.uid).run())
        except* Exception as failed:  # the endpoint is approximate from now on; requests do not notice
            self._log.error("%s: following KV events failed: %s", spec.name, failed.exceptions[0])
            slot = self._slot_of(spec.uid)
            if slot is not None:
                self._residency.forget(slot)

    async def _listen(self, context: "zmq.asyncio.Context", address: str, rank: int) -> None:
        listening = Listening(
            context,
            address,
            rank,
            self.heard,
            endpoints=self._endpoints,
            subscriber=lambda source, uid: self._subscriber(context, source, uid),
            clock=self._clock,
            log=self._log,
        )
        try:
            await listening.run()
        except zmq.error.ZMQError as error:
            self._log.error(
                "kv_events.listen: %s cannot be bound (%s): engines that connect are not heard", address, error
            )

    def _subscriber(self, context: "zmq.asyncio.Context", source: EventSource, uid: str) -> Subscriber:
        residency, slot_of = self._residency, self._slot_of

        def at_slot(act: Callable[[int], None]) -> Callable[[], None]:
            def done() -> None:
                slot = slot_of(uid)
                if slot is not None:
                    act(slot)

            return done

        def apply(batch: EventBatch, rank: int) -> None:
            slot = slot_of(uid)
            if slot is not None:
                residency.apply(slot, batch.events, rank)

        listener = EventListener(
            apply=apply,
            cleared=at_slot(residency.cleared),
            missed=at_slot(residency.missed),
            whole=at_slot(residency.heard),
        )
        return Subscriber(context, source, listener, self.heard, clock=self._clock, wall_clock=time.time, log=self._log)

    async def _sources(self, session: aiohttp.ClientSession, spec: EndpointSpec) -> tuple[EventSource, ...]:
        otherwise = configured(spec.address, self._settings) if self._settings.enabled is True else ()
        try:
            async with session.get(f"{self._scheme}://{spec.address}{PATH}") as answer:
                if answer.status != 200:
                    return otherwise
                page = await answer.content.read(PAGE_BYTES_MAX)
                return told(page, spec.address, self._settings) or otherwise
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            self._log.debug("%s: %s: %s", spec.name, PATH, error)
            return otherwise
