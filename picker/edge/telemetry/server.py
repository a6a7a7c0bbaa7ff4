"""HTTP on the metrics port: /metrics, /healthz, /readyz, and the admin routes that others mount.

The page is made in small steps with the event loop's turn between them, so that a scrape of
a pool of a thousand endpoints delays no decision by more than one step.

Invariants: at most `PAGES_MAX` pages are being made at a time, each for all who asked before it was begun;
no reader waits for one who takes its page slowly; connections are bounded in number, and in the time from
their beginning to a whole request, between requests, and to the end of an answer; liveness and readiness
never ask for a token, nor does what tells nothing (`open_paths`); all else does where one is configured.
"""

import asyncio
import logging
import time
import zlib
from collections.abc import Awaitable, Callable, Iterable, Iterator

from aiohttp import web
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client import generate_latest as text_page
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics_page

from picker.edge.telemetry.page import Telemetry
from picker.listening import Files, Listener, bind

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
PAGES_MAX = 2
CONNECTIONS_MAX = 64
READERS_MAX = 16
"""Answers being taken at a time: each holds a page. For one more the one that takes longest is cut."""
REQUEST_SECONDS = 10.0
"""From the beginning of a connection to its first request."""
IDLE_SECONDS = 90.0
"""Between two requests: longer than most scrape intervals."""
ANSWER_SECONDS = 30.0
_BACKLOG = 128
OPEN_PATHS = frozenset({"/healthz", "/readyz"})

Authorize = Callable[[str | None], Awaitable[bool]]
"""Given the bearer token of a request (or none), whether it may read."""

RENEW: web.AppKey[Callable[[web.Request], None]] = web.AppKey("renew")
"""In the application: a handler whose answer goes on and on tells that the reader takes it."""

MAY_READ: web.AppKey[Callable[[web.Request], Awaitable[bool]]] = web.AppKey("may_read")
"""In the application: such a handler asks now and then whether the request's token still counts."""


class MetricsServer:
    """`start` binds, `stop` closes. `port` is the one in use, also where 0 was asked for."""

    def __init__(
        self,
        *,
        telemetry: Telemetry,
        ready: Callable[[], bool],
        host: str,
        port: int,
        log: logging.Logger,
        routes: Iterable[web.AbstractRouteDef] = (),
        authorize: Authorize | None = None,
        open_paths: frozenset[str] = frozenset(),
        files: Files | None = None,
    ) -> None:
        """`open_paths`: what else asks for no token. `files`: this port may use all of its reserve."""
        self.port = port
        self._telemetry = telemetry
        self._ready = ready
        self._host = host
        self._log = log
        self._authorize = authorize
        self._open_paths = OPEN_PATHS | open_paths
        self._pages = asyncio.Semaphore(PAGES_MAX)
        self._coming: dict[tuple[bool, bool], asyncio.Task[bytes]] = {}
        self._files = files
        self._listener: Listener | None = None
        self._watch: asyncio.Task[None] | None = None
        self._answering: dict[asyncio.BaseProtocol, float] = {}
        self._taking: dict[asyncio.BaseProtocol, float] = {}
        self._waiting: dict[asyncio.BaseProtocol, tuple[float, float]] = {}
        self._process = CollectorRegistry()
        ProcessCollector(registry=self._process)
        PlatformCollector(registry=self._process)
        GCCollector(registry=self._process)
        application = web.Application(middlewares=[self._guard], client_max_size=64 * 1024)
        application[RENEW] = self._renew
        application[MAY_READ] = self._may_read
        application.add_routes(
            [
                web.get("/metrics", self._metrics, allow_head=False),
                web.get("/healthz", self._healthz),
                web.get("/readyz", self._readyz),
                *routes,
            ]
        )
        self._runner = web.AppRunner(application, access_log=None, handle_signals=False, shutdown_timeout=1.0)

    async def start(self) -> None:
        """Bind and listen. Raises `OSError` that names the address when it is taken."""
        await self._runner.setup()
        self._listener = Listener(
            bind(self._host, self.port, _BACKLOG), self._made, self._failed, files=self._files, keep=0
        )
        self.port = self._listener.sockets[0].getsockname()[1]
        self._watch = asyncio.get_running_loop().create_task(self._cut_slow())

    async def stop(self) -> None:
        """Close the port and the connections."""
        if self._listener is not None and self._watch is not None:
            self._watch.cancel()
            self._listener.close()
            await self._listener.wait_closed()
        await self._runner.cleanup()

    # Connections ---------------------------------------------------------------------------

    def _made(self) -> asyncio.BaseProtocol:
        server = self._runner.server
        assert server is not None
        handlers = server.connections
        if len(handlers) >= CONNECTIONS_MAX:
            # The one that has waited longest, or else the one whose answer is taken longest.
            _abort(min(handlers, key=lambda each: (each in self._answering, self._since(each))))
        return server()

    def _began(self, handler: asyncio.BaseProtocol) -> None:
        """A request of this connection is being answered, until all of the answer is written."""
        self._answering[handler] = time.monotonic()
        task = asyncio.current_task()
        assert task is not None

        def over(_: object) -> None:
            self._answering.pop(handler, None)
            self._taking.pop(handler, None)
            self._waiting[handler] = (time.monotonic(), IDLE_SECONDS)

        task.add_done_callback(over)

    def _renew(self, request: web.Request) -> None:
        """An answer that goes on: its time begins anew."""
        if request.protocol in self._answering:
            self._answering[request.protocol] = time.monotonic()

    def _since(self, handler: asyncio.BaseProtocol) -> float:
        began = self._answering.get(handler)
        if began is not None:
            return began
        return self._waiting.setdefault(handler, (time.monotonic(), REQUEST_SECONDS))[0]

    async def _cut_slow(self) -> None:
        """Once a second: who takes too long is cut."""
        before = time.monotonic()
        while True:
            await asyncio.sleep(1.0)
            now = time.monotonic()
            paused, before = now - before > 2.0, now
            server = self._runner.server
            if server is None or paused:
                continue  # what came while the process stood still is read first
            handlers = server.connections
            for gone in self._waiting.keys() - set(handlers):
                del self._waiting[gone]
            for handler in handlers:
                since = self._since(handler)
                allowed = ANSWER_SECONDS if handler in self._answering else self._waiting[handler][1]
                if now - since > allowed:
                    _abort(handler)

    def _failed(self, error: BaseException) -> None:
        self._log.error("cannot accept on the metrics port: %s", type(error).__name__)

    @web.middleware
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        self._began(request.protocol)
        if request.path not in self._open_paths and not await self._may_read(request):
            return web.Response(status=401, text="a valid bearer token is needed\n", headers=_CHALLENGE)
        response = await handler(request)
        if len(self._taking) >= READERS_MAX:
            _abort(min(self._taking, key=lambda each: self._taking[each]))
        self._taking[request.protocol] = time.monotonic()
        return response

    async def _may_read(self, request: web.Request) -> bool:
        if self._authorize is None:
            return True
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        return await self._authorize(token.strip() if scheme.lower() == "bearer" else None)

    async def _healthz(self, request: web.Request) -> web.StreamResponse:
        return web.Response(text="ok\n")

    async def _readyz(self, request: web.Request) -> web.StreamResponse:
        if self._ready():
            return web.Response(text="ready\n")
        return web.Response(status=503, text="not ready: the source of endpoints is not synced, or draining\n")

    async def _metrics(self, request: web.Request) -> web.StreamResponse:
        openmetrics = "application/openmetrics-text" in request.headers.get("Accept", "")
        squeezed = "gzip" in request.headers.get("Accept-Encoding", "")
        headers = {"Content-Type": OPENMETRICS if openmetrics else TEXT}
        if squeezed:
            headers["Content-Encoding"] = "gzip"
        kind = (openmetrics, squeezed)
        coming = self._coming.get(kind)
        if coming is None:
            coming = self._coming[kind] = asyncio.get_running_loop().create_task(self._page(kind))
        return web.Response(body=await asyncio.shield(coming), headers=headers)

    async def _page(self, kind: tuple[bool, bool]) -> bytes:
        """One page for all who asked before it was begun: many readers cost no more than one."""
        openmetrics, squeezed = kind
        squeeze = zlib.compressobj(level=1, wbits=31) if squeezed else None
        page = bytearray()
        async with self._pages:
            del self._coming[kind]
            for part in self._parts(openmetrics):
                data = part.encode()
                page += squeeze.compress(data) if squeeze else data
                await asyncio.sleep(0)
            if squeeze:
                page += squeeze.flush()
        return bytes(page)

    def _parts(self, openmetrics: bool) -> Iterator[str]:
        """The process's own series first: those of OpenMetrics end with a mark that must come last."""
        if openmetrics:
            page: bytes = openmetrics_page(self._process)  # type: ignore[no-untyped-call]
            yield page.decode().removesuffix("# EOF\n")
        else:
            yield text_page(self._process).decode()
        yield from self._telemetry.parts(openmetrics)


def _abort(handler: asyncio.BaseProtocol) -> None:
    transport: asyncio.Transport | None = getattr(handler, "transport", None)
    if transport is not None:
        transport.abort()


_CHALLENGE = {"WWW-Authenticate": "Bearer"}
