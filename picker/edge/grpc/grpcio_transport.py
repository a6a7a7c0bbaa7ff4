"""The transport over grpc.aio: the reference that the h2 transport is measured against.

Raw bytes both ways (no serializer), so that it serves the same handlers. What grpcio does not
do by itself and is done here: pings are never punished (Envoy's keepalive would meet GOAWAY
`too_many_pings`, and every request waiting for its first byte would fail), message limits are
explicit, certificates can be replaced, a port in use is an `OSError` that names it, and a
handler's exception says nothing on the wire.

Cancellation propagates out of the call's coroutine; swallowed, it leaks native memory.
"""

import asyncio
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable
from typing import Any, cast
from urllib.parse import unquote

import grpc
import grpc.aio

from picker.budget import Budget, HolderFor
from picker.config import TransportLimits
from picker.edge.grpc.tls import ServerContext
from picker.edge.grpc.transport import Call, GrpcStatus, Handler, MethodTable

_DRAIN_SECONDS_MAX = 7 * 86_400.0
"""grpc.aio's stop() needs a grace; wait_idle and stop are what ends a drain."""

_CANCELLATION_SECONDS = 0.001
_STOP_SECONDS = 1.0

_STATUS = {code.value[0]: code for code in grpc.StatusCode}


class GrpcioTransport:
    """A listening gRPC server on grpc.aio. See `picker.edge.grpc.transport.Transport`."""

    def __init__(
        self,
        methods: MethodTable,
        *,
        host: str,
        port: int,
        tls: ssl.SSLContext | None = None,
        limits: TransportLimits | None = None,
        on_error: Callable[[BaseException], None],
        budget: Budget | None = None,
    ) -> None:
        """Nothing is bound before `start`. `tls` has to be a `picker.edge.grpc.tls.ServerContext`.

        Of `limits`, message size, streams, header list, windows and keepalive apply; grpcio has its own for the rest.
        Of `budget`, open calls and what handlers keep; messages in the making are grpcio's.
        """
        self.port = port
        self._host = host
        self._methods = methods
        self._limits = limits or TransportLimits()
        self._tls = None if tls is None else _with_pem(tls)
        self._on_error = on_error
        self.budget = Budget(1 << 60) if budget is None else budget
        self._server: Any = None
        self._calls: set[_GrpcioCall] = set()
        self._drain: asyncio.Task[None] | None = None
        self._idle = asyncio.Event()

    async def start(self) -> None:
        """Bind and listen. Raises `OSError` that names the address when it is taken."""
        server = grpc.aio.server(options=_options(self._limits))
        server.add_generic_rpc_handlers((_Methods(self),))
        address = f"[{self._host}]:{self.port}" if ":" in self._host else f"{self._host}:{self.port}"
        try:
            if self._tls is None:
                port = server.add_insecure_port(address)
            else:
                port = server.add_secure_port(address, self._credentials())
        except RuntimeError:
            raise _bind_error(self._host, self.port) from None
        await server.start()
        self.port = port
        self._server = server

    def refuse_new_calls(self) -> None:
        """Close the listener and send GOAWAY; calls in progress go on."""
        if self._server is not None and self._drain is None:
            self._drain = asyncio.get_running_loop().create_task(self._server.stop(_DRAIN_SECONDS_MAX))

    async def wait_idle(self, timeout_seconds: float) -> bool:
        """Wait until no call is open. False when the time ran out first."""
        try:
            async with asyncio.timeout(timeout_seconds):
                while self._calls:
                    self._idle.clear()
                    await self._idle.wait()
        except TimeoutError:
            return False
        return True

    async def stop(self) -> None:
        """Close everything at once."""
        if self._server is None:
            return
        self.refuse_new_calls()
        for call in tuple(self._calls):  # grpcio's own way to end them reports each as an error
            call.finish(GrpcStatus.UNAVAILABLE, "the server is stopping")
        await self.wait_idle(_STOP_SECONDS)
        await self._server.stop(None)
        await self.wait_idle(_STOP_SECONDS)
        if self._drain is not None:
            await self._drain
        self._server = self._drain = None

    def replace_tls(self, context: ssl.SSLContext) -> None:
        """Use other certificates for connections from now on. The transport must have begun with TLS."""
        if self._tls is None:
            raise ValueError("this transport serves plaintext; TLS needs a restart")
        self._tls = _with_pem(context)

    @property
    def open_calls(self) -> int:
        """Calls in progress."""
        return len(self._calls)

    def method(self, path: str) -> Callable[[Call], Handler] | None:
        return self._methods.get(path)

    async def serve(self, make: Callable[[Call], Handler], context: Any) -> None:
        """One call, from its first message to its end."""
        call = _GrpcioCall(context, self._on_error, self.budget)
        self._calls.add(call)
        try:
            await call.run(make)
        finally:
            self._calls.discard(call)
            if not self._calls:
                self._idle.set()

    def _credentials(self) -> grpc.ServerCredentials:
        served: ServerContext | None = None

        def configuration() -> grpc.ServerCertificateConfiguration:
            assert self._tls is not None
            pem = self._tls.certificate
            return grpc.ssl_server_certificate_configuration([(pem.key_pem, pem.chain_pem)])

        def changed() -> grpc.ServerCertificateConfiguration | None:
            nonlocal served
            if self._tls is served:
                return None
            served = self._tls
            return configuration()

        # The stubs forget that None means no change.
        return grpc.dynamic_ssl_server_credentials(configuration(), changed)  # type: ignore[arg-type]


class _Methods(grpc.GenericRpcHandler):
    """Path -> handler; grpcio answers UNIMPLEMENTED where there is none."""

    def __init__(self, transport: GrpcioTransport) -> None:
        self._transport = transport

    def service(self, handler_call_details: Any) -> Any:
        make = self._transport.method(handler_call_details.method)
        if make is None:
            return None

        async def behaviour(_requests: Any, context: Any) -> None:
            await self._transport.serve(make, context)

        return grpc.stream_stream_rpc_method_handler(behaviour)


class _GrpcioCall:
    """The transport's end of one call. Reads in its own task; writes what handlers send in between."""

    def __init__(self, context: Any, on_error: Callable[[BaseException], None], budget: Budget) -> None:
        self._holder = HolderFor(self.give_way)
        self.peer = _plain_peer(context.peer())
        self._loop = asyncio.get_running_loop()
        self.received_at_seconds = time.monotonic()
        self._context = context
        self._on_error = on_error
        self._handler: Handler | None = None
        self._task = cast("asyncio.Task[None]", asyncio.current_task())
        self._queue: deque[bytes] = deque()
        self._writer: asyncio.Task[None] | None = None
        self._status: tuple[GrpcStatus, str] | None = None
        self._ended = False
        self._reading = False
        self._answered = False
        self._body_bytes = 0
        self._budget = budget
        budget.now = self.received_at_seconds
        budget.begin(self._holder)

    def send(self, message: bytes, body: bytes | memoryview = b"") -> None:
        if self._ended:
            return
        if not self._answered:
            self._answered = True
            self._budget.answered(self._holder)
        whole = b"".join((message, body)) if body else message
        self._queue.append(whole)
        self._budget.answers += len(whole)
        self._budget.take(self._holder, len(whole))
        if self._writer is None:
            self._writer = self._loop.create_task(self._write_queue())

    def finish(self, status: GrpcStatus = GrpcStatus.OK, text: str = "") -> None:
        if self._ended:
            return
        self._status = (status, text)
        self._end()
        if self._reading:
            self._task.cancel()

    def hold(self, size: int) -> None:
        if self._ended:
            return
        more, self._body_bytes = size - self._body_bytes, size
        self._budget.bodies += more
        if more > 0:
            self._budget.take(self._holder, more)
        else:
            self._budget.give(self._holder, -more)

    def give_way(self) -> None:
        """Memory is short, and this call has held most for longest."""
        answer = getattr(self._handler, "give_way", None)
        if answer is not None and not self._ended:
            self._guard(answer)
        self.finish(GrpcStatus.RESOURCE_EXHAUSTED, "the memory for requests is full (limits.memory_bytes_max)")
        if self._queue and self._writer is not None:
            self._forget_queue()

    def _forget_queue(self) -> None:
        waiting = sum(map(len, self._queue))
        self._queue.clear()
        self._budget.answers -= waiting
        self._budget.give(self._holder, waiting)

    async def run(self, make: Callable[[Call], Handler]) -> None:
        """Raises `CancelledError` when the call was cancelled, by whomever but `finish`."""
        try:
            self._guard(lambda: self._take(make(self)))
            await self._read_all()
            if self._writer is not None:
                await self._writer
            assert self._status is not None
            status, text = self._status
            self._context.set_code(_STATUS[int(status)])
            self._context.set_details(text)
        finally:
            self._end()
            if self._writer is not None:
                self._writer.cancel()
            self._forget_queue()

    async def _read_all(self) -> None:
        while not self._ended:
            self._reading = True
            try:
                message = await self._context.read()
                if message is grpc.aio.EOF:
                    # A reset reads as the end too; the cancellation that tells them apart is a turn of the loop behind.
                    await asyncio.sleep(_CANCELLATION_SECONDS)
            except asyncio.CancelledError:
                if self._status is None:
                    raise
                self._task.uncancel()
                return
            finally:
                self._reading = False
            self.received_at_seconds = self._budget.now = time.monotonic()
            handler = self._handler
            assert handler is not None
            if message is grpc.aio.EOF:
                self._guard(handler.half_closed)
                break
            self._guard(lambda: handler.receive(message))  # noqa: B023 - called before the next turn
            if self._writer is not None:
                await self._writer  # a peer that does not read is not read from
        if not self._ended:
            self._reading = True
            try:
                await asyncio.Event().wait()  # finish() or a cancellation ends it
            except asyncio.CancelledError:
                if self._status is None:
                    raise
                self._task.uncancel()
            finally:
                self._reading = False

    async def _write_queue(self) -> None:
        try:
            while self._queue:
                message = self._queue.popleft()
                try:
                    await self._context.write(message)
                finally:
                    self._budget.answers -= len(message)
                    self._budget.give(self._holder, len(message))
        except (grpc.aio.UsageError, grpc.RpcError, asyncio.InvalidStateError):
            self._forget_queue()  # the peer is gone; its end reaches the reader
        finally:
            self._writer = None

    def _take(self, handler: Handler) -> None:
        self._handler = handler
        if self._ended:
            handler.closed()

    def _end(self) -> None:
        """Exactly once: tell the handler."""
        if self._ended:
            return
        if self._body_bytes:
            self.hold(0)
        self._ended = True
        self._budget.end(self._holder, self._answered)
        if self._status is None:
            self._forget_queue()
        if self._handler is not None:
            try:
                self._handler.closed()
            except Exception as error:
                self._on_error(error)

    def _guard(self, step: Callable[[], None]) -> None:
        """A handler that raises ends its own call, and says why only to us."""
        try:
            step()
        except Exception as error:
            self._on_error(error)
            self.finish(GrpcStatus.INTERNAL, "internal error")


def _options(limits: TransportLimits) -> list[tuple[str, int]]:
    return [
        ("grpc.so_reuseport", 0),
        ("grpc.compression_enabled_algorithms_bitset", 1),  # identity alone: 60 KB of gzip can be 60 MB of message
        ("grpc.max_receive_message_length", limits.message_bytes_max),
        ("grpc.max_send_message_length", limits.message_bytes_max),
        ("grpc.max_concurrent_streams", limits.concurrent_streams_max),
        ("grpc.max_metadata_size", limits.header_list_bytes_max),
        ("grpc.absolute_max_metadata_size", limits.header_list_bytes_max),
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 100),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.keepalive_time_ms", int(limits.keepalive_seconds * 1000)),
        ("grpc.keepalive_timeout_ms", int(limits.keepalive_timeout_seconds * 1000)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.lookahead_bytes", limits.stream_window_bytes),
    ]


def _with_pem(context: ssl.SSLContext) -> ServerContext:
    if not isinstance(context, ServerContext):
        raise TypeError("grpcio needs the certificate as PEM: make the context with tls.server_context")
    return context


def _bind_error(host: str, port: int) -> OSError:
    """grpcio says only that it failed; binding a plain socket says why."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
            probe.listen(1)
    except OSError as error:
        return OSError(error.errno, f"cannot listen on {host}:{port}: {error.strerror}")
    return OSError(f"cannot listen on {host}:{port}")


def _plain_peer(peer: str) -> str:
    """grpcio's `ipv4:1.2.3.4:5` or `ipv6:%5B::1%5D:5` -> `1.2.3.4:5`, `[::1]:5`."""
    return unquote(peer.partition(":")[2]) if peer.startswith(("ipv4:", "ipv6:")) else peer
