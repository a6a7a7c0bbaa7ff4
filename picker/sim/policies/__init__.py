"""Routing policies by name: ours and the peers', each with its published parameters cited.

A new one: a class like its siblings, and one line here.

    policy.py          what a policy is told
    picker.py          ours: the production director
    ablations.py       ours without one of its parts
    ablated_books.py   the books of those
    true_residency.py  ours if it saw the engines' caches: a bound
    peer.py            what peers have in common
    classic.py         round robin, least request, two choices, random
    hashing.py         hash rings, sticky sessions
    costs.py           NVIDIA Dynamo, LMetric
    llm_d.py           llm-d and GIE
    sglang.py          SGLang's router
    aibrix.py          AIBrix
"""

from collections.abc import Callable, Mapping

import msgspec

from picker.config import Config, Weights
from picker.sim.policies.ablations import PARTS, true_residency, without
from picker.sim.policies.aibrix import PrefixCache
from picker.sim.policies.classic import LeastRequest, PowerOfTwo, RandomChoice, RoundRobin
from picker.sim.policies.costs import DynamoCost, DynamoCredit, DynamoSession, LMetric
from picker.sim.policies.hashing import ConsistentHashBounded, StickyUntilFull, StickyUntilSaturated
from picker.sim.policies.llm_d import KeptSessions, Optimized, Weighted
from picker.sim.policies.picker import PickerPolicy
from picker.sim.policies.policy import RoutingPolicy, Setting
from picker.sim.policies.sglang import CacheAware


def _ours(setting: Setting, **changes: object) -> RoutingPolicy:
    config: Config = msgspec.structs.replace(setting.config, **changes)
    return PickerPolicy(setting, config)


POLICIES: Mapping[str, Callable[[Setting], RoutingPolicy]] = {
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
    "llmd_session": KeptSessions,
    "sticky_until_saturated": StickyUntilSaturated,
    "sticky_until_full": StickyUntilFull,
    "sglang_cache_aware": CacheAware,
    "dynamo_cost": DynamoCost,
    "dynamo_credit": DynamoCredit,
    "dynamo_session": DynamoSession,
    "lmetric": LMetric,
    "aibrix_prefix": PrefixCache,
    "consistent_hash_bounded": ConsistentHashBounded,
    "picker-true-residency": true_residency,
    **{f"picker-without-{part}": without(part) for part in PARTS},
}
