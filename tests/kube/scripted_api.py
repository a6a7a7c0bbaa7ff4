"""An API server that does, on command, what a healthy one does not. HTTP/1.1 over asyncio sockets.

Each path has a `Store`; a path without one is 404, as for a missing CRD. `mood` decides how requests are
answered from now on; open watches are ended by `drop_watches()`, or hang with `freeze()`. Every
request is recorded with the loop's time.
"""

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from tests.kube.store import Store, event, expired

HTML = b"<html><head><title>503</title></head>\n<body>Service Unavailable</body></html>\n"


class Mood(Enum):
    """How requests are answered."""

    FINE = "fine"
    CLOSE = "a watch is answered with 200 and ended at once; a list is fine"
    HTML_503 = "503, and a page in HTML"
    HTML_200 = "200, and a page in HTML"
    RETRY_AFTER = "429 with Retry-After: 1"
    FORBIDDEN = "403"
    GONE = "a watch is answered with status 410; a list is fine"
    GONE_EVENT = "a watch is answered with 200 and an ERROR event; a list is fine"
    SILENT = "accepted, and never answered"
    HALF_OPEN = "a watch is opened, and then nothing ever comes; a list is fine"


@dataclass
class Request:
    """One request as it came."""

    at_seconds: float
    method: str
    path: str
    params: dict[str, str]
    headers: dict[str, str]

    @property
    def watches(self) -> bool:
        return "watch" in self.params


@dataclass
class _Watch:
    path: str
    params: dict[str, str]
    writer: asyncio.StreamWriter
    revision: int
    frozen: bool = False
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class ScriptedApi:
    """Listens on 127.0.0.1 from `start()` to `stop()`."""

    def __init__(self, *, token: str | None = None, tls: ssl.SSLContext | None = None) -> None:
        """With `token`, every other bearer token is 401."""
        self.stores: dict[str, Store] = {}
        self.mood = Mood.FINE
        self.token = token
        self.requests: list[Request] = []
        self.port = 0
        self._tls = tls
        self._server: asyncio.Server | None = None
        self._watches: list[_Watch] = []
        self._writers: set[asyncio.StreamWriter] = set()
        self._stopping = asyncio.Event()

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Listen, on the same port as before when it was stopped."""
        self._stopping.clear()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Break every connection and listen no more."""
        assert self._server is not None
        self._server.close()
        self._stopping.set()
        self.drop_watches()
        for writer in list(self._writers):
            writer.transport.abort()
        await self._server.wait_closed()

    def watches(self, path: str) -> list[Request]:
        """The watch requests of a path so far."""
        return [each for each in self.requests if each.path == path and each.watches]

    def lists(self, path: str) -> list[Request]:
        """The list requests of a path so far."""
        return [each for each in self.requests if each.path == path and not each.watches]

    # Watches that are open

    def push(self) -> None:
        """Send every open watch what is new in its store."""
        for watch in self._watches:
            store = self.stores[watch.path]
            if not watch.frozen and watch.revision < store.revision:
                self._send(watch, selected(store.since(watch.revision), watch.params))
                watch.revision = store.revision

    def bookmark(self) -> None:
        """Send every open watch a bookmark at its store's newest version."""
        for watch in self._watches:
            meta = {"resourceVersion": self.stores[watch.path].version, "creationTimestamp": None}
            self._send(watch, event("BOOKMARK", {"kind": "Pod", "metadata": meta}))

    def freeze(self) -> None:
        """Open watches get nothing more, and are not closed either: their peer is gone."""
        for watch in self._watches:
            watch.frozen = True

    def send_raw(self, data: bytes) -> None:
        """These bytes, in every open watch."""
        for watch in self._watches:
            self._send(watch, data)

    def drop_watches(self, *, clean: bool = False) -> None:
        """End open watches: as the server does when their time is up (`clean`), or as a broken network."""
        for watch in self._watches:
            if clean:
                watch.writer.write(b"0\r\n\r\n")
                watch.ended.set()
            else:
                watch.writer.transport.abort()
                watch.ended.set()

    def _send(self, watch: _Watch, data: bytes) -> None:
        if data:
            watch.writer.write(b"%x\r\n%b\r\n" % (len(data), data))

    # Requests

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while request := await _read_request(reader):
                self.requests.append(request)
                if not await self._answer(request, writer):
                    return
        except (ConnectionError, asyncio.IncompleteReadError, ssl.SSLError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _answer(self, request: Request, writer: asyncio.StreamWriter) -> bool:
        """True when the connection stays usable."""
        store = self.stores.get(request.path)
        if self.mood is Mood.SILENT:
            await self._stopping.wait()
            return False
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if self.token is not None and (scheme.lower(), token) != ("bearer", self.token):
            return await _reply(writer, 401, _status(401, "Unauthorized"))
        whole = {
            Mood.HTML_503: (503, HTML, "text/html"),
            Mood.HTML_200: (200, HTML, "text/html"),
            Mood.FORBIDDEN: (403, _status(403, "Forbidden"), "application/json"),
            Mood.RETRY_AFTER: (429, _status(429, "TooManyRequests"), "application/json"),
        }.get(self.mood)
        if whole is not None:
            return await _reply(writer, *whole)
        if store is None:
            return await _reply(writer, 404, b"404 page not found\n", "text/plain")
        if request.watches:
            return await self._watch(request, store, writer)
        page = store.list_page(request.params)
        if page is None:
            return await _reply(writer, 410, json.dumps(expired()).encode())
        return await _reply(writer, 200, selected_page(page, request.params))

    async def _watch(self, request: Request, store: Store, writer: asyncio.StreamWriter) -> bool:
        revision = store.readable(request.params["resourceVersion"])
        if self.mood is Mood.GONE:
            return await _reply(writer, 410, json.dumps(expired()).encode())
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json;stream=watch\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        if self.mood is Mood.CLOSE:
            writer.write(b"0\r\n\r\n")
            return True
        watch = _Watch(request.path, request.params, writer, revision or 0, frozen=self.mood is Mood.HALF_OPEN)
        if revision is None or self.mood is Mood.GONE_EVENT:
            self._send(watch, event("ERROR", expired()))
            writer.write(b"0\r\n\r\n")
            return True
        self._watches.append(watch)
        try:
            self.push()
            await watch.ended.wait()
        finally:
            self._watches.remove(watch)
        return not writer.is_closing()


async def _read_request(reader: asyncio.StreamReader) -> Request | None:
    with contextlib.suppress(asyncio.IncompleteReadError):
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.split("\r\n")
        method, target, _ = first.split(" ")
        split = urlsplit(target)
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)}
        await reader.readexactly(int(headers.get("content-length", "0")))
        now = asyncio.get_running_loop().time()
        return Request(now, method, split.path, dict(parse_qsl(split.query)), headers)
    return None


async def _reply(
    writer: asyncio.StreamWriter, status: int, body: bytes, content_type: str = "application/json"
) -> bool:
    head = f"HTTP/1.1 {status} X\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n"
    head += "Retry-After: 1\r\n" if status == 429 else ""
    writer.write(head.encode() + b"\r\n" + body)
    await writer.drain()
    return True


def _status(code: int, reason: str) -> bytes:
    return json.dumps({"kind": "Status", "code": code, "reason": reason, "message": reason.lower()}).encode()


def _wanted(params: dict[str, str]) -> Callable[[dict[str, Any]], bool]:
    labels = dict(part.split("=") for part in params.get("labelSelector", "").split(",") if part)
    field_name = params.get("fieldSelector", "").removeprefix("metadata.name=")

    def wanted(thing: dict[str, Any]) -> bool:
        meta = thing["metadata"]
        has = meta.get("labels") or {}
        return all(has.get(key) == value for key, value in labels.items()) and field_name in ("", meta["name"])

    return wanted


def selected_page(page: bytes, params: dict[str, str]) -> bytes:
    """A list page reduced to what the selectors ask for."""
    if not ("labelSelector" in params or "fieldSelector" in params):
        return page
    decoded = json.loads(page)
    decoded["items"] = list(filter(_wanted(params), decoded["items"]))
    return json.dumps(decoded).encode()


def selected(lines: bytes, params: dict[str, str]) -> bytes:
    """Events reduced likewise (objects that stop matching are not modelled)."""
    if not ("labelSelector" in params or "fieldSelector" in params):
        return lines
    wanted = _wanted(params)
    return b"".join(line for line in lines.splitlines(keepends=True) if wanted(json.loads(line)["object"]))


@contextlib.asynccontextmanager
async def scripted_api(**arguments: Any) -> AsyncIterator[ScriptedApi]:
    """Started, and stopped at the end."""
    api = ScriptedApi(**arguments)
    await api.start()
    try:
        yield api
    finally:
        await api.stop()
