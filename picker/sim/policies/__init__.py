"""Routing policies by name: ours and the peers', each with its published parameters cited.

A new one: a class like its siblings, and one line here.
"""

from collections.abc import Callable, Mapping

import msgspec

from picker.config import Config, Weights
from picker.sim.policies.ablations import PARTS, without
from picker.sim.policies.aibrix import PrefixCache
from picker.sim.policies.classic import LeastRequest, PowerOfTwo, RandomChoice, RoundRobin
from picker.sim.policies.costs import DynamoCost, LMetric
from picker.sim.policies.hashing import ConsistentHashBounded, StickyUntilSaturated
from picker.sim.policies.llm_d import Optimized, Weighted
from picker.sim.policies.picker import PickerPolicy
from picker.sim.policies.policy import Policy, Setting
from picker.sim.policies.sglang import CacheAware


def _ours(setting: Setting, **changes: object) -> Policy:
    config: Config = msgspec.structs.replace(setting.config, **changes)
    return PickerPolicy(setting, config)


POLICIES: Mapping[str, Callable[[Setting], Policy]] = {
    "picker": _ours,
    "picker-3:3:2": lambda setting: _ours(setting, weights=Weights(prefix=3.0, queue=3.0, kv=2.0)),
    "picker-3:5:2": lambda setting: _ours(setting, weights=Weights(prefix=3.0, queue=5.0, kv=2.0)),
    "picker-normalized": lambda setting: _ours(setting, scoring="normalized"),
    "round_robin": RoundRobin,
    "random": RandomChoice,
    "least_request": LeastRequest,
    "power_of_two": PowerOfTwo,
    "weighted": Weighted,
    "llmd_optimized": Optimized,
    "sticky_until_saturated": StickyUntilSaturated,
    "sglang_cache_aware": CacheAware,
    "dynamo_cost": DynamoCost,
    "lmetric": LMetric,
    "aibrix_prefix": PrefixCache,
    "consistent_hash_bounded": ConsistentHashBounded,
    **{f"picker-without-{part}": without(part) for part in PARTS},
}
