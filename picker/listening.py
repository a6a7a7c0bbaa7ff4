"""Listening sockets, for every port: TLS handshakes bounded in number and time, and file descriptors that run out.

A handshake costs a peer one packet and us a key exchange and some 50 KB, so peers that begin and do
not finish must not keep out those that do: beyond `handshakes_max` the oldest gives way. A client
that means it is done within two round trips; what is old when there are many is stuck or an attack.

Out of file descriptors, a port makes room among its own connections and takes from the reserve (`Files`),
of which a part is only for the ports that say whether the picker lives.

asyncio's own server hides a connection until its handshake is over, and knows nothing of a reserve, so
sockets are accepted here.

Invariants: a task is in `_handshakes` from the acceptance of its socket until its handshake is over, whatever ended it.
"""

import asyncio
import errno
import os
import resource
import socket
import ssl
from collections.abc import Callable
from typing import Final

_ACCEPTED_AT_ONCE_MAX = 64
"""Then other work gets its turn."""
_PAUSE_SECONDS = 1.0
_ROOM_SECONDS = 0.02
"""Until a connection that was closed to make room has given its file back."""

SPARE_FILES: Final = 48
KEPT_FILES: Final = 24
"""Of the reserve, for liveness, readiness and metrics alone."""
_WANTED_FILES: Final = 1_048_576


class Files:
    """The process's file descriptors: the limit raised as far as it may be, and some kept in reserve."""

    def __init__(self, told: Callable[[str, int], None] = lambda port, limit: None, spare: int = SPARE_FILES) -> None:
        """`told(port, limit)` when there are none left for a port."""
        self.limit = _raise_limit()
        self._told = told
        self._wanted = spare
        self._spare: list[int] = []
        self.refill()

    @property
    def connections_max(self) -> int:
        """What one port may take, and leave as many for endpoints to be read, and some for all else."""
        return max(16, (self.limit - 128) // 2)

    def refill(self) -> None:
        """Take the reserve back, as far as there are files. Call it once a second."""
        while len(self._spare) < self._wanted:
            try:
                self._spare.append(os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC))
            except OSError:
                return

    def lend(self, keep: int) -> bool:
        """Free one of the reserve for the caller to use at once, while more than `keep` are left."""
        if len(self._spare) <= keep:
            return False
        os.close(self._spare.pop())
        return True

    def missing(self, port: str) -> None:
        """A port could accept nobody."""
        self._told(port, self.limit)

    def close(self) -> None:
        """Give the reserve up."""
        self._wanted = 0
        while self._spare:
            os.close(self._spare.pop())


class Listener:
    """As much of `asyncio.Server` as is needed. `context` may be replaced at any time."""

    def __init__(
        self,
        listening: socket.socket,
        make: Callable[[], asyncio.BaseProtocol],
        on_error: Callable[[BaseException], None],
        *,
        context: ssl.SSLContext | None = None,
        handshakes_max: int = 256,
        handshake_seconds: float = 10.0,
        files: Files | None = None,
        keep: int = KEPT_FILES,
        make_room: Callable[[], bool] = lambda: False,
    ) -> None:
        """`make`: the protocol of a connection; its `connection_made` follows its handshake.

        `make_room()` closes one connection that nobody misses, if there is one. `keep`: see `Files.lend`.
        """
        self.context = context
        self.sockets = (listening,)
        self._make = make
        self._on_error = on_error
        self._handshakes_max = handshakes_max
        self._handshake_seconds = handshake_seconds
        self._files = files
        self._keep = keep
        self._make_room = make_room
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
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    if self._files is not None and self._files.lend(self._keep):
                        continue
                    room = self._make_room()
                    if not room and self._files is not None:
                        self._files.missing(f"port {self.sockets[0].getsockname()[1]}")
                    self._wait(_ROOM_SECONDS if room else _PAUSE_SECONDS)
                    return
                self._on_error(error)
                self._wait(_PAUSE_SECONDS)
                return
            accepted.setblocking(False)
            if len(self._handshakes) >= self._handshakes_max:
                self._give_up(next(iter(self._handshakes)))
            handshake = self._loop.create_task(self._secure(accepted))
            self._handshakes[handshake] = accepted
            handshake.add_done_callback(self._over)

    def _wait(self, seconds: float) -> None:
        """Nobody is accepted for a while."""
        self._loop.remove_reader(self.sockets[0])
        self._loop.call_later(seconds, self._resume)

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
        """Shake hands, where that is due. What fails is the peer's business."""
        context = self.context
        try:
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self._loop.connect_accepted_socket(
                self._make,
                accepted,
                ssl=context,
                ssl_handshake_timeout=self._handshake_seconds if context is not None else None,
            )
        except OSError:  # `ssl.SSLError` and `TimeoutError` are OSErrors
            accepted.close()
        except Exception as error:
            accepted.close()
            self._on_error(error)


def bind(host: str, port: int, backlog: int) -> socket.socket:
    """A listening socket. Raises `OSError` that names the address. `::` listens on IPv4 too, where the system can."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    both = host == "::" and socket.has_dualstack_ipv6()
    try:
        return socket.create_server((host, port), family=family, backlog=backlog, dualstack_ipv6=both)
    except OSError as error:
        # create_server lengthens strerror with the address; what gaierror numbers is not errno's.
        number = error.errno or 0
        reason = os.strerror(number) if number > 0 else error.strerror
        raise OSError(error.errno, f"cannot listen on {host}:{port}: {reason}") from None


def _raise_limit() -> int:
    """The soft limit of open files, raised to the hard one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _WANTED_FILES if hard == resource.RLIM_INFINITY else min(hard, _WANTED_FILES)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return min(soft, _WANTED_FILES) if soft != resource.RLIM_INFINITY else _WANTED_FILES
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError):
        return soft
    return wanted
