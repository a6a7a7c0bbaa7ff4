"""What a kubelet serves to the API server for `kubectl port-forward` and `kubectl logs`: the rest of the way is real.

kubectl speaks to the real API server, which connects to the node's address over TLS and passes SPDY/3.1 through
(www.chromium.org/spdy/spdy-protocol/spdy-protocol-draft3-1; the dictionary is its section 2.6.10.1). What port
forwarding needs of it stands here: two streams for each connection, `error` and `data`, with headers that say which
port.
"""

import contextlib
import http.server
import socket
import ssl
import struct
import threading
import urllib.parse
import zlib
from collections.abc import Callable
from io import BufferedIOBase
from pathlib import Path
from typing import Self

from tests.kube.cluster import write_ca, write_server_certificate

SYN_STREAM, SYN_REPLY, RST_STREAM, PING, GOAWAY = 1, 2, 3, 6, 7
FIN = 1
_WORDS = """
options head post put delete trace accept accept-charset accept-encoding accept-language accept-ranges age allow
authorization cache-control connection content-base content-encoding content-language content-length
content-location content-md5 content-range content-type date etag expect expires from host if-match if-modified-since
if-none-match if-range if-unmodified-since last-modified location max-forwards pragma proxy-authenticate
proxy-authorization range referer retry-after server te trailer transfer-encoding upgrade user-agent vary via warning
www-authenticate method get status 200_OK version HTTP/1.1 url public set-cookie keep-alive origin
"""
_REST = (
    "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505"
    "203 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized"
    "403 Forbidden404 Not Found500 Internal Server Error501 Not Implemented503 Service Unavailable"
    "Jan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMT"
    "chunked,text/html,image/png,image/jpg,image/gif,application/xml,application/xhtml+xml,text/plain,text/javascript,"
    "publicprivatemax-age=gzip,deflate,sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0."
)
DICTIONARY = b"".join(
    struct.pack(">I", len(word)) + word.replace("_", " ").encode() for word in _WORDS.split()
) + _REST.encode()  # fmt: skip
assert zlib.adler32(DICTIONARY) == 0xE3C6A7C2, "the dictionary of SPDY/3, which both ends must have"


class Forwarding:
    """One `kubectl port-forward`: connections of its streams to addresses of this machine."""

    def __init__(
        self, reader: BufferedIOBase, write: Callable[[bytes], object], where: Callable[[int], str | None]
    ) -> None:
        self._reader = reader
        self._write = write
        self._where = where
        """The address of a port of the pod; None where nothing listens."""
        self._writing = threading.Lock()
        self._inflate = zlib.decompressobj(zdict=DICTIONARY)
        self._deflate = zlib.compressobj(zdict=DICTIONARY)
        self._errors: dict[str, int] = {}
        self._sockets: dict[int, socket.socket] = {}

    def run(self) -> None:
        """Until the other side is gone."""
        try:
            while len(head := self._reader.read(8)) == 8:
                first, second = struct.unpack(">II", head)
                flags, body = second >> 24, self._reader.read(second & 0xFFFFFF)
                if first >> 31:
                    self._control(first & 0xFFFF, body)
                else:
                    self._data(first, flags, body)
        finally:
            for each in self._sockets.values():
                each.close()

    def _control(self, kind: int, body: bytes) -> None:
        if kind == SYN_STREAM:
            stream = struct.unpack(">I", body[:4])[0]
            headers = self._headers(body[10:])
            with self._writing:
                none = self._deflate.compress(bytes(4)) + self._deflate.flush(zlib.Z_SYNC_FLUSH)
                self._frame(SYN_REPLY, struct.pack(">I", stream) + none)
            self._open(stream, headers)
        elif kind == PING:
            with self._writing:
                self._frame(PING, body)

    def _headers(self, block: bytes) -> dict[str, str]:
        text = self._inflate.decompress(block)
        words, place = [], 4
        while place < len(text):
            size = struct.unpack(">I", text[place : place + 4])[0]
            words.append(text[place + 4 : place + 4 + size].decode())
            place += 4 + size
        return {name.lower(): value for name, value in zip(words[::2], words[1::2], strict=True)}

    def _open(self, stream: int, headers: dict[str, str]) -> None:
        request = headers["requestid"]
        if headers["streamtype"] == "error":
            self._errors[request] = stream
            return
        address = self._where(int(headers["port"]))
        try:
            host, _, port = (address or "").rpartition(":")
            connected = socket.create_connection((host, int(port or 0)), timeout=10)
            connected.settimeout(None)
        except OSError as error:
            self._send(self._errors[request], f"port {headers['port']}: {error}".encode(), FIN)
            self._send(stream, b"", FIN)
            return
        self._sockets[stream] = connected
        threading.Thread(target=self._answer, args=(stream, connected, self._errors[request]), daemon=True).start()

    def _answer(self, stream: int, connected: socket.socket, error: int) -> None:
        with contextlib.suppress(OSError):
            while data := connected.recv(65536):
                self._send(stream, data)
        with contextlib.suppress(OSError):
            self._send(stream, b"", FIN)
            self._send(error, b"", FIN)

    def _data(self, stream: int, flags: int, body: bytes) -> None:
        connected = self._sockets.get(stream)
        if connected is None:
            return
        with contextlib.suppress(OSError):  # it may have hung up
            connected.sendall(body)
            if flags & FIN:
                connected.shutdown(socket.SHUT_WR)

    def _send(self, stream: int, data: bytes, flags: int = 0) -> None:
        with self._writing:
            self._write(struct.pack(">II", stream, flags << 24 | len(data)) + data)

    def _frame(self, kind: int, body: bytes) -> None:
        self._write(struct.pack(">HHI", 0x8003, kind, len(body)) + body)


class KubeletPort:
    """The port of a node; a context manager. `where(namespace, pod, port)` and `logs(namespace, pod)` answer."""

    def __init__(
        self, folder: Path, where: Callable[[str, str, int], str | None], logs: Callable[[str, str], str]
    ) -> None:
        folder.mkdir()
        write_server_certificate(folder, *write_ca(folder))
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(folder / "tls.crt", folder / "tls.key")

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                path, _, query = self.path.partition("?")
                kind, namespace, pod = path.split("/")[1:4]
                if kind != "containerLogs":
                    self._forward(kind, namespace, pod)
                    return
                lines = logs(namespace, pod).splitlines(keepends=True)
                tail = urllib.parse.parse_qs(query).get("tailLines")
                body = "".join(lines[-int(tail[0]) :] if tail else lines).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_POST = do_GET

            def _forward(self, kind: str, namespace: str, pod: str) -> None:
                if kind != "portForward" or self.headers.get("Upgrade") != "SPDY/3.1":
                    self.send_error(400, "a forwarding of ports, by SPDY/3.1, is all that is known here")
                    return
                self.send_response(101)
                self.send_header("Connection", "Upgrade")
                self.send_header("Upgrade", "SPDY/3.1")
                self.send_header("X-Stream-Protocol-Version", "portforward.k8s.io")
                self.end_headers()
                self.close_connection = True
                with contextlib.suppress(OSError):
                    Forwarding(self.rfile, self.wfile.write, lambda port: where(namespace, pod, port)).run()

            def log_message(self, *_: object) -> None:
                pass

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True

            def get_request(self) -> tuple[socket.socket, object]:
                accepted, address = super().get_request()
                return tls.wrap_socket(accepted, server_side=True, do_handshake_on_connect=False), address

            def handle_error(self, *_: object) -> None:
                """Somebody who hangs up is no news."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
