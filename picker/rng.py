"""The one thing that choices and waits need of a random generator, which is passed in."""

from typing import Protocol


class Rng(Protocol):
    """A source of floats in [0, 1): `random.Random` is one."""

    def random(self) -> float:
        """Uniform in [0, 1)."""
