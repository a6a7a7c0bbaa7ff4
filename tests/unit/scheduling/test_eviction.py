"""Where some caches are full and others have room, what is new goes where nothing is lost by it."""

from random import Random

import pytest

from picker.api.request import InferenceRequest
from picker.config import Config, Weights
from picker.director import Director
from picker.pool.specs import EndpointSpec, EngineSample

KIB = 1024
CACHE_TOKENS = 50_000


def make(**config):
    director = Director(Config(epsilon=0.0, **config))
    director.replace_endpoints(EndpointSpec(address=f"10.0.0.{n}:80", uid=str(n), name=str(n)) for n in range(2))
    for n in range(2):
        director.record_sample(
            EngineSample(
                uid=str(n),
                taken_at_seconds=0.0,
                engine="vllm",
                waiting_requests=0,
                kv_cache_utilization=0.0,
                kv_capacity_tokens=CACHE_TOKENS,
            )
        )
    return director


def sessions(director, *, turns=8):
    """Eight paced sessions with one system prompt, each turn longer: hits by an exact LRU of what went where."""
    system = Random(1).randbytes(6 * KIB)
    texts = [system + Random(n + 2).randbytes(24 * KIB) for n in range(8)]
    caches = [{}, {}]
    hits = asked = 0
    used = set()
    for turn in range(turns):
        for n, text in enumerate(texts):
            request = InferenceRequest(api="chat_completions", model="m", prompt=text, prompt_bytes=len(text))
            picked = director.decide(request, now=float(turn * 8 + n), rng=Random(turn))
            director.finish(picked.booking, reached=True)
            slot = picked.booking.charge.endpoint.slot
            used.add(slot)
            cache, known = caches[slot], True
            for end in range(KIB, len(text) + 1, KIB):
                block = text[:end]
                asked += 1
                known = known and block in cache
                hits += known
                cache.pop(block, None)
                cache[block] = None
                while len(cache) > CACHE_TOKENS * 4 // KIB:
                    del cache[next(iter(cache))]
            texts[n] = text + Random(turn * 8 + n + 100).randbytes(2 * KIB)
    return hits / asked, used


def test_sessions_that_share_a_prompt_use_the_empty_cache_too():
    rate, used = sessions(make())
    assert used == {0, 1} and rate > 0.7


def test_without_the_price_all_stay_where_the_prompt_is():
    """What the price is for: else this test should go, and the price with it."""
    rate, used = sessions(make(weights=Weights(eviction=0.0)))
    assert len(used) == 1 and rate < 0.3


@pytest.mark.parametrize("weight", [0.0, 1.5])
def test_in_a_pool_that_is_full_or_empty_everywhere_nothing_is_different(weight):
    director = make(weights=Weights(eviction=weight))
    assert director.index.full_bits == 0
    for n in (0, 1, 2, 3):
        text = Random(n).randbytes(150 * KIB)
        request = InferenceRequest(api="chat_completions", model="m", prompt=text, prompt_bytes=len(text))
        picked = director.decide(request, now=1.0, rng=Random(1), subset=[f"10.0.0.{n % 2}:80"])
        director.finish(picked.booking, reached=True)
    assert director.index.full_bits == 3
    again = director.decide(request, now=2.0, rng=Random(1))
    assert "eviction" not in again.explain().endpoints[0].seconds
