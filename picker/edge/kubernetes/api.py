"""Requests to the Kubernetes API server: raw bytes in and out, over the `kubernetes` package's transport.

What it adds to that transport: credentials and TLS are built anew when the files behind them change
(looked at every `check_files_seconds`, and at once after a 401), a stream that is running keeps its
old connection until it ends; dead peers are noticed by TCP keepalive; every answer is
bounded in time and in bytes. Nothing is retried here: who asks knows when to ask again.
"""

import asyncio
import socket
import ssl
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlencode

import aiohttp
import msgspec

from picker.edge.kubernetes.credentials import Credentials, CredentialsError
from picker.kubernetes.backoff import Fault, parse_retry_after
from picker.version import __version__

ANSWER_BYTES_MAX = 128 * 1024 * 1024
CONNECT_SECONDS = 5.0
KEEPALIVE_IDLE_SECONDS = 10
KEEPALIVE_INTERVAL_SECONDS = 5
KEEPALIVE_PROBES = 3

HEADERS = {
    "Accept": "application/json",
    # Inside a cluster bytes are cheaper than the API server's processor time, and ours.
    "Accept-Encoding": "identity",
    "User-Agent": f"inference-picker/{__version__}",
}

NETWORK_ERRORS = (aiohttp.ClientError, OSError, TimeoutError, ssl.SSLError, asyncio.IncompleteReadError)


class ApiUnreachableError(Exception):
    """No HTTP answer, or not a whole one."""


class AnswerTooLargeError(Exception):
    """An answer beyond `ANSWER_BYTES_MAX`."""


class ApiAnswer(msgspec.Struct, frozen=True):
    """One whole HTTP answer."""

    status: int
    body: bytes
    retry_after_seconds: float | None
    content_type: str

    @property
    def ok(self) -> bool:
        """2xx."""
        return 200 <= self.status < 300

    @property
    def fault(self) -> Fault:
        """This answer as a fault: what the API server's Status says, or what kind of page came instead."""
        return Fault(f"HTTP {self.status}: {_message(self)}", self.status, self.retry_after_seconds)


class _StatusMessage(msgspec.Struct):
    message: str = ""
    reason: str = ""


def _message(answer: ApiAnswer) -> str:
    try:
        status = msgspec.json.decode(answer.body, type=_StatusMessage)
    except (msgspec.MsgspecError, UnicodeError):
        return f"not the API server's words ({answer.content_type or 'no content type'}, {len(answer.body)} bytes)"
    return (status.message or status.reason or "no message")[:500]


class _Connection:
    """One set of credentials with its connection pool, alive until replaced and out of use."""

    def __init__(self, configuration: Any) -> None:
        self.configuration = configuration
        self.rest = _rest_client(configuration)
        self.users = 0
        self.retired = False

    async def release(self) -> None:
        self.users -= 1
        await self.close_if_idle()

    async def close_if_idle(self) -> None:
        if self.retired and self.users == 0:
            await self.rest.close()


def _rest_client(configuration: Any) -> Any:
    from kubernetes.aio.client.rest import RESTClientObject

    class Transport(RESTClientObject):  # type: ignore[misc]
        """The package's transport with TCP keepalive."""

        def _create_connector(self) -> aiohttp.TCPConnector:
            return aiohttp.TCPConnector(limit=64, ssl=self.ssl_context, socket_factory=_keepalive_socket)

    return Transport(configuration)


def _keepalive_socket(address: Any) -> socket.socket:
    family, kind, protocol, _, _ = address
    made = socket.socket(family=family, type=kind, proto=protocol)
    made.setblocking(False)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", KEEPALIVE_IDLE_SECONDS),
        ("TCP_KEEPINTVL", KEEPALIVE_INTERVAL_SECONDS),
        ("TCP_KEEPCNT", KEEPALIVE_PROBES),
    ):
        option = getattr(socket, name, None)  # not every platform has them
        if option is not None:
            made.setsockopt(socket.IPPROTO_TCP, option, value)
    return made


class KubernetesApi:
    """A client of one API server. `async with` it, or `close()` it."""

    def __init__(
        self,
        credentials: Credentials | None = None,
        *,
        clock: Callable[[], float] | None = None,
        check_files_seconds: float = 10.0,
        request_seconds: float = 30.0,
    ) -> None:
        """`request_seconds` bounds a request that is not a stream; `clock` is monotonic (the loop's by default)."""
        self._credentials = credentials or Credentials()
        self._clock = clock
        self._check_files_seconds = check_files_seconds
        self._request_seconds = request_seconds
        self._connection: _Connection | None = None
        self._loading = asyncio.Lock()
        self._loaded_at_seconds = 0.0
        self._checked_at_seconds = 0.0
        self._fingerprint: tuple[object, ...] = ()
        self.reloads_total = 0

    async def __aenter__(self) -> "KubernetesApi":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self) -> None:
        """Load the credentials now. Raises `CredentialsError`: at the start it is a mistake, later an outage."""
        try:
            await self._current(False)
        except ApiUnreachableError as error:
            raise CredentialsError(str(error)) from error

    async def close(self) -> None:
        """Close every connection that no stream uses."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.retired = True
            await connection.close_if_idle()

    async def request(
        self,
        method: str,
        path: str,
        params: Mapping[str, str] | None = None,
        body: Any = None,
        *,
        fresh_credentials: bool = False,
        timeout_seconds: float | None = None,
    ) -> ApiAnswer:
        """One request, read whole. Raises `ApiUnreachableError`, `AnswerTooLargeError`."""
        total_seconds = timeout_seconds or self._request_seconds
        limits = aiohttp.ClientTimeout(total=total_seconds, sock_connect=min(CONNECT_SECONDS, total_seconds))
        async with self._open(method, _target(path, params), limits, fresh_credentials, body=body) as response:
            return await _read(response)

    @asynccontextmanager
    async def stream(
        self,
        path: str,
        params: Mapping[str, str],
        *,
        idle_seconds: float,
        total_seconds: float,
        fresh_credentials: bool = False,
    ) -> AsyncGenerator["ApiAnswer | Stream", None]:
        """A GET whose body comes over time: a `Stream` when it was answered with 200, else the whole answer."""
        limits = aiohttp.ClientTimeout(total=total_seconds, sock_connect=CONNECT_SECONDS, sock_read=idle_seconds)
        async with self._open("GET", _target(path, params), limits, fresh_credentials) as response:
            yield Stream(response) if response.status == 200 else await _read(response)

    @asynccontextmanager
    async def _open(
        self,
        method: str,
        target: str,
        limits: aiohttp.ClientTimeout,
        fresh_credentials: bool,
        *,
        body: Any = None,
    ) -> AsyncGenerator[aiohttp.ClientResponse, None]:
        connection = await self._current(fresh_credentials)
        connection.users += 1
        response: aiohttp.ClientResponse | None = None
        try:
            url = connection.configuration.host + target
            headers = dict(HEADERS)
            authorization = await _authorization(connection.configuration)
            if authorization:
                headers["Authorization"] = authorization
            answered = await connection.rest.request(method, url, headers=headers, body=body, _request_timeout=limits)
            response = answered.response
            yield answered.response
        except NETWORK_ERRORS as error:
            raise ApiUnreachableError(_describe(error, connection.configuration.host)) from error
        finally:
            if response is not None:
                # What was not read to its end is not worth reading: the connection goes with it.
                response.release() if response.content.at_eof() else response.close()
            await connection.release()

    async def _current(self, fresh: bool) -> _Connection:
        now = self._now()
        if self._connection is not None and not fresh and now - self._checked_at_seconds < self._check_files_seconds:
            return self._connection
        async with self._loading:
            return await self._load(fresh, now)

    async def _load(self, fresh: bool, asked_at_seconds: float) -> _Connection:
        current = self._connection
        if current is not None and self._loaded_at_seconds >= asked_at_seconds:
            return current  # another request has just loaded it
        files = await asyncio.to_thread(self._credentials.files)  # a kubeconfig is YAML
        fingerprint = self._credentials.fingerprint(files)
        self._checked_at_seconds = self._now()
        if current is not None and not fresh and fingerprint == self._fingerprint:
            return current
        try:
            made = _Connection(await self._credentials.load())
        except (CredentialsError, OSError) as error:
            if current is not None and not fresh:
                return current  # half-written files: what we have may still do
            raise ApiUnreachableError(str(error)) from error
        self._connection = made
        self._fingerprint = fingerprint
        self._loaded_at_seconds = self._now()
        if current is not None:
            self.reloads_total += 1
            current.retired = True
            await current.close_if_idle()
        return made

    def _now(self) -> float:
        return self._clock() if self._clock is not None else asyncio.get_running_loop().time()


class Stream:
    """The body of a 200 answer as it arrives."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response

    async def read(self) -> bytes:
        """The next bytes, as many as are there; empty at a clean end."""
        return await self._response.content.readany()


def _target(path: str, params: Mapping[str, str] | None) -> str:
    return f"{path}?{urlencode(params)}" if params else path


async def _authorization(configuration: Any) -> str | None:
    settings = await configuration.auth_settings()
    value = settings.get("BearerToken", {}).get("value")
    return value.strip() if value else None


async def _read(response: aiohttp.ClientResponse) -> ApiAnswer:
    chunks: list[bytes] = []
    size = 0
    while chunk := await response.content.readany():
        size += len(chunk)
        if size > ANSWER_BYTES_MAX:
            raise AnswerTooLargeError(f"the answer is larger than {ANSWER_BYTES_MAX} bytes")
        chunks.append(chunk)
    return ApiAnswer(
        response.status,
        b"".join(chunks),
        parse_retry_after(response.headers.get("Retry-After")),
        response.headers.get("Content-Type", ""),
    )


def _describe(error: BaseException, host: str) -> str:
    if isinstance(error, TimeoutError):
        return f"{host}: no answer in time ({type(error).__name__})"
    return f"{host}: {error or type(error).__name__}"
