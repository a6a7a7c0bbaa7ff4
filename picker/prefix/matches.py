"""What the prefix index answers with."""

from typing import Final, NamedTuple


class Shared(NamedTuple):
    """A place where prompts part: everything above it is a prefix that many share."""

    blocks: int
    """How deep it lies."""
    branches_per_second: float
    """How often a new continuation began here or below, lately."""
    holders: int
    """Endpoints that hold everything above it."""


class Match:
    """How much of a prompt is held where. Immutable by convention.

    `steps`: `(slots as bitmask, matched blocks)`, every holder in exactly one step, in rising
    order of blocks. `shared`: where other prompts part from this one, in rising order.
    `blocks`: full blocks of the prompt.
    """

    __slots__ = ("blocks", "shared", "steps")

    def __init__(self, steps: tuple[tuple[int, int], ...], shared: tuple[Shared, ...], blocks: int) -> None:
        self.steps = steps
        self.shared = shared
        self.blocks = blocks

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Match):
            return NotImplemented
        return (self.steps, self.shared, self.blocks) == (other.steps, other.shared, other.blocks)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Match({self.steps}, {self.shared}, {self.blocks})"


class Recorded:
    """What one `record` added, so that it can be withdrawn."""

    __slots__ = ("held_before", "slot", "tick")

    def __init__(self, slot: int, held_before: int, tick: int) -> None:
        self.slot = slot
        self.held_before = held_before
        self.tick = tick


NO_MATCH: Final = Match((), (), 0)
