"""A rollout ends, though only a leader is ever ready.

No controllers run beside a bare API server, so the Deployment controller's rule is modelled here
(kubernetes pkg/controller/deployment/rolling.go: reconcileNewReplicaSet, reconcileOldReplicaSets,
cleanupUnhealthyReplicas), with pods that become ready when, of their pod-template-hash, they are
the first: one Lease per hash.
"""

import pytest

from tests.deploy.tools import only, render
from tests.deploy.values import BASE, merged


def rollout_ends(replicas: int, surge: int, unavailable: int, *, ready_each: int) -> bool:
    """Whether all old pods go. `ready_each`: how many pods of one ReplicaSet can be ready."""
    old, new = replicas, 0
    for _ in range(10 * replicas):
        before = (old, new)
        if old == 0 and new == replicas:
            return True
        new = min(replicas, new + max(0, replicas + surge - old - new))
        old_ready, new_ready = min(old, ready_each), min(new, ready_each)
        least = replicas - unavailable
        spare = old + new - least - (new - new_ready)
        unready_removed = min(old - old_ready, max(0, spare))
        old -= unready_removed
        ready_removed = max(0, min(old_ready + new_ready - least, old_ready, spare - unready_removed))
        old -= ready_removed
        if (old, new) == before:
            return False
    return False


def test_the_model_knows_an_ordinary_rollout_and_a_dead_lock() -> None:
    assert rollout_ends(3, 1, 0, ready_each=99)
    assert rollout_ends(1, 1, 0, ready_each=1)
    assert not rollout_ends(2, 1, 0, ready_each=1), "ready = leader, none may be unavailable"
    assert not rollout_ends(3, 1, 1, ready_each=1), "one of three is not enough"
    assert not rollout_ends(2, 0, 0, ready_each=99), "nothing may move"


@pytest.mark.usefixtures("helm")
@pytest.mark.parametrize("mode", ["leader-election", "active-active"])
@pytest.mark.parametrize("replicas", [1, 2, 3, 5])
def test_the_charts_strategy_ends(replicas: int, mode: str) -> None:
    found = render(merged(BASE, {"replicas": replicas, "highAvailability": mode}))
    rolling = only(found, "Deployment")["spec"]["strategy"]["rollingUpdate"]
    ready_each = 1 if mode == "leader-election" else replicas
    assert rollout_ends(replicas, rolling["maxSurge"], rolling["maxUnavailable"], ready_each=ready_each)
    assert rolling["maxUnavailable"] < replicas, "one old pod must serve until a new one does"
