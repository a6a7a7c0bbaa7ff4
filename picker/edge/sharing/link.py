"""The pickers of a pool, joined through a store: a stream each, read by all.

| key (`picker:{NAME}:` before it) | what |
|---|---|
| `pickers` | sorted set: who is there, by the store's clock |
| `stream:PICKER` | its batches; a few hundred, some 45 s |
| `snapshot:PICKER:NUMBER:CHUNK` | chunks of snapshots, for a minute |

The braces keep a pool's keys on one node of a cluster. Entries' ids are the store's clock: by it a batch's age is
known, whatever the pickers' own clocks say.

Nothing here is waited for by a request. A store that is away, slow, full, wiped or not ours to read costs one
log line and retries with jitter; batches wait in a bounded buffer, and what falls out of it, or out of the
stream, is a gap in the numbering that the others ask a snapshot for.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from picker.edge.sharing.store import Store
from picker.rng import Rng
from picker.sharing.codec import Refused
from picker.sharing.records import Answer
from picker.sharing.shared import Shared

STREAM_LENGTH_MAX = 600
BLOCK_MILLISECONDS = 200
READ_COUNT = 64
"""Batches of one picker in one answer."""
SEND_COUNT = 64
MEMBER_SECONDS = 1.0
GONE_SECONDS = 10.0
"""Who did not say that it is there for so long is not read any more."""
STREAM_SECONDS = 60.0
CLOCK_SECONDS = 5.0
BACKLOG_MILLISECONDS = 2_000
"""Where a stream is read from at first, before now."""
SNAPSHOT_SECONDS = 60.0
BACKOFF_FIRST_SECONDS = 0.25
BACKOFF_MOST_SECONDS = 10.0
TICK_SECONDS = 0.05
MEMBERS_MAX = 256
CHUNK_BYTES_MAX = 8 * 1024 * 1024
REFUSALS_MAX = 64

Tell = Callable[..., None]
"""`log(level, message, **fields)`."""


class Link:
    """One picker's connection to the others. `run` until cancelled."""

    def __init__(
        self,
        shared: Shared,
        store: Store,
        *,
        name: str,
        interval_seconds: float,
        warm_start_seconds: float,
        buffer_bytes_max: int,
        clock: Callable[[], float],
        rng: Rng,
        log: Tell,
        on_warm: Callable[[], None],
    ) -> None:
        self.warm = False
        """May serve: it knows what the others know, or waited long enough for it."""
        self.bytes_sent = 0
        self.bytes_received = 0
        self.snapshots_written = 0
        self.snapshots_loaded = 0
        self.snapshot_seconds: float | None = None
        """How long the last one took, from the others' word that it is there to the last chunk."""
        self._shared = shared
        self._store = store
        self._prefix = f"picker:{{{name}}}:"
        self._me = f"{shared.name:016x}"
        self._interval = interval_seconds
        self._warm_start = warm_start_seconds
        self._buffer_max = buffer_bytes_max
        self._clock = clock
        self._rng = rng
        self._log = log
        self._on_warm = on_warm
        self._pending: deque[tuple[bytes, float]] = deque()
        self._pending_bytes = 0
        self._pending_event = asyncio.Event()
        self._positions: dict[str, str] = {}
        self._members: list[str] = []
        self._unreadable: set[str] = set()
        self._offset: float | None = None
        """From the store's clock to ours, in seconds."""
        self._failures: dict[str, int] = {}
        """In a row, by what failed."""
        self._works_once = False
        self._complained = False
        self._refusals: set[str] = set()
        self._snapshots = 0
        self._background: set[asyncio.Task[None]] = set()
        self._loading = False
        self._writing = False
        self._joined = False
        self._clients: list[Any] = []

    async def run(self) -> None:
        """Tell and hear until cancelled."""
        works = [
            asyncio.create_task(self._keep("telling", self._send)),
            asyncio.create_task(self._keep("hearing", self._read)),
            asyncio.create_task(self._flush()),
            asyncio.create_task(self._warm_up()),
        ]
        try:
            await asyncio.gather(*works)
        finally:
            for work in (*works, *self._background):
                work.cancel()
            await asyncio.gather(*works, *self._background, return_exceptions=True)

    # What runs all the time ----------------------------------------------------------------

    async def _flush(self) -> None:
        """Batches into the buffer, whatever the store does."""
        while True:
            await asyncio.sleep(self._interval)
            now = self._clock()
            self._shared.tick(now)
            self._shared.work(now)
            batch = self._shared.flush(now)
            if batch is not None:
                self._pending.append((batch, now))
                self._pending_bytes += len(batch)
                while self._pending_bytes > self._buffer_max and len(self._pending) > 1:
                    self._pending_bytes -= len(self._pending.popleft()[0])
                    self._shared.dropped(1)
                self._pending_event.set()
            since = None if self._writing or not self.up else self._shared.snapshot_due(now)
            if since is not None:
                self._writing = True
                self._spawn(self._write_snapshot(since))
            if self._shared.whole:
                self._set_warm()
            for who, answer, told_us in () if self._loading else self._shared.answers():
                self._loading = True
                self._spawn(self._load_snapshot(who, answer, told_us))
                break

    async def _warm_up(self) -> None:
        await asyncio.sleep(self._warm_start)
        if not self.warm:
            self._shared.settle()
            self._set_warm()

    def _set_warm(self) -> None:
        if not self.warm:
            self.warm = True
            self._on_warm()

    async def _keep(self, part: str, work: Callable[[Any], Any]) -> None:
        """Do it with a client, and again with another when that fails."""
        while True:
            client = self._store.open()
            try:
                await work(client)
            except Exception as error:  # whatever the store, the network or redis-py makes of it
                self._failed(part, error)
            finally:
                await _close(client)
            most = min(BACKOFF_MOST_SECONDS, BACKOFF_FIRST_SECONDS * 2 ** min(self._failures.get(part, 0), 10))
            await asyncio.sleep(most * (0.25 + 0.75 * self._rng.random()))

    @property
    def up(self) -> bool:
        """The store takes what we tell, and gives what others tell."""
        return self._works_once and not self._failures

    def _failed(self, part: str, error: Exception) -> None:
        self._failures[part] = self._failures.get(part, 0) + 1
        if not self._complained:
            self._complained = True
            self._log(
                "warning",
                "the shared state is not usable: deciding by local knowledge, and trying again",
                store=self._store.shown,
                error=f"{type(error).__name__}: {error}"[:300],
            )

    def _works(self, part: str) -> None:
        self._failures.pop(part, None)
        self._works_once = True
        if self._complained and not self._failures:
            self._complained = False
            self._log("info", "the shared state is usable again", store=self._store.shown)

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    # Telling -------------------------------------------------------------------------------

    async def _send(self, client: Any) -> None:
        key, member_at = f"{self._prefix}stream:{self._me}", -MEMBER_SECONDS
        while True:
            now = self._clock()
            if now - member_at >= MEMBER_SECONDS:
                member_at = now
                await self._say_here(client, key)
            batches = [self._pending[at] for at in range(min(SEND_COUNT, len(self._pending)))]
            if batches:
                pipe = client.pipeline(transaction=False)
                for batch, made_at in batches:
                    fields = {"b": batch, "a": int((now - made_at) * 1000)}
                    pipe.xadd(key, fields, maxlen=STREAM_LENGTH_MAX, approximate=True)
                await pipe.execute()
                self._works("telling")
                for batch, made_at in batches:
                    self.bytes_sent += len(batch)
                    if self._pending and self._pending[0][1] == made_at:  # not dropped meanwhile
                        self._pending.popleft()
                        self._pending_bytes -= len(batch)
                continue
            self._pending_event.clear()
            try:
                await asyncio.wait_for(self._pending_event.wait(), MEMBER_SECONDS)
            except TimeoutError:
                pass

    async def _say_here(self, client: Any, key: str) -> None:
        if self._store.changed():
            await client.aclose()  # the next command connects anew, with the new credentials
        seconds, micros = await client.time()
        store_now = int(seconds) + int(micros) / 1e6
        members = f"{self._prefix}pickers"
        pipe = client.pipeline(transaction=False)
        pipe.zadd(members, {self._me: store_now})
        pipe.zremrangebyscore(members, "-inf", store_now - STREAM_SECONDS)
        pipe.pexpire(members, int(STREAM_SECONDS * 1000))
        pipe.pexpire(key, int(STREAM_SECONDS * 1000))
        await pipe.execute()

    # Hearing -------------------------------------------------------------------------------

    async def _read(self, client: Any) -> None:
        looked_at = timed_at = -1e9
        while True:
            now = self._clock()
            if now - timed_at >= CLOCK_SECONDS:
                timed_at = now
                await self._compare_clocks(client)
                await self._mend_positions(client)
            if now - looked_at >= MEMBER_SECONDS:
                looked_at = now
                await self._look_round(client)
                self._works("hearing")
            if not self._members:
                await asyncio.sleep(BLOCK_MILLISECONDS / 1000)
                continue
            streams = {f"{self._prefix}stream:{member}": self._positions[member] for member in self._members}
            answer = await client.xread(streams, count=READ_COUNT, block=BLOCK_MILLISECONDS)
            for key, entries in answer or ():
                await self._take(bytes(key).decode(), entries)

    async def _compare_clocks(self, client: Any) -> None:
        before = self._clock()
        seconds, micros = await client.time()
        self._offset = (before + self._clock()) / 2 - (int(seconds) + int(micros) / 1e6)

    async def _look_round(self, client: Any) -> None:
        """Who is there, and from where on each is read."""
        assert self._offset is not None
        store_now = self._clock() - self._offset
        found = await client.zrangebyscore(
            f"{self._prefix}pickers", store_now - GONE_SECONDS, "+inf", start=0, num=MEMBERS_MAX
        )
        names = [bytes(each).decode("ascii", "replace") for each in found]
        self._members = [member for member in names if member != self._me and member not in self._unreadable]
        begin = f"{max(0, int(store_now * 1000) - BACKLOG_MILLISECONDS)}-0"
        for member in self._members:
            self._positions.setdefault(member, begin)
        while len(self._positions) > 4 * MEMBERS_MAX:
            del self._positions[next(iter(self._positions))]
        if not self._joined:
            self._joined = True
            if self._members:
                self._shared.join()
            else:
                self._shared.settle()

    async def _mend_positions(self, client: Any) -> None:
        """A store that was wiped, or whose clock went back, numbers its entries from below what was read."""
        if not self._members:
            return
        pipe = client.pipeline(transaction=False)
        for member in self._members:
            pipe.xrevrange(f"{self._prefix}stream:{member}", count=1)
        self._unreadable.clear()
        for member, newest in zip(list(self._members), await pipe.execute(raise_on_error=False), strict=True):
            if isinstance(newest, Exception):  # a key of another kind in the place of a stream
                self._unreadable.add(member)
                self._refused(member, str(newest)[:200])
            elif newest and _number(bytes(newest[0][0])) < _number(self._positions[member].encode()):
                self._positions[member] = "0-0"

    async def _take(self, key: str, entries: Any) -> None:
        member = key.rpartition(":")[2]
        for number, fields in entries:
            identity = bytes(number)
            self._positions[member] = identity.decode("ascii", "replace")
            now = self._clock()
            data = (fields or {}).get(b"b", b"")
            self.bytes_received += len(data)
            try:
                age = int((fields or {}).get(b"a", b"0")) / 1000
                at = _number(identity)[0] / 1000 - age + (self._offset or 0.0)
                self._shared.receive(data, at=min(at, now), now=now)
            except (Refused, ValueError) as error:
                self._refused(member, str(error))
                continue
            more = self._shared.work(self._clock())
            while more:
                await asyncio.sleep(0)
                more = self._shared.work(self._clock())

    def _refused(self, member: str, why: str) -> None:
        if why not in self._refusals and len(self._refusals) < REFUSALS_MAX:
            self._refusals.add(why)
            self._log("warning", "what another picker tells is not usable, and left out", picker=member, error=why)

    # Snapshots -----------------------------------------------------------------------------

    async def _write_snapshot(self, since: int) -> None:
        client = self._store.open()
        begun = self._clock()
        self._snapshots += 1
        name, count = f"{self._me}:{self._snapshots}", 0
        try:
            for chunk in self._shared.snapshot(since, begun):
                if chunk is None:
                    await asyncio.sleep(0)
                    continue
                await client.set(f"{self._prefix}snapshot:{name}:{count}", chunk, px=int(SNAPSHOT_SECONDS * 1000))
                self.bytes_sent += len(chunk)
                count += 1
            self._shared.announce(name, count, since, begun)
            self.snapshots_written += 1
        except Exception as error:
            self._log("debug", "a snapshot could not be written", error=str(error)[:300])
        finally:
            self._writing = False
            await _close(client)

    async def _load_snapshot(self, who: int, answer: Answer, told_us: int) -> None:
        client = self._store.open()
        began, loader = self._clock(), self._shared.loader()
        try:
            for number in range(answer.chunks):
                chunk = await client.get(f"{self._prefix}snapshot:{answer.name}:{number}")
                if chunk is None or len(chunk) > CHUNK_BYTES_MAX:
                    return  # it is asked for again
                self.bytes_received += len(chunk)
                for _ in self._shared.load(loader, chunk, told_us - answer.begun, self._clock()):
                    await asyncio.sleep(0)
                await asyncio.sleep(0)
            self._shared.loaded(who, 0 if answer.whole else told_us - answer.since)
            self.snapshots_loaded += 1
            self.snapshot_seconds = self._clock() - began
            self._log(
                "info",
                "took over what another picker knows",
                picker=f"{who:016x}",
                blocks=loader.blocks,
                seconds=round(self.snapshot_seconds, 3),
            )
        except Refused as error:
            self._refused(f"{who:016x}", str(error))
        except Exception as error:
            self._log("debug", "a snapshot could not be read", error=str(error)[:300])
        finally:
            self._loading = False
            await _close(client)


async def _close(client: Any) -> None:
    try:
        await asyncio.wait_for(client.aclose(), 1.0)
    except Exception:
        pass  # it was broken anyway


def _number(identity: bytes) -> tuple[int, int]:
    """A stream's id, `milliseconds-sequence`. Raises `ValueError`."""
    first, _, second = identity.partition(b"-")
    return int(first), int(second or b"0")
