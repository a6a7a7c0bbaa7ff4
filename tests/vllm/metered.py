"""`make test-vllm-usage`: what the picker charges tenants beside what two real vLLM servers counted themselves.

Mixed requests of three tenants through Envoy: chats, completions, Anthropic's API and Responses, streams with their
usage. Prompt, output and cached tokens of all of them must equal the engines' own counters to the token. Then two
choices of one prompt, which the answer counts once and the engine twice. Then streams that are cut off in the middle,
which report until then: their prompts must be equal, their output at most the engines', and all of them marked. At
last streams that report nothing: all marked, nothing counted.
Exits 0 if everything held, 1 if not, 2 if it could not be set up.
"""

import argparse
import asyncio
import sys
import time
from random import Random
from typing import Any

import aiohttp
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from rich.progress import Progress

from picker.lab.envoy import EnvoyError
from picker.sim.prompts import text_of
from tests.ports import free_ports
from tests.vllm.environment import SetupError, prepare
from tests.vllm.servers import MODEL, Servers, VllmServer
from tests.vllm.stand import Finding, Stand

console = Console(width=120, highlight=False)
TENANTS = ("acme", "globex", "initech")
TENANT_HEADER = "x-gateway-inference-fairness-id"
AT_ONCE = 24
KINDS = ("prompt", "output", "cached")
ENGINES = {
    "prompt": "vllm:prompt_tokens_total",
    "output": "vllm:generation_tokens_total",
    "cached": "vllm:prefix_cache_hits_total",
}

Body = dict[str, Any]
Asked = tuple[str, Body]


def mixed(rng: Random, number: int) -> Asked:
    """A request that tells its usage. Four of five share a beginning with others, so that some of it is cached."""
    text = text_of(rng.randrange(8), 256) + text_of(1000 + number, rng.randrange(8, 128))
    messages = [{"role": "user", "content": text}]
    tokens = rng.randrange(1, 9)
    stream: Body = {"stream": True, "stream_options": {"include_usage": True}}
    kind = rng.randrange(6)
    if kind == 0:
        return "/v1/chat/completions", {"messages": messages, "max_tokens": tokens}
    if kind == 1:
        return "/v1/chat/completions", {"messages": messages, "max_tokens": tokens, **stream}
    if kind == 2:
        return "/v1/completions", {"prompt": text, "max_tokens": tokens}
    if kind == 3:
        return "/v1/completions", {"prompt": text, "max_tokens": tokens, **stream}
    if kind == 4:
        return "/v1/messages", {"messages": messages, "max_tokens": tokens, "stream": rng.random() < 0.5}
    return "/v1/responses", {"input": text, "max_output_tokens": max(tokens, 2), "stream": rng.random() < 0.5}


def two_choices(rng: Random, number: int) -> Asked:
    """Its answer counts the prompt once; the engine counts it for each choice."""
    text = text_of(rng.randrange(8), 256) + text_of(300_000 + number, 32)
    return "/v1/completions", {"prompt": text, "max_tokens": rng.randrange(1, 9), "n": 2, "temperature": 1.0}


def cut_off(rng: Random, number: int) -> Asked:
    """A long stream that reports with each event."""
    usage = {"include_usage": True, "continuous_usage_stats": True}
    text = text_of(rng.randrange(8), 256) + text_of(100_000 + number, 16)
    return "/v1/completions", {
        "prompt": text, "max_tokens": 200, "ignore_eos": True, "stream": True, "stream_options": usage
    }  # fmt: skip


def silent(rng: Random, number: int) -> Asked:
    """A stream that reports nothing."""
    return "/v1/completions", {"prompt": text_of(200_000 + number, 64), "max_tokens": 3, "stream": True}


class Audit:
    """Counts on both sides, as differences since it was made."""

    def __init__(self, stand: Stand) -> None:
        self._stand = stand
        self._before = (self._engines(), self._charged())

    def _engines(self) -> dict[str, float]:
        found = dict.fromkeys(KINDS, 0.0)
        for server in self._stand.servers.all:
            for family in text_string_to_metric_families(server.page().decode()):
                for sample in family.samples:
                    for kind, name in ENGINES.items():
                        if sample.name == name:
                            found[kind] += sample.value
        return found

    def _charged(self) -> dict[tuple[str, str], float]:
        """By (kind or `requests`, usage)."""
        usages = ("reported", "partial", "unknown", "estimated", "none")
        names = {"requests": "picker_tenant_requests_total"}
        names |= {kind: f"picker_tenant_{kind}_tokens_total" for kind in KINDS}
        return {
            (what, usage): self._stand.picker.metric(name, usage=usage)
            for what, name in names.items()
            for usage in usages
        }

    def engines(self) -> dict[str, float]:
        """Once the counters stand still."""
        now = self._engines()
        while True:
            time.sleep(0.5)
            before, now = now, self._engines()
            if before == now:
                return {kind: now[kind] - self._before[0][kind] for kind in KINDS}

    def charged(self, what: str, usage: str) -> float:
        key = (what, usage)
        return self._charged()[key] - self._before[1][key]


async def send(url: str, asked: list[Asked], tell: Any, *, cut: Random | None = None) -> int:
    """All of them, so many at once; how many were not answered 200. `cut`: leave in the middle."""
    waiting = iter(enumerate(asked))
    failed = 0

    async def one(session: aiohttp.ClientSession) -> None:
        nonlocal failed
        for number, (path, body) in waiting:
            headers = {TENANT_HEADER: TENANTS[number % len(TENANTS)]}
            async with session.post(url + path, json={"model": MODEL, **body}, headers=headers) as answer:
                failed += answer.status != 200
                if cut is None:
                    await answer.read()
                else:
                    for _ in range(cut.randrange(2, 30)):
                        await answer.content.readline()
                    answer.close()
            tell()

    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as session:
        await asyncio.gather(*(one(session) for _ in range(AT_ONCE)))
    return failed


def audit(stand: Stand, requests: int, seed: int) -> list[Finding]:
    """A tenth of the requests has two choices, a tenth is cut off, a tenth reports nothing."""
    rng = Random(seed)
    tenth = requests // 10
    findings = []

    def show(claim: str, holds: bool, seen: object) -> None:
        findings.append(Finding("usage", claim, holds, str(seen)))
        console.print(f"{'holds ' if holds else 'FAILED'} {claim} ({seen})", markup=False)

    def run(what: str, asked: list[Asked], cut: Random | None = None) -> Audit:
        made = Audit(stand)
        with Progress(console=console) as progress:
            task = progress.add_task(what, total=len(asked))
            failed = asyncio.run(send(stand.envoy.url, asked, lambda: progress.advance(task), cut=cut))
        stand.picker.wait_idle()
        show(f"{what}: every request was answered 200", failed == 0, f"{failed} were not")
        return made

    asked = [mixed(rng, number) for number in range(requests - 3 * tenth)]
    made = run("requests that report", asked)
    engines = made.engines()
    show("all are marked as reported", made.charged("requests", "reported") == len(asked),
         f"{made.charged('requests', 'reported'):.0f} of {len(asked)}")  # fmt: skip
    for kind in KINDS:
        charged = made.charged(kind, "reported")
        show(f"{kind} tokens equal the engines' own", charged == engines[kind],
             f"charged {charged:.0f}, counted {engines[kind]:.0f}")  # fmt: skip

    made = run("two choices of one prompt", [two_choices(rng, number) for number in range(tenth)])
    engines = made.engines()
    prompt, output = made.charged("prompt", "reported"), made.charged("output", "reported")
    show("their output equals the engines' own", output == engines["output"],
         f"charged {output:.0f}, counted {engines['output']:.0f}")  # fmt: skip
    show("their prompts are charged once, and counted twice", 2 * prompt == engines["prompt"],
         f"charged {prompt:.0f}, counted {engines['prompt']:.0f}")  # fmt: skip

    made = run("streams that are cut off", [cut_off(rng, number) for number in range(tenth)], Random(seed))
    engines = made.engines()
    # Some had passed Envoy whole before their client left.
    whole, cut = made.charged("requests", "reported"), made.charged("requests", "partial")
    show("all are marked as partial, or came whole", whole + cut == tenth and cut > 0,
         f"{cut:.0f} and {whole:.0f} of {tenth}")  # fmt: skip
    prompt, output = (made.charged(kind, "partial") + made.charged(kind, "reported") for kind in ("prompt", "output"))
    show("their prompts equal the engines' own", prompt == engines["prompt"],
         f"charged {prompt:.0f}, counted {engines['prompt']:.0f}")  # fmt: skip
    show("their output is at most the engines'", 0 < output <= engines["output"],
         f"charged {output:.0f}, counted {engines['output']:.0f}")  # fmt: skip

    made = run("streams that report nothing", [silent(rng, number) for number in range(tenth)])
    show("all are marked as unknown", made.charged("requests", "unknown") == tenth,
         f"{made.charged('requests', 'unknown'):.0f} of {tenth}")  # fmt: skip
    guessed = sum(made.charged(kind, usage) for kind in KINDS for usage in ("reported", "partial", "unknown"))
    show("and none of their tokens is guessed", guessed == 0, f"{guessed:.0f} charged")
    return findings


def main() -> int:
    parser = argparse.ArgumentParser(prog="make test-vllm-usage", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--requests", type=int, default=10_000, help="in all (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the requests (default %(default)s)")
    options = parser.parse_args()
    try:
        folder = prepare(console.print)
        began = time.monotonic()
        made = [VllmServer(number, port, folder, ("both",)) for number, port in enumerate(free_ports(2), 1)]
        with Servers(made, console.print) as servers, Stand(servers) as stand:
            findings = audit(stand, options.requests, options.seed)
    except (SetupError, EnvoyError) as error:
        console.print(f"test-vllm-usage: {error}", markup=False)
        return 2
    failed = [each for each in findings if not each.holds]
    console.print(f"{len(findings) - len(failed)} of {len(findings)} hold; {time.monotonic() - began:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
