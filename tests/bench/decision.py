"""The decision alone: parse, hash, match, score, charge, record; and what the index weighs."""

import gc
import json
import random
import subprocess
import sys
import time
from array import array
from collections.abc import Callable, Iterator

import psutil

from picker.api import find_api, read_body
from picker.api.request import InferenceRequest
from picker.config import Config
from picker.director import Director
from picker.pool.specs import EndpointSpec, EngineSample
from picker.prefix.index import PrefixIndex

SIZES = {"2 KB": 2_000, "32 KB": 32_000, "400 KB": 400_000}


def chat_body(size: int, seed: int) -> bytes:
    """A chat request of about `size` bytes, like no other of its seed: prose in lines of some 80 characters."""
    rng = random.Random(seed)
    text = "".join(rng.choices("abcdefghijklm  nopqrs", k=max(1, size - 150)))
    text = "\n".join(text[start : start + 80] for start in range(0, len(text), 81))
    tree = {"model": "m", "messages": [{"role": "user", "content": text}], "stream": True, "max_tokens": 200}
    return json.dumps(tree).encode()


def director_of(endpoints: int, capacity_tokens: int = 4_000_000) -> Director:
    """A pool that has just been scraped."""
    director = Director(Config())
    director.replace_endpoints(
        EndpointSpec(address=f"10.0.{at // 250}.{at % 250}:8000", uid=str(at), name=f"pod-{at}")
        for at in range(endpoints)
    )
    for at in range(endpoints):
        director.record_sample(
            EngineSample(
                uid=str(at),
                taken_at_seconds=0.0,
                engine="vllm",
                waiting_requests=0,
                kv_cache_utilization=0.3,
                kv_capacity_tokens=capacity_tokens,
            )
        )
    return director


def best_of(rounds: int, calls: int, once: Callable[[int], None]) -> float:
    """CPU microseconds a call, the best round."""
    best = float("inf")
    for _ in range(rounds):
        began = time.process_time()
        for number in range(calls):
            once(number)
        best = min(best, (time.process_time() - began) / calls)
    return best * 1e6


def decisions() -> Iterator[tuple[int, str, float, float]]:
    """`(endpoints, size, microseconds of the whole, microseconds of the decision without parsing)`."""
    api = find_api("/v1/chat/completions")
    assert api is not None
    for endpoints in (10, 100, 1_000):
        director = director_of(endpoints)
        rng = random.Random(1)
        for name, size in SIZES.items():
            bodies = [chat_body(size, seed) for seed in range(50)]
            requests = [read_body(api, body) for body in bodies]

            calls = 2_000 if size < 100_000 else 200
            whole = Timed(director, rng, lambda at, bodies=bodies: read_body(api, bodies[at % 50]))
            decide = Timed(director, rng, lambda at, requests=requests: requests[at % 50])
            best_of(1, 100, whole)
            yield endpoints, name, best_of(7, calls, whole), best_of(7, calls, decide)


class Timed:
    """One decision and its release."""

    def __init__(self, director: Director, rng: random.Random, request: Callable[..., InferenceRequest]) -> None:
        self.director, self.rng, self.request = director, rng, request

    def __call__(self, number: int) -> None:
        decision = self.director.decide(self.request(number), now=1.0, rng=self.rng, first_chunk_visible=True)
        self.director.finish(decision.booking, reached=True)


INDEX_SHAPES = ((1, 100), (8, 100), (50, 10), (50, 100), (50, 1_000), (200, 100))
"""(blocks a conversation, endpoints)"""


def index_bytes() -> Iterator[tuple[int, int, float, float]]:
    """`(blocks a conversation, endpoints, resident bytes a block, estimated bytes a block)`, each block held once.

    Each in a process of its own: what another measurement freed would hide what this one takes.
    """
    for run, endpoints in INDEX_SHAPES:
        command = [sys.executable, "-m", "tests.bench.decision", str(run), str(endpoints)]
        answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        resident, estimate = json.loads(answer)
        yield run, endpoints, resident, estimate


def _weigh(run: int, endpoints: int, blocks_total: int = 500_000) -> tuple[float, float]:
    process = psutil.Process()
    rng = random.Random(3)
    gc.collect()
    before = process.memory_info().rss
    index = PrefixIndex(bytes_max=1 << 40, capacity_blocks=1 << 40)
    for number in range(blocks_total // run):
        index.record(array("Q", [rng.getrandbits(64) for _ in range(run)]), number % endpoints)
    return (process.memory_info().rss - before) / index.blocks, index.bytes_estimate / index.blocks


if __name__ == "__main__":
    asked = [int(word) for word in sys.argv[1:]]
    print(json.dumps(_weigh(*asked) if asked else list(decisions())))
