"""Endpoints without a cluster: from the command line, or from a file that is read again when it changes.

Names are resolved at the start and every 30 s, each address an endpoint of its own. A name that
stops resolving keeps its last addresses: a DNS server that is away takes no capacity away. While
any name does not resolve, all are asked again every 2 s; it is told once, and once when it is back.
The list counts as synced after the first round, whatever resolved: the endpoints that are known can serve.
"""

import asyncio
import ipaddress
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import yaml

from picker.pool.specs import NO_LABELS, EndpointSpec, join_address, split_address

RESOLVE_SECONDS = 30.0
RETRY_SECONDS = 2.0
"""Between rounds while a name does not resolve: it may be a Service that is just being made."""
FILE_CHECK_SECONDS = 1.0
FILE_BYTES_MAX = 16 * 1024 * 1024


class SourceError(ValueError):
    """What is wrong with the endpoints that were given, in words that name the entry."""


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """One entry, before names are resolved."""

    host: str
    port: int
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


class _File(msgspec.Struct):
    endpoints: list[str | _Entry]


def parse_list(text: str) -> list[Target]:
    """`'10.0.0.1:8000,[fd00::1]:8000,name:8000'`. Raises `SourceError`."""
    return [_target(part.strip()) for part in text.split(",") if part.strip()]


def parse_file(text: str) -> list[Target]:
    """A YAML or JSON document with `endpoints:`. Raises `SourceError`."""
    try:
        tree: Any = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise SourceError(f"not valid YAML: {' '.join(str(error).split())}") from None
    if isinstance(tree, list):
        tree = {"endpoints": tree}
    try:
        entries = msgspec.convert(tree, _File).endpoints
    except msgspec.ValidationError as error:
        raise SourceError(f"{error} (expected `endpoints:`, a list of host:port or of tables with `address`)") from None
    return [_target(entry) if isinstance(entry, str) else _of_entry(entry) for entry in entries]


def _target(text: str) -> Target:
    try:
        host, port = split_address(text)
    except ValueError as error:
        raise SourceError(str(error)) from None
    return Target(host=host, port=port)


def _of_entry(entry: _Entry) -> Target:
    if entry.port is None:
        plain = _target(entry.address)
        host, port = plain.host, plain.port
    else:
        host, port = entry.address.strip("[]"), entry.port
    return Target(
        host=host, port=port, name=entry.name, labels=entry.labels, engine=entry.engine, metrics_url=entry.metrics_url
    )


async def resolve_name(host: str) -> list[str]:
    """The addresses of a name, in a stable order. Raises `OSError`."""
    found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return sorted({str(entry[4][0]) for entry in found})


class StaticSource:
    """Follows a fixed list or a file until `run()` is cancelled."""

    def __init__(
        self,
        *,
        targets: Sequence[Target] = (),
        file: Path | None = None,
        on_endpoints: Callable[[list[EndpointSpec]], None],
        log: Callable[..., None],
        resolve: Callable[[str], Any] = resolve_name,
    ) -> None:
        """Give `targets` or `file`. Raises `SourceError` where the file cannot be read at the start."""
        self._targets = list(targets)
        self._file = file
        self._on_endpoints = on_endpoints
        self._log = log
        self._resolve = resolve
        self._known: dict[str, list[str]] = {}
        self._unresolved: set[str] = set()
        self._file_error: str | None = None
        self._text: str | None = None
        if file is not None:
            self._text = self._read()
            self._targets = parse_file(self._text)

    async def run(self) -> None:
        """Resolve, tell, look again."""
        loop = asyncio.get_running_loop()
        resolve_at = loop.time()
        while True:
            if self._reload() or loop.time() >= resolve_at:
                self._on_endpoints(await self._specs())
                resolve_at = loop.time() + self._pause_seconds
            await asyncio.sleep(FILE_CHECK_SECONDS if self._file else self._pause_seconds)

    @property
    def _pause_seconds(self) -> float:
        """Until names are resolved again."""
        return RETRY_SECONDS if self._unresolved else RESOLVE_SECONDS

    def _read(self) -> str:
        assert self._file is not None
        try:
            if self._file.stat().st_size > FILE_BYTES_MAX:
                raise SourceError(f"{self._file}: larger than {FILE_BYTES_MAX} bytes")
            return self._file.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise SourceError(f"cannot read {self._file}: {error}") from None

    def _reload(self) -> bool:
        """True when the file says something new. A bad file keeps the last good list, and says so once."""
        if self._file is None:
            return False
        try:
            text = self._read()
            if text == self._text:
                self._file_error = None
                return False
            self._text = text
            self._targets = parse_file(text)
        except SourceError as error:
            if str(error) != self._file_error:
                self._file_error = str(error)
                self._log("error", "endpoints file not usable, the last good list stays", error=str(error))
            return False
        self._file_error = None
        return True

    async def _specs(self) -> list[EndpointSpec]:
        names = dict.fromkeys(target.host for target in self._targets)
        addresses = dict(zip(names, await asyncio.gather(*map(self._addresses, names)), strict=True))
        for remembered in self._known.keys() - names.keys():
            del self._known[remembered]
        self._unresolved &= names.keys()
        specs = []
        for target in self._targets:
            for host in addresses[target.host]:
                address = join_address(host, target.port)
                specs.append(
                    EndpointSpec(
                        address=address,
                        uid=address,
                        name=target.name or address,
                        labels=target.labels,
                        engine=target.engine,
                        metrics_url=target.metrics_url,
                    )
                )
        return specs

    async def _addresses(self, host: str) -> list[str]:
        try:
            return [str(ipaddress.ip_address(host))]
        except ValueError:
            pass
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
