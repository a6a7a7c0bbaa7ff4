"""Joining and leaving in steps: everybody who shall be there is at once, and who leaves does so some at a time."""

from array import array
from collections import deque
from collections.abc import Callable
from random import Random

import pytest

from picker.config import Config
from picker.director import Director
from picker.edge import membership
from picker.edge.membership import NAMED_MAX, Membership
from picker.pool.specs import EndpointSpec


def spec(number: int, uid: str | None = None) -> EndpointSpec:
    return EndpointSpec(address=f"10.0.{number >> 8}.{number & 255}:80", uid=uid or str(number), name=f"pod-{number}")


class World:
    def __init__(self, count: int, entries_each: int = 0) -> None:
        self.director = Director(Config())
        self.turns: deque[Callable[[], None]] = deque()
        self.lines: list[tuple[str, dict]] = []
        self.changes = 0

        def changed() -> None:
            self.changes += 1

        self.membership = Membership(
            self.director,
            log=lambda level, message, **fields: self.lines.append((message, fields)),
            changed=changed,
            call_soon=self.turns.append,
        )
        self.membership.replace([spec(number) for number in range(count)])
        rng = Random(1)
        for endpoint in self.director.datastore.endpoints:
            for _ in range(entries_each):
                self.director.index.record(array("Q", rng.randbytes(16)), endpoint.slot)

    @property
    def uids(self) -> set[str]:
        return {each.spec.uid for each in self.director.datastore.endpoints}

    def turn(self) -> None:
        self.turns.popleft()()


@pytest.fixture(autouse=True)
def ten_entries_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "ENTRIES_A_STEP", 10)


def test_who_leaves_with_many_entries_leaves_in_steps_and_newcomers_need_not_wait() -> None:
    world = World(8, entries_each=5)
    world.membership.replace([spec(0), spec(100)])
    assert world.uids >= {"0", "100"} and len(world.uids) == 2 + 5
    assert world.changes == 1, "not told in full yet"
    sizes = []
    while world.turns:
        world.turn()
        sizes.append(len(world.uids))
        world.director.datastore.check()
    assert sizes == [5, 3, 2]
    assert world.uids == {"0", "100"} and world.changes == 2
    assert world.director.index.entries == 5


def test_who_holds_nothing_leaves_at_once() -> None:
    world = World(500)
    world.membership.replace([])
    assert world.uids == set() and not world.turns and world.changes == 2


def test_a_newer_list_takes_the_place_of_one_on_its_way() -> None:
    world = World(8, entries_each=5)
    world.membership.replace([])
    world.membership.replace([spec(number) for number in range(8)])
    while world.turns:
        world.turn()
    assert world.uids == {str(number) for number in range(8)}


def test_who_has_the_address_of_a_newcomer_leaves_with_the_first_step() -> None:
    world = World(8, entries_each=5)
    world.membership.replace([spec(number, uid=f"new-{number}") for number in range(8)])
    assert world.uids == {f"new-{number}" for number in range(8)}
    addresses = [each.spec.address for each in world.director.datastore.endpoints]
    assert len(set(addresses)) == len(addresses) == 8


def test_the_log_names_some_and_counts_the_rest() -> None:
    world = World(NAMED_MAX + 7)
    joined = [fields for message, fields in world.lines if message == "endpoint joined"]
    assert len(joined) == NAMED_MAX and joined[0] == {"endpoint": "pod-0", "address": "10.0.0.0:80"}
    assert [each for each in world.lines if each[0] == "more endpoints joined"] == [
        ("more endpoints joined", {"count": 7})
    ]
    world.lines.clear()
    world.membership.replace([spec(0)])
    assert [message for message, _ in world.lines].count("endpoint left") == NAMED_MAX
    assert world.lines[-1] == ("more endpoints left", {"count": 6})
