"""A model server that writes down exactly what it got, and answers as the request asks.

HTTP/1.1 and HTTP/2 (prior knowledge) on one port of loopback, on a thread of its own. The query
names the request and the answer: `/v1/chat/completions?id=42&do=sse&n=2000`. The picker looks at
paths without the query, so the answer's shape is free of what is being tested.

`GET /metrics` gives `metrics_page`. What the picker itself asks its endpoints (`SCRAPED`) is not recorded.
"""

import asyncio
import base64
import contextlib
import hashlib
import itertools
import json
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Self
from urllib.parse import parse_qs, urlsplit

import h2.config
import h2.connection
import h2.events

Headers = list[tuple[str, str]]

SCRAPED = ("/metrics", "/v1/models")
"""Targets as the picker writes them, without a query."""

IDLE_PAGE = """\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 0.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 0.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.0
"""
FULL_PAGE = IDLE_PAGE.replace('waiting{engine="0",model_name="m"} 0.0', 'waiting{engine="0",model_name="m"} 99.0')


class Recorded:
    """One request as it arrived, byte for byte."""

    def __init__(self, version: str, method: str, target: str, headers: Headers) -> None:
        self.version = version
        self.method = method
        self.target = target
        self.headers = headers
        self.body = bytearray()
        self.chunk_bytes: list[int] = []
        """HTTP/1.1: size of each chunk of a chunked body, as framed."""
        self.trailers: Headers = []
        self.complete = threading.Event()
        """The whole request is here."""
        self.gone = threading.Event()
        """The other side left before the answer ended."""
        self.release = threading.Event()
        """Lets an answer that stalls go on."""
        self.query = {key: values[-1] for key, values in parse_qs(urlsplit(target).query).items()}

    @property
    def id(self) -> str:
        return self.query.get("id", "")

    def values(self, name: str) -> list[str]:
        """Every value of a header, in order."""
        return [value for key, value in self.headers if key.lower() == name]

    async def all_here(self) -> None:
        """Wait for the end of the request, or for the other side to leave."""
        while not (self.complete.is_set() or self.gone.is_set()):  # noqa: ASYNC110 (set by other threads)
            await asyncio.sleep(0.01)

    async def let_go(self) -> None:
        """Wait for `release`, or for the other side to leave."""
        while not (self.release.is_set() or self.gone.is_set()):  # noqa: ASYNC110 (set by other threads)
            await asyncio.sleep(0.01)


class Answer:
    """What a behaviour writes to: one HTTP response, in either version."""

    async def head(self, status: int, headers: Headers) -> None:
        raise NotImplementedError

    async def chunk(self, data: bytes) -> None:
        raise NotImplementedError

    async def end(self, trailers: Headers | None = None) -> None:
        raise NotImplementedError

    async def break_off(self) -> None:
        """Close the connection (HTTP/1.1) or reset the stream (HTTP/2)."""
        raise NotImplementedError


Behaviour = Callable[[Recorded, Answer], Awaitable[None]]


class Upstream:
    """The server. A context manager; `address` is `127.0.0.1:port`."""

    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
        self.metrics_page = IDLE_PAGE
        self.requests: list[Recorded] = []
        self._arrived = threading.Condition()
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server = self._loop.run_until_complete(asyncio.start_server(self._connected, host, port))
        self.port: int = self._server.sockets[0].getsockname()[1]
        self.address = f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"
        self._thread = threading.Thread(target=self._loop.run_forever, name="upstream", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _close(self) -> None:
        self._server.close()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def recorded(self, request_id: str, seconds: float = 10.0) -> Recorded:
        """The request of that id, once its headers are here."""
        deadline = time.monotonic() + seconds
        with self._arrived:
            while True:
                for request in reversed(self.requests):
                    if request.id == request_id:
                        return request
                if not self._arrived.wait(deadline - time.monotonic()):
                    raise AssertionError(f"request {request_id} never arrived at {self.address}")

    def saw(self, request_id: str) -> bool:
        """Whether the request of that id has come here."""
        return any(request.id == request_id for request in self.requests)

    def _arrive(self, request: Recorded) -> None:
        with self._arrived:
            self.requests.append(request)
            del self.requests[:-2000]
            self._arrived.notify_all()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            start = await reader.readexactly(3)
            if start == b"PRI":
                await _Http2Connection(self, reader, writer).serve(start)
            else:
                await _Http1Connection(self, reader, writer).serve(start)
        writer.close()

    async def answer(self, request: Recorded, answer: Answer) -> None:
        path = urlsplit(request.target).path
        if path == "/metrics":
            page = self.metrics_page.encode()
            await answer.head(200, [("content-type", "text/plain; version=0.0.4"), ("content-length", str(len(page)))])
            await answer.chunk(page)
            await answer.end()
            return
        await BEHAVIOURS[request.query.get("do", "json")](request, answer)


async def _json(request: Recorded, answer: Answer) -> None:
    """A short completion with its usage."""
    body = json.dumps(
        {"id": "c", "choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}}
    ).encode()
    await answer.head(200, [("content-type", "application/json"), ("content-length", str(len(body)))])
    await answer.chunk(body)
    await answer.end()


async def _echo(request: Recorded, answer: Answer) -> None:
    await answer.head(200, [("content-type", "application/octet-stream"), ("content-length", str(len(request.body)))])
    for start in range(0, len(request.body), 65536):
        await answer.chunk(bytes(request.body[start : start + 65536]))
    await answer.end()


async def _large(request: Recorded, answer: Answer) -> None:
    """`bytes` of `large_body`, chunked."""
    await answer.head(200, [("content-type", "application/json")])
    body = large_body(int(request.query["bytes"]))
    for start in range(0, len(body), 100_000):
        await answer.chunk(body[start : start + 100_000])
    await answer.end()


async def _sse(request: Recorded, answer: Answer) -> None:
    """`n` events, usage in the last but one; `stall=k` waits for release after k events."""
    await answer.head(200, [("content-type", "text/event-stream")])
    stall = int(request.query.get("stall", "-1"))
    for number, event in enumerate(sse_events(int(request.query.get("n", "3")))):
        if number == stall:
            await request.let_go()
        await answer.chunk(event)
    if request.query.get("early"):
        # An answer that ends before its request would have the rest of it cut off.
        await request.all_here()
    await answer.end()


async def _ndjson(request: Recorded, answer: Answer) -> None:
    """Two lines, the second after release: a stream that is not SSE."""
    await answer.head(200, [("content-type", request.query.get("type", "application/x-ndjson"))])
    await answer.chunk(b'{"line":1}\n')
    await request.let_go()
    await answer.chunk(b'{"line":2}\n')
    await answer.end()


async def _hang(request: Recorded, answer: Answer) -> None:
    """Nothing until release."""
    await request.let_go()
    if not request.gone.is_set():
        await _json(request, answer)


async def _status(request: Recorded, answer: Answer) -> None:
    code = int(request.query["code"])
    body = b'{"error":{"message":"as asked"}}'
    await answer.head(code, [("content-type", "application/json"), ("content-length", str(len(body)))])
    await answer.chunk(body)
    await answer.end()


async def _close(request: Recorded, answer: Answer) -> None:
    """Not a byte of an answer."""
    await answer.break_off()


async def _half(request: Recorded, answer: Answer) -> None:
    """An event, and after release the connection breaks."""
    await answer.head(200, [("content-type", "text/event-stream")])
    await answer.chunk(sse_events(1)[0])
    await request.let_go()
    await answer.break_off()


async def _cookies(request: Recorded, answer: Answer) -> None:
    headers = [("set-cookie", "a=1; Path=/"), ("x-other", "o"), ("set-cookie", "b=2; Path=/")]
    await answer.head(200, [*headers, ("content-length", "2")])
    await answer.chunk(b"{}")
    await answer.end()


async def _trailers(request: Recorded, answer: Answer) -> None:
    await answer.head(200, [("content-type", "application/json"), ("trailer", "x-checksum")])
    await answer.chunk(b'{"a":1}')
    await answer.end([("x-checksum", "abc"), ("x-more", "1")])


async def _grpc(request: Recorded, answer: Answer) -> None:
    """A unary gRPC method that gives its message back."""
    await answer.head(200, [("content-type", "application/grpc")])
    await answer.chunk(bytes(request.body))
    await answer.end([("grpc-status", "0"), ("grpc-message", "")])


async def _empty(request: Recorded, answer: Answer) -> None:
    await answer.head(204, [])
    await answer.end()


BEHAVIOURS: dict[str, Behaviour] = {
    "json": _json,
    "echo": _echo,
    "large": _large,
    "sse": _sse,
    "ndjson": _ndjson,
    "hang": _hang,
    "status": _status,
    "close": _close,
    "half": _half,
    "cookies": _cookies,
    "trailers": _trailers,
    "grpc": _grpc,
    "empty": _empty,
}


def large_body(size: int) -> bytes:
    """`size` bytes in which every eight differ, so that a lost, doubled or moved chunk shows."""
    words = b"".join(number.to_bytes(8, "big") for number in range(size // 8 + 1))
    return words[:size]


def sse_events(count: int) -> list[bytes]:
    """`count` content events, then usage, then `[DONE]`."""
    events = [f'data: {{"choices":[{{"delta":{{"content":"t{n}"}}}}]}}\n\n'.encode() for n in range(count)]
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3,"total_tokens":10}}\n\n'
    return [*events, usage, b"data: [DONE]\n\n"]


class _Http1Connection:
    def __init__(self, upstream: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._upstream = upstream
        self._reader = reader
        self.writer = writer

    async def serve(self, start: bytes) -> None:
        while True:
            head = start + await self._reader.readuntil(b"\r\n\r\n")
            lines = head.decode("latin-1").split("\r\n")
            method, target, _ = lines[0].split(" ", 2)
            headers = [_split_header(line) for line in lines[1:] if line]
            request = Recorded("1.1", method, target, headers)
            if target not in SCRAPED:
                self._upstream._arrive(request)
            if request.values("upgrade"):
                await self._tunnel(request)
                return
            answer = _Http1Answer(self.writer)
            early = asyncio.create_task(self._upstream.answer(request, answer)) if request.query.get("early") else None
            try:
                await self._read_body(request)
            except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                request.gone.set()
                raise
            request.complete.set()
            answering = early or asyncio.create_task(self._upstream.answer(request, answer))
            watching = asyncio.create_task(self._reader.read(3))
            await asyncio.wait({answering, watching}, return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():
                request.gone.set()
                try:
                    await answering
                finally:
                    watching.cancel()
                return
            answering.result()
            if answer.broken:
                watching.cancel()
                return
            start = await watching
            if not start:
                return

    async def _read_body(self, request: Recorded) -> None:
        if request.values("transfer-encoding"):
            while True:
                size = int((await self._reader.readuntil(b"\r\n")).split(b";")[0], 16)
                if size == 0:
                    break
                request.body += await self._reader.readexactly(size)
                request.chunk_bytes.append(size)
                await self._reader.readexactly(2)
            while (line := await self._reader.readuntil(b"\r\n")) != b"\r\n":
                request.trailers.append(_split_header(line.decode("latin-1").rstrip("\r\n")))
        elif request.values("content-length"):
            rest = int(request.values("content-length")[0])
            while rest:
                part = await self._reader.read(min(rest, 1 << 20))
                if not part:
                    raise asyncio.IncompleteReadError(b"", rest)
                request.body += part
                rest -= len(part)

    async def _tunnel(self, request: Recorded) -> None:
        """Answer the WebSocket handshake (RFC 6455 section 4.2.2), then give every byte back."""
        request.complete.set()
        key = request.values("sec-websocket-key")[0] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        accept = base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()
        self.writer.write(
            b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: Upgrade\r\n"
            b"sec-websocket-accept: " + accept.encode() + b"\r\n\r\n"
        )
        while data := await self._reader.read(65536):
            request.body += data
            self.writer.write(data)
            await self.writer.drain()
        request.gone.set()


class _Http1Answer(Answer):
    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._chunked = False
        self.broken = False

    async def head(self, status: int, headers: Headers) -> None:
        self._chunked = status != 204 and not any(key == "content-length" for key, _ in headers)
        if self._chunked:
            headers = [*headers, ("transfer-encoding", "chunked")]
        lines = [f"HTTP/1.1 {status} x", *(f"{key}: {value}" for key, value in headers), "", ""]
        self._writer.write("\r\n".join(lines).encode("latin-1"))

    async def chunk(self, data: bytes) -> None:
        self._writer.write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)
        await self._writer.drain()

    async def end(self, trailers: Headers | None = None) -> None:
        if self._chunked:
            lines = ["0", *(f"{key}: {value}" for key, value in trailers or []), "", ""]
            self._writer.write("\r\n".join(lines).encode("latin-1"))
        await self._writer.drain()

    async def break_off(self) -> None:
        self.broken = True
        self._writer.transport.abort()


class _Http2Connection:
    def __init__(self, upstream: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._upstream = upstream
        self._reader = reader
        self._writer = writer
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False, header_encoding="utf-8"))
        self._streams: dict[int, Recorded] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._window = asyncio.Condition()

    async def serve(self, start: bytes) -> None:
        self.h2.initiate_connection()
        data = start
        try:
            while data:
                for event in self.h2.receive_data(data):
                    self._on_event(event)
                await self.flush()
                async with self._window:
                    self._window.notify_all()
                data = await self._reader.read(1 << 16)
        finally:
            for request in self._streams.values():
                request.gone.set()
            for task in self._tasks:
                task.cancel()

    def _on_event(self, event: h2.events.Event) -> None:
        match event:
            case h2.events.RequestReceived(stream_id=stream_id, headers=headers):
                assert headers is not None
                pairs = [(str(key), str(value)) for key, value in headers]
                pseudo = {key: value for key, value in pairs if key.startswith(":")}
                plain = [(key, value) for key, value in pairs if not key.startswith(":")]
                request = Recorded("2", pseudo[":method"], pseudo[":path"], plain)
                self._streams[stream_id] = request
                self._upstream._arrive(request)
                if request.query.get("early"):
                    self._begin(stream_id, request)
            case h2.events.DataReceived(stream_id=stream_id, data=data, flow_controlled_length=length):
                self._streams[stream_id].body += data
                self._streams[stream_id].chunk_bytes.append(len(data))
                self.h2.acknowledge_received_data(length, stream_id)
            case h2.events.TrailersReceived(stream_id=stream_id, headers=headers):
                assert headers is not None
                self._streams[stream_id].trailers = [(str(key), str(value)) for key, value in headers]
            case h2.events.StreamEnded(stream_id=stream_id):
                request = self._streams[stream_id]
                request.complete.set()
                if not request.query.get("early"):
                    self._begin(stream_id, request)
            case h2.events.StreamReset(stream_id=stream_id):
                self._streams[stream_id].gone.set()
            case _:
                pass

    def _begin(self, stream_id: int, request: Recorded) -> None:
        task = asyncio.create_task(self._answer(request, _Http2Answer(self, stream_id, request)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, request: Recorded, answer: Answer) -> None:
        with contextlib.suppress(ConnectionError):
            await self._upstream.answer(request, answer)

    async def flush(self) -> None:
        self._writer.write(self.h2.data_to_send())
        await self._writer.drain()

    async def wait_window(self, stream_id: int, request: Recorded) -> int:
        """How much may be sent now, once it is more than nothing."""
        async with self._window:
            while True:
                if request.gone.is_set():
                    raise ConnectionResetError
                room = min(self.h2.local_flow_control_window(stream_id), self.h2.max_outbound_frame_size)
                if room > 0:
                    return room
                await self._window.wait()


class _Http2Answer(Answer):
    def __init__(self, connection: _Http2Connection, stream_id: int, request: Recorded) -> None:
        self._connection = connection
        self._stream_id = stream_id
        self._request = request

    def _alive(self) -> None:
        if self._request.gone.is_set():
            raise ConnectionResetError

    async def head(self, status: int, headers: Headers) -> None:
        self._alive()
        self._connection.h2.send_headers(self._stream_id, [(":status", str(status)), *headers])
        await self._connection.flush()

    async def chunk(self, data: bytes) -> None:
        while data:
            self._alive()
            room = await self._connection.wait_window(self._stream_id, self._request)
            self._connection.h2.send_data(self._stream_id, data[:room])
            data = data[room:]
            await self._connection.flush()

    async def end(self, trailers: Headers | None = None) -> None:
        self._alive()
        if trailers:
            self._connection.h2.send_headers(self._stream_id, trailers, end_stream=True)
        else:
            self._connection.h2.end_stream(self._stream_id)
        await self._connection.flush()

    async def break_off(self) -> None:
        self._connection.h2.reset_stream(self._stream_id, error_code=2)  # INTERNAL_ERROR
        await self._connection.flush()


def _split_header(line: str) -> tuple[str, str]:
    key, _, value = line.partition(":")
    return key.strip().lower(), value.strip()


_ids = itertools.count(1)


def fresh_id() -> str:
    """A request id that no other request of this run has."""
    return f"r{next(_ids)}"
