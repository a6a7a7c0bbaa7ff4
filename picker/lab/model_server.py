"""Simulated model servers over real HTTP: vLLM's API and metrics in front of the engine model.

    python -m picker.lab.model_server --ports 8001,8002 --profile 8b-h100

or, within a program, `SimulatedServer(...)` with `await start()` and `await stop()`. Many run in one
process, each on a port of its own with an engine of its own. As a vLLM does, a stream's headers
go out at once and its first event with the first token; an aborted request frees its place in the
engine. Tokens that became ready within `stream_interval_seconds` share an event.

For tests: `faults` makes a server answer with an error, hang, slow down or refuse connections, and
`POST /sim/faults` sets the same from outside. `POST /reset_prefix_cache` is vLLM's own.
"""

import argparse
import asyncio
import contextlib
import signal
import sys
import time
from functools import lru_cache
from itertools import count

import msgspec
from aiohttp import web

from picker.lab import vllm_answers
from picker.lab.real_time import RealTimeEngine, Ticket
from picker.pool.specs import join_address
from picker.sim.profiles import DEFAULT_PROFILE, PROFILES, Profile
from picker.sim.served_requests import BadRequest, ServedRequest, parse, token_ids

BODY_BYTES_MAX = 64 * 1024 * 1024
SERVED_BY = "x-served-by"
STREAM_HEADERS = {"content-type": "text/event-stream; charset=utf-8"}
SHUTDOWN_SECONDS = 0.2


class ServerFaults(msgspec.Struct):
    """What a server does wrong. All off by default; live."""

    status: int | None = None
    """Answer every completion with this status at once."""
    hang: bool = False
    """Accept requests and never answer."""
    refuse: bool = False
    """Listen no longer: connections are refused, open ones are closed."""
    slow: float = 1.0
    """So many times slower than the profile."""


@lru_cache(maxsize=64)
def _rendered_once(chat: bool, raw: bytes, models: tuple[str, ...]) -> list[msgspec.Raw]:
    """The tokens of each prompt, as JSON. A router asks all its servers, which here are one process: do it once."""
    return [msgspec.Raw(msgspec.json.encode(ids)) for ids in token_ids(chat, raw, models)]


class SimulatedServer:
    """One model server. `address` is known once it started; `port` 0 means any free one."""

    def __init__(
        self,
        *,
        profile: Profile | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        models: tuple[str, ...] = ("m",),
        speed: float = 1.0,
        context_tokens_max: int = 131_072,
        stream_interval_seconds: float = 0.1,
    ) -> None:
        self.profile = profile or PROFILES[DEFAULT_PROFILE]
        self.host = host
        self.port = port
        self.models = models
        self.speed = speed
        self.context_tokens_max = min(context_tokens_max, self.profile.blocks * 16)
        self.stream_interval_seconds = stream_interval_seconds
        self.faults = ServerFaults()
        self.started_at = 0.0
        self.requests_total = 0
        self._names = count(1)
        self._runner: web.AppRunner | None = None
        self._engine: RealTimeEngine | None = None
        self._setting: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        """`host:port`."""
        return join_address(self.host, self.port)

    @property
    def engine(self) -> RealTimeEngine:
        """The engine behind it, once started."""
        assert self._engine is not None, "the server was not started"
        return self._engine

    async def start(self) -> None:
        """Listen. Raises `OSError` that names the address when it is taken."""
        self._engine = RealTimeEngine(self.profile, self.speed / self.faults.slow)
        self.started_at = time.time()
        await self._listen()

    async def stop(self) -> None:
        """Close everything. Twice is fine."""
        if self._runner is not None:
            runner, self._runner = self._runner, None
            await runner.cleanup()
        if self._engine is not None:
            self._engine.stop()

    async def restart(self) -> None:
        """What an engine's restart looks like from outside: empty caches, counters at 0, a new start time."""
        await self.stop()
        await self.start()

    async def set_faults(self, faults: ServerFaults) -> None:
        """From now on misbehave like this."""
        was, self.faults = self.faults, faults
        if faults.slow != was.slow:
            self.engine.set_speed(self.speed / faults.slow)
        if faults.refuse and self._runner is not None:
            runner, self._runner = self._runner, None
            await runner.cleanup()
        elif not faults.refuse and self._runner is None:
            await self._listen()

    async def _listen(self) -> None:
        app = web.Application(client_max_size=BODY_BYTES_MAX)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/v1/completions", self._completions)
        app.router.add_post("/v1/chat/completions/render", self._render_chat)
        app.router.add_post("/v1/completions/render", self._render_completions)
        app.router.add_post("/tokenize", self._tokenize)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/version", self._version)
        for path in ("/health", "/ping"):
            app.router.add_get(path, self._health)
        app.router.add_post("/reset_prefix_cache", self._reset_prefix_cache)
        app.router.add_post("/sim/faults", self._set_faults)
        # A client that goes away cancels its handler, which aborts its request in the engine.
        runner = web.AppRunner(
            app, access_log=None, handler_cancellation=True, shutdown_timeout=SHUTDOWN_SECONDS, keepalive_timeout=3600
        )
        await runner.setup()
        site = web.TCPSite(runner, self.host, self.port, backlog=1024)
        try:
            await site.start()
        except BaseException:
            await runner.cleanup()
            raise
        self._runner = runner
        self.port = runner.addresses[0][1]

    async def _chat(self, http: web.Request) -> web.StreamResponse:
        return await self._complete(http, chat=True)

    async def _completions(self, http: web.Request) -> web.StreamResponse:
        return await self._complete(http, chat=False)

    async def _complete(self, http: web.Request, *, chat: bool) -> web.StreamResponse:
        raw = await http.read()
        self.requests_total += 1
        if self.faults.hang:
            await asyncio.get_running_loop().create_future()
        if self.faults.status is not None:
            return self._error(
                "The simulated server was told to fail.", "InternalServerError", None, self.faults.status
            )
        try:
            request = parse(chat, raw, self.models, self.context_tokens_max)
        except BadRequest as bad:
            return self._error(str(bad), bad.kind, bad.param, bad.status)
        tickets: list[Ticket] = []
        try:
            for one in request.sequences:
                tickets.append(self.engine.submit(one.prompt_tokens, request.output_tokens, one.ids))
            name = f"{'chatcmpl' if chat else 'cmpl'}-{self.port:x}{next(self._names):012x}"
            if request.stream:
                return await self._stream(http, request, tickets, name)
            await asyncio.gather(*(ticket.done for ticket in tickets))
            cached = sum(ticket.cached_tokens for ticket in tickets)
            return self._json(vllm_answers.whole(request, name, int(time.time()), cached))
        finally:
            for ticket in tickets:
                self.engine.abort(ticket)

    async def _stream(
        self, http: web.Request, request: ServedRequest, tickets: list[Ticket], name: str
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={**STREAM_HEADERS, SERVED_BY: self.address})
        await response.prepare(http)
        events = vllm_answers.Events(request, name, int(time.time()))
        sent = [0] * len(tickets)
        ended = asyncio.gather(*(ticket.done for ticket in tickets))
        try:
            await asyncio.wait([ticket.first for ticket in tickets], return_when=asyncio.FIRST_COMPLETED)
            while True:
                piece = self._new_tokens(events, tickets, sent)
                if ended.done():
                    cached = sum(ticket.cached_tokens for ticket in tickets)
                    await response.write((piece + events.end(cached)).encode())
                    break
                if piece:
                    await response.write(piece.encode())
                await asyncio.wait([ended], timeout=self.stream_interval_seconds)
            await response.write_eof()
        except ConnectionError:
            pass  # the client left between two writes
        finally:
            ended.cancel()
        return response

    def _new_tokens(self, events: vllm_answers.Events, tickets: list[Ticket], sent: list[int]) -> str:
        pieces = []
        for index, ticket in enumerate(tickets):
            ready = self.engine.generated_tokens(ticket)
            if ready > sent[index]:
                if not sent[index]:
                    pieces.append(events.role(index))
                pieces.append(events.tokens(index, sent[index], ready))
                sent[index] = ready
        return "".join(pieces)

    async def _render_chat(self, http: web.Request) -> web.Response:
        return await self._rendered(http, chat=True)

    async def _render_completions(self, http: web.Request) -> web.Response:
        return await self._rendered(http, chat=False)

    async def _rendered(self, http: web.Request, *, chat: bool) -> web.Response:
        """What a router that hashes tokens asks for: one object of a chat, a list of completions."""
        try:
            prompts = _rendered_once(chat, await http.read(), self.models)
        except BadRequest as bad:
            return self._error(str(bad), bad.kind, bad.param, bad.status)
        found = [vllm_answers.rendered(ids, f"{next(self._names):016x}", self.models[0]) for ids in prompts]
        return self._json(msgspec.json.encode(found[0] if chat else found))

    async def _tokenize(self, http: web.Request) -> web.Response:
        raw = await http.read()
        try:
            first = token_ids(b'"messages"' in raw, raw, self.models)[0]
        except BadRequest as bad:
            return self._error(str(bad), bad.kind, bad.param, bad.status)
        return self._json(msgspec.json.encode(vllm_answers.tokenized(first, self.context_tokens_max)))

    async def _models(self, _: web.Request) -> web.Response:
        return self._json(vllm_answers.models(self.models, int(self.started_at), self.context_tokens_max))

    async def _metrics(self, _: web.Request) -> web.Response:
        page = vllm_answers.metrics(self.engine.model, self.engine.now(), self.models[0], self.started_at)
        return web.Response(text=page, headers={"content-type": "text/plain; version=1.0.0; charset=utf-8"})

    async def _version(self, _: web.Request) -> web.Response:
        return self._json(b'{"version":"%b"}' % vllm_answers.VERSION.encode())

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response(status=503 if self.faults.status is not None else 200)

    async def _reset_prefix_cache(self, _: web.Request) -> web.Response:
        self.engine.reset_prefix_cache()
        return web.Response()

    async def _set_faults(self, http: web.Request) -> web.Response:
        try:
            faults = msgspec.json.decode(await http.read(), type=ServerFaults)
        except msgspec.MsgspecError as error:
            return self._error(str(error), "BadRequestError", None, 400)
        # Refusing closes this connection too: answer first.
        self._setting = asyncio.create_task(self.set_faults(faults))
        return self._json(msgspec.json.encode(faults))

    def _json(self, body: bytes, status: int = 200) -> web.Response:
        return web.Response(
            status=status, body=body, headers={"content-type": "application/json", SERVED_BY: self.address}
        )

    def _error(self, message: str, kind: str, param: str | None, status: int) -> web.Response:
        return self._json(vllm_answers.error(message, kind, param, status), status)


def _arguments(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m picker.lab.model_server", description="Simulated model servers.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--ports", default="0", help="comma-separated, one server each; 0 means any free one")
    parser.add_argument("--profile", default=DEFAULT_PROFILE, choices=sorted(PROFILES))
    parser.add_argument("--kv-capacity-tokens", type=int, help="instead of the profile's")
    parser.add_argument("--models", default="m", help="comma-separated: the model, then its adapters")
    parser.add_argument("--speed", type=float, default=1.0, help="engine seconds a second")
    parser.add_argument("--stream-interval-seconds", type=float, default=0.1)
    return parser.parse_args(arguments)


async def serve(options: argparse.Namespace) -> int:
    """Run until SIGTERM or SIGINT. Prints one line when ready: `listening HOST:PORT,...`."""
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    profile = PROFILES[options.profile]
    if options.kv_capacity_tokens is not None:
        profile = profile.with_capacity(options.kv_capacity_tokens)
    servers = [
        SimulatedServer(
            profile=profile,
            host=options.host,
            port=int(port),
            models=tuple(options.models.split(",")),
            speed=options.speed,
            stream_interval_seconds=options.stream_interval_seconds,
        )
        for port in options.ports.split(",")
    ]
    async with contextlib.AsyncExitStack() as stack:
        for server in servers:
            try:
                await server.start()
            except OSError as error:
                print(f"cannot listen on {server.address}: {error.strerror}", file=sys.stderr)
                return 1
            stack.push_async_callback(server.stop)
        print("listening " + ",".join(server.address for server in servers), flush=True)
        await stopped.wait()
    return 0


def main() -> int:
    """Entry point of `python -m picker.lab.model_server`."""
    options = _arguments(sys.argv[1:])
    try:
        import uvloop

        run = uvloop.run
    except ImportError:
        run = asyncio.run
    return int(run(serve(options)))


if __name__ == "__main__":
    sys.exit(main())
