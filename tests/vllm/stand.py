"""One request at a time through Envoy and the picker, seen from all sides: the checks' instrument.

For each request: the answer as the client gets it, where the picker sent it and how much of the prompt it believed
to be cached there (`x-picker-explain`), what it booked afterwards, and what the engines' own counters
say was cached. Nothing else may be running, so that a difference of counters is this request's.
"""

import contextlib
import re
import time
from collections.abc import Iterator
from typing import Any, NamedTuple, Self

import msgspec

from picker.sim.prompts import text_of
from tests.envoy.picker_process import PickerProcess
from tests.vllm.contest import picker_in_front, through_picker
from tests.vllm.servers import MODEL, Answer, Counts, Servers, ask

COMPLETIONS = "/v1/completions"
SETTLING_ROUNDS_MAX = 200
_FIRST_TEXT = 1 << 40
"""Beyond any workload's."""


class Finding(NamedTuple):
    """Something that was to be shown, and what was seen."""

    topic: str
    claim: str
    holds: bool
    seen: str


class Booked(NamedTuple):
    """What the picker's telemetry counted, in tokens."""

    predicted: float
    observed: float
    prompt: float


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """One request. `matched`: share of the prompt that the picker expected in the cache; `None`: it did not say."""

    answer: Answer
    address: str | None
    matched: float | None
    engine: Counts
    booked: Booked
    usage: dict[str, Any]

    @property
    def cached_tokens(self) -> int | None:
        """As the answer says, in the words of whichever API."""
        details = self.usage.get("prompt_tokens_details") or self.usage.get("input_tokens_details") or {}
        found = details.get("cached_tokens", self.usage.get("cache_read_input_tokens"))
        return None if found is None else int(found)

    def told(self) -> str:
        """For the page."""
        share = "-" if self.matched is None else f"{self.matched:.2f}"
        return (
            f"status {self.answer.status}, vLLM hit {self.engine.hits_tokens:.0f} of {self.engine.queries_tokens:.0f} "
            f"tokens, picker expected {share}"
        )


class Stand:
    """Servers with a new picker and Envoy in front; a context manager. `findings` grows."""

    def __init__(self, servers: Servers) -> None:
        self.servers = servers
        self.findings: list[Finding] = []
        self._texts = iter(range(_FIRST_TEXT, 2 * _FIRST_TEXT))
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            self.servers.empty_caches()
            self.picker: PickerProcess = stack.enter_context(picker_in_front(self.servers))
            self.envoy = stack.enter_context(through_picker(self.picker))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def show(self, topic: str, claim: str, holds: bool, seen: object = "") -> None:
        """Note a finding."""
        self.findings.append(Finding(topic, claim, bool(holds), str(seen)))

    def text(self, tokens: int = 600) -> str:
        """A prompt that nobody sent before, of so many times 4 bytes."""
        return text_of(next(self._texts), tokens)

    def complete(self, prompt: object, server: int | None = None, **fields: object) -> Seen:
        """A completion of a few tokens. `server`: the only one allowed."""
        return self.ask(COMPLETIONS, {"model": MODEL, "prompt": prompt, "max_tokens": 4, **fields}, server)

    def ask(self, path: str, body: object = None, server: int | None = None, method: str | None = None) -> Seen:
        """Through Envoy and the picker."""
        headers = {} if server is None else {"x-subset": self.servers.addresses[server]}
        booked, before = self._booked(), Counts.total(self.servers.counts())
        answer = ask(self.envoy.url + path, body, headers, method)
        self.picker.wait_idle()
        engine = self._settled().since(before)
        after = self._booked()
        told = dict(part.partition("=")[::2] for part in answer.headers.get("x-picker-explain", "").split("; "))
        return Seen(
            answer=answer,
            address=told.get("address"),
            matched=float(told["matched"]) if "matched" in told else None,
            engine=engine,
            booked=Booked(*(now - then for now, then in zip(after, booked, strict=True))),
            usage=usage_of(answer),
        )

    def _settled(self) -> Counts:
        """The engines' counters, once they stand still: they are written a moment after the answer."""
        found = Counts.total(self.servers.counts())
        for _ in range(SETTLING_ROUNDS_MAX):
            time.sleep(0.05)
            before, found = found, Counts.total(self.servers.counts())
            if before == found:
                return found
        raise AssertionError("the engines' counters do not stand still: who else sends requests?")

    def _booked(self) -> Booked:
        names = ("picker_predicted_hit_tokens_total", "picker_observed_hit_tokens_total")
        return Booked(*(self.picker.metric(name) for name in (*names, "picker_hit_prompt_tokens_total")))


def usage_of(answer: Answer) -> dict[str, Any]:
    """What an answer reports, a stream's events merged; empty where nothing is."""
    found: dict[str, Any] = {}
    for each in _documents(answer):
        for carrier in (each, each.get("response"), each.get("message")):
            if isinstance(carrier, dict) and isinstance(carrier.get("usage"), dict):
                found |= {name: value for name, value in carrier["usage"].items() if value is not None}
    return found


def _documents(answer: Answer) -> Iterator[dict[str, Any]]:
    if answer.headers.get("content-type", "").startswith("text/event-stream"):
        for data in re.findall(rb"(?m)^data: ?([^\r\n]*)", answer.body):
            document = msgspec.structs.replace(answer, body=data).json()
            if isinstance(document, dict):
                yield document
    elif isinstance(document := answer.json(), dict):
        yield document
