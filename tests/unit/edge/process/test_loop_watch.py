"""What holds the loop is seen, and no deadline passes for time in which the process stood still."""

import asyncio
import time
from types import SimpleNamespace

from picker.edge.process import loop_watch
from picker.edge.process.loop_watch import PERIOD_SECONDS, LoopWatch, in_time


def test_what_holds_the_loop_is_seen_in_full() -> None:
    seen: list[float] = []

    async def scenario() -> None:
        watch = asyncio.create_task(LoopWatch(time.monotonic, seen.append).run())
        await asyncio.sleep(0.05)
        time.sleep(0.3)  # noqa: ASYNC251 - what must not happen
        await asyncio.sleep(0.05)
        watch.cancel()

    asyncio.run(scenario())
    assert min(seen) >= 0.0
    assert max(seen) >= 0.3 - PERIOD_SECONDS


def test_after_a_pause_deadlines_move_and_nothing_is_judged(monkeypatch) -> None:
    """A clock of its own: each sleep takes what the list says."""
    now = 0.0
    sleeps = iter([0.05, 0.06, 40.05, 0.05])
    told: list[object] = []

    class Over(Exception):
        pass

    async def sleep(seconds: float) -> None:
        nonlocal now
        step = next(sleeps, None)
        if step is None:
            raise Over
        now += step

    monkeypatch.setattr(loop_watch, "asyncio", SimpleNamespace(sleep=sleep))

    async def scenario() -> None:
        await in_time(lambda: now, 0.05, lambda: told.append("step"), lambda late: told.append(round(late, 3)))

    try:
        asyncio.run(scenario())
    except Over:
        pass
    assert told == ["step", "step", 40.0, "step"]
