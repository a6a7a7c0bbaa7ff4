"""One suite for every transport, with real clients: what `picker.edge.grpc.transport` promises, on the wire.

Each test runs over h2 and grpcio, on asyncio's loop and uvloop, in plaintext and (where it matters) TLS, with
grpcio's client, grpclib's and hyper-h2's.
"""

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable, Coroutine

import grpc
import grpc.aio
import h2.config
import h2.connection
import h2.events
import pytest
import uvloop

from picker.config import TransportLimits
from picker.edge.grpc.grpcio_transport import GrpcioTransport
from picker.edge.grpc.h2 import H2Transport
from picker.edge.grpc.health import HealthService
from picker.edge.grpc.tls import self_signed, server_context
from picker.edge.grpc.transport import Call, GrpcStatus

TRANSPORTS = {"h2": H2Transport, "grpcio": GrpcioTransport}
KINDS = ("h2", "h2 on uvloop", "grpcio", "grpcio on uvloop")


def make(kind: str) -> type[H2Transport] | type[GrpcioTransport]:
    return TRANSPORTS[kind.partition(" ")[0]]


def run(kind: str, scenario: Coroutine[None, None, None]) -> None:
    (uvloop.run if kind.endswith("uvloop") else asyncio.run)(scenario)


class Echo:
    """Answers each message with itself; `fail:`, `end:` and `hold` messages say what else to do."""

    def __init__(self, call: Call, log: list[str], held: list["Echo"]) -> None:
        self.call = call
        self.log = log
        self.held = held
        log.append("made")

    def receive(self, message: bytes) -> None:
        if message == b"raise":
            raise RuntimeError("a secret of the handler's")
        if message == b"finish":
            self.call.finish(GrpcStatus.RESOURCE_EXHAUSTED, "größer, 100 % voll\n")
            return
        if message == b"hold":
            self.held.append(self)
            return
        if message == b"when":
            assert abs(time.monotonic() - self.call.received_at_seconds) < 60
            message = self.call.peer.encode()
        self.call.send(message)

    def half_closed(self) -> None:
        self.log.append("half_closed")
        if self not in self.held:
            self.call.finish()

    def closed(self) -> None:
        self.log.append("closed")
        self.call.send(b"nobody gets this")
        self.call.finish()


class Server:
    """A running transport, and what its handlers saw."""

    def __init__(self, kind: str, tls: ssl.SSLContext | None = None, limits: TransportLimits | None = None) -> None:
        self.log: list[str] = []
        self.held: list[Echo] = []
        self.errors: list[BaseException] = []
        self.health = HealthService()
        methods = {"/test.Echo/Echo": lambda call: Echo(call, self.log, self.held), **self.health.methods}
        self.transport = make(kind)(
            methods, host="127.0.0.1", port=0, tls=tls, limits=limits, on_error=self.errors.append
        )
        self.tls = tls

    async def __aenter__(self) -> "Server":
        await self.transport.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.transport.stop()

    @contextlib.asynccontextmanager
    async def client(self, root: bytes | None = None) -> AsyncIterator[Callable[[], grpc.aio.StreamStreamCall]]:
        target = f"127.0.0.1:{self.transport.port}"
        options = [
            ("grpc.max_receive_message_length", -1),
            ("grpc.max_send_message_length", -1),
            ("grpc.use_local_subchannel_pool", 1),
        ]
        channel = (
            grpc.aio.insecure_channel(target, options)
            if root is None
            else grpc.aio.secure_channel(target, grpc.ssl_channel_credentials(root), options)
        )
        async with channel:
            yield channel.stream_stream("/test.Echo/Echo")


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


async def exchange(call: grpc.aio.StreamStreamCall, *messages: bytes) -> list[bytes]:
    """Send and read in lock-step, half-close, read to the end."""
    answers = []
    for message in messages:
        await call.write(message)
        answers.append(await call.read())
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF
    return answers  # type: ignore[return-value]


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - what is waited for is in the server, which tells nobody
            await asyncio.sleep(0.005)


def test_messages_go_both_ways_and_the_call_ends_ok(kind: str) -> None:
    async def scenario() -> None:
        async with Server(kind) as server, server.client() as echo:
            call = echo()
            assert await exchange(call, b"one", b"", b"two" * 10_000) == [b"one", b"", b"two" * 10_000]
            assert await call.code() is grpc.StatusCode.OK
            await eventually(lambda: server.log == ["made", "half_closed", "closed"])
            assert server.errors == []
            assert server.transport.open_calls == 0

    run(kind, scenario())


@pytest.mark.parametrize("size", [16_379, 16_380, 65_530, 400_000, 3_000_000])
def test_messages_of_every_size_survive(kind: str, size: int) -> None:
    async def scenario() -> None:
        message = bytes(range(256)) * (size // 256 + 1)
        async with Server(kind) as server, server.client() as echo:
            assert await exchange(echo(), message[:size], b"x", message[:size]) == [
                message[:size],
                b"x",
                message[:size],
            ]

    run(kind, scenario())


def test_many_calls_share_a_connection(kind: str) -> None:
    async def scenario() -> None:
        async with Server(kind) as server, server.client() as echo:

            async def one(number: int) -> None:
                message = f"{number}".encode() * 50
                assert await exchange(echo(), message, message) == [message, message]

            await asyncio.gather(*(one(number) for number in range(100)))
            await eventually(lambda: server.log.count("closed") == 100)

    run(kind, scenario())


def test_an_error_status_reaches_the_peer_with_its_text(kind: str) -> None:
    async def scenario() -> None:
        async with Server(kind) as server, server.client() as echo:
            call = echo()
            await call.write(b"one")
            assert await call.read() == b"one"
            await call.write(b"finish")
            assert await call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert await call.details() == "größer, 100 % voll\n"
            trailers_only = echo()
            await trailers_only.write(b"finish")
            assert await trailers_only.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            await eventually(lambda: server.log.count("closed") == 2)
            assert "half_closed" not in server.log

    run(kind, scenario())


def test_a_handler_that_raises_harms_its_own_call_only_and_tells_the_peer_nothing(kind: str) -> None:
    async def scenario() -> None:
        async with Server(kind) as server, server.client() as echo:
            other = echo()
            await other.write(b"one")
            assert await other.read() == b"one"
            failing = echo()
            await failing.write(b"raise")
            assert await failing.code() is grpc.StatusCode.INTERNAL
            assert "secret" not in await failing.details()
            assert [str(error) for error in server.errors] == ["a secret of the handler's"]
            assert await exchange(other, b"two") == [b"two"]
            await eventually(lambda: server.log.count("closed") == 2)

    run(kind, scenario())


def test_a_cancelled_call_closes_its_handler(kind: str) -> None:
    async def scenario() -> None:
        async with Server(kind) as server, server.client() as echo:
            call = echo()
            await call.write(b"one")
            assert await call.read() == b"one"
            call.cancel()
            await eventually(lambda: server.log == ["made", "closed"])
            await eventually(lambda: server.transport.open_calls == 0)
            assert server.errors == []

    run(kind, scenario())


def test_a_lost_connection_closes_every_handler(kind: str) -> None:
    async def scenario() -> None:
        async with Server(kind) as server:
            async with server.client() as echo:
                calls = [echo() for _ in range(10)]
                for call in calls:
                    await call.write(b"one")
                    assert await call.read() == b"one"
            await eventually(lambda: server.log.count("closed") == 10)
            assert server.errors == []

    run(kind, scenario())


def test_a_handler_may_send_and_finish_later(kind: str) -> None:
    async def scenario() -> None:
        async with Server(kind) as server, server.client() as echo:
            call = echo()
            await call.write(b"hold")
            await eventually(lambda: len(server.held) == 1)
            server.held[0].call.send(b"later")
            assert await call.read() == b"later"
            server.held[0].call.finish()
            assert await call.code() is grpc.StatusCode.OK
            half_closed = echo()
            await half_closed.write(b"hold")
            await half_closed.done_writing()
            await eventually(lambda: "half_closed" in server.log)
            server.held[1].call.send(b"last")
            server.held[1].call.finish(GrpcStatus.UNAVAILABLE, "gone")
            assert await half_closed.read() == b"last"
            assert await half_closed.code() is grpc.StatusCode.UNAVAILABLE

    run(kind, scenario())


def test_a_deadline_ends_the_call(kind: str) -> None:
    async def scenario() -> None:
        async with Server(kind) as server, grpc.aio.insecure_channel(f"127.0.0.1:{server.transport.port}") as channel:
            call = channel.stream_stream("/test.Echo/Echo")(timeout=0.2)
            await call.write(b"hold")
            assert await call.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            await eventually(lambda: server.log == ["made", "closed"])

    run(kind, scenario())


@pytest.mark.parametrize("path", ["/test.Echo/Nothing", "/no.Service/Echo"])
def test_unknown_methods_are_unimplemented(kind: str, path: str) -> None:
    async def scenario() -> None:
        async with Server(kind) as server, grpc.aio.insecure_channel(f"127.0.0.1:{server.transport.port}") as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await channel.unary_unary(path)(b"")  # type: ignore[arg-type]
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED

    run(kind, scenario())


def test_a_message_above_the_limit_is_refused_and_the_next_call_served(kind: str) -> None:
    async def scenario() -> None:
        async with Server(kind, limits=TransportLimits(message_bytes_max=100_000)) as server, server.client() as echo:
            call = echo()
            await call.write(bytes(100_001))
            assert await call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert await exchange(echo(), bytes(100_000)) == [bytes(100_000)]

    run(kind, scenario())


def test_a_compressed_message_is_refused(kind: str) -> None:
    async def scenario() -> None:
        async with (
            Server(kind) as server,
            grpc.aio.insecure_channel(
                f"127.0.0.1:{server.transport.port}", compression=grpc.Compression.Gzip
            ) as channel,
        ):
            call = channel.stream_stream("/test.Echo/Echo")()
            with pytest.raises(grpc.aio.AioRpcError):
                await call.write(b"a" * 10_000)
                await call.read()
            if await call.code() is not grpc.StatusCode.INTERNAL:  # as grpcio's own client may see a refusal
                assert await call.code() is grpc.StatusCode.UNIMPLEMENTED
                assert "gzip" in await call.details()

    run(kind, scenario())


def test_a_port_in_use_is_an_oserror_that_names_it(kind: str) -> None:
    async def scenario(port: int) -> None:
        transport = make(kind)({}, host="127.0.0.1", port=port, on_error=print)
        with pytest.raises(OSError, match=rf"127\.0\.0\.1:{port}.*in use"):
            await transport.start()

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        run(kind, scenario(taken.getsockname()[1]))


def test_one_address_serves_ipv4_and_ipv6(kind: str) -> None:
    """`--host ::`, for dual-stack clusters."""
    if not socket.has_dualstack_ipv6():
        pytest.skip("no dual-stack sockets here")

    async def scenario() -> None:
        methods = {"/test.Echo/Echo": lambda call: Echo(call, [], [])}
        transport = make(kind)(methods, host="::", port=0, on_error=print)
        await transport.start()
        for address in ("127.0.0.1", "[::1]"):
            async with grpc.aio.insecure_channel(f"{address}:{transport.port}") as channel:
                (peer,) = await exchange(channel.stream_stream("/test.Echo/Echo")(), b"when")
                assert peer.decode().count("[") == (1 if b":" in peer.rpartition(b":")[0] else 0)
        await transport.stop()

    run(kind, scenario())


def test_the_peer_is_named(kind: str) -> None:
    async def scenario() -> None:
        async with Server(kind) as server, server.client() as echo:
            (peer,) = await exchange(echo(), b"when")
            host, _, port = peer.decode().rpartition(":")
            assert host == "127.0.0.1"
            assert int(port) > 0

    run(kind, scenario())


def test_draining_lets_calls_finish_and_refuses_new_ones(kind: str) -> None:
    async def scenario() -> None:
        async with Server(kind) as server, server.client() as echo:
            call = echo()
            await call.write(b"one")
            assert await call.read() == b"one"
            server.transport.refuse_new_calls()
            assert await server.transport.wait_idle(0.05) is False
            await call.write(b"two")
            assert await call.read() == b"two"
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await exchange(echo(), b"three")
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            waiting = asyncio.create_task(server.transport.wait_idle(10))
            assert await exchange(call, b"four") == [b"four"]
            assert await waiting is True

    run(kind, scenario())


def test_stopping_ends_what_runs(kind: str) -> None:
    async def scenario() -> None:
        async with Server(kind) as server, server.client() as echo:
            call = echo()
            await call.write(b"hold")
            await eventually(lambda: len(server.held) == 1)
            await server.transport.stop()
            assert server.log == ["made", "closed"]
            assert await call.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
            await server.transport.stop()

    run(kind, scenario())


def test_tls_certificates_can_be_replaced(kind: str) -> None:
    async def scenario() -> None:
        first, second = self_signed(), self_signed()
        async with Server(kind, tls=server_context(first)) as server, server.client(first.chain_pem) as old:
            held = old()
            await held.write(b"one")
            assert await held.read() == b"one"
            server.transport.replace_tls(server_context(second))
            async with server.client(second.chain_pem) as new:
                assert await exchange(new(), b"two") == [b"two"]
            async with server.client(first.chain_pem) as stale:
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await exchange(stale(), b"three")
                assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            assert await exchange(held, b"four") == [b"four"]

    run(kind, scenario())


def test_tls_cannot_be_replaced_where_there_is_none(kind: str) -> None:
    async def scenario() -> None:
        async with Server(kind) as server:
            with pytest.raises(ValueError, match="plaintext"):
                server.transport.replace_tls(server_context(self_signed()))

    run(kind, scenario())


def test_health_is_served_to_real_stubs(kind: str) -> None:
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    async def scenario() -> None:
        async with Server(kind) as server, grpc.aio.insecure_channel(f"127.0.0.1:{server.transport.port}") as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            server.health.set("readiness", False)
            watch = stub.Watch(health_pb2.HealthCheckRequest(service="readiness"))
            assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
            unknown = stub.Watch(health_pb2.HealthCheckRequest(service="unknown"))
            assert (await unknown.read()).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
            server.health.set("readiness", True)
            assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
            answer = await stub.Check(health_pb2.HealthCheckRequest(service="readiness"))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.Check(health_pb2.HealthCheckRequest(service="unknown"))
            assert caught.value.code() is grpc.StatusCode.NOT_FOUND
            watch.cancel()
            unknown.cancel()

    run(kind, scenario())


def test_a_proxy_that_pings_is_not_punished(kind: str) -> None:
    """Envoy's connection_keepalive: grpcio's default answers a few pings without data with GOAWAY too_many_pings."""

    async def scenario() -> None:
        async with Server(kind) as server:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.transport.port)
            client = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
            client.initiate_connection()
            fields = [(":method", "POST"), (":scheme", "http"), (":path", "/test.Echo/Echo"), (":authority", "epp")]
            client.send_headers(1, [*fields, ("content-type", "application/grpc"), ("te", "trailers")])
            client.send_data(1, b"\0\0\0\0\4hold")
            answered = 0
            for number in range(50):
                client.ping(number.to_bytes(8, "big"))
                writer.write(client.data_to_send())
                while answered <= number:
                    for event in client.receive_data(await reader.read(65_536)):
                        assert not isinstance(event, h2.events.ConnectionTerminated), event
                        answered += isinstance(event, h2.events.PingAckReceived)
            assert len(server.held) == 1
            assert server.log == ["made"]
            writer.close()

    run(kind, scenario())


def test_grpclib_is_served(kind: str) -> None:
    import grpclib.client
    import grpclib.const

    class Raw:
        __content_subtype__ = "proto"

        def encode(self, message: bytes, _kind: object) -> bytes:
            return message

        def decode(self, data: bytes, _kind: object) -> bytes:
            return data

    async def scenario() -> None:
        async with Server(kind) as server:
            channel = grpclib.client.Channel("127.0.0.1", server.transport.port, codec=Raw())
            try:
                async with channel.request(
                    "/test.Echo/Echo", grpclib.const.Cardinality.STREAM_STREAM, bytes, bytes
                ) as stream:
                    for message in (b"one", b"two" * 100_000):
                        await stream.send_message(message)
                        assert await stream.recv_message() == message
                    await stream.end()
                    assert await stream.recv_message() is None
            finally:
                channel.close()

    run(kind, scenario())
