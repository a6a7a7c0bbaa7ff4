"""A scripted HTTP server on the loopback: each request is answered with the bytes it is told to send."""

import asyncio
import ssl
from collections.abc import Callable

Script = Callable[[bytes], bytes | None]
"""Request head -> raw answer; `None` says nothing; an answer that ends in `HANG_UP` closes after it."""

HANG_UP = b"<hang up>"


def answer(body: bytes, status: str = "200 OK", headers: str = "") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{headers}\r\n".encode() + body


class LoopbackServer:
    def __init__(self, script: Script, tls: ssl.SSLContext | None = None) -> None:
        self.script = script
        self._tls = tls
        self.requests: list[bytes] = []
        self.connections = 0
        self.port = 0
        self._writers: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> "LoopbackServer":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._server.close()
        self.hang_up()
        await self._server.wait_closed()

    def hang_up(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                self.requests.append(head)
                raw = self.script(head)
                if raw is None:
                    continue
                writer.write(raw.removesuffix(HANG_UP))
                await writer.drain()
                if raw.endswith(HANG_UP):
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()
