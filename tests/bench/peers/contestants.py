"""Who takes part: the baselines, ours, the peers, their other policies on demand, and who already listens somewhere."""

from collections.abc import Iterable, Sequence

from picker.lab.envoy import Balancing
from picker.pool.specs import split_address
from tests.bench.peers.adapters import envoys, sglang_router, smg, vllm_router
from tests.bench.peers.adapters.contract import Contestant


def by_default() -> list[Contestant]:
    """Each router as it comes, with the policy that looks at prefixes: the default of all three peers."""
    return [
        envoys.alone(Balancing.ROUND_ROBIN),
        envoys.alone(Balancing.LEAST_REQUEST),
        envoys.picker(),
        smg.contestant("smg", "--policy", "cache_aware"),
        sglang_router.contestant("sglang-router", "--policy", "cache_aware"),
        vllm_router.contestant("vllm-router", "--policy", "cache_aware"),
    ]


def on_demand() -> list[Contestant]:
    """Other policies, and cache-aware ones told that this pool is small: their thresholds are for large ones."""
    small = ("--policy", "cache_aware", "--balance-abs-threshold", "4")
    return [
        smg.contestant("smg small", *small, "--load-monitor-interval", "1"),
        smg.contestant("smg least_load", "--policy", "least_load", "--load-monitor-interval", "1"),
        smg.contestant("smg power_of_two", "--policy", "power_of_two", "--load-monitor-interval", "1"),
        sglang_router.contestant("sglang-router small", *small),
        vllm_router.contestant("vllm-router small", *small),
        vllm_router.contestant("vllm-router power_of_two", "--policy", "power_of_two"),
        vllm_router.contestant("vllm-router sticky", "--policy", "sticky_least_loaded"),
    ]


def external(peers: Iterable[str]) -> list[Contestant]:
    """Of `NAME=HOST:PORT` each. Raises `ValueError` that says what is wrong."""
    found = []
    for peer in peers:
        name, equals, address = (part.strip() for part in peer.partition("="))
        if not (name and equals and address):
            raise ValueError(f"--peer {peer!r}: write NAME=HOST:PORT")
        try:
            split_address(address)
        except ValueError as error:
            raise ValueError(f"--peer {peer!r}: {error}") from None
        found.append(envoys.external(name, address))
    return found


def chosen(only: Sequence[str] | None, peers: Iterable[str]) -> list[Contestant]:
    """The contestants of a run: those named (`all`: every one), else the default ones and the `peers`.

    Raises `ValueError` that names what there is no such contestant of, or twice.
    """
    outside = external(peers)
    known = {one.name: one for one in (*by_default(), *on_demand())}
    for one in outside:
        if one.name in known:
            raise ValueError(f"--peer {one.name}: there is a contestant of that name already")
        known[one.name] = one
    if only is None:
        return [*by_default(), *outside]
    if "all" in only:
        return list(known.values())
    for name in only:
        if name not in known:
            raise ValueError(f"--only {name!r}: there is {', '.join(known)}, or all")
    return [known[name] for name in dict.fromkeys(only)] + [one for one in outside if one.name not in only]
