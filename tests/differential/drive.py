"""Whole exchanges through the build that is on the path, told as a line a case: what went back, books, pages.

    PYTHONPATH=<a tree> python tests/differential/drive.py <this repository's tests/fixtures>

The same lines must come from both builds (`test_both_builds.py`). Cases: every API's shape, sizes on both sides of
every threshold in the code, one message or chunks of any cut, bytes and views as the wire hands them over, and what
was recorded of a real engine, its answers too. Clock and dice are the cases' own, so nothing here depends on time.
"""

import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from picker.api import paths as table
from picker.api.answers import LINE_BYTES_MAX, WHOLE_BYTES_MAX
from picker.api.document import SHORTENED_BYTES_MIN
from picker.api.mending import MEND_BYTES_MAX
from picker.api.reading import COUNTED_BYTES_MIN, SECOND_READING_BYTES_MAX
from picker.config import Config
from picker.decision import Finished
from picker.director import Director
from picker.edge.telemetry.decisions import DecisionRing
from picker.edge.telemetry.observers import Observers
from picker.edge.telemetry.page import Telemetry
from picker.edge.telemetry.view import PoolView, endpoint_rows
from picker.extproc import events, replies
from picker.extproc.events import BodyMode
from picker.extproc.exchange import SMALL_CHUNK_BYTES, Exchange
from picker.extproc.replies import ECHO_BYTES_MAX
from picker.extproc.wire import encode
from picker.pool.specs import EndpointSpec
from picker.prefix.blocks import BLOCK_BYTES

MIB = 1024 * 1024
THRESHOLDS = (
    *(BLOCK_BYTES, SMALL_CHUNK_BYTES, SHORTENED_BYTES_MIN, ECHO_BYTES_MAX, LINE_BYTES_MAX, WHOLE_BYTES_MAX),
    *(COUNTED_BYTES_MIN, SECOND_READING_BYTES_MAX, 512 * 1024, MIB),
)
SIZES = sorted({1, 2, *(edge + by for edge in THRESHOLDS for by in (-1, 0, 1))})
LARGE = (MEND_BYTES_MAX - 1000, MEND_BYTES_MAX + 1, 16 * MIB - 1000, 16 * MIB + 1, 20 * MIB)
PATHS = (
    *("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/embeddings", "/generate"),
    *("/api/chat", "/completion", "/v1/rerank", "/v1/chat/completions/batch", "/invocations"),
)
OTHER_PATHS = tuple(
    dict.fromkeys(
        row.shape.lstrip("^").replace("{model}", "m").replace("{id}", "1")
        for row in table.TABLE
        if row.work is table.READ and f"/v1{row.shape}" not in PATHS and row.shape not in PATHS
    )
)
"""All others whose prompts are read."""
FIELDS = {
    "/v1/embeddings": "input",
    "/generate": "text",
    "/v1/rerank": "query",
    "/api/embed": "input",
    "/api/embeddings": "prompt",
    "/v2/embed": "texts",
    "/v1/embed": "texts",
    "/encode": "text",
    "/embedding": "content",
    "/embed": "inputs",
    "/generate_stream": "inputs",
    "/": "inputs",
    "/infill": "input_prefix",
}
"""Where a prompt stands; elsewhere in `prompt`."""


class World:
    """A director with four endpoints, its telemetry, and a clock that ticks."""

    def __init__(self) -> None:
        self.now = 100.0
        self.director = Director(Config(epsilon=0.1))
        self.director.replace_endpoints(
            EndpointSpec(address=f"10.0.0.{n}:80", uid=str(n), name=f"pod-{n}") for n in range(4)
        )
        self.rng = Random(5)
        self.telemetry = Telemetry(self._view)
        self.ring = DecisionRing()
        self.observers = Observers(self.ring, self.telemetry)
        self.ended: list[Finished] = []
        self.faults: list[str] = []

    def clock(self) -> float:
        self.now += 0.001
        return self.now

    def exchange(self) -> Exchange:
        return Exchange(
            self.director,
            clock=self.clock,
            rng=self.rng,
            finished=self._finished,
            decided=self.observers.decided,
            faulted=lambda where, error: self.faults.append(f"{where}: {type(error).__name__} {error}"),
        )

    def _finished(self, record: Finished) -> None:
        self.ended.append(record)
        self.observers.finished(record)

    def _view(self) -> PoolView:
        return PoolView(pool_name="p", endpoints=endpoint_rows(self.director, self.now), synced=True)

    def books(self) -> dict[str, Any]:
        director = self.director
        page = "".join(part for part in self.telemetry.parts() if "picker_build_info" not in part)
        return {
            "ledger": [column.tolist() for column in director.ledger.columns(4)],
            "open": director.ledger.open_charges,
            "index": [director.index.blocks, director.index.entries, sorted(director.index.blocks_held.items())],
            "model": [list(director.rates.model(name)) for name in (None, "m")],
            "page": hashlib.sha256(page.encode()).hexdigest(),
            "faults": self.faults,
        }


def told(sent: list[Any]) -> str:
    """Replies, by the bytes that the proxy gets."""
    digest = hashlib.sha256()
    for reply in sent:
        assert isinstance(reply, replies.Reply)
        head, body = encode(reply)
        digest.update(head)
        digest.update(body)
    return digest.hexdigest()[:16]


def cut(body: bytes, how: str, rng: Random) -> Iterator[bytes | memoryview]:
    """The body in chunks: whole, as Envoy cuts it, or anywhere; as what a wire may hand over."""
    if how == "whole":
        ends = [len(body)]
    elif how == "62000":
        ends = [*range(62_000, len(body), 62_000), len(body)]
    else:
        ends = sorted({rng.randrange(1, len(body) + 1) for _ in range(7)} | {len(body)})
    begin = 0
    for number, end in enumerate(ends):
        piece = body[begin:end]
        begin = end
        yield (piece, memoryview(piece), memoryview(bytearray(piece)))[(number + len(how)) % 3]


def bodies(path: str, size: int) -> Iterator[tuple[str, bytes]]:
    """Bodies of about `size` bytes in each way that prompts are long."""
    texts = [f"word {n} " + "x" * 480 for n in range(size // 490)]
    ids = [100_000 + n % 500 for n in range(size // 7)]
    prompts: dict[str, Any] = {
        "one string": "a" * max(0, size - 60),
        "short strings": texts or ["s"],
        "ids": ids or [1],
    }
    for name, prompt in prompts.items():
        yield name, json.dumps(_shaped(path, prompt), separators=(",", ":")).encode()
    yield "half an emoji", json.dumps(_shaped(path, "e" * max(0, size - 66) + "\ud83d")).encode()
    yield "not json", b'{"model": "m", "messages": [' + b'"' + b"n" * size + b'", }'


def _shaped(path: str, prompt: Any) -> dict[str, Any]:
    turns = prompt if isinstance(prompt, list) and prompt and isinstance(prompt[0], str) else [str(prompt)]
    messages = [{"role": "user" if n % 2 == 0 else "assistant", "content": text} for n, text in enumerate(turns)]
    if path.endswith("/batch"):
        return {"model": "m", "messages": [messages]}
    if path.endswith(("/chat/completions", "/messages", "/api/chat", "/invocations")):
        return {"model": "m", "max_tokens": 5, "messages": messages}
    if path.endswith("/responses"):
        return {"model": "m", "input": messages}
    if path == "/v2/chat":
        return {"model": "m", "messages": messages}
    if path == "/vertex_generate":
        return {"instances": [{"text": text} for text in turns], "parameters": {}}
    if path.startswith("/models/"):
        return {"text_input": turns[0]}
    return {"model": "m", FIELDS.get(path, "prompt"): prompt}


ANSWERS = {
    "whole": ("application/json", b'{"id":"x","usage":{"prompt_tokens":900,"completion_tokens":7}}'),
    "stream": (
        "text/event-stream",
        b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
        + b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n' * 5
        + b"data: [DONE]\n\n",
    ),
}


def play(
    world: World,
    path: str,
    body: bytes,
    mode: int,
    how: str,
    seed: int,
    answer: tuple[str, str, bytes] | None = None,
) -> list[str]:
    """One exchange, and what went back to the proxy. `answer`: its status, type and body."""
    rng = Random(seed)
    exchange = world.exchange()
    head = {":method": "POST", ":path": path, "content-type": "application/json", "content-length": str(len(body))}
    out = [told(exchange.receive(events.RequestHeaders(head, False, mode, mode), world.clock()))]
    chunks = list(cut(body, "whole" if mode == BodyMode.BUFFERED else how, rng))
    for number, chunk in enumerate(chunks):
        last = number == len(chunks) - 1
        out.append(told(exchange.receive(events.RequestBody(chunk, last), world.clock())))
    status, kind, content = answer or ("200", *ANSWERS["stream" if seed % 2 else "whole"])
    out.append(told(exchange.receive(events.ResponseHeaders({":status": status, "content-type": kind}), world.clock())))
    for chunk in cut(content, how, rng):
        out.append(told(exchange.receive(events.ResponseBody(bytes(chunk), False), world.clock())))
    out.append(told(exchange.receive(events.ResponseBody(b"", True), world.clock())))
    exchange.close()
    return out


def cases() -> Iterator[tuple[str, str, bytes, int, str]]:
    """Name, path, body, mode, cut."""
    modes = (BodyMode.FULL_DUPLEX_STREAMED, BodyMode.BUFFERED)
    for number, path in enumerate(PATHS):
        everyday = path in PATHS[:4]
        for size in SIZES if everyday else SIZES[:: 1 + len(PATHS) // 4]:
            for kind, body in bodies(path, size):
                mode = modes[(number + size) % 2]
                how = ("whole", "62000", "anywhere")[(size + len(kind)) % 3]
                yield f"{path} {size} {kind} {how}", path, body, mode, how
    for number, path in enumerate(OTHER_PATHS):
        for size in (
            1,
            *(edge + by for edge in (BLOCK_BYTES, 16_384, ECHO_BYTES_MAX, 512 * 1024) for by in (-1, 0, 1)),
        ):
            for kind, body in bodies(path, size):
                how = ("whole", "62000", "anywhere")[(size + number) % 3]
                yield f"{path} {size} {kind} {how}", path, body, modes[(number + len(kind)) % 2], how
    for size in LARGE:
        for number, (kind, body) in enumerate(bodies(PATHS[0], size)):
            yield f"large {size} {kind}", PATHS[0], body, modes[size % 2], "62000"
            path = PATHS[1 + (number + size) % 4]
            yield f"large {path} {size} {kind}", path, body, BodyMode.FULL_DUPLEX_STREAMED, "anywhere"


def recorded(fixtures: Path) -> Iterator[tuple[str, str, bytes, tuple[str, str, bytes]]]:
    """Requests that a real engine was asked, and what it answered: status, type, body."""
    paths = {
        "completions": PATHS[1],
        "responses": PATHS[2],
        "messages": PATHS[3],
        "embeddings": PATHS[4],
    }
    for file in sorted(fixtures.glob("exchanges/**/*.request.json")):
        name = file.name.partition(".")[0]
        head = file.with_name(f"{name}.headers.txt").read_text().splitlines()
        kind = next(line.partition(":")[2].strip() for line in head if line.lower().startswith("content-type:"))
        content = file.with_name(f"{name}.response.bin").read_bytes()
        answer = head[0].split()[1], kind, content
        yield name, paths.get(name.partition("-")[0], PATHS[0]), file.read_bytes(), answer


def main() -> None:
    world = World()
    number = 0
    for number, (name, path, body, mode, how) in enumerate(cases()):
        print(json.dumps([name, play(world, path, body, mode, how, number)]))
        if number % 50 == 0:
            print(json.dumps([f"books after {number}", world.books()]))
    for name, path, body, answer in recorded(Path(sys.argv[1])):
        for how in ("whole", "62000", "anywhere"):
            number += 1
            mode = BodyMode.BUFFERED if how == "whole" else BodyMode.FULL_DUPLEX_STREAMED
            print(json.dumps([name, play(world, path, body, mode, how, number, answer), world.books()["model"]]))
    print(json.dumps(["books", world.books(), len(world.ended), world.director.ledger.open_charges]))


if __name__ == "__main__":
    main()
