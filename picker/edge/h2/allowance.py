"""How much of something a peer may do in one go, and how fast that comes back (a token bucket)."""


class Allowance:
    """`left` is counted down inline by its owner, which calls `refill` only when it ran out."""

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

    def spend(self, amount: int, now: float) -> bool:
        """Count down; False when the allowance is used up."""
        self.left -= amount
        return self.left > 0 or self.refill(now)
