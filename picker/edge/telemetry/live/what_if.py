"""What if the weights were others? The kept decisions are made again, by the code that made them.

Each sees the pool as it was then: what other choices would have changed in the load after it is not followed (that
is `picker simulate`'s). Exploration and ties are left out: who would only have won by a draw does not count as moved.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np

from picker.config import Config
from picker.edge.telemetry.decisions import KeptDecision
from picker.outcomes import Reason
from picker.pool.snapshot import Mask
from picker.prefix.matches import Match
from picker.scheduling import scheduler
from picker.scheduling.explanation import LazyExplanation
from picker.scheduling.fused import tied_up_to, value_at
from picker.scheduling.scheduler import Choice

DECISIONS_MAX: Final = 1000
SLICE_SECONDS: Final = 0.001
"""Between two turns of the loop. As long as that is left to others, so a replay takes half of one core at most."""
EXAMPLES_MAX: Final = 12

_STICKY: Final = Reason.STICKY


class Proposal(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Keys of the configuration, as in the file; what is left out stays as it is."""

    weights: dict[str, float] = {}
    threshold: float | None = None
    affinity_break: float | None = None
    """`routing.affinity_break`."""

    def applied(self, config: Config) -> Config:
        """The configuration with it, without exploration. Raises `ValueError` that names what is out of bounds."""
        changed: dict[str, Any] = msgspec.to_builtins(config)
        changed["weights"] |= self.weights
        if self.threshold is not None:
            changed["threshold"] = self.threshold
        if self.affinity_break is not None:
            changed["routing"]["affinity_break"] = self.affinity_break
        try:
            return msgspec.convert({**changed, "epsilon": 0.0}, Config)
        except msgspec.ValidationError as error:
            raise ValueError(str(error)) from None


class _Middle:
    """The draw that no tie and no exploration turns on: always the same."""

    def random(self) -> float:
        return 0.0


class _Sums:
    """What the replayed decisions come to, under one configuration."""

    def __init__(self) -> None:
        self.ttft_seconds = 0.0
        self.total_seconds = 0.0
        self.held_tokens = 0.0
        self.picks: Counter[int] = Counter()
        self.reasons: Counter[str] = Counter()

    def shown(self, decisions: int, prompt_tokens: float) -> dict[str, Any]:
        count = max(1, decisions)
        return {
            "ttft_seconds": self.ttft_seconds / count,
            "total_seconds": self.total_seconds / count,
            "hit_share": self.held_tokens / prompt_tokens if prompt_tokens else None,
            "busiest_share": max(self.picks.values(), default=0) / count,
            "endpoints": len(self.picks),
            "reasons": dict(self.reasons),
        }


async def what_if(decisions: Sequence[KeptDecision], config: Config, proposal: Proposal) -> dict[str, Any]:
    """Replay them, the newest first, in slices. Raises `ValueError` where the proposal is out of bounds."""
    now_config, then_config = Proposal().applied(config), proposal.applied(config)
    seconds_config = msgspec.structs.replace(now_config, scoring="cost")
    before, after = _Sums(), _Sums()
    prompt_tokens = 0.0
    replayed = moved = bound = 0
    examples: list[dict[str, Any]] = []
    began = time.perf_counter()
    for kept in decisions:
        explain = kept.picked.explain
        if not isinstance(explain, LazyExplanation):
            continue
        if time.perf_counter() - began > SLICE_SECONDS:
            await asyncio.sleep(SLICE_SECONDS)
            began = time.perf_counter()
        if explain.choice.reason is _STICKY:
            bound += 1
            continue
        columns = explain.columns
        old = again(explain, now_config)
        new = again(explain, then_config)
        if new.slot != old.slot and _as_good(explain, new, old.slot, then_config):
            new.slot = old.slot
        parts = scheduler.seconds(columns, seconds_config)
        total = np.add.reduce(list(parts.values()))
        ttft = parts["prefix"] + parts["queue"]
        replayed += 1
        prompt_tokens += columns.prompt_tokens
        for sums, choice in ((before, old), (after, new)):
            sums.ttft_seconds += float(ttft[choice.slot])
            sums.total_seconds += float(total[choice.slot])
            sums.held_tokens += columns.holding(choice.slot).held_tokens
            sums.picks[choice.slot] += 1
            sums.reasons[explain.reason.value if explain.reason is Reason.HEADERS else choice.reason.value] += 1
        if new.slot != old.slot:
            moved += 1
            if len(examples) < EXAMPLES_MAX:
                examples.append(_example(kept.number, kept.record.request_id, explain, old, new, total))
    return {
        "decisions": replayed,
        "oldest_at": round(decisions[-1].decided_at, 1) if decisions else None,
        "moved": moved,
        "bound": bound,
        "before": before.shown(replayed, prompt_tokens),
        "after": after.shown(replayed, prompt_tokens),
        "examples": examples,
    }


def again(explain: LazyExplanation, config: Config) -> Choice:
    """The same request before the same pool, under another configuration; no draw decides."""
    candidates, hot = _eligible(explain, config)
    return scheduler.choose(explain.columns, hot, candidates, config, _MIDDLE)


def _eligible(explain: LazyExplanation, config: Config) -> tuple[Mask, int]:
    """Who stood for the choice, and the hot ones among them."""
    columns = explain.columns
    candidates: Mask = np.isfinite(explain.choice.cost)
    steps = tuple((each.bits, each.blocks) for each in columns.holdings)
    match = Match(steps, (), columns.matchable_blocks)
    hot = scheduler.hot_bits(match, config.threshold, columns.bytes_per_token, candidates) if steps else 0
    return candidates, hot


def _as_good(explain: LazyExplanation, new: Choice, slot: int, config: Config) -> bool:
    """Whether a draw could have chosen `slot` as well: of the same standing, at a cost that counts as equal."""
    _, hot = _eligible(explain, config)
    hot_pick, hot_slot = hot >> new.slot & 1, hot >> slot & 1
    if new.reason is Reason.AFFINITY and hot_pick != hot_slot:
        return False
    return value_at(new.cost, slot) <= tied_up_to(value_at(new.cost, new.slot))


def _example(
    number: int, request_id: str | None, explain: LazyExplanation, old: Choice, new: Choice, total: Any
) -> dict[str, Any]:
    endpoints = explain.snapshot.endpoints
    names = [each.spec.name if (each := endpoints[slot]) is not None else "" for slot in (old.slot, new.slot)]
    return {
        "number": number,
        "request_id": request_id,
        "from": names[0],
        "to": names[1],
        "seconds_before": float(total[old.slot]),
        "seconds_after": float(total[new.slot]),
    }


_MIDDLE: Final = _Middle()
