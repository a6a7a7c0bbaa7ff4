"""How late the event loop is: a timer that says when it was woken, and when it should have been.

Everything runs on one loop, so what holds it keeps every decision waiting. Whatever does (a body, a
page, a reload, a starved CPU) shows here.
"""

import asyncio
from collections.abc import Callable
from typing import Final

PERIOD_SECONDS: Final = 0.02
"""So long may nothing hold the loop; what does so longer is seen at its end."""

PAUSE_SECONDS: Final = 0.2
"""Woken so late, the process has stood still."""


class LoopWatch:
    """`observe(seconds)` gets the lag of every wake-up; 0 is on time."""

    def __init__(self, clock: Callable[[], float], observe: Callable[[float], None]) -> None:
        self._clock = clock
        self._observe = observe

    async def run(self) -> None:
        """For ever."""
        clock = self._clock
        due = clock() + PERIOD_SECONDS
        while True:
            await asyncio.sleep(PERIOD_SECONDS)
            now = clock()
            self._observe(max(0.0, now - due))
            due = now + PERIOD_SECONDS


async def in_time(
    clock: Callable[[], float], seconds: float, step: Callable[[], None], forgive: Callable[[float], None]
) -> None:
    """`step()` every so often, for ever; in its place `forgive(late)` after the process has stood still.

    A timer that is due after that comes before what the sockets hold: it would judge peers by what nobody has read.
    """
    while True:
        began = clock()
        await asyncio.sleep(seconds)
        late = clock() - began - seconds
        if late > PAUSE_SECONDS:
            forgive(late)
        else:
            step()
