"""One engine over a public trace hits what a pooled LRU of the same size hits, within a point.

The traces stand beside the repository (`../shared/traces`); without them there is nothing to test.
The expected shares were computed apart from this code (see the README there).
"""

from pathlib import Path

import pytest

from picker.sim.engine import EngineRequest, ModelServer
from picker.sim.profiles import PROFILES
from picker.sim.prompts import Chain, prompts
from picker.sim.traces import mooncake

TRACES = Path(__file__).parents[3] / "shared" / "traces"

POOLED_LRU = {
    "conversation": {1e6: 0.055, 2.56e6: 0.114, 5.1e6: 0.216, 10.2e6: 0.294, 25.6e6: 0.362},
    "synthetic": {1e6: 0.149, 2.56e6: 0.285, 5.1e6: 0.432, 10.2e6: 0.582, 25.6e6: 0.651},
}


@pytest.mark.parametrize(("trace", "capacity"), [(t, c) for t, shares in POOLED_LRU.items() for c in shares])
def test_hit_rate_is_the_pooled_lrus(trace, capacity):
    path = TRACES / f"{trace}_trace.jsonl"
    if not path.exists():
        pytest.skip(f"no {path.name} beside the repository")
    server = ModelServer(PROFILES["8b-h100"].with_capacity(int(capacity)))
    at = 0.0
    for session in mooncake(path, seed=0, jitter_seconds=0.0):
        for _, said in prompts(session):
            chain = Chain(16)
            for segment in said:
                chain.append(segment)
            server.advance(at)
            server.submit(at, EngineRequest(session.id, chain.tokens, 1, chain.ids))
            at += 1000.0
    server.advance(at)
    rate = server.prefix_hits_tokens / server.prefix_queries_tokens
    assert rate == pytest.approx(POOLED_LRU[trace][capacity], abs=0.01)
