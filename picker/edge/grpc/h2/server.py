"""The lean HTTP/2 transport: a listener, its connections, one timer for all of them."""

import asyncio
import ssl
import time
from collections.abc import Callable

from picker.budget import Budget
from picker.config import TransportLimits
from picker.edge.grpc.h2 import frames
from picker.edge.grpc.h2.connection import Connection
from picker.edge.grpc.h2.shared import H2Shared
from picker.edge.grpc.transport import MethodTable
from picker.listening import KEPT_FILES, Files, Listener, bind

_TICK_SECONDS = 1.0
_PAUSE_SECONDS = 0.5
_BACKLOG = 512


class H2Transport:
    """A listening gRPC server. See `picker.edge.grpc.transport.Transport`."""

    def __init__(
        self,
        methods: MethodTable,
        *,
        host: str,
        port: int,
        tls: ssl.SSLContext | None = None,
        limits: TransportLimits | None = None,
        on_error: Callable[[BaseException], None],
        on_fault: Callable[[str, str], None] = lambda _peer, _reason: None,
        budget: Budget | None = None,
        files: Files | None = None,
        keep: int = KEPT_FILES,
    ) -> None:
        """Nothing is bound before `start`. `tls` needs ALPN h2 (`picker.edge.grpc.tls.server_context` has it).

        `on_error` is told of exceptions, which are ours; `on_fault(peer, reason)` of connections closed for
        something their peer did: a limit met, a rule broken, no sign of life. `budget` and `files`: one for all ports;
        `keep` of the reserve of files is not for this one.
        """
        self.port = port
        self._host = host
        self._methods = methods
        self._limits = limits or TransportLimits()
        self._tls = tls
        self._on_error = on_error
        self._on_fault = on_fault
        self._budget = budget
        self._ticked_at = 0.0
        self._files = files
        self._keep = keep
        self._connections_max = self._limits.connections_max
        if files is not None:
            self._connections_max = min(self._connections_max, files.connections_max)
        self._server: Listener | None = None
        self._shared: H2Shared | None = None
        self._connections: set[Connection] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._draining = False
        self._waiters = 0
        self._changed = asyncio.Event()

    async def start(self) -> None:
        """Bind and listen. Raises `OSError` that names the address when it is taken."""
        loop = asyncio.get_running_loop()
        self._shared = H2Shared(
            self._methods,
            self._limits,
            on_error=self._on_error,
            on_fault=self._on_fault,
            clock=time.monotonic,  # uvloop's own has milliseconds, and stands still within a step
            call_soon=loop.call_soon,
            call_later=loop.call_later,
            call_ended=self._call_ended,
            budget=self._budget,
        )
        self._server = Listener(
            bind(self._host, self.port, _BACKLOG),
            self._accept,
            self._on_error,
            context=self._tls,
            handshakes_max=self._limits.tls_handshakes_max,
            handshake_seconds=self._limits.handshake_seconds,
            files=self._files,
            keep=self._keep,
            make_room=self._close_idle,
        )
        self.port = self._server.sockets[0].getsockname()[1]
        self._ticked_at = time.monotonic()
        self._timer = loop.call_later(_TICK_SECONDS, self._tick)

    def refuse_new_calls(self) -> None:
        """Close the listener and send GOAWAY; calls in progress go on."""
        self._draining = True
        if self._server is not None:
            self._server.close()
        for connection in tuple(self._connections):
            connection.drain()

    async def wait_idle(self, timeout_seconds: float) -> bool:
        """Wait until no call is open. False when the time ran out first."""
        self._waiters += 1
        try:
            async with asyncio.timeout(timeout_seconds):
                while self.open_calls:
                    await self._change()
        except TimeoutError:
            return False
        finally:
            self._waiters -= 1
        return True

    async def stop(self) -> None:
        """Close everything at once: GOAWAY, and no more than `close_seconds` for peers to read it."""
        if self._server is None:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._server.close()
        for connection in tuple(self._connections):
            connection.fail(frames.NO_ERROR, "stopping")
        try:
            async with asyncio.timeout(self._limits.close_seconds):
                while self._connections:
                    await self._change()
        except TimeoutError:
            for connection in tuple(self._connections):
                connection.abort()
            while self._connections:
                await self._change()
        await self._server.wait_closed()
        self._server = None

    def replace_tls(self, context: ssl.SSLContext) -> None:
        """Use other certificates for connections from now on. The transport must have begun with TLS."""
        if self._tls is None:
            raise ValueError("this transport serves plaintext; TLS needs a restart")
        self._tls = context
        if self._server is not None:
            self._server.context = context

    @property
    def open_calls(self) -> int:
        """Calls in progress, or whose last bytes are not written yet."""
        return sum(len(connection.streams) for connection in self._connections)

    async def _change(self) -> None:
        """A call or a connection has ended. Waiters share one event: it is new for each change."""
        await self._changed.wait()

    def _accept(self) -> Connection:
        assert self._shared is not None
        return Connection(self._shared, self._made, self._lost)

    def _made(self, connection: Connection) -> str:
        """After the TLS handshake, where there is one; a connection that fails it is never known here."""
        self._connections.add(connection)
        if self._server is None:
            return "stopping"
        if len(self._connections) > self._connections_max and not self._close_idle(connection):
            return "too many connections"
        if self._draining:
            connection.drain()
        return ""

    def _close_idle(self, newest: Connection | None = None) -> bool:
        """Close the connection that is missed least: no answered call in progress, none lately, silent for longest."""
        found: Connection | None = None
        now = time.monotonic()
        for connection in self._connections:
            if connection is newest or connection.closing or connection.busy(now):
                continue
            if found is None or connection.rank < found.rank:
                found = connection
        if found is None:
            return False
        found.make_room()
        return True

    def _lost(self, connection: Connection) -> None:
        self._connections.discard(connection)
        self._tell_waiters()

    def _call_ended(self) -> None:
        if self._waiters:
            self._tell_waiters()

    def _tell_waiters(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(_TICK_SECONDS, self._tick)
        now = time.monotonic()
        late, self._ticked_at = now - self._ticked_at - _TICK_SECONDS, now
        if late > _PAUSE_SECONDS:
            # We stood still. What came meanwhile is read before anybody is judged by the clock.
            for connection in self._connections:
                connection.upkeep.forgive(late)
            return
        for connection in tuple(self._connections):
            try:
                connection.upkeep.tick(now)
            except Exception as error:
                self._on_error(error)
                connection.abort()
