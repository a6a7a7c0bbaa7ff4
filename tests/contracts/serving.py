"""A transport in a thread of its own, for tests that drive it with programs or blocking sockets."""

import asyncio
import ssl
import threading
from collections.abc import Callable

from picker.config import TransportLimits
from picker.edge.grpc.grpcio_transport import GrpcioTransport
from picker.edge.grpc.h2 import H2Transport
from picker.edge.grpc.health import HealthService
from picker.edge.grpc.transport import Call


class Echo:
    """Answers each message with itself; `hold` is kept open and unanswered."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.held = False

    def receive(self, message: bytes) -> None:
        self.held = message == b"hold"
        if not self.held:
            self.call.send(message)

    def half_closed(self) -> None:
        if not self.held:
            self.call.finish()

    def closed(self) -> None:
        pass


class Serving:
    """`with Serving() as server:` a transport runs, on asyncio or uvloop, until the block ends."""

    def __init__(
        self,
        limits: TransportLimits | None = None,
        tls: ssl.SSLContext | None = None,
        loop: str = "asyncio",
        kind: str = "h2",
    ) -> None:
        self.errors: list[BaseException] = []
        self.port = 0
        health = HealthService()
        health.set("", True)
        transport = {"h2": H2Transport, "grpcio": GrpcioTransport}[kind]
        self._make = lambda: transport(
            {"/test.Echo/Echo": Echo, **health.methods},
            host="127.0.0.1",
            port=0,
            tls=tls,
            limits=limits,
            on_error=self.errors.append,
        )
        self._run: Callable[..., None] = asyncio.run
        if loop == "uvloop":
            import uvloop

            self._run = uvloop.run
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: self._run(self._serve()))

    async def _serve(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self.transport = self._make()
        await self.transport.start()
        self.port = self.transport.port
        self._started.set()
        await self._stop.wait()
        await self.transport.stop()

    def __enter__(self) -> "Serving":
        self._thread.start()
        assert self._started.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)
        assert not self._thread.is_alive()
