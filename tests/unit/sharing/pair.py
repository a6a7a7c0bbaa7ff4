"""Directors that tell each other in memory, each with slots and a clock of its own."""

from array import array
from collections.abc import Sequence
from random import Random
from typing import Any

from picker.api.request import InferenceRequest
from picker.config import Config
from picker.decision import Booking, Picked
from picker.director import Director
from picker.pool.specs import EndpointSpec, EngineSample
from picker.sharing.attach import attach
from tests import chains

CLOCKS = (0.0, 5_000.0, 91.5, 333.0)


def chain(*symbols: int) -> "array[int]":
    return chains.chain(symbols)


def specs(*names: str) -> list[EndpointSpec]:
    return [EndpointSpec(address=f"10.0.0.{ord(name)}:80", uid=f"uid-{name}", name=name) for name in names]


class Member:
    """One picker."""

    def __init__(self, number: int, endpoints: Sequence[str], config: Config | None = None) -> None:
        self.number = number
        self.director = Director(config or Config())
        self.shared = attach(self.director, name=number + 1, started_ms=1000 + number)
        self.offset = CLOCKS[number]
        self.director.replace_endpoints(specs(*(endpoints if number % 2 == 0 else reversed(endpoints))))

    def endpoint(self, name: str):
        return next(each for each in self.director.datastore.endpoints if each.spec.name == name)

    def held(self, hashes: "array[int]") -> dict[str, int]:
        """Matched blocks by endpoint."""
        found = {}
        for bits, depth in self.director.index.match(hashes).steps:
            for endpoint in self.director.datastore.endpoints:
                if bits >> endpoint.slot & 1:
                    found[endpoint.spec.name] = depth
        return found


class Group:
    """Some of them, and the time."""

    def __init__(
        self, count: int = 2, endpoints: Sequence[str] = ("a", "b", "c"), config: Config | None = None
    ) -> None:
        self.time = 1000.0
        self.members = [Member(number, endpoints, config) for number in range(count)]
        for member in self.members:
            member.shared.settle()

    def now(self, member: Member) -> float:
        return self.time + member.offset

    def pick(self, member: Member, hashes: "array[int]", *, only: str | None = None, stream: bool = True) -> Booking:
        request = InferenceRequest(
            api="chat", model="m", prompt_bytes=1024 * len(hashes), block_hashes=hashes, stream=stream
        )
        subset = None if only is None else [member.endpoint(only).spec.address]
        decision = member.director.decide(
            request, now=self.now(member), rng=Random(1), subset=subset, first_chunk_visible=True
        )
        assert isinstance(decision, Picked)
        return decision.booking

    def read(self, member: Member, name: str, **gauges: Any) -> bool:
        """An engine's metrics page; true: it lost its cache."""
        return member.director.record_sample(
            EngineSample(uid=f"uid-{name}", taken_at_seconds=self.now(member), engine="vllm", **gauges)
        )

    def flush(self, member: Member) -> bytes | None:
        member.shared.tick(self.now(member))
        member.shared.work(self.now(member))
        return member.shared.flush(self.now(member))

    def deliver(self, member: Member, batch: bytes | None, sent_at: float | None = None) -> None:
        assert batch is not None, "nothing was told"
        at = (self.time if sent_at is None else sent_at) + member.offset
        member.shared.receive(batch, at=at, now=self.now(member))
        while member.shared.work(self.now(member)):
            pass

    def tell(self, sender: Member) -> bytes | None:
        """To everybody."""
        batch = self.flush(sender)
        if batch is not None:
            for member in self.members:
                if member is not sender:
                    self.deliver(member, batch)
        return batch

    def exchange(self, rounds: int = 1, seconds: float = 0.1) -> None:
        for _ in range(rounds):
            self.time += seconds
            for member in self.members:
                self.tell(member)

    def hand_over(self, writer: Member) -> bool:
        """If a snapshot of `writer` is due: write it, announce it, and let everybody who wants it take it."""
        since = writer.shared.snapshot_due(self.now(writer))
        if since is None:
            return False
        chunks = [each for each in writer.shared.snapshot(since, self.now(writer)) if each is not None]
        writer.shared.announce("s", len(chunks), since, self.now(writer))
        self.time += 0.1
        self.tell(writer)
        for member in self.members:
            for who, answer, told_us in member.shared.answers():
                loader = member.shared.loader()
                for each in chunks:
                    for _ in member.shared.load(loader, each, told_us - answer.begun, self.now(member)):
                        pass
                member.shared.loaded(who, 0 if answer.whole else told_us - answer.since)
        return True
