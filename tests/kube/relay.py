"""A TCP relay on loopback: the network between a client and a server, and what befalls networks."""

import asyncio
import contextlib
from collections.abc import AsyncIterator


class Relay:
    """Forwards 127.0.0.1:`port` to 127.0.0.1:`target_port`."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._server: asyncio.Server | None = None
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self.port = 0
        self.connections_total = 0

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        self._flowing.set()
        self.reset()
        await self._server.wait_closed()

    def freeze(self) -> None:
        """A black hole: connections stay, new ones are accepted, and no byte passes."""
        self._flowing.clear()

    def thaw(self) -> None:
        self._flowing.set()

    def reset(self) -> None:
        """Break every connection."""
        for writer in list(self._writers):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections_total += 1
        self._writers.add(writer)
        try:
            upstream_reader, upstream_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        except OSError:
            self._writers.discard(writer)
            writer.transport.abort()
            return
        self._writers.add(upstream_writer)
        try:
            await asyncio.gather(self._pump(reader, upstream_writer), self._pump(upstream_reader, writer))
        finally:
            for each in (writer, upstream_writer):
                self._writers.discard(each)
                each.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, RuntimeError):  # uvloop's word for a transport that is closed
            while data := await reader.read(65536):
                await self._flowing.wait()
                writer.write(data)
                await writer.drain()
            writer.close()


@contextlib.asynccontextmanager
async def relay(target_port: int) -> AsyncIterator[Relay]:
    """Started, and stopped at the end."""
    made = Relay(target_port)
    await made.start()
    try:
        yield made
    finally:
        await made.stop()
