"""A client of the store, by what the configuration says: redis-py, whatever speaks the protocol behind it.

Credentials are read from their files at every connection, so a rotated password is used from the next one
on; `changed` tells when to make a next one. The client retries nothing by itself: waits and
retries are link.py's, for all commands alike.
"""

import os
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from picker.config import ConfigError, SharedState

CONNECT_SECONDS = 2.0
ANSWER_SECONDS = 2.0
"""Longer than the longest block of a read (link.py)."""
SECRET_BYTES_MAX = 64 * 1024


class Store:
    """Makes clients. Raises `ConfigError` where the extra is not installed or the URL says nothing."""

    def __init__(self, settings: SharedState) -> None:
        try:
            import redis.asyncio as client
            from redis.asyncio.retry import Retry
            from redis.backoff import NoBackoff
        except ImportError:
            raise ConfigError(
                "shared_state.url needs the extra `shared`: pip install inference-picker[shared]"
            ) from None
        assert settings.url is not None
        self._module: Any = client
        self._settings = settings
        self._url = urlsplit(settings.url)
        self._credentials = _Credentials(settings, self._url.username)
        tls = self._url.scheme.startswith("rediss")
        self._options: dict[str, Any] = {
            "socket_timeout": ANSWER_SECONDS,
            "socket_connect_timeout": CONNECT_SECONDS,
            "retry": Retry(NoBackoff(), 0),
            "protocol": 2,
            "client_name": "inference-picker",
        }
        if settings.password_file is not None:
            self._options["credential_provider"] = self._credentials.provider()
        if tls:
            self._options |= {
                "ssl": True,
                "ssl_ca_certs": settings.ca_file,
                "ssl_certfile": settings.certificate_file,
                "ssl_keyfile": settings.key_file,
            }
        try:
            hosts, port = self._url.netloc.rpartition("@")[2], 26379 if "sentinel" in self._url.scheme else 6379
            self._addresses = _addresses(hosts, port)
            self._database = self._number()
        except ValueError as error:
            raise ConfigError(f"shared_state.url: {error}") from None

    @property
    def shown(self) -> str:
        """Where it is, for logs."""
        return f"{self._url.scheme}://{self._url.netloc}{self._url.path}"

    def open(self) -> Any:
        """A client, not yet connected."""
        kind = self._url.scheme.partition("+")[2]
        host, port = self._addresses[0]
        if kind == "sentinel":
            service = self._url.path.strip("/").partition("/")[0]
            sentinel = self._module.Sentinel(
                self._addresses, sentinel_kwargs={**self._sentinel_options()}, db=self._database, **self._options
            )
            return sentinel.master_for(service)
        if kind == "cluster":
            nodes = [self._module.cluster.ClusterNode(host, port) for host, port in self._addresses]
            return self._module.RedisCluster(startup_nodes=nodes, **self._options)
        return self._module.Redis(host=host, port=port, db=self._database, **self._options)

    def changed(self) -> bool:
        """Whether the files of the credentials changed since they were last read."""
        return self._credentials.changed()

    def _sentinel_options(self) -> dict[str, Any]:
        return {key: value for key, value in self._options.items() if key != "client_name"}

    def _number(self) -> int:
        path = self._url.path.strip("/")
        if self._url.scheme.endswith("+sentinel"):
            service, _, path = path.partition("/")
            if not service:
                raise ValueError("name the service that the sentinels watch: redis+sentinel://HOST:26379/SERVICE")
        text = path or dict(parse_qsl(self._url.query)).get("db", "0")
        if not (text.isascii() and text.isdigit()):
            raise ValueError(f"{text!r} is not the number of a database")
        return int(text)


class _Credentials:
    """The files, and when they changed."""

    def __init__(self, settings: SharedState, user: str | None) -> None:
        self._named = None if user is None else unquote(user)
        self._paths = [path for path in (settings.username_file, settings.password_file) if path is not None]
        self._user, self._password = settings.username_file, settings.password_file
        self._seen: list[tuple[int, int, int] | None] = []

    def provider(self) -> Any:
        """As redis-py wants it."""
        from redis.credentials import CredentialProvider

        read = self._read

        class FromFiles(CredentialProvider):
            def get_credentials(self) -> tuple[str] | tuple[str, str]:
                return read()

        return FromFiles()

    def changed(self) -> bool:
        return bool(self._seen) and self._stamps() != self._seen

    def _read(self) -> tuple[str] | tuple[str, str]:
        self._seen = self._stamps()
        assert self._password is not None
        password = _secret(self._password)
        user = self._named if self._user is None else _secret(self._user)
        return (password,) if not user else (user, password)

    def _stamps(self) -> list[tuple[int, int, int] | None]:
        stamps: list[tuple[int, int, int] | None] = []
        for path in self._paths:
            try:
                found = os.stat(path)
                stamps.append((found.st_mtime_ns, found.st_ino, found.st_size))
            except OSError:
                stamps.append(None)
        return stamps


def _secret(path: str) -> str:
    with Path(path).open(encoding="utf-8") as file:
        return file.read(SECRET_BYTES_MAX).strip("\r\n")


def _addresses(netloc: str, port: int) -> list[tuple[str, int]]:
    found = []
    for part in netloc.split(","):
        split = urlsplit(f"//{part}")
        if not split.hostname:
            raise ValueError("names no host: redis://HOST:6379")
        found.append((split.hostname, split.port or port))
    return found
