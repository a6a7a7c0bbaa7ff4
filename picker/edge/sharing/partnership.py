"""What `shared_state` makes of a picker: a link to the others, a state file, or neither.

It begins when the endpoints are known, since what others tell is of endpoints. Until `warm`, the picker
is not to serve.
"""

import asyncio
import time
from collections.abc import Callable
from random import SystemRandom

from picker.config import SharedState
from picker.decision import Booking, Picked
from picker.director import Director
from picker.edge.sharing import state_file
from picker.edge.sharing.link import Link, Tell
from picker.edge.sharing.store import Store
from picker.sharing.attach import attach, detach
from picker.sharing.shared import Shared
from picker.sharing.status import SharedStatus

SYNCED_CHECK_SECONDS = 0.02


class Partnership:
    """One for a picker. Raises `ConfigError`."""

    def __init__(
        self,
        settings: SharedState,
        director: Director,
        name: str,
        *,
        clock: Callable[[], float],
        log: Tell,
        on_warm: Callable[[], None],
    ) -> None:
        """`name`: of the pool, where the settings give none."""
        self._settings = settings
        self._director = director
        self._clock = clock
        self._log = log
        self._on_warm = on_warm
        self._wall = time.time
        self._began = False
        self.shared: Shared | None = None
        self.link: Link | None = None
        if settings.url is None and settings.state_file is None:
            return
        rng = SystemRandom()
        store = Store(settings) if settings.url is not None else None
        self.shared = attach(director, name=rng.getrandbits(63) + 1, started_ms=int(time.time() * 1000))
        if store is None:
            detach(director)  # nobody hears; the file is written from the books
            return
        self.link = Link(
            self.shared,
            store,
            name=settings.name or name,
            interval_seconds=settings.interval_seconds,
            warm_start_seconds=settings.warm_start_seconds,
            buffer_bytes_max=settings.buffer_bytes_max,
            clock=clock,
            rng=rng,
            log=log,
            on_warm=on_warm,
        )

    @property
    def warm(self) -> bool:
        """May serve, as far as this goes."""
        if self.link is not None:
            return self.link.warm
        return self.shared is None or self._began

    def status(self) -> SharedStatus | None:
        """How it stands; `None` without a store."""
        if self.shared is None or self.link is None:
            return None
        alive = self.shared.peers.alive(self._clock())
        counts = self.shared.counts
        return SharedStatus(
            up=self.link.up,
            warm=self.link.warm,
            pickers=len(alive),
            lag_seconds=max((peer.lag for peer in alive), default=None),
            requests_in_flight=self.shared.peers.requests(),
            snapshot_seconds=self.link.snapshot_seconds,
            bytes_sent=self.link.bytes_sent,
            bytes_received=self.link.bytes_received,
            snapshots_written=self.link.snapshots_written,
            snapshots_read=self.link.snapshots_loaded,
            sent=counts.sent,
            received=counts.received,
            dropped=counts.dropped,
        )

    def told(self, picked: Picked, address: str) -> bool:
        """Whether what `address` held of the prompt at the pick, or holds now, is known from another picker."""
        booking: Booking = picked.booking
        if self.link is None:
            return False
        if address == picked.addresses[0]:
            return booking.recorded is not None and booking.recorded.told
        endpoint = self._director.datastore.snapshot(self._clock()).by_address.get(address)
        return endpoint is not None and self._director.index.told(booking.hashes, endpoint.slot)

    async def run(self) -> None:
        """From the moment the endpoints are known until cancelled, which is the stop."""
        if self.shared is None:
            return
        synced = self._director.datastore.synced
        while not synced:
            await asyncio.sleep(SYNCED_CHECK_SECONDS)
            synced = self._director.datastore.synced
        if self._settings.state_file is not None:
            state_file.load(self._settings.state_file, self.shared, now=self._clock(), wall=self._wall(), log=self._log)
        self._began = True
        try:
            if self.link is not None:
                await self.link.run()
            else:
                self._on_warm()
                await asyncio.Event().wait()
        finally:
            self._save()

    def _save(self) -> None:
        """At the stop: leave what is known to the next one."""
        if self.shared is not None and self._settings.state_file is not None:
            state_file.save(self._settings.state_file, self.shared, now=self._clock(), wall=self._wall(), log=self._log)
