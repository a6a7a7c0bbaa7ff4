"""Clients that never stop: what each of their requests met, and which began before or after a moment.

A moment is a number, not a time: `mark()` counts the requests begun so far. "No request begun after the picker
let go of a pod is served by it" is then exact, however slow the machine is.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count
from typing import Self

import aiohttp
import msgspec

CHAT = "/v1/chat/completions"
SERVED_BY = "x-served-by"
REQUEST_SECONDS_MAX = 60.0
WAIT_SECONDS_MAX = 30.0
PAUSE_SECONDS = 0.02
"""Between two requests of one client: a bound on the load, not a wait for anything."""


class Call(msgspec.Struct):
    """One request and what became of it."""

    number: int
    status: int | None = None
    served_by: str | None = None
    reason: str | None = None
    """`x-picker-reason` of an answer that the picker gave itself."""
    whole: bool = False
    """The answer came to its end."""
    error: str | None = None


class Traffic:
    """`clients` loops of streamed completions through `url`; `async with` it. Each prompt is new."""

    def __init__(self, url: str, *, clients: int = 8, output_tokens: int = 4) -> None:
        self._url = url + CHAT
        self._clients = clients
        self._output_tokens = output_tokens
        self._numbers = count()
        self._open: set[int] = set()
        self._stopping = False
        self._http: aiohttp.ClientSession | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self.begun = 0
        self.calls: list[Call] = []
        """Those that ended, in the order of their ends."""

    async def __aenter__(self) -> Self:
        self._http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=REQUEST_SECONDS_MAX)
        )
        self.add_clients(self._clients)
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await self.stop()
        finally:
            assert self._http is not None
            await self._http.close()

    def add_clients(self, clients: int) -> None:
        """So many loops more."""
        self._tasks += [asyncio.create_task(self._repeat()) for _ in range(clients)]

    async def stop(self) -> None:
        """Begin no more until clients are added again, and wait for those that run."""
        self._stopping = True
        await asyncio.gather(*self._tasks)
        self._tasks.clear()
        self._stopping = False

    def mark(self) -> int:
        """This moment."""
        return self.begun

    def since(self, mark: int) -> list[Call]:
        """Ended calls that began after `mark`."""
        return [call for call in self.calls if call.number >= mark]

    def where(self, mark: int) -> set[str | None]:
        """Who served the calls begun after `mark`."""
        return {call.served_by for call in self.since(mark)}

    async def settled(self, mark: int) -> None:
        """Every call begun before `mark` has ended."""
        await self._until(lambda: not self._open or min(self._open) >= mark)

    async def more(self, calls: int) -> int:
        """So many calls that begin from now on have ended. Returns the mark of now."""
        mark = self.mark()
        await self._until(lambda: len(self.since(mark)) >= calls)
        return mark

    async def _until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_SECONDS_MAX):
            while not condition():  # noqa: ASYNC110 (it is other tasks that make it true)
                await asyncio.sleep(0.01)

    async def _repeat(self) -> None:
        while not self._stopping:
            await self.ask()
            await asyncio.sleep(PAUSE_SECONDS)

    async def ask(self, *, subset: str | None = None, text: str | None = None) -> Call:
        """One more request, to its end."""
        call = self._begin()
        self._open.add(call.number)
        try:
            await self._read(call, _body(call.number, self._output_tokens, text), subset, asyncio.Event())
        finally:
            self._open.discard(call.number)
            self.calls.append(call)
        return call

    @asynccontextmanager
    async def held(self, output_tokens: int, *, subset: str | None = None) -> AsyncIterator[tuple[Call, asyncio.Event]]:
        """A long request: its head has come inside the block, its end (the event says when) has after it.
        `settled` does not wait for it."""
        call = self._begin()
        headed, ended = asyncio.Event(), asyncio.Event()
        reading = asyncio.create_task(self._read(call, _body(call.number, output_tokens), subset, headed))
        reading.add_done_callback(lambda _: (headed.set(), ended.set()))
        try:
            await headed.wait()
            yield call, ended
            await reading
        finally:
            reading.cancel()
            self.calls.append(call)

    def _begin(self) -> Call:
        call = Call(next(self._numbers))
        self.begun = call.number + 1
        return call

    async def _read(self, call: Call, body: bytes, subset: str | None, headed: asyncio.Event) -> None:
        assert self._http is not None
        headers = {"content-type": "application/json"} | ({"x-subset": subset} if subset else {})
        try:
            async with self._http.post(self._url, data=body, headers=headers) as response:
                call.status = response.status
                call.served_by = response.headers.get(SERVED_BY)
                call.reason = response.headers.get("x-picker-reason")
                headed.set()
                text = await response.read()
                call.whole = response.status != 200 or text.endswith(b"data: [DONE]\n\n")
        except (TimeoutError, aiohttp.ClientError) as error:
            call.error = type(error).__name__


def _body(number: int, output_tokens: int, text: str | None = None) -> bytes:
    message = {"role": "user", "content": text or f"question {number}"}
    body = {"model": "m", "messages": [message], "max_tokens": output_tokens, "stream": True}
    return json.dumps(body).encode()
