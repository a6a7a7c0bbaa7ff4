"""HTTP clients that hide nothing: raw HTTP/1.1 over a socket, and HTTP/2 by frames.

Blocking, each with a timeout on every read, so that a test that hangs fails and says where.
"""

import contextlib
import socket
from dataclasses import dataclass, field
from typing import Self

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import h2.settings

from tests.envoy.upstream import Headers

READ_SECONDS_MAX = 15.0


@dataclass
class Response:
    status: int
    headers: Headers
    body: bytes = b""
    chunks: list[bytes] = field(default_factory=list)
    trailers: Headers = field(default_factory=list)

    def values(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key == name]

    def value(self, name: str) -> str | None:
        return next(iter(self.values(name)), None)


class Http1Client:
    """One HTTP/1.1 connection. What is written is what goes out."""

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self.socket = socket.create_connection((host, port), timeout=READ_SECONDS_MAX)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = self.socket.makefile("rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self._file.close()
        self.socket.close()

    def abort(self) -> None:
        """Leave with a reset, as a client that crashed."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
        self._file.close()
        self.socket.close()

    def head(self, method: str, target: str, headers: Headers | None = None) -> None:
        """Request line and headers; nothing is added but `host`."""
        lines = [f"{method} {target} HTTP/1.1", "host: test"]
        lines += [f"{key}: {value}" for key, value in headers or []]
        self.send("\r\n".join([*lines, "", ""]).encode("latin-1"))

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def chunk(self, data: bytes) -> None:
        self.send(b"%x\r\n%b\r\n" % (len(data), data))

    def last_chunk(self, trailers: Headers | None = None) -> None:
        lines = ["0", *(f"{key}: {value}" for key, value in trailers or []), "", ""]
        self.send("\r\n".join(lines).encode("latin-1"))

    def read_head(self) -> Response:
        line = self._file.readline()
        assert line, "the connection ended before an answer"
        return Response(int(line.split()[1]), self._read_headers())

    def read_chunk(self) -> bytes:
        """One chunk of a chunked body as framed; empty at its end."""
        line = self._file.readline()
        assert line, "the answer was cut off"
        data = self._file.read(int(line, 16))
        if data:
            assert self._file.read(2) == b"\r\n"
        return data

    def read(self, size: int) -> bytes:
        return self._file.read(size)

    def read_body(self, response: Response) -> Response:
        if response.value("transfer-encoding") == "chunked":
            while data := self.read_chunk():
                response.chunks.append(data)
            response.trailers = self._read_headers()
            response.body = b"".join(response.chunks)
        elif length := response.value("content-length"):
            response.body = self._file.read(int(length))
            assert len(response.body) == int(length), "the answer was cut off"
        return response

    def response(self) -> Response:
        return self.read_body(self.read_head())

    def ended(self) -> bool:
        """Whether the server closes; waits for it."""
        return self._file.read(1) == b""

    def _read_headers(self) -> Headers:
        headers = []
        while (line := self._file.readline().decode("latin-1").rstrip("\r\n")) != "":
            key, _, value = line.partition(":")
            headers.append((key.lower(), value.strip()))
        return headers


def request(port: int, method: str, target: str, headers: Headers | None = None, body: bytes | None = None) -> Response:
    """One exchange on one connection; a body goes with its content-length."""
    with Http1Client(port) as client:
        extra = [] if body is None else [("content-length", str(len(body)))]
        client.head(method, target, [*(headers or []), *extra])
        if body:
            client.send(body)
        return client.response()


def post(port: int, target: str, body: bytes, headers: Headers | None = None) -> Response:
    """POST of JSON."""
    return request(port, "POST", target, [("content-type", "application/json"), *(headers or [])], body)


class Http2Client:
    """One HTTP/2 connection with prior knowledge. Windows are large and topped up by reading."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=READ_SECONDS_MAX)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, header_encoding="utf-8"))
        self.h2.initiate_connection()
        self.h2.increment_flow_control_window(1 << 24)
        self.h2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 1 << 24})
        self._responses: dict[int, Response] = {}
        self._ended: set[int] = set()
        self.reset_by_peer: set[int] = set()
        self._flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def start(self, method: str, target: str, headers: Headers | None = None, *, end: bool = False) -> int:
        stream_id = self.h2.get_next_available_stream_id()
        pseudo = [(":method", method), (":scheme", "http"), (":authority", "test"), (":path", target)]
        self.h2.send_headers(stream_id, [*pseudo, *(headers or [])], end_stream=end)
        self._flush()
        return stream_id

    def data(self, stream_id: int, data: bytes, *, end: bool = False) -> None:
        while data or end:
            if stream_id in self.reset_by_peer:
                raise h2.exceptions.StreamClosedError(stream_id)
            room = min(self.h2.local_flow_control_window(stream_id), self.h2.max_outbound_frame_size)
            if room <= 0 and data:
                self._pump()
                if stream_id in self._ended:
                    raise h2.exceptions.StreamClosedError(stream_id)
                continue
            piece, data = data[:room], data[room:]
            self.h2.send_data(stream_id, piece, end_stream=end and not data)
            self._flush()
            if not data:
                return

    def try_data(self, stream_id: int, data: bytes, *, end: bool = False) -> bool:
        """Like `data`; False when the server ended the stream before it wanted all of this."""
        try:
            self.data(stream_id, data, end=end)
        except h2.exceptions.StreamClosedError:
            return False
        return True

    def trailers(self, stream_id: int, headers: Headers) -> None:
        self.h2.send_headers(stream_id, headers, end_stream=True)
        self._flush()

    def reset(self, stream_id: int) -> None:
        self.h2.reset_stream(stream_id, error_code=8)
        self._flush()

    def read_head(self, stream_id: int) -> Response:
        while stream_id not in self._responses:
            assert stream_id not in self.reset_by_peer, "stream was reset"
            self._pump()
        return self._responses[stream_id]

    def read_some(self, stream_id: int, size: int) -> bytes:
        """At least `size` bytes of the body, as far as it came."""
        response = self.read_head(stream_id)
        while len(body := b"".join(response.chunks)) < size:
            assert stream_id not in self._ended, f"only {body!r}"
            self._pump()
        return body

    def response(self, stream_id: int) -> Response:
        response = self.read_head(stream_id)
        while stream_id not in self._ended:
            assert stream_id not in self.reset_by_peer, "stream was reset"
            self._pump()
        response.body = b"".join(response.chunks)
        return response

    def _pump(self) -> None:
        data = self.socket.recv(1 << 16)
        assert data, "the connection ended"
        for event in self.h2.receive_data(data):
            match event:
                case h2.events.ResponseReceived(stream_id=stream_id, headers=headers):
                    assert headers is not None
                    pairs = [(str(key), str(value)) for key, value in headers]
                    plain = [(key, value) for key, value in pairs if not key.startswith(":")]
                    self._responses[stream_id] = Response(int(dict(pairs)[":status"]), plain)
                case h2.events.DataReceived(stream_id=stream_id, data=piece, flow_controlled_length=length):
                    self._responses[stream_id].chunks.append(piece)
                    self.h2.acknowledge_received_data(length, stream_id)
                case h2.events.TrailersReceived(stream_id=stream_id, headers=headers):
                    assert headers is not None
                    self._responses[stream_id].trailers = [(str(key), str(value)) for key, value in headers]
                case h2.events.StreamEnded(stream_id=stream_id):
                    self._ended.add(stream_id)
                case h2.events.StreamReset(stream_id=stream_id):
                    self.reset_by_peer.add(stream_id)
                case _:
                    pass
        self._flush()

    def _flush(self) -> None:
        data = self.h2.data_to_send()
        if data:
            self.socket.sendall(data)
