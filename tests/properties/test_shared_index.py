"""Pickers that tell each other: batches in any order, lost and repeated, then a snapshot, and all agree.

Real directors decide, fail and see engines restart; the network is a list from which Hypothesis delivers what
it likes. Every picker's clock starts elsewhere.
"""

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from picker.api.request import InferenceRequest
from picker.config import Config
from picker.decision import Booking, Picked
from picker.director import Director
from picker.pool.specs import EndpointSpec, EngineSample
from picker.sharing.attach import attach
from tests.chains import chain

PICKERS, ENDPOINTS = 3, 3


class World:
    def __init__(self, seed: int) -> None:
        self.time = 1000.0
        self.offsets = [number * 12_345.678 for number in range(PICKERS)]
        self.directors = [Director(Config()) for _ in range(PICKERS)]
        self.shared = [
            attach(director, name=number + 1, started_ms=number) for number, director in enumerate(self.directors)
        ]
        self.rng = Random(seed)
        self.network: list[tuple[int, float, bytes]] = []
        self.open: list[list[Booking]] = [[] for _ in range(PICKERS)]
        self.lives = dict.fromkeys(range(ENDPOINTS), 0)
        self.paths: set[tuple[int, ...]] = set()
        self.tokens = dict.fromkeys(range(ENDPOINTS), 1000.0)
        self.restarts: dict[tuple[int, int], float] = {}
        for number in range(PICKERS):
            self.tell_members(number)

    def now(self, picker: int) -> float:
        return self.time + self.offsets[picker]

    def specs(self) -> list[EndpointSpec]:
        return [
            EndpointSpec(address=f"10.0.0.{each}:8000", uid=f"pod-{each}-{life}", name=f"pod-{each}")
            for each, life in self.lives.items()
        ]

    def tell_members(self, picker: int) -> None:
        specs = self.specs()
        if picker == 1:
            specs.reverse()  # slots are each picker's own
        self.directors[picker].replace_endpoints(specs)

    def pick(self, picker: int, path: tuple[int, ...]) -> None:
        self.paths.add(path)
        request = InferenceRequest(api="chat", model="m", prompt_bytes=1024 * len(path), block_hashes=chain(path))
        decision = self.directors[picker].decide(request, now=self.now(picker), rng=self.rng)
        assert isinstance(decision, Picked)
        self.open[picker].append(decision.booking)

    def end(self, picker: int, fails: bool) -> None:
        if self.open[picker]:
            booking = self.open[picker].pop(0)
            self.directors[picker].answered(booking, 404 if fails else 200, self.now(picker))
            self.directors[picker].finish(booking, reached=True)

    def restart(self, picker: int, each: int) -> None:
        """This picker reads that the engine's counter fell."""
        uid = f"pod-{each}-{self.lives[each]}"
        for total in (1000.0, 0.0):
            self.directors[picker].record_sample(
                EngineSample(
                    uid=uid, taken_at_seconds=self.now(picker), engine="vllm", waiting_requests=0,
                    prompt_tokens_total=total,
                )
            )  # fmt: skip

    def replace(self, each: int) -> None:
        """A pod is deleted and comes back under its address."""
        self.lives[each] += 1
        for picker in range(PICKERS):
            self.tell_members(picker)

    def flush(self, picker: int) -> None:
        batch = self.shared[picker].flush(self.now(picker))
        if batch is not None:
            self.network.append((picker, self.time, batch))

    def deliver(self, to: int, which: int, again: bool) -> None:
        others = [each for each in self.network if each[0] != to]
        if others:
            sender, sent_at, batch = others[which % len(others)]
            self.shared[to].receive(batch, at=sent_at + self.offsets[to], now=self.now(to))
            while self.shared[to].work(self.now(to), 2):
                pass
            if not again and PICKERS == 2:
                self.network.remove((sender, sent_at, batch))

    def snapshot(self, writer: int, reader: int) -> None:
        loader, begun = self.shared[reader].loader(), self.time
        for data in self.shared[writer].snapshot(0, self.now(writer)):
            if data is not None:
                for _ in self.shared[reader].load(
                    loader, data, int((begun + self.offsets[reader]) * 1e6), self.now(reader)
                ):
                    pass

    def holdings(self, picker: int) -> dict[str, dict[tuple[int, ...], int]]:
        director = self.directors[picker]
        found: dict[str, dict[tuple[int, ...], int]] = {}
        for path in self.paths:
            for bits, depth in director.index.match(chain(path)).steps:
                for endpoint in director.datastore.endpoints:
                    if bits >> endpoint.slot & 1:
                        found.setdefault(endpoint.spec.uid, {})[path] = depth
        return found

    def check(self) -> None:
        for director, shared in zip(self.directors, self.shared, strict=True):
            director.index.check()
            director.datastore.check()
            shared.check()


paths = st.lists(st.integers(0, 2), min_size=1, max_size=7).map(tuple)
pickers = st.integers(0, PICKERS - 1)
endpoints = st.integers(0, ENDPOINTS - 1)
operations = st.lists(
    st.one_of(
        st.tuples(st.just("pick"), pickers, paths),
        st.tuples(st.just("pick"), pickers, paths),
        st.tuples(st.just("end"), pickers, st.booleans()),
        st.tuples(st.just("restart"), pickers, endpoints),
        st.tuples(st.just("replace"), endpoints),
        st.tuples(st.just("flush"), pickers),
        st.tuples(st.just("flush"), pickers),
        st.tuples(st.just("deliver"), pickers, st.integers(0, 30), st.booleans()),
        st.tuples(st.just("deliver"), pickers, st.integers(0, 30), st.booleans()),
    ),
    max_size=80,
)


@settings(max_examples=300, deadline=None)
@given(operations, st.integers(0, 5))
def test_any_order_loss_and_repetition_then_a_snapshot_and_all_agree(steps, seed):
    world = World(seed)
    for verb, *arguments in steps:
        world.time += 0.25
        getattr(world, verb)(*arguments)
        world.check()
    world.time += 0.25
    for other in range(1, PICKERS):
        world.snapshot(other, 0)  # the oldest asks for what it missed
    world.check()
    for other in range(1, PICKERS):
        world.snapshot(0, other)
    world.check()
    first, *others = (world.holdings(picker) for picker in range(PICKERS))
    assert all(each == first for each in others)


@settings(max_examples=200, deadline=None)
@given(operations, st.integers(0, 5))
def test_without_loss_all_agree_by_themselves(steps, seed):
    """Every batch reaches everybody at once: no snapshot is needed, and none is asked for."""
    world = World(seed)
    for verb, *arguments in steps:
        world.time += 0.25
        if verb != "deliver":
            getattr(world, verb)(*arguments)
        for picker in range(PICKERS):
            world.flush(picker)
        for sender, sent_at, batch in world.network:
            for to in range(PICKERS):
                if to != sender:
                    world.shared[to].receive(batch, at=sent_at + world.offsets[to], now=world.now(to))
                    while world.shared[to].work(world.now(to)):
                        pass
        world.network.clear()
        world.check()
        first, *others = (world.holdings(picker) for picker in range(PICKERS))
        assert all(each == first for each in others)
        for shared in world.shared:
            assert shared.counts.dropped == dict.fromkeys(shared.counts.dropped, 0)
    assert not any(shared.counts.sent["asks"] for shared in world.shared)
