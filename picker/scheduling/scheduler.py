"""Where? Costs in seconds for all endpoints at once, then the epsilon-greedy affinity rule.

    best = least(among)
    hot  = holders of >= threshold of the prompt; if none: those with >= 0.8 of the longest match
    home = least(hot)
    pick = home  if  cost[home] - cost[best] <= k * (seconds of prefill saved by home)   else best
    with probability epsilon: x = least(others); if cost[x] - cost[pick] <= regret: pick = x

`least` is random among those within max(1 ms, 2 %) of the least, so that several pickers, and
equal endpoints, do not herd. One draw decides on exploration, wherever two or more stand.
"""

from collections.abc import Iterable
from typing import Final

import numpy as np

from picker.config import Config, Weights
from picker.outcomes import Reason
from picker.pool.snapshot import Column, Mask, mask_to_bits
from picker.prefix.blocks import BLOCK_BYTES
from picker.prefix.matches import Match, SharedStretch
from picker.rng import Rng
from picker.scheduling import fused, normalized
from picker.scheduling.columns import Columns
from picker.scheduling.fused import least, least_among, value_at
from picker.scheduling.scorers import OPTIONAL_SCORERS, SCORERS

PARTIAL_SHARE: Final = 0.8
"""Without a holder above the threshold, those with this share of the longest match count as hot."""
PARTIAL_TOKENS_MIN: Final = 256
"""Below this a partial match is not worth keeping together."""

_INFINITY: Final = float("inf")

# Looked up once: a class of members is slow to ask (Python 3.11).
_AFFINITY: Final = Reason.AFFINITY
_BREAK: Final = Reason.BREAK
_LOAD: Final = Reason.LOAD
_EXPLORE: Final = Reason.EXPLORE
_STICKY: Final = Reason.STICKY


class Choice:
    """What the rule chose, and by which cost."""

    __slots__ = ("cost", "reason", "slot")

    slot: int
    reason: Reason
    cost: Column
    """Infinite outside the endpoints that stood for the choice."""

    def __init__(self, slot: int, reason: Reason, cost: Column) -> None:
        self.slot = slot
        self.reason = reason
        self.cost = cost


def copy_weights(
    shared: Iterable[SharedStretch],
    *,
    residence_seconds: float,
    fullness: float,
    floor: float,
    bytes_per_token: float,
    prompt_tokens: float,
) -> list[tuple[float, float]]:
    """What a token of each shared stretch weighs: 1 / (1 + later uses of the copy), in an empty pool.

    A copy on one more endpoint will serve its part of the new continuations until it is evicted:
    branches per second / (holders + 1) * residence. So a prefix that is asked for often, in a
    pool that keeps things, is copied readily; one of many documents in a crowded pool is not.
    A copy also takes the place of running requests, which share the prefix where they meet: as
    the pool fills (`fullness`, 0..1) the weight goes back to 1, reached where it is half full.
    """
    crowding = min(1.0, 2.0 * fullness) ** 2
    weights = []
    for each in shared:
        uses = each.branches_per_second * residence_seconds / (each.holders + 1)
        weight = max(floor, 1.0 / (1.0 + uses))
        tokens = min(prompt_tokens, each.blocks * BLOCK_BYTES / bytes_per_token)
        weights.append((tokens, weight + (1.0 - weight) * crowding))
    return weights


def hot_bits(match: Match, threshold: float, bytes_per_token: float, candidates: Mask | None = None) -> int:
    """The slots of `candidates` (`None`: all) that affinity prefers, as a bitmask; 0: none."""
    steps = match.steps
    if steps and candidates is not None:
        standing = mask_to_bits(candidates)
        steps = tuple((bits & standing, blocks) for bits, blocks in steps if bits & standing)
    if not steps:
        return 0
    longest = steps[-1][1]
    above = longest / match.blocks >= threshold
    if not above and longest * BLOCK_BYTES / bytes_per_token < PARTIAL_TOKENS_MIN:
        return 0
    hot = 0
    for bits, blocks in steps:
        if blocks / match.blocks >= threshold if above else blocks >= PARTIAL_SHARE * longest:
            hot |= bits
    return hot


def choose(
    columns: Columns, hot: int, candidates: Mask | None, config: Config, rng: Rng, *, holder: int | None = None
) -> Choice:
    """Apply the rule. `candidates`: the slots that stand; `None` is all. At least one must stand.

    `holder`: the slot where the request's session is. If it stands, it is chosen whatever it costs.
    """
    if config.scoring == "normalized":
        cost = normalized.cost(columns, config.weights)[0]
    else:
        cost = fused.cost(columns, config.weights)
        if columns.fill is not None or columns.adapter is not None or columns.gpu_utilization is not None:
            for name, column in _optional(columns, config.weights):
                cost += column * (getattr(config.weights, name) / config.weights.prefix)
    if candidates is not None:
        cost[~candidates] = _INFINITY
    if holder is not None and value_at(cost, holder) < _INFINITY:
        return Choice(holder, _STICKY, cost)
    best = least(cost, rng)
    slot, reason = best, _LOAD
    if hot:
        home = _least_of(cost, hot, rng)
        if home is not None:
            slot, reason = home, _AFFINITY
            if home != best:
                saved = columns.holding(best).unmatched_tokens - columns.holding(home).unmatched_tokens
                routing = config.routing
                worth = routing.affinity_break * max(0.0, saved) * columns.slowness_of(home)
                worth /= routing.prefill_tokens_per_second
                if value_at(cost, home) - value_at(cost, best) > worth:
                    slot, reason = best, _BREAK
    standing = len(cost) if candidates is None else np.count_nonzero(candidates)
    if standing > 1 and rng.random() < config.epsilon:
        here = cost.item(slot)
        cost[slot] = _INFINITY
        other = least(cost, rng)
        regret = cost.item(other) - here
        cost[slot] = here
        if regret <= config.routing.explore_regret_seconds:
            slot, reason = other, _EXPLORE
    return Choice(slot, reason, cost)


def seconds(columns: Columns, config: Config) -> dict[str, Column]:
    """The parts of a decision's cost, by objective and unweighted; computed only when an explanation is read."""
    if config.scoring == "normalized":
        return normalized.cost(columns, config.weights)[1]
    return {name: scorer(columns) for name, scorer in SCORERS.items()} | dict(_optional(columns, config.weights))


def _optional(columns: Columns, weights: Weights) -> list[tuple[str, Column]]:
    """The optional scorers that have a weight and something to say."""
    asked = ((name, scorer(columns)) for name, scorer in OPTIONAL_SCORERS.items() if getattr(weights, name))
    return [(name, column) for name, column in asked if column is not None]


def ranked(choice: Choice, count: int) -> list[int]:
    """The pick and the next cheapest, at most `count`, all of those that stand."""
    order = np.argsort(choice.cost, kind="stable")
    rest = [int(slot) for slot in order[: count + 1] if slot != choice.slot and choice.cost[slot] < _INFINITY]
    return [choice.slot, *rest[: count - 1]]


def _least_of(cost: Column, bits: int, rng: Rng) -> int | None:
    """The least among the slots of a bitmask; `None` if none of them stands."""
    slot = least_among(cost, bits, rng)
    return slot if value_at(cost, slot) < _INFINITY else None
