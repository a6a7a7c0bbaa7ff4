"""Attacks over real sockets, on both event loops, while another client makes calls all along.

Each limit on its own is attacked in tests/unit/edge/grpc/h2/test_limits.py; here the whole server is.
"""

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator

import grpc
import hpack
import pytest

from picker.config import TransportLimits
from picker.edge.grpc.tls import self_signed, server_context
from tests.contracts.serving import Serving

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
LIMITS = TransportLimits(
    connections_max=20,
    idle_frames_max=2_000,
    resets_max=500,
    resets_per_second=10,
    send_queue_bytes_max=4_000_000,
    send_stall_seconds=1,
    handshake_seconds=1,
    close_seconds=0.5,
)
FIELDS = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/test.Echo/Echo"),
    ("content-type", "application/grpc"),
    ("te", "trailers"),
]


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    return struct.pack(">L", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">L", stream_id) + payload


@contextlib.contextmanager
def connection(port: int, greet: bool = True) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", port), timeout=20) as made:
        if greet:
            made.sendall(PREFACE + frame(4, 0, 0))
        yield made


def send_until_refused(made: socket.socket, chunk: Callable[[int], bytes], times: int) -> None:
    """Send on and on; the server has to end it."""
    try:
        for number in range(times):
            made.sendall(chunk(number))
        made.shutdown(socket.SHUT_WR)
    except (ConnectionError, TimeoutError):
        return


def read_to_the_end(made: socket.socket) -> bytes:
    found = b""
    with contextlib.suppress(ConnectionError):
        while data := made.recv(65_536):
            found = (found + data)[-200_000:]
    return found


def read_until(made: socket.socket, wanted: bytes) -> None:
    found = b""
    while wanted not in found:
        data = made.recv(1_000)
        assert data, "closed"
        found += data


def goaway_code(found: bytes) -> int | None:
    """The code of the GOAWAY at the end of what the server wrote."""
    at = found.rfind(b"\x07\x00\x00\x00\x00\x00")
    return None if at < 0 else struct.unpack(">L", found[at + 10 : at + 14])[0]


def rapid_reset(port: int) -> None:
    encoder = hpack.Encoder()

    def chunk(number: int) -> bytes:
        out = b""
        for step in range(100):
            stream_id = (number * 100 + step) * 2 + 1
            out += frame(1, 4, stream_id, encoder.encode(FIELDS)) + frame(3, 0, stream_id, struct.pack(">L", 8))
        return out

    with connection(port) as made:
        send_until_refused(made, chunk, 1_000)
        assert goaway_code(read_to_the_end(made)) in (11, None)


def ping_flood(port: int) -> None:
    with connection(port) as made:
        send_until_refused(made, lambda _: frame(6, 0, 0, bytes(8)) * 500, 10_000)
        assert goaway_code(read_to_the_end(made)) in (11, None)


def tiny_messages(port: int) -> None:
    block = hpack.Encoder().encode(FIELDS)
    with connection(port) as made:
        made.sendall(frame(1, 4, 1, block))
        send_until_refused(made, lambda _: frame(0, 0, 1, bytes(5) * 3_000), 1_000)
        assert goaway_code(read_to_the_end(made)) in (11, None)


def a_peer_that_never_reads(port: int) -> None:
    """16 MB of echo, windows wide open, and nothing taken from the socket."""
    block = hpack.Encoder().encode(FIELDS)
    with connection(port) as made:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        made.sendall(
            frame(4, 0, 0, struct.pack(">HL", 4, 2**31 - 1)) + frame(8, 0, 0, struct.pack(">L", 2**31 - 65_536))
        )
        made.sendall(frame(1, 4, 1, block))
        content = struct.pack(">BL", 0, 16_000) + bytes(16_000)
        send_until_refused(made, lambda _: frame(0, 0, 1, content), 1_000)
        read_to_the_end(made)


def silent_connections(port: int) -> None:
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(connection(port, greet=False)) for _ in range(15)]
        for made in silent:
            assert goaway_code(read_to_the_end(made)) == 11  # handshake_seconds is over


def garbage(port: int) -> None:
    for opening in (b"\x00" * 1_000, b"GET / HTTP/1.1\r\n\r\n", PREFACE + bytes(range(256)) * 40):
        with connection(port, greet=False) as made:
            send_until_refused(made, lambda _, opening=opening: opening, 1)  # type: ignore[misc]
            read_to_the_end(made)


ATTACKS = [rapid_reset, ping_flood, tiny_messages, a_peer_that_never_reads, silent_connections, garbage]


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_is_ended_and_others_stay_served(attack: Callable[[int], None], loop: str) -> None:
    with Serving(LIMITS, loop=loop) as server:
        failures: list[BaseException] = []

        def run() -> None:
            try:
                attack(server.port)
            except BaseException as error:
                failures.append(error)

        attacker = threading.Thread(target=run)
        target = f"127.0.0.1:{server.port}"
        with grpc.insecure_channel(target, [("grpc.use_local_subchannel_pool", 1)]) as channel:
            echo = channel.unary_unary("/test.Echo/Echo")
            assert echo(b"before", timeout=10) == b"before"
            attacker.start()
            attacked = True
            while attacked:
                # An attack may be over before this thread runs again, so what is asked last counts too.
                attacked = attacker.is_alive()
                assert echo(b"during", timeout=10) == b"during"
            attacker.join()
            assert echo(b"after", timeout=10) == b"after"
        assert failures == []
        assert server.errors == []


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("opening", [b"", b"\x16\x03\x01\x02\x00\x01", b"GET / HTTP/1.1\r\n\r\n"])
def test_tls_handshakes_begun_and_not_finished_keep_nobody_out(opening: bytes, loop: str) -> None:
    """Silent, stuck inside a ClientHello, or no TLS at all: ten times more than may be in progress."""
    certificate = self_signed()
    credentials = grpc.ssl_channel_credentials(certificate.chain_pem)
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.ssl_target_name_override", "localhost")]
    limits = TransportLimits(tls_handshakes_max=8, handshake_seconds=600)

    def call(port: int) -> bytes:
        with grpc.secure_channel(f"127.0.0.1:{port}", credentials, options) as channel:
            return channel.unary_unary("/test.Echo/Echo")(b"a new connection", timeout=20)  # type: ignore[arg-type]

    with Serving(limits, server_context(certificate), loop=loop) as server, contextlib.ExitStack() as stack:
        assert call(server.port) == b"a new connection"
        stuck = []
        for _ in range(80):
            stuck.append(stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=20)))
            stuck[-1].sendall(opening)
        assert call(server.port) == b"a new connection"
        for made in stuck[:70]:  # the oldest were cut, long before their time
            assert read_to_the_end(made)[2:] in (b"", b"\x01\x00\x02\x02\x46") or opening.startswith(b"GET")
        assert server.errors == []


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_tls_handshake_has_its_time(loop: str) -> None:
    limits = TransportLimits(handshake_seconds=0.5)
    with (
        Serving(limits, server_context(self_signed()), loop=loop) as server,
        socket.create_connection(("127.0.0.1", server.port), timeout=20) as silent,
    ):
        assert read_to_the_end(silent) == b""


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_connections_beyond_the_limit_are_told_so(loop: str) -> None:
    with Serving(TransportLimits(connections_max=3), loop=loop) as server, contextlib.ExitStack() as stack:
        kept = [stack.enter_context(connection(server.port)) for _ in range(3)]
        for made in kept:
            made.sendall(
                frame(1, 4, 1, hpack.Encoder().encode(FIELDS)) + frame(0, 0, 1, struct.pack(">BL", 0, 5) + b"hello")
            )
            read_until(made, b"hello")
        with connection(server.port) as fourth:
            assert goaway_code(read_to_the_end(fourth)) == 11
        kept[0].sendall(frame(6, 0, 0, b"answerme"))
        read_until(kept[0], b"answerme")


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_connection_without_a_call_gives_way_to_a_new_one(loop: str) -> None:
    with Serving(TransportLimits(connections_max=3), loop=loop) as server, contextlib.ExitStack() as stack:
        used, *idle = [stack.enter_context(connection(server.port)) for _ in range(3)]
        used.sendall(
            frame(1, 4, 1, hpack.Encoder().encode(FIELDS)) + frame(0, 0, 1, struct.pack(">BL", 0, 5) + b"hello")
        )
        read_until(used, b"hello")
        for made in idle:
            assert made.recv(9)
        new = [stack.enter_context(connection(server.port)) for _ in range(2)]
        for made in new:
            made.sendall(frame(6, 0, 0, b"answerme"))
            read_until(made, b"answerme")
        for made in idle:
            assert goaway_code(read_to_the_end(made)) == 0
        used.sendall(frame(6, 0, 0, b"answerme"))
        read_until(used, b"answerme")
