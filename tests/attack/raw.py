"""A raw HTTP/2 connection to the gRPC port, which may do what a decent client does not. Blocking."""

import contextlib
import socket
import ssl
import struct
import threading
from collections.abc import Iterable
from typing import Self

from picker.edge.grpc.ext_proc import METHOD
from picker.generated import ext_proc_pb2 as pb

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
WINDOW_MAX = 2**31 - 1
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
FULL_DUPLEX, STREAMED = 4, 1
CHAT = {":path": "/v1/chat/completions", ":method": "POST", "content-type": "application/json"}
SMALL_BODY = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    return struct.pack(">L", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">L", stream_id) + payload


def message(content: bytes) -> bytes:
    return struct.pack(">BL", 0, len(content)) + content


def block(fields: Iterable[tuple[str, str]]) -> bytes:
    """A header block of literals that no table remembers (RFC 7541, 6.2.2)."""
    out = bytearray()
    for name, value in fields:
        out += b"\x00"
        for text in (name.encode(), value.encode()):
            length = len(text)
            if length < 127:
                out.append(length)
            else:
                out.append(127)
                length -= 127
                while length >= 128:
                    out.append(length & 127 | 128)
                    length >>= 7
                out.append(length)
            out += text
    return bytes(out)


def call_fields(path: str = METHOD, *more: tuple[str, str]) -> list[tuple[str, str]]:
    pseudo = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "picker")]
    return [*pseudo, ("content-type", "application/grpc"), ("te", "trailers"), *more]


OPEN = block(call_fields())


def request_headers(headers: dict[str, str], request_mode: int = FULL_DUPLEX, *, end: bool = False) -> bytes:
    made = pb.ProcessingRequest()
    for name, value in headers.items():
        made.request_headers.headers.headers.add(key=name, raw_value=value.encode())
    made.request_headers.end_of_stream = end
    made.protocol_config.request_body_mode = request_mode
    made.protocol_config.response_body_mode = STREAMED
    return made.SerializeToString()


def request_body(data: bytes, *, end: bool) -> bytes:
    made = pb.ProcessingRequest()
    made.request_body.body, made.request_body.end_of_stream = data, end
    return made.SerializeToString()


def response_headers(status: str = "200", content_type: str = "application/json") -> bytes:
    made = pb.ProcessingRequest()
    for name, value in ((":status", status), ("content-type", content_type)):
        made.response_headers.headers.headers.add(key=name, raw_value=value.encode())
    return made.SerializeToString()


def response_body(data: bytes, *, end: bool = True) -> bytes:
    made = pb.ProcessingRequest()
    made.response_body.body, made.response_body.end_of_stream = data, end
    return made.SerializeToString()


ANSWER = response_body(b'{"usage":{"prompt_tokens":10,"completion_tokens":5}}')


class Raw:
    """One connection. With `reads` a thread takes all that comes; `data_at` counts bytes a stream, `ended` its ends."""

    def __init__(
        self, port: int, *, reads: bool = True, window: int = WINDOW_MAX, tls: bool = False, small_buffer: bool = False
    ):
        self.socket: socket.socket = socket.socket()
        if small_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.socket.settimeout(60)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.connect(("127.0.0.1", port))
        if tls:
            context = ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            context.set_alpn_protocols(["h2"])
            self.socket = context.wrap_socket(self.socket)
        self.last_id = -1
        self.closed = False
        self.ended: set[int] = set()
        self.received: dict[int, int] = {}
        self.changed = threading.Condition()
        self._sending = threading.Lock()
        settings = struct.pack(">HL", 4, window)
        self.send(
            PREFACE
            + frame(SETTINGS, 0, 0, settings)
            + frame(WINDOW_UPDATE, 0, 0, struct.pack(">L", WINDOW_MAX - 65_535))
        )
        if reads:
            threading.Thread(target=self._read, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(self, data: bytes) -> bool:
        """False once the picker has closed the connection: that is an answer too."""
        with self._sending:
            try:
                self.socket.sendall(data)
            except OSError:
                self.closed = True
        return not self.closed

    def open(self, header_block: bytes = OPEN) -> int:
        self.last_id += 2
        self.send(frame(HEADERS, 4, self.last_id, header_block))
        return self.last_id

    def say(self, stream_id: int, content: bytes) -> bool:
        """One gRPC message."""
        return self.raw_data(stream_id, message(content))

    def raw_data(self, stream_id: int, data: bytes, size: int = 16_384) -> bool:
        return self.send(b"".join(frame(DATA, 0, stream_id, data[at : at + size]) for at in range(0, len(data), size)))

    def upload(self, stream_id: int, size: int, *, end: bool = False, piece: bytes = b" " * 60_000) -> bool:
        """A body in pieces, as a proxy shows it in full duplex."""
        whole = message(request_body(piece, end=False))
        for _ in range(size // len(piece)):
            if not self.raw_data(stream_id, whole):
                return False
        return self.say(stream_id, request_body(SMALL_BODY, end=True)) if end else True

    def ask(self, headers: dict[str, str], body: bytes, *, answered: bool = True) -> int:
        """A whole exchange, up to its end where `answered`. Waits for the route."""
        stream_id = self.open()
        self.say(stream_id, request_headers(headers))
        for at in range(0, max(len(body), 1), 60_000):
            self.say(stream_id, request_body(body[at : at + 60_000], end=at + 60_000 >= len(body)))
        self.wait(lambda: self.received.get(stream_id, 0) > 0 or stream_id in self.ended)
        if answered:
            self.say(stream_id, response_headers())
            self.say(stream_id, ANSWER)
            self.send(frame(DATA, 1, stream_id))
        return stream_id

    def wait(self, condition: "object", seconds: float = 10.0) -> bool:
        with self.changed:
            return self.changed.wait_for(lambda: self.closed or condition(), seconds)  # type: ignore[operator]

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()

    def _read(self) -> None:
        buffer = b""
        try:
            while data := self.socket.recv(262_144):
                buffer += data
                at = 0
                while len(buffer) - at >= 9:
                    length = int.from_bytes(buffer[at : at + 3], "big")
                    if len(buffer) - at < 9 + length:
                        break
                    self._frame(
                        buffer[at + 3],
                        buffer[at + 4],
                        int.from_bytes(buffer[at + 5 : at + 9], "big"),
                        buffer[at + 9 : at + 9 + length],
                    )
                    at += 9 + length
                buffer = buffer[at:]
        except OSError:
            pass
        with self.changed:
            self.closed = True
            self.changed.notify_all()

    def _frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if kind == SETTINGS and not flags & 1:
            self.send(frame(SETTINGS, 1, 0))
        elif kind == PING and not flags & 1:
            self.send(frame(PING, 1, 0, payload))
        with self.changed:
            if kind == DATA:
                self.received[stream_id] = self.received.get(stream_id, 0) + len(payload)
            if kind == RST_STREAM or (kind in (DATA, HEADERS) and flags & 1):
                self.ended.add(stream_id)
            self.changed.notify_all()
