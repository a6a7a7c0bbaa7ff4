"""HTTP on the metrics port: /metrics, /healthz, /readyz, and the admin routes that others mount.

The page is written in small steps with the event loop's turn between them, so that a scrape of
a pool of a thousand endpoints delays no decision by more than one step.

Invariants: at most `PAGES_MAX` pages are being written at a time (further readers wait);
liveness and readiness never ask for a token, all else does where one is configured.
"""

import asyncio
import logging
import zlib
from collections.abc import Awaitable, Callable, Iterable, Iterator

from aiohttp import web
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client import generate_latest as text_page
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics_page

from picker.edge.telemetry import Telemetry

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
PAGES_MAX = 2
WRITE_BYTES = 64 * 1024
OPEN_PATHS = frozenset({"/healthz", "/readyz"})

Authorize = Callable[[str | None], Awaitable[bool]]
"""Given the bearer token of a request (or none), whether it may read."""


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
    ) -> None:
        self.port = port
        self._telemetry = telemetry
        self._ready = ready
        self._host = host
        self._log = log
        self._authorize = authorize
        self._pages = asyncio.Semaphore(PAGES_MAX)
        self._process = CollectorRegistry()
        ProcessCollector(registry=self._process)
        PlatformCollector(registry=self._process)
        GCCollector(registry=self._process)
        application = web.Application(middlewares=[self._guard], client_max_size=64 * 1024)
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
        site = web.TCPSite(self._runner, self._host, self.port)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Close the port and the connections."""
        await self._runner.cleanup()

    @web.middleware
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        if self._authorize is not None and request.path not in OPEN_PATHS:
            scheme, _, token = request.headers.get("Authorization", "").partition(" ")
            if not await self._authorize(token.strip() if scheme.lower() == "bearer" else None):
                return web.Response(status=401, text="a valid bearer token is needed\n", headers=_CHALLENGE)
        return await handler(request)

    async def _healthz(self, request: web.Request) -> web.StreamResponse:
        return web.Response(text="ok\n")

    async def _readyz(self, request: web.Request) -> web.StreamResponse:
        if self._ready():
            return web.Response(text="ready\n")
        return web.Response(status=503, text="not ready: the source of endpoints is not synced, or draining\n")

    async def _metrics(self, request: web.Request) -> web.StreamResponse:
        openmetrics = "application/openmetrics-text" in request.headers.get("Accept", "")
        response = web.StreamResponse(headers={"Content-Type": OPENMETRICS if openmetrics else TEXT})
        squeeze = None
        if "gzip" in request.headers.get("Accept-Encoding", ""):
            response.headers["Content-Encoding"] = "gzip"
            squeeze = zlib.compressobj(level=1, wbits=31)
        async with self._pages:
            await response.prepare(request)
            pending = bytearray()
            for part in self._parts(openmetrics):
                data = part.encode()
                pending += squeeze.compress(data) if squeeze else data
                if len(pending) >= WRITE_BYTES:
                    await response.write(bytes(pending))
                    pending.clear()
                await asyncio.sleep(0)
            if squeeze:
                pending += squeeze.flush()
            if pending:
                await response.write(bytes(pending))
            await response.write_eof()
        return response

    def _parts(self, openmetrics: bool) -> Iterator[str]:
        """The process's own series first: those of OpenMetrics end with a mark that must come last."""
        if openmetrics:
            page: bytes = openmetrics_page(self._process)  # type: ignore[no-untyped-call]
            yield page.decode().removesuffix("# EOF\n")
        else:
            yield text_page(self._process).decode()
        yield from self._telemetry.parts(openmetrics)


_CHALLENGE = {"WWW-Authenticate": "Bearer"}
