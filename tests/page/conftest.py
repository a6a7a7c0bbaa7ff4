"""One Chromium and one pool for all tests of the page: both take seconds to start.

The tests are coroutines of one event loop, which lives as long as they do.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from tests.page.browser import MISSING, Browser, browser, chromium
from tests.page.stage import Stage, stage

Runner = Callable[[Coroutine[Any, Any, Any]], Any]


class World:
    """The browser, and a pool with traffic."""

    def __init__(self, chrome: Browser, running: Stage) -> None:
        self.chrome = chrome
        self.stage = running

    @property
    def url(self) -> str:
        return f"http://{self.stage.metrics}/"


@pytest.fixture(scope="session")
def loop() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="session")
def chrome(loop: asyncio.Runner) -> Iterator[Browser]:
    program = chromium()
    if program is None:
        pytest.skip(f"NOT RUN: no {MISSING}")
    stack = AsyncExitStack()
    yield loop.run(stack.enter_async_context(browser(program)))
    loop.run(stack.aclose())


@pytest.fixture(scope="session")
def world(loop: asyncio.Runner, chrome: Browser) -> Iterator[World]:
    stack = AsyncExitStack()
    running = loop.run(stack.enter_async_context(stage(4, absent=2)))
    traffic = loop.get_loop().create_task(running.traffic(per_second=6.0))
    yield World(chrome, running)

    async def end() -> None:
        traffic.cancel()
        await asyncio.gather(traffic, return_exceptions=True)
        await stack.aclose()

    loop.run(end())


@pytest.fixture
def run(loop: asyncio.Runner) -> Runner:
    return loop.run
