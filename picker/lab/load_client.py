"""Drives a workload over real HTTP and measures what a client sees.

Sessions start when the workload says, whatever became of the others; within a session the next
turn waits for the answer and the pause after it, and its prompt carries the answer that really
came. TTFT runs from sending to the first token in a body, never to the headers: an engine
sends those at once. Bounded: requests in flight, seconds a request, bytes an answer.
"""

import asyncio
import re
from collections.abc import Callable, Iterable

import aiohttp
import msgspec

from picker.lab.model_server import SERVED_BY
from picker.sim.prompts import Role, Session, Turn, say
from picker.sim.statistics import Sample

ANSWER_BYTES_MAX = 16 * 1024 * 1024
_TOKEN = re.compile(rb'"(?:content|text)": ?"[^"]')
"""A piece of an answer with something in it: the first event of a stream only says who speaks."""


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _Said(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Said | None = None
    message: _Said | None = None


class _Answer(msgspec.Struct):
    """A whole answer or one event of a stream, as far as it matters here."""

    choices: list[_Choice] = []
    usage: _Usage | None = None


_decode_answer = msgspec.json.Decoder(_Answer).decode
_encode = msgspec.json.Encoder().encode


class LoadClient:
    """One run. `samples` grows as requests end; `in_flight` and `done` are live, for a progress display."""

    def __init__(
        self,
        url: str,
        *,
        model: str = "m",
        in_flight_max: int = 1000,
        request_seconds_max: float = 120.0,
        on_sample: Callable[[Sample], None] | None = None,
    ) -> None:
        self.samples: list[Sample] = []
        self.in_flight = 0
        self._url = url.rstrip("/") + "/v1/chat/completions"
        self._model = model
        self._room = asyncio.Semaphore(in_flight_max)
        self._timeout = aiohttp.ClientTimeout(total=request_seconds_max)
        self._on_sample = on_sample
        self._started_at = 0.0

    async def run(self, sessions: Iterable[Session]) -> float:
        """Drive all sessions to their end; returns how long it took, seconds. Cancelling it stops everything."""
        loop = asyncio.get_running_loop()
        self._started_at = loop.time()
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=300)
        async with (
            aiohttp.ClientSession(connector=connector, timeout=self._timeout, auto_decompress=False) as http,
            asyncio.TaskGroup() as group,
        ):
            for session in sessions:
                await self._sleep_until(session.at_seconds)
                group.create_task(self._converse(http, session))
        return loop.time() - self._started_at

    async def _sleep_until(self, due_seconds: float) -> None:
        pause = self._started_at + due_seconds - asyncio.get_running_loop().time()
        if pause > 0:
            await asyncio.sleep(pause)

    async def _converse(self, http: aiohttp.ClientSession, session: Session) -> None:
        """A session, turn by turn. It ends at the first turn that fails: what would follow it is unknown."""
        loop = asyncio.get_running_loop()
        said: list[dict[str, str]] = []
        due = session.at_seconds
        for index, turn in enumerate(session.turns):
            due += turn.pause_seconds
            await self._sleep_until(due)
            for segment in turn.segments:
                say(said, segment)
            async with self._room:
                self.in_flight += 1
                try:
                    sample, answer = await self._ask(http, session, index, due, said)
                finally:
                    self.in_flight -= 1
            self.samples.append(sample)
            if self._on_sample is not None:
                self._on_sample(sample)
            if sample.error is not None:
                return
            said.append({"role": str(Role.ASSISTANT), "content": answer})
            due = loop.time() - self._started_at

    def _body(self, turn: Turn, said: list[dict[str, str]]) -> bytes:
        body: dict[str, object] = {"model": self._model, "messages": said, "max_tokens": turn.answer.tokens}
        if turn.streaming:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return _encode(body)

    async def _ask(
        self, http: aiohttp.ClientSession, session: Session, index: int, due: float, said: list[dict[str, str]]
    ) -> tuple[Sample, str]:
        loop = asyncio.get_running_loop()
        turn = session.turns[index]
        body = self._body(turn, said)
        sent_at = loop.time()
        sample = Sample(
            session=session.id, turn=index, due_seconds=due, late_seconds=max(0.0, sent_at - self._started_at - due)
        )
        raw = bytearray()
        try:
            async with http.post(self._url, data=body, headers={"content-type": "application/json"}) as response:
                sample.status = response.status
                sample.endpoint = response.headers.get(SERVED_BY)
                async for chunk in response.content.iter_any():
                    raw += chunk
                    if sample.ttft_seconds is None and turn.streaming and _TOKEN.search(raw):
                        sample.ttft_seconds = loop.time() - sent_at
                    if len(raw) > ANSWER_BYTES_MAX:
                        sample.error = "the answer is too long"
                        return sample, ""
        except TimeoutError:
            sample.error = "no end within the time limit"
            return sample, ""
        except aiohttp.ClientError as error:
            sample.error = type(error).__name__
            return sample, ""
        sample.e2e_seconds = loop.time() - sent_at
        if sample.status != 200:
            sample.error = f"status {sample.status}"
            return sample, ""
        return sample, _read(sample, bytes(raw), turn)


def _read(sample: Sample, raw: bytes, turn: Turn) -> str:
    """Fill in what the answer reports; returns its text. Marks an answer that is cut short as an error."""
    text: list[str] = []
    ended = not turn.streaming
    for line in raw.split(b"\n") if turn.streaming else [b"data: " + raw]:
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            ended = True
            continue
        try:
            answer = _decode_answer(data)
        except msgspec.MsgspecError:
            sample.error = "the answer is not what it should be"
            return ""
        for choice in answer.choices:
            said = choice.delta or choice.message
            if said is not None and said.content:
                text.append(said.content)
        if answer.usage is not None:
            sample.prompt_tokens = answer.usage.prompt_tokens
            sample.output_tokens = answer.usage.completion_tokens
            if answer.usage.prompt_tokens_details is not None:
                sample.cached_tokens = answer.usage.prompt_tokens_details.cached_tokens
    if not ended:
        sample.error = "the answer is cut short"
    return "".join(text)
