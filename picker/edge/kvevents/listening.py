"""Engines that connect to the picker to publish (`kv_events.listen`), in place of ports of their own.

vLLM connects where its `endpoint` names a host. One socket then hears all engines, and the topic of a message
says whose it is: `kv@ADDRESS@MODEL`, with the engine's address as the pool has it, or its host alone. Nothing can
be asked for again: what is lost leaves that engine's cache an estimate until it is cleared or starts again.
"""

import logging
from collections.abc import Callable, Sequence

import zmq
import zmq.asyncio

from picker.edge.kvevents.sources import EventSource
from picker.edge.kvevents.subscriber import Duty, Subscriber, open_socket
from picker.pool.specs import EndpointSpec, split_address
from picker.residency.heard import Heard

PREFIX = b"kv@"
TOPIC_BYTES_MAX = 512
LOOK_SECONDS = 1.0
"""So often it is asked who is in the pool: messages come thousands a second, and say themselves whose they are."""


def address_in(topic: bytes) -> str | None:
    """The engine's address in a topic; `None` where it names none."""
    if not topic.startswith(PREFIX) or len(topic) > TOPIC_BYTES_MAX:
        return None
    try:
        return topic[len(PREFIX) :].decode().partition("@")[0] or None
    except UnicodeDecodeError:
        return None


class Listening:
    """One bound socket. `run()` until cancelled."""

    def __init__(
        self,
        context: "zmq.asyncio.Context",
        address: str,
        rank: int,
        heard: Heard,
        *,
        endpoints: Callable[[], Sequence[EndpointSpec]],
        subscriber: Callable[[EventSource, str], Subscriber],
        clock: Callable[[], float],
        log: logging.Logger,
    ) -> None:
        """`subscriber`: for a source and an endpoint's uid, who is to be told."""
        self._context = context
        self._address = address
        self._rank = rank
        self._heard = heard
        self._endpoints = endpoints
        self._subscriber = subscriber
        self._clock = clock
        self._log = log
        self._uids: dict[str, str | None] = {}
        """By address, and by host; `None`: several ports of one host."""
        self._subscribers: dict[str, Subscriber] = {}
        self._looked_at = float("-inf")

    async def run(self) -> None:
        """Raises `zmq.ZMQError` where the address cannot be bound."""
        socket = open_socket(self._context, zmq.SocketType.SUB)
        try:
            socket.setsockopt(zmq.SocketOption.SUBSCRIBE, b"")
            socket.bind(self._address)
            self._log.info("KV events of engines that connect: %s", self._address)
            duty = Duty()
            while True:
                frames = await socket.recv_multipart()
                began = self._clock()
                self.take(frames)
                await duty.rest(self._clock() - began)
        finally:
            socket.close(linger=0)

    def take(self, frames: list[bytes]) -> None:
        """One message, of whomever. Of nobody in the pool: counted, and passed over."""
        found = self._whose(frames[0])
        if found is None:
            self._heard.malformed_total += 1
        else:
            found.take(frames)

    def _whose(self, topic: bytes) -> Subscriber | None:
        now = self._clock()
        if now - self._looked_at >= LOOK_SECONDS:
            self._looked_at = now
            self._look()
        named = address_in(topic)
        uid = None if named is None else self._uids.get(named)
        if uid is None:
            return None
        found = self._subscribers.get(uid)
        if found is None:
            found = self._subscribers[uid] = self._subscriber(EventSource(self._rank, self._address, None, ""), uid)
            found.begin()
        return found

    def _look(self) -> None:
        """Who is in the pool."""
        specs = self._endpoints()
        hosts: dict[str, str | None] = {}
        for spec in specs:
            host = split_address(spec.address)[0]
            hosts[host] = None if host in hosts else spec.uid
        self._uids = {**hosts, **{spec.address: spec.uid for spec in specs}}
        present = {spec.uid for spec in specs}
        self._subscribers = {uid: each for uid, each in self._subscribers.items() if uid in present}
