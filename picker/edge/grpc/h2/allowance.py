"""Floods: how much of something a peer may do in one go, and how fast that comes back."""

from typing import Final

from picker.config import TransportLimits
from picker.edge.grpc.h2.frames import ENHANCE_YOUR_CALM, ConnectionFault

_EARNED_PER_USEFUL_FRAME: Final = 8


class Allowance:
    """A token bucket. `left` is looked at by its owner, who calls `refill` only when it ran out."""

    __slots__ = ("_burst", "_per_second", "_refilled_at", "left")

    def __init__(self, burst: int, per_second: float, now: float) -> None:
        self._burst = burst
        self._per_second = per_second
        self._refilled_at = now
        self.left = burst

    def refill(self, now: float, earned: int = 0) -> bool:
        """Add what time (and `earned`) gave back. False when nothing is left even so."""
        gained = int((now - self._refilled_at) * self._per_second)
        if gained > 0:
            self._refilled_at = now
        self.left = min(self._burst, self.left + max(gained, 0) + earned)
        return self.left > 0


class Floods:
    """One connection's allowances. Work that moves data pays for frames that do not."""

    __slots__ = ("_idle", "_resets", "now", "useful")

    def __init__(self, limits: TransportLimits, now: float) -> None:
        self._idle = Allowance(limits.idle_frames_max, limits.idle_frames_per_second, now)
        self._resets = Allowance(limits.resets_max, limits.resets_per_second, now)
        self.now = now
        self.useful = 0

    def spend_idle(self, amount: int) -> None:
        """For frames that move no data, and other work that a peer gets cheaply. Raises `ConnectionFault`."""
        idle = self._idle
        idle.left -= amount
        if idle.left <= 0:
            earned, self.useful = self.useful * _EARNED_PER_USEFUL_FRAME, 0
            if not idle.refill(self.now, earned):
                raise ConnectionFault(ENHANCE_YOUR_CALM, "too many frames that move no data")

    def spend_reset(self) -> None:
        """For a call broken off, by RST_STREAM or by a stream error. Raises `ConnectionFault`."""
        resets = self._resets
        resets.left -= 1
        if resets.left <= 0 and not resets.refill(self.now):
            raise ConnectionFault(ENHANCE_YOUR_CALM, "too many streams reset")
