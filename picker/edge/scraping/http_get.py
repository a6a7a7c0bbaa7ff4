"""A lean HTTP/1.1 GET client: one keep-alive connection, one request at a time.

Scraping asks each engine for a page a second, and a general client costs several times what
reading the page does (figures in docs). This one knows what such a page needs and no more:
Content-Length, chunked, and read-until-close bodies; no redirects, cookies or compression
(`answer` says what an answer means).

Invariants: what is kept is bounded (`HEAD_BYTES_MAX`, `body_bytes_max`); whatever breaks the
framing closes the connection, so one answer is never read as another's; a request that a
server dropped together with an idle connection is sent once more on a fresh one, never twice.

Framing: RFC 9112 sections 6 and 7.
"""

import asyncio
import re
import ssl
import threading
from collections.abc import Callable
from typing import NamedTuple, cast

from picker.edge.scraping.tls import CLIENT_CERTIFICATE
from picker.edge.scraping.tls import in_words as tls_words

HEAD_BYTES_MAX = 32 * 1024
INTERIM_MAX = 4
"""Answers like 100 Continue before the real one."""
CHUNKS_MIN = 256
CHUNK_BYTES_MIN = 64
"""So many chunks of any size, and beyond these one for each so many bytes: each costs as much as kilobytes of page."""
_local = threading.local()
_STATUS = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9]{2})(?: [^\r\n]*)?")
_TLS_ALERT = b"\x15\x03"
_CHUNK_HEAD = re.compile(rb"([0-9A-Fa-f]{1,8})[ \t]*(?:;[^\r\n]*)?\r\n")


def _receive() -> memoryview:
    """The receive buffer of this thread, so of its event loop."""
    buffer: memoryview | None = getattr(_local, "buffer", None)
    if buffer is None:
        buffer = _local.buffer = memoryview(bytearray(128 * 1024))
    return buffer


class HttpError(Exception):
    """The other end does not answer, or not in HTTP; the message says which."""


class Fetched(NamedTuple):
    """An answer. Header names are lower case."""

    status: int
    headers: dict[bytes, bytes]
    body: bytes


class HttpGetter:
    """GET requests to one server over one connection, opened when needed and kept.

    Not for concurrent use. `close` may be called at any time. Timeouts are the caller's
    (`asyncio.timeout`): a cancelled `get` closes the connection.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        tls: Callable[[], ssl.SSLContext] | None = None,
        server_name: str | None = None,
        body_bytes_max: int,
    ) -> None:
        """`tls`: asked for each new connection; it may raise `HttpError`. `server_name`: whose certificate is
        expected, where not the host's."""
        self._server_name = server_name
        self._host = host
        self._port = port
        self._tls = tls
        self._body_bytes_max = body_bytes_max
        self._connection: _Connection | None = None

    async def get(self, path: str, headers: str = "") -> Fetched:
        """One page. `headers`: further header lines, each with its CRLF. Raises `HttpError`."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        request = (
            f"GET {path} HTTP/1.1\r\nHost: {host}:{self._port}\r\nAccept: */*\r\n"
            f"Accept-Encoding: identity\r\nUser-Agent: picker\r\n{headers}\r\n"
        ).encode("latin-1")
        connection = self._connection
        if connection is not None and not connection.usable:
            self.close()
            connection = None
        reused = connection is not None
        try:
            if connection is None:
                connection = await self._connect()
            try:
                return await connection.exchange(request)
            except _DroppedError:
                if not reused:
                    raise
                self.close()
                connection = await self._connect()
                return await connection.exchange(request)
        except _DroppedError as error:
            self.close()
            if self._tls is not None:  # the alert that would say so is lost in the event loop's TLS
                raise HttpError(f"{error}; {CLIENT_CERTIFICATE}") from None
            raise
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection; the next `get` opens another."""
        if self._connection is not None:
            self._connection.abort()
            self._connection = None

    async def _connect(self) -> "_Connection":
        loop = asyncio.get_running_loop()
        context = self._tls() if self._tls is not None else None
        try:
            _, connection = await loop.create_connection(
                lambda: _Connection(self._body_bytes_max),
                self._host,
                self._port,
                ssl=context,
                server_hostname=self._server_name if context is not None else None,
            )
        except ssl.SSLError as error:
            raise HttpError(tls_words(error)) from None
        except OSError as error:
            raise HttpError(error.strerror or str(error) or type(error).__name__) from error
        self._connection = connection
        return connection


class _DroppedError(HttpError):
    """The connection ended before a byte of the answer came."""


class _Connection(asyncio.BufferedProtocol):
    """Reads one answer at a time off a transport."""

    def __init__(self, body_bytes_max: int) -> None:
        self._body_bytes_max = body_bytes_max
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[Fetched] | None = None
        self._buffer = bytearray()
        self._head: tuple[int, dict[bytes, bytes]] | None = None
        self._length: int | None = None
        self._chunks: list[bytes] | None = None
        self._chunks_bytes = 0
        self._interim = 0
        self._keep = True

    @property
    def usable(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    async def exchange(self, request: bytes) -> Fetched:
        if self._transport is None or self._transport.is_closing():
            raise _DroppedError("connection closed")
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._answer

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # asyncio.BufferedProtocol: one receive buffer for all connections of a loop, since what arrives is taken
    # out of it before the loop goes on. A buffer a read costs more than the read.

    def get_buffer(self, sizehint: int) -> memoryview:
        return _receive()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but its class

    def buffer_updated(self, nbytes: int) -> None:
        if self._answer is None or self._answer.done():
            # Nobody asked: whatever this is, it must not become the next answer.
            self.abort()
            return
        self._buffer += _receive()[:nbytes]
        try:
            self._read()
        except HttpError as error:
            self._fail(error)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        answer = self._answer
        if answer is None or answer.done():
            return
        if isinstance(exc, ssl.SSLError):
            self._fail(HttpError(tls_words(exc)))
        elif self._head is None and self._buffer.startswith(_TLS_ALERT):
            self._fail(HttpError("the server speaks TLS; set engine_metrics.scheme: https"))
        elif self._head is None and not self._buffer:
            self._fail(_DroppedError(str(exc) if exc else "connection closed before an answer"))
        elif self._head is not None and self._length is None and self._chunks is None and exc is None:
            self._finish(bytes(self._buffer))
        else:
            self._fail(HttpError("connection closed in the middle of an answer"))

    def _fail(self, error: HttpError) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)
        self.abort()

    def _finish(self, body: bytes) -> None:
        assert self._head is not None and self._answer is not None
        status, headers = self._head
        self._head = self._length = self._chunks = None
        self._chunks_bytes = self._interim = 0
        if not self._keep:
            self.abort()
        self._answer.set_result(Fetched(status, headers, body))

    def _read(self) -> None:
        if self._head is None and not self._read_head():
            return
        if self._chunks is not None:
            self._read_chunks()
        elif self._length is None:
            self._bound(len(self._buffer))
        elif len(self._buffer) >= self._length:
            body = bytes(memoryview(self._buffer)[: self._length])
            if len(self._buffer) > self._length:
                self._keep = False
            self._buffer.clear()
            self._finish(body)

    def _read_head(self) -> bool:
        while True:
            end = self._buffer.find(b"\r\n\r\n", 0, HEAD_BYTES_MAX)
            if end < 0:
                if len(self._buffer) > HEAD_BYTES_MAX:
                    raise HttpError(f"response headers exceed {HEAD_BYTES_MAX} bytes")
                return False
            lines = bytes(self._buffer[:end]).split(b"\r\n")
            del self._buffer[: end + 4]
            found = _STATUS.fullmatch(lines[0])
            if found is None:
                raise HttpError("the answer is not HTTP/1")
            status = int(found.group(2))
            if status >= 200:
                break
            self._interim += 1
            if self._interim > INTERIM_MAX:
                raise HttpError("interim answers without end")
        headers: dict[bytes, bytes] = {}
        for line in lines[1:]:
            name, colon, value = line.partition(b":")
            name = name.lower()
            if not colon or not name or name.strip() != name:
                raise HttpError("a malformed response header")
            if name in headers and name in (b"content-length", b"transfer-encoding"):
                raise HttpError(f"two {name.decode()} headers")
            headers[name] = value.strip()
        self._head = (status, headers)
        connection = headers.get(b"connection", b"").lower()
        self._keep = connection == b"keep-alive" if found.group(1) == b"0" else b"close" not in connection
        self._frame(status, headers)
        return True

    def _frame(self, status: int, headers: dict[bytes, bytes]) -> None:
        coding = headers.get(b"transfer-encoding", b"").lower()
        length = headers.get(b"content-length")
        if coding:
            if coding != b"chunked" or length is not None:
                raise HttpError("a transfer encoding other than chunked")
            self._chunks = []
        elif status in (204, 304):
            self._length = 0
        elif length is not None:
            if not length.isdigit() or len(length) > 15:
                raise HttpError("a malformed content-length")
            self._length = int(length)
            self._bound(self._length)
        else:
            self._keep = False

    def _read_chunks(self) -> None:
        """The whole chunks that have come. What is read is cut off once: a cut for each would move all the rest."""
        assert self._chunks is not None
        buffer, chunks = self._buffer, self._chunks
        at = 0
        while True:
            head = _CHUNK_HEAD.match(buffer, at)
            if head is None:
                if len(buffer) - at > 1024 or buffer.find(b"\n", at) >= 0:
                    raise HttpError("a malformed chunk")
                break
            size = int(head.group(1), 16)
            start = head.end()
            if size == 0:
                self._read_trailers(start)
                return
            self._bound(self._chunks_bytes + size)
            if len(buffer) < start + size + 2:
                break
            if buffer[start + size : start + size + 2] != b"\r\n":
                raise HttpError("a malformed chunk")
            chunks.append(bytes(buffer[start : start + size]))
            self._chunks_bytes += size
            if len(chunks) > CHUNKS_MIN + self._chunks_bytes // CHUNK_BYTES_MIN:
                raise HttpError("a page in crumbs")
            at = start + size + 2
        del buffer[:at]

    def _read_trailers(self, start: int) -> None:
        assert self._chunks is not None
        if self._buffer.startswith(b"\r\n", start):
            end = start + 2
        else:
            found = self._buffer.find(b"\r\n\r\n", start)
            if found < 0:
                if len(self._buffer) > start + HEAD_BYTES_MAX:
                    raise HttpError("trailers too long")
                return
            end = found + 4
        if len(self._buffer) > end:
            self._keep = False
        self._buffer.clear()
        self._finish(b"".join(self._chunks))

    def _bound(self, size: int) -> None:
        if size > self._body_bytes_max:
            raise HttpError(f"the page exceeds {self._body_bytes_max} bytes")
