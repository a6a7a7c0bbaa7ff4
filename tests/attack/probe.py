"""`python -m tests.attack.probe`: what a tenant can learn of another's prompts, by time, place and headers.

A victim asks something. Then the attacker asks the same prompt (its guess is right) and another of that length (it is
wrong), in random order, through the real Envoy, before simulated model servers with prefix caches. Each prompt is used
once. What tells the two apart is compared as pairs: `told` is the share of pairs in which the right guess was
answered faster, so 50 % is nothing learned, and noise of the machine moves it towards 50 %.

    python -m tests.attack.probe --rounds 200 --build compiled --write     the table goes into docs/security.md
"""

import argparse
import contextlib
import http.client
import json
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple, Self

from picker.lab.child import dying_with_us
from picker.lab.envoy import Balancing, BodySendMode, EnvoyConfig, EnvoyProcess
from tests.attack.raw import CHAT, RST_STREAM, Raw, frame, request_body, request_headers
from tests.bench.processes import TREE, environment

DOCUMENT = TREE / "docs/security.md"
BEGIN, END = "<!-- probes -->\n", "<!-- /probes -->"
PROMPT_CHARS = 16_000
"""Some 4,000 tokens: a long system prompt, or a document."""
SERVERS = 4


class Asked(NamedTuple):
    """One request's answer, as its client saw it."""

    seconds: float
    server: str
    """Simulated servers say who they are; real ones may show it in an id or a fingerprint."""
    headers: frozenset[str]


class Row(NamedTuple):
    """Pairs of right and wrong guesses, under one way of salting."""

    salts: str
    rounds: int
    right_seconds: float
    wrong_seconds: float
    told: float
    route_right_seconds: float
    route_wrong_seconds: float
    route_told: float
    right_where_victim: float
    wrong_where_victim: float
    other_headers: tuple[str, ...]


class System:
    """Model servers, a picker and an Envoy; a context manager."""

    def __init__(self, build: str) -> None:
        self._stack = contextlib.ExitStack()
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="picker-probe-")))
        ports = ",".join(["0"] * SERVERS)
        servers = self._child(folder, TREE, "picker.lab.model_server", "--ports", ports).removeprefix("listening ")
        (folder / "config.yaml").write_text("epsilon: 0\n")
        tree = TREE / "build/compiled" if build == "compiled" else TREE
        ready = self._child(
            folder,
            tree,
            *("picker", "serve", "--insecure", "--host", "127.0.0.1", "--config", str(folder / "config.yaml")),
            *("--grpc-port", "0", "--grpc-health-port", "0", "--metrics-port", "0", "--endpoints", servers),
        )
        found = re.match(r"listening grpc=\S+:(\d+)", ready)
        assert found is not None, ready
        self.picker_port = int(found[1])
        made = EnvoyConfig(
            picker_address=f"127.0.0.1:{self.picker_port}",
            balancing=Balancing.ORIGINAL_DST,
            request_body=BodySendMode.FULL_DUPLEX_STREAMED,
            response_body=BodySendMode.STREAMED,
        )
        self.envoy = self._stack.enter_context(EnvoyProcess(made))
        time.sleep(2.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _child(self, folder: Path, tree: Path, *command: str) -> str:
        child = subprocess.Popen(
            dying_with_us([sys.executable, "-m", *command]),
            cwd=tree,
            env=environment(tree),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._stack.enter_context((folder / "log").open("ab")),
        )
        self._stack.callback(child.wait)
        self._stack.callback(child.kill)
        assert child.stdout is not None
        self._stack.callback(child.stdout.close)
        return child.stdout.readline().decode().strip()

    def ask(self, body: bytes) -> Asked:
        """A whole answer of one token, through the Envoy, on a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.envoy.port, timeout=30)
        connection.connect()
        try:
            began = time.monotonic()
            connection.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
            answer = connection.getresponse()
            answer.read()
            took = time.monotonic() - began
        finally:
            connection.close()
        assert answer.status == 200, answer.status
        headers = {name.lower(): value for name, value in answer.getheaders()}
        return Asked(took, headers["x-served-by"], frozenset(headers))


def body_of(prompt: str, salt: str | None) -> bytes:
    document: dict[str, Any] = {"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": prompt}]}
    if salt is not None:
        document["cache_salt"] = salt
    return json.dumps(document).encode()


def route_seconds(made: Raw, body: bytes) -> float:
    """From the body to its route, at the picker itself; broken off then, so that nothing is learned of it."""
    stream_id = made.open()
    made.say(stream_id, request_headers(CHAT))
    content = request_body(body, end=True)
    began = time.monotonic()
    made.say(stream_id, content)
    made.wait(lambda: made.received.get(stream_id, 0) > 0)
    took = time.monotonic() - began
    made.send(frame(RST_STREAM, 0, stream_id, b"\0\0\0\x08"))
    return took


def told(pairs: list[tuple[float, float]]) -> float:
    """The share of pairs in which the right guess was faster."""
    return sum(right < wrong for right, wrong in pairs) / len(pairs)


def probe(system: System, rounds: int, *, salts: tuple[str | None, str | None], name: str, rng: random.Random) -> Row:
    """`salts`: the victim's and the attacker's."""
    victims, attackers = salts

    def text() -> str:
        return "".join(rng.choices("abcdefghijklmnopqrstuvwxyz ", k=PROMPT_CHARS))

    answers: list[tuple[float, float]] = []
    routes: list[tuple[float, float]] = []
    where = {"right": 0, "wrong": 0}
    odd: set[str] = set()
    with Raw(system.picker_port) as made:
        for _ in range(rounds):
            secret = text()
            home = system.ask(body_of(secret, victims)).server
            guesses = {"right": secret, "wrong": text()}
            order = rng.sample(sorted(guesses), 2)
            route = {guess: route_seconds(made, body_of(guesses[guess], attackers)) for guess in order}
            found = {guess: system.ask(body_of(guesses[guess], attackers)) for guess in order}
            routes.append((route["right"], route["wrong"]))
            answers.append((found["right"].seconds, found["wrong"].seconds))
            for guess in order:
                where[guess] += found[guess].server == home
            odd |= found["right"].headers ^ found["wrong"].headers
    return Row(
        salts=name,
        rounds=rounds,
        right_seconds=statistics.median(right for right, _ in answers),
        wrong_seconds=statistics.median(wrong for _, wrong in answers),
        told=told(answers),
        route_right_seconds=statistics.median(right for right, _ in routes),
        route_wrong_seconds=statistics.median(wrong for _, wrong in routes),
        route_told=told(routes),
        right_where_victim=where["right"] / rounds,
        wrong_where_victim=where["wrong"] / rounds,
        other_headers=tuple(sorted(odd)),
    )


TITLES = (
    "salts",
    "pairs",
    "answer: right, wrong (told)",
    "picker's route: right, wrong (told)",
    "where the victim was: right, wrong",
    "headers that tell",
)


def markdown(rows: list[Row]) -> str:
    lines = ["| " + " | ".join(TITLES) + " |", "|" + "---|" * len(TITLES)]
    for row in rows:
        cells = (
            row.salts,
            str(row.rounds),
            f"{1e3 * row.right_seconds:.1f}, {1e3 * row.wrong_seconds:.1f} ms ({row.told:.0%})",
            f"{1e3 * row.route_right_seconds:.2f}, {1e3 * row.route_wrong_seconds:.2f} ms ({row.route_told:.0%})",
            f"{row.right_where_victim:.0%}, {row.wrong_where_victim:.0%}",
            ", ".join(row.other_headers) or "none",
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.attack.probe", description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--build", choices=("compiled", "interpreted"), default="interpreted")
    parser.add_argument("--write", action="store_true", help="put the table into docs/security.md")
    options = parser.parse_args()
    rng = random.Random(options.seed)
    rows = []
    with System(options.build) as system:
        for name, salts in (
            ("none", (None, None)),
            ("one that both have", ("shared", "shared")),
            ("each its own", ("victim", "attacker")),
        ):
            rows.append(probe(system, options.rounds, salts=salts, name=name, rng=rng))
            print(f"{name}: {rows[-1]}", flush=True)
    print(markdown(rows))
    if options.write:
        text = DOCUMENT.read_text("utf-8")
        head, _, rest = text.partition(BEGIN)
        DOCUMENT.write_text(head + BEGIN + markdown(rows) + END + rest.partition(END)[2], "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
