"""The director through seeded storms: arrivals, aborts, failing and vanishing endpoints, restarts, lying gauges.

A small world of its own (engines that prefill one request after another and forget what they held
when they restart) turns a seed into one history. After every step all invariants hold; when the
storm is over, everything that was charged is released, nobody stays ejected who answers, the index
holds nothing of the dead, and the same history comes out of the same seed.
"""

from collections.abc import Iterator
from random import Random

import pytest

from picker.api.request import InferenceRequest
from picker.config import Config, Routing
from picker.decision import Booking, Picked
from picker.director import Director
from picker.outcomes import Shed, Unavailable, Usage
from picker.pool.endpoint import Endpoint
from picker.pool.specs import EndpointSpec, EngineSample

STEPS = 1500
SLOTS = 6


class Engine:
    """One model server: alive or not, with a start time and counters that a restart sets back."""

    def __init__(self, number: int, now: float) -> None:
        self.number = number
        self.life = 0
        self.started = now
        self.prompt_tokens = 0.0
        self.broken = False

    @property
    def spec(self) -> EndpointSpec:
        address = f"10.0.0.{self.number}:80"
        return EndpointSpec(address=address, uid=f"{address}/{self.life}", name=address)


class Storm:
    """One seeded history."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.dice = Random(seed + 1)
        self.now = 1000.0
        self.director = Director(
            Config(
                epsilon=0.05,
                objectives={"batch": -1},
                destinations_max=self.rng.choice([1, 3]),
                scoring=self.rng.choice(["cost", "cost", "normalized"]),
                routing=Routing(kv_capacity_tokens=20_000),
            )
        )
        self.engines = {number: Engine(number, self.now) for number in range(3)}
        self.running: list[Booking] = []
        self.sessions = [self.rng.randbytes(self.rng.randrange(0, 40_000)) for _ in range(12)]
        self.history: list[object] = []
        self.picked = 0
        self.publish()

    def publish(self) -> None:
        gone = self.director.replace_endpoints(engine.spec for engine in self.engines.values()).left
        assert all(endpoint.slot == -1 for endpoint in gone)

    def endpoint(self, engine: Engine) -> Endpoint | None:
        return self.director.datastore.find(engine.spec.uid)

    # What happens --------------------------------------------------------------------------

    def arrive(self) -> None:
        rng = self.rng
        number = rng.randrange(len(self.sessions))
        if rng.random() < 0.5:
            self.sessions[number] = (self.sessions[number] + rng.randbytes(rng.randrange(3000)))[:200_000]
        text = self.sessions[number]
        request = InferenceRequest(
            api="chat_completions",
            model=rng.choice(["m", "n", None]),
            prompt=text,
            prompt_bytes=len(text),
            stream=rng.random() < 0.7,
            max_tokens=rng.choice([None, 10, 1000]),
        )
        subset = rng.choice([None, None, None, ["10.0.0.0", "10.0.0.1:80"], ["10.0.0.5:80"]])
        decision = self.director.decide(
            request,
            now=self.now,
            rng=self.dice,
            subset=subset,
            objective=rng.choice([None, "batch"]),
            first_chunk_visible=rng.random() < 0.8,
        )
        if isinstance(decision, Picked):
            self.picked += 1
            live = {engine.spec.address for engine in self.engines.values()}
            assert set(decision.addresses) <= live and len(set(decision.addresses)) == len(decision.addresses)
            assert subset is None or set(decision.addresses) <= {f"10.0.0.{number}:80" for number in (0, 1, 5)}
            explained = decision.explain()
            assert sum(view.picked for view in explained.endpoints) == 1
            self.running.append(decision.booking)
            self.history.append((decision.addresses, str(decision.reason)))
        else:
            assert isinstance(decision, Shed | Unavailable)
            self.history.append(decision.reason_word)

    def progress(self) -> None:
        if not self.running:
            return
        rng, director = self.rng, self.director
        at = rng.randrange(len(self.running))
        booking = self.running[at]
        what = rng.randrange(8)
        if what == 0:
            director.served_by(booking, f"10.0.0.{rng.randrange(SLOTS)}:80", self.now)
        elif what == 1:
            director.first_token(booking, self.now)
        elif what == 2:
            director.not_streamed(booking)
        elif what == 3:
            broken = any(
                engine.broken and self.endpoint(engine) is booking.endpoint for engine in self.engines.values()
            )
            status = rng.choice([500, 503]) if broken else rng.choice([200, 200, 200, 404, 429])
            director.answered(booking, status, self.now)
        else:
            del self.running[at]
            usage = Usage(rng.randrange(1, 9000), rng.randrange(500)) if rng.random() < 0.5 else None
            for _ in range(rng.choice([1, 1, 2])):
                director.finish(booking, reached=what > 4, usage=usage)

    def churn(self) -> None:
        rng = self.rng
        number = rng.randrange(SLOTS)
        engine = self.engines.get(number)
        if engine is None:
            self.engines[number] = Engine(number, self.now)
        elif rng.random() < 0.4:
            del self.engines[number]
        elif rng.random() < 0.5:
            engine.life += 1
            engine.started, engine.prompt_tokens = self.now, 0.0
        else:
            engine.broken = not engine.broken
        self.publish()

    def restart(self) -> None:
        if self.engines:
            engine = self.rng.choice(list(self.engines.values()))
            engine.started, engine.prompt_tokens = self.now, 0.0

    def scrape(self) -> None:
        rng = self.rng
        for engine in self.engines.values():
            engine.prompt_tokens += rng.randrange(1000)
            restarted_before = self.director.datastore.samples.get(engine.spec.uid)
            told = self.director.record_sample(
                EngineSample(
                    uid=engine.spec.uid,
                    taken_at_seconds=self.now - rng.choice([0.0, 0.5, 10.0]),
                    engine="vllm",
                    waiting_requests=rng.choice([None, 0, 1, 20]),
                    kv_cache_utilization=rng.choice([None, 0.0, 0.5, 1.0]),
                    kv_capacity_tokens=rng.choice([None, 20_000, 5_000]),
                    started_at_seconds=engine.started,
                    prompt_tokens_total=engine.prompt_tokens,
                )
            )
            assert told == (restarted_before is not None and restarted_before.started_at_seconds != engine.started)
            endpoint = self.endpoint(engine)
            assert not told or endpoint is None or self.director.index.blocks_held.get(endpoint.slot, 0) == 0

    def step(self) -> None:
        draw = self.rng.random()
        self.now += self.rng.choice([0.0, 0.001, 0.05, 1.0])
        for share, act in (
            (0.45, self.arrive),
            (0.90, self.progress),
            (0.94, self.scrape),
            (0.97, self.churn),
            (0.98, self.restart),
            (0.99, lambda: self.director.reconfigure(self.director.config)),
            (1.00, lambda: setattr(self, "now", self.now + 70.0)),
        ):
            if draw < share:
                act()
                return

    # What must hold ------------------------------------------------------------------------

    def check(self) -> None:
        director = self.director
        director.datastore.check()
        director.index.check()
        charged = [booking for booking in self.running if not booking.charge.released]  # but for a stranger's
        assert director.ledger.open_charges == len(charged)
        live = {id(endpoint): endpoint for endpoint in director.datastore.endpoints}
        counted = dict.fromkeys(live, 0)
        for booking in charged:
            if id(booking.endpoint) in counted:
                counted[id(booking.endpoint)] += 1
        for key, endpoint in live.items():
            assert endpoint.in_flight_requests == counted[key]
        slots = {endpoint.slot for endpoint in live.values()}
        assert set(director.index.blocks_held) <= slots, "entries of the dead"
        rates = director.rates.rate_inverse
        assert (rates >= 1e-4 / 30.001).all() and (rates <= 1e-4 * 30.001).all()

    def settle(self) -> None:
        """The storm is over: everything ends, everybody is healthy."""
        while self.running:
            self.director.finish(self.running.pop(), reached=True)
            self.check()
        self.engines = {number: Engine(number, self.now) for number in range(SLOTS)}
        self.publish()
        for engine in self.engines.values():
            engine.broken = False
        self.now += 61.0


def calm(storm: Storm) -> Iterator[str]:
    """Ordinary requests, each answered and ended."""
    for number in range(60):
        decision = storm.director.decide(
            InferenceRequest(api="x", prompt=bytes([number]) * 5000, prompt_bytes=5000), now=storm.now, rng=storm.dice
        )
        assert isinstance(decision, Picked)
        storm.director.answered(decision.booking, 200, storm.now)
        storm.running.append(decision.booking)
        yield decision.addresses[0]


@pytest.mark.parametrize("seed", range(6))
def test_invariants_hold_through_the_storm_and_all_is_well_after_it(seed):
    storm = Storm(seed)
    for _ in range(STEPS):
        storm.step()
        storm.check()
    assert storm.picked > STEPS / 10
    storm.settle()
    assert not storm.director.ejection.ejected(storm.now), "a minute later everybody may be tried"
    assert set(calm(storm)) == {f"10.0.0.{number}:80" for number in range(SLOTS)}, "nobody is forgotten"
    storm.settle()
    for endpoint in storm.director.datastore.endpoints:
        assert (endpoint.in_flight_requests, endpoint.prefill_tokens, endpoint.context_tokens) == (0, 0.0, 0.0)
    storm.director.replace_endpoints([])
    storm.check()
    index = storm.director.index
    assert (index.blocks, index.entries, index.blocks_held) == (0, 0, {})


def test_the_same_seed_is_the_same_history():
    def history() -> list[object]:
        storm = Storm(42)
        for _ in range(400):
            storm.step()
        return storm.history

    first = history()
    assert len(first) > 100 and first == history()
