"""Objectives: what requests that name one may expect, as tables of the configuration."""

from collections.abc import Mapping
from typing import Annotated

import msgspec
from msgspec import Meta

TargetSeconds = Annotated[float, Meta(gt=0.0, le=86_400.0)]


class Objective(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One objective. A whole number in its place is its priority alone."""

    priority: Annotated[
        int | None, Meta(description="Below 0: may be refused. null: of the InferenceObjective of that name, else 0.")
    ] = None
    ttft_seconds: Annotated[
        TargetSeconds | None, Meta(description="Target of the time to first token. null: that of `targets`.")
    ] = None
    tpot_seconds: Annotated[
        TargetSeconds | None, Meta(description="Target of the time per token after it. null: that of `targets`.")
    ] = None


class Targets(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What requests shall keep whose objective says nothing of it, or who name none. They are counted, not enforced.

    Set them where you want to see, or scale by, the share of requests that were served in time
    (`picker_objective_requests_total`). Objectives with needs of their own say so in `objectives`.
    """

    ttft_seconds: Annotated[
        TargetSeconds | None, Meta(description="Time to first token of streamed answers. null: none is counted.")
    ] = None
    tpot_seconds: Annotated[
        TargetSeconds | None, Meta(description="Time per token after the first. null: none is counted.")
    ] = None


def priorities(objectives: Mapping[str, int | Objective]) -> dict[str, int]:
    """Of those that say it themselves."""
    found = {}
    for name, each in objectives.items():
        priority = each.priority if isinstance(each, Objective) else each
        if priority is not None:
            found[name] = priority
    return found


def targets_by_objective(
    objectives: Mapping[str, int | Objective], usual: Targets
) -> dict[str | None, tuple[float | None, float | None]]:
    """`(ttft_seconds, tpot_seconds)` by name, `None` for all others; what has no target at all is left out."""
    found: dict[str | None, tuple[float | None, float | None]] = {None: (usual.ttft_seconds, usual.tpot_seconds)}
    for name, each in objectives.items():
        ttft, tpot = found[None]
        if isinstance(each, Objective):
            ttft = ttft if each.ttft_seconds is None else each.ttft_seconds
            tpot = tpot if each.tpot_seconds is None else each.tpot_seconds
        found[name] = (ttft, tpot)
    return found if any(target != (None, None) for target in found.values()) else {}
