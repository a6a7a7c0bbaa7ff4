"""`make picture`: docs/page.png, of a pool of simulated model servers after some minutes of traffic."""

import asyncio
import sys
from pathlib import Path

import aiohttp
from PIL import Image

from tests.page.browser import MISSING, browser, chromium
from tests.page.stage import stage

PICTURE = Path(__file__).parents[2] / "docs" / "page.png"
TRAFFIC_SECONDS = 150.0
BYTES_MAX = 200_000
COLOURS = 256


def fewer_colours(path: Path) -> None:
    """A third of the bytes, and nothing that anybody sees."""
    with Image.open(path) as shot:
        flat = shot.convert("RGB").quantize(COLOURS, Image.Quantize.MAXCOVERAGE, kmeans=3, dither=Image.Dither.NONE)
    flat.save(path, optimize=True)


async def picture(path: Path, seconds: float, program: str) -> None:
    """Take it. Raises `AssertionError` where the page reports a problem or the picture is too large."""
    async with stage(16) as running, browser(program) as chrome:
        traffic = asyncio.create_task(running.traffic(seed=3, per_second=22.0))
        try:
            await asyncio.sleep(seconds / 3)
            async with aiohttp.ClientSession() as session:  # one that is slow: the page shows it, and the picker knows
                await session.post(f"http://{running.addresses[6]}/sim/faults", json={"slow": 2.5})
            await asyncio.sleep(seconds * 2 / 3)
            async with chrome.page(1380, 1052) as page:
                await page.open(f"http://{running.metrics}/")
                await page.until("document.querySelector('#status').dataset.state === 'live'")
                await page.slide("queue", 8)
                await page.until("!document.querySelector('#what-if-table').hidden")
                await asyncio.sleep(4)
                await page.screenshot(path)
                await asyncio.to_thread(fewer_colours, path)
                assert not page.problems, page.problems
        finally:
            traffic.cancel()
            await asyncio.gather(traffic, return_exceptions=True)
    size = await asyncio.to_thread(lambda: path.stat().st_size)
    assert size < BYTES_MAX, f"{path}: {size} bytes"


if __name__ == "__main__":
    found = chromium()
    if found is None:
        sys.exit(f"no {MISSING}")
    asyncio.run(picture(PICTURE, TRAFFIC_SECONDS, found))
    print(f"{PICTURE} written")
