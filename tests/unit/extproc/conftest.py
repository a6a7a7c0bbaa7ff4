"""An exchange with a director of its own, a clock that tests set, and dice that never explore."""

from random import Random

import pytest

from picker.config import Config
from picker.decision import Finished, Picked
from picker.director import Director
from picker.extproc.exchange import Exchange
from picker.pool.specs import EndpointSpec
from tests.faults import raised


class World:
    """Everything around exchanges, in memory."""

    def __init__(self, addresses: tuple[str, ...] = ("10.0.0.1:8000", "10.0.0.2:8000"), config: Config | None = None):
        self.now = 100.0
        self.director = Director(config or Config(epsilon=0.0))
        self.director.replace_endpoints(EndpointSpec(address=each, uid=each, name=each) for each in addresses)
        self.rng = Random(1)
        self.finished: list[Finished] = []
        self.picked: list[Picked] = []

    def exchange(self) -> Exchange:
        return Exchange(
            self.director,
            clock=lambda: self.now,
            rng=self.rng,
            finished=self.finished.append,
            decided=lambda picked, record: self.picked.append(picked),
            faulted=raised,
        )

    def check(self) -> None:
        self.director.datastore.check()
        self.director.index.check()

    @property
    def in_flight(self) -> int:
        return self.director.ledger.open_charges


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def make_world() -> type[World]:
    return World
