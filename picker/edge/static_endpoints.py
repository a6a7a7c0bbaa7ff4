"""Endpoints without a cluster: from the command line, or from a file that is read again when it changes.

A file is read and parsed in a thread, so that a list of thousands keeps no request waiting; `followed_file` says
when what it says counts. JSON is a tenth of the work of YAML. A list that becomes empty is a program's mistake
more often than its intention, and costs all requests where keeping it costs none: the last one stays.

Names are resolved at the start and every 30 s, each address an endpoint of its own. A name that
stops resolving keeps its last addresses: a DNS server that is away takes no capacity away. While
any name does not resolve, all are asked again every 2 s; it is told once, and once when it is back.
The list counts as synced after the first round, whatever resolved: the endpoints that are known can serve.
"""

import asyncio
import hashlib
import ipaddress
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec

from picker.config import MISSPOKEN_YAML
from picker.files.background import unnoticed
from picker.files.followed_file import FileProblem, FollowedFile
from picker.files.long_list import items_of
from picker.pool.specs import NO_LABELS, EndpointSpec, join_address, split_address

RESOLVE_SECONDS = 30.0
RETRY_SECONDS = 2.0
"""Between rounds while a name does not resolve: it may be a Service that is just being made."""
FILE_CHECK_SECONDS = 1.0
FILE_BYTES_MAX = 4 * 1024 * 1024
"""Some 30,000 endpoints."""
COLLISIONS_NAMED_MAX = 5
TURN_ENTRIES = 256
"""So many entries are turned into endpoints before the event loop has its turn again."""


class SourceError(ValueError):
    """What is wrong with the endpoints that were given, in words that name the entry."""


class StaticTarget(msgspec.Struct, frozen=True, kw_only=True):
    """One entry, before names are resolved."""

    host: str
    port: int
    numeric: bool = False
    """The host is an address, in its usual spelling, not a name."""
    name: str | None = None
    labels: Mapping[str, str] = NO_LABELS
    engine: str | None = None
    metrics_url: str | None = None


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    """An entry of the file: ours (`address` with its port), or the peer's (`address` and `port`)."""

    address: str
    port: Annotated[int, msgspec.Meta(ge=1, le=65535)] | None = None
    name: str | None = None
    namespace: str | None = None
    labels: dict[str, str] = {}
    engine: str | None = None
    metrics_url: str | None = None


def parse_list(text: str) -> list[StaticTarget]:
    """`'10.0.0.1:8000,[fd00::1]:8000,name:8000'`. Raises `SourceError`."""
    return [_target(part.strip()) for part in text.split(",") if part.strip()]


def parse_file(text: str) -> list[StaticTarget]:
    """A YAML or JSON document with `endpoints:`. Raises `SourceError`."""
    try:
        return [_of_item(item, number) for number, item in enumerate(items_of(text, "endpoints"))]
    except SourceError:
        raise
    except MISSPOKEN_YAML as error:
        why = str(error) if isinstance(error, ValueError) else "a value is not what its tag or its look says; quote it"
        raise SourceError(f"{why} ({_EXPECTED})") from None


_EXPECTED = "expected `endpoints:`, a list of host:port or of tables with `address`"


def _of_item(item: Any, number: int) -> StaticTarget:
    try:
        entry = msgspec.convert(item, str | _Entry)
    except msgspec.ValidationError as error:
        raise SourceError(f"endpoints[{number}]: {error} ({_EXPECTED})") from None
    return _target(entry) if isinstance(entry, str) else _of_entry(entry)


def _changed_targets(file: FollowedFile) -> list[StaticTarget] | None:
    """The list where the file changed. Raises `FileProblem`, `SourceError`."""
    content = file.poll()
    if content is None:
        return None
    targets = _targets_of(content)
    if not targets:
        raise SourceError("it lists no endpoint; to serve none, stop the picker")
    return targets


def _targets_of(content: bytes) -> list[StaticTarget]:
    with unnoticed():
        return _parsed(content)


def _meaning(content: bytes) -> int:
    """The same for the same entries in whatever order: programs write them out of maps, which have none."""
    meaning = 0
    for target in _targets_of(content):
        ordered = msgspec.structs.replace(target, labels=dict(sorted(target.labels.items())))
        meaning += int.from_bytes(hashlib.blake2b(repr(ordered).encode(), digest_size=16).digest(), "big")
    return meaning


def _parsed(content: bytes) -> list[StaticTarget]:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SourceError(f"not UTF-8 text: {error.reason} at byte {error.start}; save the file as UTF-8") from None
    return parse_file(text)


def _target(text: str) -> StaticTarget:
    try:
        host, port = split_address(text)
    except ValueError as error:
        raise SourceError(str(error)) from None
    return _spelled(StaticTarget(host=host, port=port))


def _of_entry(entry: _Entry) -> StaticTarget:
    if entry.port is None:
        plain = _target(entry.address)
        host, port = plain.host, plain.port
    else:
        host, port = entry.address.strip("[]"), entry.port
    return _spelled(
        StaticTarget(
            host=host,
            port=port,
            name=entry.name,
            labels=entry.labels,
            engine=entry.engine,
            metrics_url=entry.metrics_url,
        )
    )


def _spelled(target: StaticTarget) -> StaticTarget:
    try:
        usual = str(ipaddress.ip_address(target.host))
    except ValueError:
        return target
    return msgspec.structs.replace(target, host=usual, numeric=True)


async def resolve_name(host: str) -> list[str]:
    """The addresses of a name, in a stable order. Raises `OSError`."""
    found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return sorted({str(entry[4][0]) for entry in found})


class StaticSource:
    """Follows a fixed list or a file until `run()` is cancelled."""

    def __init__(
        self,
        *,
        targets: Sequence[StaticTarget] = (),
        file: Path | None = None,
        on_endpoints: Callable[[list[EndpointSpec]], None],
        log: Callable[..., None],
        resolve: Callable[[str], Any] = resolve_name,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Give `targets` or `file`. Raises `SourceError` where the file cannot be read at the start."""
        self._targets = list(targets)
        self._on_endpoints = on_endpoints
        self._log = log
        self._resolve = resolve
        self._known: dict[str, list[str]] = {}
        self._unresolved: set[str] = set()
        self.address_collisions = 0
        """Entries that come to an address which another one has."""
        self._collided: frozenset[str] = frozenset()
        self._file: FollowedFile | None = None
        if file is not None:
            try:
                self._file = FollowedFile(file, bytes_max=FILE_BYTES_MAX, clock=clock, meaning=_meaning)
            except FileProblem as problem:
                raise SourceError(str(problem)) from None
            try:
                self._targets = _parsed(self._file.content)
            except SourceError as error:
                raise SourceError(f"{file}: {error}") from None

    async def run(self) -> None:
        """Resolve, tell, look again."""
        loop = asyncio.get_running_loop()
        resolve_at = loop.time()
        while True:
            if await self._reload() or loop.time() >= resolve_at:
                self._on_endpoints(await self._specs())
                resolve_at = loop.time() + self._pause_seconds
            await asyncio.sleep(FILE_CHECK_SECONDS if self._file else self._pause_seconds)

    @property
    def _pause_seconds(self) -> float:
        """Until names are resolved again."""
        return RETRY_SECONDS if self._unresolved else RESOLVE_SECONDS

    async def _reload(self) -> bool:
        """True when the file says something new. A bad file keeps the last good list, and says so once."""
        if self._file is None:
            return False
        try:
            targets = await asyncio.to_thread(_changed_targets, self._file)
        except (FileProblem, SourceError) as error:
            self._log("error", "endpoints file not usable, the last good list stays", error=str(error))
            return False
        if targets is None:
            return False
        self._targets = targets
        return True

    async def _specs(self) -> list[EndpointSpec]:
        names = dict.fromkeys(target.host for target in self._targets if not target.numeric)
        addresses = dict(zip(names, await asyncio.gather(*map(self._addresses, names)), strict=True))
        for remembered in self._known.keys() - names.keys():
            del self._known[remembered]
        self._unresolved &= names.keys()
        specs: dict[str, EndpointSpec] = {}
        collisions: list[str] = []
        for number, target in enumerate(self._targets, 1):
            if number % TURN_ENTRIES == 0:
                await asyncio.sleep(0)
            for host in (target.host,) if target.numeric else addresses[target.host]:
                address = join_address(host, target.port)
                if address in specs:
                    collisions.append(address)
                    continue
                specs[address] = EndpointSpec(
                    address=address,
                    uid=address,
                    name=target.name or address,
                    labels=target.labels,
                    engine=target.engine,
                    metrics_url=target.metrics_url,
                )
        self._tell_collisions(collisions)
        return list(specs.values())

    def _tell_collisions(self, addresses: list[str]) -> None:
        """Each once, until it is gone."""
        self.address_collisions = len(addresses)
        collided = frozenset(addresses)
        for address in sorted(collided - self._collided)[:COLLISIONS_NAMED_MAX]:
            self._log("warning", "an address is listed more than once: the first entry counts", address=address)
        self._collided = collided

    async def _addresses(self, host: str) -> list[str]:
        try:
            self._known[host] = await self._resolve(host)
        except (OSError, UnicodeError) as error:  # UnicodeError: no host name at all (an empty or endless label)
            if host not in self._unresolved:
                self._unresolved.add(host)
                self._log_unresolved(host, error)
        else:
            if host in self._unresolved:
                self._unresolved.remove(host)
                self._log("info", "name resolves again", name=host, addresses=len(self._known[host]))
        return self._known.get(host, [])

    def _log_unresolved(self, host: str, error: Exception) -> None:
        kept = len(self._known.get(host, []))
        message = "name does not resolve, its last addresses stay" if kept else "name does not resolve, no endpoint yet"
        self._log("warning", message, name=host, kept=kept, again_seconds=RETRY_SECONDS, error=str(error))
