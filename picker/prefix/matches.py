"""What the prefix index answers with."""

from typing import Final, NamedTuple

from picker.prefix.nodes import Node


class SharedStretch(NamedTuple):
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

    def __init__(self, steps: tuple[tuple[int, int], ...], shared: tuple[SharedStretch, ...], blocks: int) -> None:
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
    """What one `record` added, so that it can be withdrawn, or told to others.

    `node`: the last of the chain. `known_before`: how much of it any slot held. `told`: what was held of it
    before was last known from another picker.
    """

    __slots__ = ("held_before", "known_before", "last_used_seconds", "node", "slot", "tick", "told")

    def __init__(
        self,
        slot: int,
        held_before: int,
        tick: int,
        last_used_seconds: float = 0.0,
        node: Node | None = None,
        known_before: int = 0,
        told: bool = False,
    ) -> None:
        self.slot = slot
        self.held_before = held_before
        self.tick = tick
        self.last_used_seconds = last_used_seconds
        """When what was held before was used last; 0 where nothing was."""
        self.node = node
        self.known_before = known_before
        self.told = told


NO_MATCH: Final = Match((), (), 0)
