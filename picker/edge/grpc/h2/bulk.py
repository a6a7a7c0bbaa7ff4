"""Messages and DATA frames: large messages put together from them, and cut into them; small ones in one.

In the compiled build `_bulk.c` does it: a byte of a large message is copied once on its way in and not
at all on its way out. Here a message comes together as a list of pieces. What a peer says will come
takes no memory before it has come.
"""

from collections.abc import Callable
from typing import Final, Protocol

from picker.edge.grpc.h2 import frames
from picker.kernels import kernel

Data = bytes | memoryview


class Assembly(Protocol):
    """A message of known length, put together from DATA as it comes."""

    def add(self, data: Data, start: int, stop: int) -> None:
        """The message goes on with `data[start:stop]`."""

    def take(self, data: Data, start: int, stop: int, stream_id: int, length_max: int) -> tuple[int, int]:
        """Add the frames that begin at `start`, as long as they are plain DATA of the middle of the message.

        That is: whole, filled, without flags, of `stream_id`, at most `length_max` bytes and not the message's last.
        Returns where the next one begins, and how many were taken.
        """

    def whole(self) -> bytes:
        """The message, when nothing of it is missing; once."""


SMALL_BYTES: Final = 4096
"""A smaller piece is appended to the one before: each by itself would take several times its own size."""


class ListAssembly:
    """An `Assembly` in Python: a list of pieces."""

    __slots__ = ("_missing", "_pieces")

    def __init__(self, length: int) -> None:
        self._missing = length
        self._pieces: list[bytes | bytearray] = []

    def add(self, data: Data, start: int, stop: int) -> None:
        if stop - start > self._missing:
            raise ValueError("more than the message has")
        self._keep(data, start, stop)
        self._missing -= stop - start

    def _keep(self, data: Data, start: int, stop: int) -> None:
        if stop - start >= SMALL_BYTES:
            self._pieces.append(bytes(data[start:stop]))
            return
        last = self._pieces[-1] if self._pieces else None
        if not isinstance(last, bytearray) or len(last) >= 16 * SMALL_BYTES:
            last = bytearray()
            self._pieces.append(last)
        last += data[start:stop]

    def take(self, data: Data, start: int, stop: int, stream_id: int, length_max: int) -> tuple[int, int]:
        unpack, missing = frames.HEADER.unpack_from, self._missing
        taken = 0
        while stop - start >= frames.FRAME_HEADER_BYTES:
            high, low, kind, flags, owner = unpack(data, start)
            length = high << 8 | low
            following = start + frames.FRAME_HEADER_BYTES + length
            if kind or flags or owner & frames.STREAM_ID_MASK != stream_id or not 0 < length <= length_max:
                break
            if length >= missing or following > stop:
                break
            self._keep(data, following - length, following)
            missing -= length
            start = following
            taken += 1
        self._missing = missing
        return start, taken

    def whole(self) -> bytes:
        if self._missing:
            raise ValueError("the message is not whole")
        pieces, self._pieces = self._pieces, []
        return bytes(pieces[0]) if len(pieces) == 1 else b"".join(pieces)


def framed(stream_id: int, message: bytes, body_bytes: int) -> bytes:
    """A DATA frame with one gRPC message, less its last `body_bytes`, which the caller puts behind it."""
    length = len(message) + body_bytes
    size = length + frames.MESSAGE.size
    return frames.DATA_MESSAGE.pack(size >> 8, size & 0xFF, 0, 0, stream_id, 0, length) + message


_KERNEL: Final = kernel("picker.edge.grpc.h2._bulk")
new_assembly: Final[Callable[[int], Assembly]] = getattr(_KERNEL, "Assembly", ListAssembly)
data_frame: Final[Callable[[int, bytes, int], bytes]] = getattr(_KERNEL, "data_frame", framed)
"""`framed`."""
data_frames: Final[Callable[[list[Data], int, int, bytes, Data], None] | None] = getattr(_KERNEL, "data_frames", None)
"""`(out, stream id, length at most, head, body)` appends DATA frames that hold both. `None`: a queue cuts as well."""
