"""Our policy without one of its parts, to measure what that part is worth.

Only parts that no knob of the configuration turns off: the affinity break, the weights, exploration, the
size of the index and all learning together are a configuration (`picker.sim.contest --ours NAME=FILE`).
Each part is taken out of an otherwise ordinary director, before it knows any endpoint, by putting
something simpler in the place of one of its books; the rule that reads them is production's.

Those simpler books are subclasses, which compiled classes cannot have: this is for the interpreted build.
"""

from collections.abc import Callable

from picker.kernels import build
from picker.sim.policies.picker import PickerPolicy
from picker.sim.policies.policy import Setting

PARTS = ("in_flight", "in_flight_tokens", "partial_matches", "slowness", "bytes_per_token", "output_length")


def without(part: str) -> Callable[[Setting], PickerPolicy]:
    """A policy of ours that lacks this part."""

    def make(setting: Setting) -> PickerPolicy:
        if build().compiled:
            raise ValueError(f"ours without {part} needs the interpreted picker: run it from the repository")
        from picker.sim.policies.ablated_books import ABLATIONS

        policy = PickerPolicy(setting)
        ABLATIONS[part](policy.director)
        return policy

    return make


def true_residency(setting: Setting) -> PickerPolicy:
    """A policy of ours that sees the engines' caches as they are."""
    if build().compiled:
        raise ValueError("ours with true residency needs the interpreted picker: run it from the repository")
    from picker.sim.policies.true_residency import TrueResidency

    return TrueResidency(setting)
