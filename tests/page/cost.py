"""`python -m tests.page.cost`: CPU seconds of the picker, nobody looking and with three viewers, in turn.

100 simulated model servers and some traffic; each turn lasts a minute. CPU seconds, not time: other work on the
machine changes them little.
"""

import argparse
import asyncio
import contextlib

import aiohttp
import psutil

from tests.page.stage import Stage, stage

TURNS = (0, 3, 0, 3)


async def look(session: aiohttp.ClientSession, running: Stage) -> None:
    """A viewer, until it is cancelled."""
    async with session.get(f"http://{running.metrics}/live") as response:
        async for _ in response.content.iter_any():
            pass


async def turn(running: Stage, viewers: int, seconds: float) -> float:
    """CPU seconds a second."""
    process = psutil.Process(running.picker.pid)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as session:
        looking = [asyncio.create_task(look(session, running)) for _ in range(viewers)]
        await asyncio.sleep(5)
        before = process.cpu_times()
        await asyncio.sleep(seconds)
        after = process.cpu_times()
        for each in looking:
            each.cancel()
        await asyncio.gather(*looking, return_exceptions=True)
    return (after.user + after.system - before.user - before.system) / seconds


async def main() -> None:
    """All turns."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--endpoints", type=int, default=100)
    parser.add_argument("--absent", type=int, default=0)
    parser.add_argument("--rate", type=float, default=2.0, help="sessions a second")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each turn")
    options = parser.parse_args()
    found: dict[int, list[float]] = {}
    async with stage(options.endpoints, absent=options.absent) as running:
        traffic = asyncio.create_task(running.traffic(per_second=options.rate))
        for viewers in TURNS:
            share = await turn(running, viewers, options.seconds)
            found.setdefault(viewers, []).append(share)
            print(f"{viewers} viewers: {100 * share:.2f} % of a core", flush=True)
        traffic.cancel()
        await asyncio.gather(traffic, return_exceptions=True)
    means = {viewers: sum(shares) / len(shares) for viewers, shares in found.items()}
    print(f"three viewers cost {100 * (means[3] - means[0]):.2f} % of a core")


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main())
