"""What a gRPC transport and the services behind it owe each other. Bytes, no protobuf.

A transport (h2, grpcio) owns connections, framing, flow control, limits and TLS. A service
owns meaning. Between them stand two small objects per gRPC call:

    transport ──receive(message)──▶ Handler        one call per gRPC message, synchronous
    transport ──half_closed()─────▶ Handler        the peer sent its last message
    transport ──closed()──────────▶ Handler        exactly once, however the call ended
    Call ◀──send(message, body)──── Handler        at any time until the call ended
    Call ◀──finish(status, text)─── Handler        at most once; ends the call

Rules that both sides may rely on:

* Every method is called on the transport's event-loop thread; none may block.
* `Handler` methods may call `send` and `finish` re-entrantly. A transport gathers what is sent
  during one read of the socket and writes it at once.
* After `closed()` a transport calls nothing on the handler, and `send` and `finish` do nothing.
* `closed()` follows every end: a peer's reset, a lost connection, a deadline, `finish`.
* A handler that raises ends its own call with INTERNAL and no detail of the exception on the
  wire; the transport reports the exception to `on_error`; no other call notices.
* `send` never fails for flow control: the transport queues, and grants no window to a call whose
  answers pile up (`stream_send_queue_bytes_max`).
* What is held for a peer is counted in one ledger (`picker.budget`), a handler's part by `hold`. Where it is
  full, the calls that hold most for longest end, with RESOURCE_EXHAUSTED. A handler with a method
  `give_way()` is called before that, and may answer.
"""

import ssl
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Protocol


class GrpcStatus(IntEnum):
    """gRPC status codes that we send (grpc/grpc doc/statuscodes.md)."""

    OK = 0
    CANCELLED = 1
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


class Call(Protocol):
    """The transport's end of one gRPC call."""

    peer: str
    """The caller's `ip:port`, for logs."""

    received_at_seconds: float
    """`time.monotonic()` when the socket read that carried the current message began."""

    def send(self, message: bytes, body: "bytes | memoryview" = b"") -> None:
        """Queue one message for the peer: `message` with `body` behind it, which is not copied before the socket."""

    def finish(self, status: GrpcStatus = GrpcStatus.OK, text: str = "") -> None:
        """End the call with a status. `text` reaches the peer as grpc-message."""

    def hold(self, size: int) -> None:
        """The handler keeps `size` bytes of its messages, in all. May end this call or others: memory is one budget."""


class Handler(Protocol):
    """A service's end of one gRPC call."""

    def receive(self, message: bytes) -> None:
        """One whole gRPC message."""

    def half_closed(self) -> None:
        """The peer will send no more. The handler answers what it owes, then finishes."""

    def closed(self) -> None:
        """The call is over, whatever ended it. Release everything."""


MethodTable = Mapping[str, Callable[[Call], Handler]]
"""`'/package.Service/Method'` -> what makes a handler for one call."""


class Transport(Protocol):
    """A listening gRPC server."""

    port: int
    """The port in use, also where 0 was asked for."""

    async def start(self) -> None:
        """Bind and listen. Raises `OSError` that names the address when it is taken."""

    def refuse_new_calls(self) -> None:
        """Drain: calls in progress go on, new ones are told to go elsewhere (GOAWAY)."""

    async def wait_idle(self, timeout_seconds: float) -> bool:
        """Wait until no call is open. False when the time ran out first."""

    async def stop(self) -> None:
        """Close everything at once."""

    def replace_tls(self, context: ssl.SSLContext) -> None:
        """Use other certificates for connections from now on."""

    @property
    def open_calls(self) -> int:
        """Calls in progress."""
