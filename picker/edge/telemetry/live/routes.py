"""HTTP of the page: its files, which tell nothing and ask for no token; the stream and the questions, which do.

    GET /                   the page; its scripts (page.js and its modules), page.css and icon.svg beside it
    GET /live               the stream (live.py)
    GET /live/where         ?name=NAME | ?number=N: where it lives
    POST /live/what-if      a `Proposal` as JSON: the kept decisions under other weights

Where `debug.page` is false all of them are 404. Browsers are told to run nothing but the page's own script, and
pages of other sites are refused.
"""

import asyncio
import contextlib
import hashlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import msgspec
from aiohttp import web

from picker.director import Director
from picker.edge.telemetry.decisions import DecisionRing
from picker.edge.telemetry.live.live import Live
from picker.edge.telemetry.live.residence import residence
from picker.edge.telemetry.live.what_if import DECISIONS_MAX, Proposal, what_if
from picker.edge.telemetry.server import MAY_READ, RENEW

ASSETS: Final = Path(__file__).parent / "assets"
FILES: Final = {
    "/": ("index.html", "text/html"),
    **{
        f"/{name}.js": (f"{name}.js", "text/javascript")
        for name in ("page", "words", "asking", "charts", "endpoints", "decisions", "what_if")
    },
    "/page.css": ("page.css", "text/css"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
OPEN_PATHS: Final = frozenset(FILES)
REPLAYS_WAITING_MAX: Final = 4
REVIEW_MESSAGES: Final = 60
"""After so many, about a second each, a viewer's token is looked at again: it may have been taken back."""
HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
        "trusted-types 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-cache",
}

_encode: Final = msgspec.json.Encoder().encode
_proposal: Final = msgspec.json.Decoder(Proposal)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class LiveRoutes:
    """`routes()` for the metrics port."""

    def __init__(
        self,
        live: Live,
        director: Director,
        decisions: DecisionRing,
        *,
        clock: Callable[[], float],
        enabled: Callable[[], bool],
    ) -> None:
        self._live = live
        self._director = director
        self._decisions = decisions
        self._clock = clock
        self._enabled = enabled
        self._replaying = asyncio.Lock()
        self.replays = 0
        """Asked for and not answered."""

    def routes(self) -> list[web.RouteDef]:
        """What to serve."""
        files = [web.get(path, self._guarded(_file(*named))) for path, named in FILES.items()]
        return [
            *files,
            web.get("/live", self._guarded(self._stream), allow_head=False),
            web.get("/live/where", self._guarded(self._where)),
            web.post("/live/what-if", self._guarded(self._what_if)),
        ]

    def _guarded(self, handler: Handler) -> Handler:
        async def answer(request: web.Request) -> web.StreamResponse:
            if not self._enabled():
                return web.Response(status=404, text="the page is off (debug.page)\n")
            if request.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin") and not (
                request.path == "/" and request.headers.get("Sec-Fetch-Mode") == "navigate"
            ):
                return web.Response(status=403, text="only this page itself may ask\n")
            return await handler(request)

        return answer

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        viewer = self._live.join()
        if viewer is None:
            return _json({"error": "as many look as may: close another page"}, status=503)
        response = web.StreamResponse(
            headers={**HEADERS, "Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-store"}
        )
        renew, may_read = request.app[RENEW], request.app[MAY_READ]
        told = 0
        try:
            with contextlib.suppress(ConnectionError):  # it went away
                await response.prepare(request)
                while (message := await viewer.get()) is not None:
                    told += 1
                    if told % REVIEW_MESSAGES == 0 and not await may_read(request):
                        break
                    await response.write(message)
                    renew(request)
        finally:
            self._live.leave(viewer)
        return response

    async def _where(self, request: web.Request) -> web.StreamResponse:
        number = request.query.get("number", "0")
        if not (number.isascii() and number.isdigit() and len(number) < 19):
            return _json({"error": "number is not a number"}, status=400)
        name = request.query.get("name", "")
        return _json(residence(self._director, self._decisions, self._clock(), name=name, number=int(number)))

    async def _what_if(self, request: web.Request) -> web.StreamResponse:
        try:
            proposal = _proposal.decode(await request.read())
        except msgspec.MsgspecError as error:
            return _json({"error": str(error)}, status=400)
        if self.replays >= REPLAYS_WAITING_MAX:
            return _json({"error": "others replay: try again in a moment"}, status=429)
        self.replays += 1
        try:
            async with self._replaying:
                found = self._decisions.newest(DECISIONS_MAX)
                return _json(await what_if(found, self._director.config, proposal))
        except ValueError as error:
            return _json({"error": str(error)}, status=400)
        finally:
            self.replays -= 1


def _file(name: str, content_type: str) -> Handler:
    """Read once, at start."""
    body = (ASSETS / name).read_bytes()
    tag = f'"{hashlib.sha256(body).hexdigest()[:16]}"'

    async def answer(request: web.Request) -> web.StreamResponse:
        headers = {**HEADERS, "ETag": tag}
        if request.headers.get("If-None-Match") == tag:
            return web.Response(status=304, headers=headers)
        return web.Response(body=body, content_type=content_type, charset="utf-8", headers=headers)

    return answer


def _json(found: dict[str, Any], status: int = 200) -> web.Response:
    headers = {**HEADERS, "Cache-Control": "no-store"}
    return web.Response(body=_encode(found), status=status, content_type="application/json", headers=headers)
