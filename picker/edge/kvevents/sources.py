"""Where an engine publishes its KV events: what it tells by `GET /kv_event_sources`, else the configured port.

vLLM 0.32 answers `{"0": {"endpoint": "tcp://*:5557", "replay_endpoint": ..., "topic": ...}}`, a key a
data-parallel rank. An endpoint with `*`, `::` or `0.0.0.0` is bound by the engine, on its own address; one
with an address is connected to by it, where some other program listens; `ipc` and `inproc` are
within its machine.
"""

from typing import NamedTuple
from urllib.parse import urlsplit

import msgspec

from picker.config import KvEvents
from picker.pool.specs import join_address, split_address

PATH = "/kv_event_sources"
RANKS_MAX = 64
_ANY_HOST = ("*", "::", "0.0.0.0", "")


class EventSource(NamedTuple):
    """One publisher. Addresses as ZMQ writes them."""

    rank: int
    address: str
    replay_address: str | None
    topic: str


class _Told(msgspec.Struct):
    endpoint: str | None = None
    replay_endpoint: str | None = None
    topic: str | None = None


_told = msgspec.json.Decoder(dict[str, _Told])


def configured(address: str, settings: KvEvents) -> tuple[EventSource, ...]:
    """Those that configuration names, of an endpoint at `address`: one a rank."""
    host = split_address(address)[0]
    return tuple(
        EventSource(
            rank,
            _tcp(host, settings.port + rank),
            None if settings.replay_port is None else _tcp(host, settings.replay_port + rank),
            settings.topic,
        )
        for rank in range(settings.ranks)
    )


def listened(settings: KvEvents) -> list[tuple[str, int]]:
    """Addresses to bind for engines that connect to us, and their ranks: vLLM adds the rank to the port."""
    if settings.listen is None:
        return []
    base, _, port = settings.listen.rpartition(":")
    return [(f"{base}:{int(port) + rank}", rank) for rank in range(settings.ranks)]


def told(page: bytes, address: str, settings: KvEvents) -> tuple[EventSource, ...]:
    """Those that an engine's page names and that can be reached. Raises `ValueError` where it is no such page."""
    try:
        ranks = _told.decode(page)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(f"{PATH} answered what is no list of sources: {error}") from None
    host = split_address(address)[0]
    found = []
    for rank, each in list(ranks.items())[:RANKS_MAX]:
        reached = _reached(each.endpoint, host)
        if reached is not None and rank.isdigit() and len(rank) <= 3:
            found.append(EventSource(int(rank), reached, _reached(each.replay_endpoint, host), settings.topic))
    return tuple(found)


def _reached(endpoint: str | None, host: str) -> str | None:
    """How a publisher that binds `endpoint` is reached from here; `None`: not at all."""
    if not endpoint:
        return None
    try:
        parts = urlsplit(endpoint)
        port = parts.port
    except ValueError:
        return None
    if parts.scheme != "tcp" or not port:
        return None
    return _tcp(host, port) if (parts.hostname or "") in _ANY_HOST else None


def _tcp(host: str, port: int) -> str:
    return f"tcp://{join_address(host, port)}"
