"""A listener for TLS: handshakes in progress are bounded in number and time.

A handshake costs a peer one packet and us a key exchange and some 50 KB, so peers that begin and do
not finish must not keep out those that do: beyond `tls_handshakes_max` the oldest gives way. A
client that means it is done within two round trips; what is old when there are many is stuck or an attack.

asyncio's own server hides a connection until its handshake is over, so sockets are accepted here.

Invariants: a task is in `_handshakes` from the acceptance of its socket until its handshake is over, whatever ended it.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable

from picker.edge.h2.limits import H2Limits

_ACCEPTED_AT_ONCE_MAX = 64
"""Then other work gets its turn."""
_PAUSE_SECONDS = 1.0
"""Out of file descriptors: so long nobody is accepted, as asyncio's server does."""


class TlsListener:
    """As much of `asyncio.Server` as is needed. `context` may be replaced at any time."""

    def __init__(
        self,
        listening: socket.socket,
        context: ssl.SSLContext,
        limits: H2Limits,
        make: Callable[[], asyncio.BaseProtocol],
        on_error: Callable[[BaseException], None],
    ) -> None:
        """`make`: the protocol of a connection; its `connection_made` follows its handshake."""
        self.context = context
        self.sockets = (listening,)
        self._limits = limits
        self._make = make
        self._on_error = on_error
        self._loop = asyncio.get_running_loop()
        self._handshakes: dict[asyncio.Task[None], socket.socket] = {}
        self._given_up: set[asyncio.Task[None]] = set()
        self._closed = False
        listening.setblocking(False)
        self._loop.add_reader(listening, self._accept)

    def close(self) -> None:
        """Accept nobody else, and give up the handshakes in progress."""
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self.sockets[0])
        self.sockets[0].close()
        for handshake in tuple(self._handshakes):
            self._give_up(handshake)

    async def wait_closed(self) -> None:
        """Until the handshakes are given up."""
        await asyncio.gather(*self._given_up, return_exceptions=True)

    def _accept(self) -> None:
        for _ in range(_ACCEPTED_AT_ONCE_MAX):
            try:
                accepted, _ = self.sockets[0].accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._on_error(error)
                self._loop.remove_reader(self.sockets[0])
                self._loop.call_later(_PAUSE_SECONDS, self._resume)
                return
            accepted.setblocking(False)
            if len(self._handshakes) >= self._limits.tls_handshakes_max:
                self._give_up(next(iter(self._handshakes)))
            handshake = self._loop.create_task(self._secure(accepted))
            self._handshakes[handshake] = accepted
            handshake.add_done_callback(self._over)

    def _resume(self) -> None:
        if not self._closed:
            self._loop.add_reader(self.sockets[0], self._accept)

    def _give_up(self, handshake: "asyncio.Task[None]") -> None:
        accepted = self._handshakes.pop(handshake)
        self._given_up.add(handshake)

        def over(_: object) -> None:
            self._given_up.discard(handshake)
            accepted.close()  # a task that had not begun leaves that to us; not before: the loop may still watch it

        handshake.add_done_callback(over)
        handshake.cancel()

    def _over(self, handshake: "asyncio.Task[None]") -> None:
        self._handshakes.pop(handshake, None)

    async def _secure(self, accepted: socket.socket) -> None:
        """Shake hands. What fails is the peer's business."""
        try:
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self._loop.connect_accepted_socket(
                self._make, accepted, ssl=self.context, ssl_handshake_timeout=self._limits.handshake_seconds
            )
        except OSError:  # `ssl.SSLError` and `TimeoutError` are OSErrors
            accepted.close()
        except Exception as error:
            accepted.close()
            self._on_error(error)
