"""Decisions in any order of events: what is kept current is what a rebuild makes of it, and each explains itself.

Rows of load, books and index are updated in place, a decision's cost is one product over them, and its explanation is
made of the scorers when somebody reads it. So at each decision the rows must equal rebuilt ones, its costs the
weighted sums of what the scorers say, and an explanation read at the end, when endpoints have left and the
configuration is another, must be the one that was read at once.
"""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from picker.api.request import InferenceRequest
from picker.config import Config, Routing, Weights
from picker.decision import Picked
from picker.director import Director
from picker.outcomes import Unavailable, Usage
from picker.pool.specs import EndpointSpec, EngineSample

BLOCK = 1024
_PARTS = [Random(number).randbytes(6 * BLOCK) for number in range(4)]
_TAILS = [Random(100 + number).randbytes((number % 7) * BLOCK + 5) for number in range(40)]

CONFIGS = (
    Config(),
    Config(weights=Weights(prefix=3, queue=5, kv=2), epsilon=1.0, destinations_max=3),
    Config(weights=Weights(prefix=1, queue=0, kv=0), routing=Routing(shared_weight=0.0, learn=False)),
    Config(routing=Routing(kv_capacity_tokens=1000, prefill_tokens_per_second=500.0), threshold=0.3),
)

POOL = 30
KINDS = {
    "decide": 40,
    "first token": 15,
    "finish": 15,
    "answered": 5,
    "served by": 3,
    "wait": 6,
    "sample": 6,
    "members": 1,
}
"""How often what happens, and a new configuration once for each."""


def spec(number: int, life: int = 0) -> EndpointSpec:
    return EndpointSpec(address=f"10.0.0.{number}:80", uid=f"{number}/{life}", name=f"r{number}")


class World:
    """A director, what it decided, and the clock."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.director = Director(Config())
        self.director.replace_endpoints(spec(number) for number in range(POOL))
        self.now = 100.0
        self.running: list[Picked] = []
        self.read: list[tuple[Picked, object]] = []

    def step(self) -> None:
        rng, director = self.rng, self.director
        (what,) = rng.choices([*KINDS, "configure"], [*KINDS.values(), 1])
        if what == "decide":
            self.decide(rng.choice(_PARTS) + rng.choice(_TAILS))
        elif what == "sample":
            self.sample()
        elif what == "members":
            director.replace_endpoints(spec(at, rng.randrange(2)) for at in range(POOL) if rng.random() < 0.95)
        elif what == "configure":
            director.reconfigure(rng.choice(CONFIGS))
        elif what == "wait":
            self.now += rng.choice([0.1, 0.5, 5.0])
        elif self.running:
            booking = rng.choice(self.running).booking
            if what == "first token":
                self.now += rng.random() * 0.3
                director.first_token(booking, self.now)
            elif what == "served by":
                director.served_by(booking, spec(rng.randrange(POOL)).address, self.now)
            elif what == "answered":
                director.answered(booking, rng.choice([200, 404, 503]), self.now)
            else:
                self.running = [picked for picked in self.running if picked.booking is not booking]
                usage = Usage(rng.randrange(4000), rng.randrange(4000), None)
                director.finish(booking, reached=rng.random() < 0.8, usage=usage)

    def decide(self, prompt: bytes) -> None:
        rng = self.rng
        request = InferenceRequest(
            api="completions", prompt=prompt, prompt_bytes=len(prompt), stream=rng.random() < 0.8, max_tokens=90
        )
        standing = {endpoint.spec.address for endpoint in self.director.datastore.endpoints}
        subset = None
        if rng.random() < 0.2:
            subset = [spec(number).address for number in range(0, POOL, 5)]
            standing &= set(subset)
        self.director.loads.check(self.director.datastore.snapshot(self.now))
        decision = self.director.decide(
            request, now=self.now, rng=rng, subset=subset, first_chunk_visible=rng.random() < 0.9
        )
        if not standing:
            assert isinstance(decision, Unavailable)
            return
        assert isinstance(decision, Picked) and set(decision.addresses) <= standing
        weights = self.director.config.weights
        explained = decision.explain()
        for view in explained.endpoints:
            seconds = view.seconds
            assert {"prefix", "queue", "kv"} <= set(seconds)
            costs = sum(getattr(weights, name) * value for name, value in seconds.items())
            assert view.cost_seconds == pytest.approx(costs / weights.prefix, rel=1e-9, abs=1e-12)
            assert all(value >= -1e-12 for value in seconds.values())
        self.running.append(decision)
        self.read.append((decision, explained))

    def sample(self) -> None:
        rng = self.rng
        endpoint = rng.choice(self.director.datastore.endpoints)
        reading = EngineSample(
            uid=endpoint.spec.uid,
            taken_at_seconds=self.now,
            engine="vllm",
            waiting_requests=rng.choice([None, 0, 7]),
            kv_cache_utilization=rng.choice([None, 0.0, 0.6, 1.0]),
            kv_capacity_tokens=rng.choice([None, 5_000, 400_000]),
            started_at_seconds=rng.choice([1.0, 1.0, 2.0]),
        )
        self.director.record_sample(reading)


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 2**32))
def test_rows_costs_and_explanations_hold_through_any_events(seed):
    world = World(Random(seed))
    for _ in range(250):
        world.step()
    world.director.datastore.check()
    world.director.index.check()
    for decision, explained in world.read:
        assert decision.explain() == explained
    for picked in world.running:
        world.director.finish(picked.booking, reached=True)
    ledger = world.director.ledger
    assert ledger.open_charges == 0
    assert not any(column.any() for column in ledger.columns(len(ledger.sequences)))
