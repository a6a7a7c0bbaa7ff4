"""Who served, as the proxy tells, beside what was picked.

A proxy goes elsewhere now and then: it retries where a connection is refused. One that goes elsewhere again and again
does not heed the picker (its cluster has other members, or it does not read the destination), and then nothing that
is booked at the pick is true. The share of those that went where they were sent is a running mean of the last few.
"""

from typing import Final

_STEP: Final = 0.25
HEEDED_SHARE_MIN: Final = 0.5
"""Below, a request that was served elsewhere says nothing of the endpoint that was picked."""
WARN_TOLD_MIN: Final = 20
WARN_SHARE: Final = 0.25


class ServedBook:
    """Counts of one process. One event loop owns it."""

    __slots__ = ("_heeded", "_warned", "another_total", "told_total", "unknown_total")

    def __init__(self) -> None:
        self.told_total = 0
        """Answers of which the proxy said who gave them."""
        self.another_total = 0
        """By another endpoint of the pool than was picked first."""
        self.unknown_total = 0
        """By an address that is not in the pool."""
        self._heeded = 1.0
        self._warned = False

    @property
    def heeds(self) -> bool:
        """Whether the proxy goes where it is sent, but for retries."""
        return self._heeded >= HEEDED_SHARE_MIN

    def as_picked(self) -> None:
        """The pick served."""
        self.told_total += 1
        self._heeded += _STEP * (1.0 - self._heeded)

    def elsewhere(self, *, known: bool, heeded: bool = False) -> None:
        """Another did. `heeded`: one that was named as a fallback."""
        self.told_total += 1
        if known:
            self.another_total += 1
        else:
            self.unknown_total += 1
        self._heeded += _STEP * (float(heeded) - self._heeded)

    def warning(self) -> str | None:
        """What to tell the operator, once."""
        elsewhere = self.another_total + self.unknown_total
        if self._warned or self.told_total < WARN_TOLD_MIN or elsewhere < WARN_SHARE * self.told_total:
            return None
        self._warned = True
        return (
            f"the proxy served {elsewhere} of {self.told_total} requests elsewhere than picked "
            f"({self.unknown_total} at addresses that are not in the pool): compare the members of its cluster with "
            "the pool, and see that it reads the destination (metadata_options.receiving_namespaces: envoy.lb)"
        )
