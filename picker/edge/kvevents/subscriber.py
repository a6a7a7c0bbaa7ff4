"""One publisher of KV events, followed: SUB for what comes, DEALER for what was lost.

Everything is bounded: ZMQ keeps `QUEUED_MAX` messages and drops what comes beyond (a gap, then), a message
is at most `wire.BATCH_BYTES_MAX`, and the work on messages takes at most a `DUTY` of the loop's time, however
fast an engine publishes. A malformed batch is counted and passed over. Nothing of it is logged but counts.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import zmq
import zmq.asyncio

from picker.edge.kvevents.sources import EventSource
from picker.residency.heard import Heard
from picker.residency.sequence import END, Means, SequenceNumbers, number_of
from picker.residency.wire import BATCH_BYTES_MAX, EventBatch, MalformedBatch, decode_batch

QUEUED_MAX = 10_000
DUTY = 0.1
TURN_SECONDS = 0.001
"""Work at a stretch, before others have their turn."""
REPLAY_SECONDS = 5.0
REPLAYED_MAX = 100_000
"""Batches of one replay: vLLM keeps 10,000."""


def open_socket(context: "zmq.asyncio.Context", kind: int) -> Any:
    """With every bound set."""
    socket = context.socket(kind)
    socket.setsockopt(zmq.SocketOption.RCVHWM, QUEUED_MAX)
    socket.setsockopt(zmq.SocketOption.MAXMSGSIZE, BATCH_BYTES_MAX)
    socket.setsockopt(zmq.SocketOption.RECONNECT_IVL, 200)
    socket.setsockopt(zmq.SocketOption.RECONNECT_IVL_MAX, 10_000)
    socket.setsockopt(zmq.SocketOption.IPV6, 1)
    return socket


class Duty:
    """How much of the loop's time messages may take: `rest()` after each, with the seconds it took."""

    def __init__(self) -> None:
        self._spent = 0.0

    async def rest(self, seconds: float) -> None:
        """Let others have their turn, if it is theirs."""
        self._spent += seconds
        if self._spent > TURN_SECONDS:
            await asyncio.sleep(self._spent * (1.0 / DUTY - 1.0))
            self._spent = 0.0


class EventListener:
    """What a subscriber tells; each is called on the loop and must not raise."""

    def __init__(
        self,
        *,
        apply: Callable[[EventBatch, int], None],
        cleared: Callable[[], None],
        missed: Callable[[], None],
        whole: Callable[[], None],
    ) -> None:
        self.apply = apply
        self.cleared = cleared
        self.missed = missed
        self.whole = whole


class Subscriber:
    """`run()` until cancelled."""

    def __init__(
        self,
        context: "zmq.asyncio.Context",
        source: EventSource,
        listener: EventListener,
        heard: Heard,
        *,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        log: logging.Logger,
    ) -> None:
        self._context = context
        self._source = source
        self._listener = listener
        self._heard = heard
        self._clock = clock
        self._wall_clock = wall_clock
        self._log = log
        self._sequence = SequenceNumbers()
        self._incomplete = False

    async def run(self) -> None:
        """ZMQ reconnects by itself, for ever."""
        socket = open_socket(self._context, zmq.SocketType.SUB)
        try:
            socket.setsockopt(zmq.SocketOption.SUBSCRIBE, self._source.topic.encode())
            socket.connect(self._source.address)
            self.begin()
            duty = Duty()
            while True:
                frames = await socket.recv_multipart()
                began = self._clock()
                missing = self.take(frames)
                if missing is not None:
                    await self._recover(missing, frames[2])
                    began = self._clock()
                await duty.rest(self._clock() - began)
        finally:
            socket.close(linger=0)

    def begin(self) -> None:
        """From now on it is listened to."""
        self._listener.whole()

    def take(self, frames: list[bytes]) -> tuple[int, int] | None:
        """One message. The numbers missing before it, if they can be asked for; then it waits for them."""
        number = number_of(frames[1]) if len(frames) == 3 else None
        if number is None:
            self._heard.malformed_total += 1
            return None
        seen = self._sequence.see(number)
        if seen.means is Means.RESTARTED:
            self._log.info("%s: publishes from the start again, its cache is empty", self._source.address)
            self._listener.cleared()
        if seen.means in (Means.GAP, Means.RESTARTED) and number > seen.missing[0]:
            self._heard.gaps_total += 1
            if self._source.replay_address is not None:
                return seen.missing
            self._lost()
        self._apply(frames[2])
        return None

    def _apply(self, payload: bytes) -> None:
        try:
            batch = decode_batch(payload)
        except MalformedBatch:
            self._heard.malformed_total += 1
            self._lost()
            return
        self._heard.batches_total += 1
        self._heard.skipped_total += batch.skipped
        self._heard.lag_seconds = max(0.0, self._wall_clock() - batch.published_at_seconds)
        self._listener.apply(batch, self._source.rank)

    def _lost(self) -> None:
        if not self._incomplete:
            self._incomplete = True
            self._log.warning("%s: KV events were lost, this engine's cache is estimated", self._source.address)
        self._listener.missed()

    async def _recover(self, missing: tuple[int, int], payload: bytes) -> None:
        """Ask for batches `[first, last)` again; `payload` is the one behind them."""
        complete = False
        try:
            async with asyncio.timeout(REPLAY_SECONDS):
                complete = await self._replay(*missing)
        except (TimeoutError, zmq.error.ZMQError):
            pass
        if complete:
            self._listener.whole()
            self._incomplete = False
        else:
            self._lost()
        self._apply(payload)

    async def _replay(self, first: int, last: int) -> bool:
        """Whether all of them came; what came is applied."""
        socket = open_socket(self._context, zmq.SocketType.DEALER)
        expected, complete = first, True
        try:
            assert self._source.replay_address is not None
            socket.connect(self._source.replay_address)
            await socket.send_multipart([b"", first.to_bytes(8, "big")])
            for _ in range(REPLAYED_MAX):
                frames = await socket.recv_multipart()
                # `[b"", topic, number, payload]`; SGLang leaves the topic out.
                number = number_of(frames[-2]) if len(frames) in (3, 4) else None
                if number is None or number == END or number >= last:
                    break
                if number < expected:
                    continue
                complete = complete and number == expected  # older ones are no longer kept there
                expected = number + 1
                self._apply(frames[-1])
                self._heard.replayed_total += 1
                if expected == last:
                    break
                if number % 64 == 0:
                    await asyncio.sleep(0)
        finally:
            socket.close(linger=0)
        return complete and expected == last
