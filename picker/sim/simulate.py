"""One run: a source of requests, a policy, replicas and options; and the knee that loads are shares of.

A run is a function of its `Run`: the same one gives the same records, on every machine.
"""

import time
from collections.abc import Callable
from math import sqrt
from random import Random

import msgspec

from picker.config import Config
from picker.sim.fleet import Failure, Fleet, FleetOptions
from picker.sim.policies import POLICIES
from picker.sim.policies.policy import Setting
from picker.sim.profiles import DEFAULT_PROFILE, PROFILES, Profile
from picker.sim.records import Records
from picker.sim.results import Result, summarise
from picker.sim.sources import Source

KNEE_POLICY = "least_request"
KNEE_TTFT_SECONDS = 2.0
KNEE_PERCENTILE = 0.95
KNEE_PRECISION = 1.03
"""The knee is found to within this factor."""
_KNEE_STEPS_MAX = 24


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a run depends on."""

    source: Source
    policy: str
    rate: float
    """Requests a second; of a trace its speed."""
    requests: int
    seed: int = 0
    replicas: int = 8
    profile: str = DEFAULT_PROFILE
    speeds: tuple[float, ...] = ()
    """Factors of the replicas' speed, in turn; empty: all 1."""
    pickers: int = 1
    config: Config = Config()
    first_chunk_visible: bool = True
    scrape_seconds: float | None = None
    metrics_age_seconds: float = 0.0
    failures: tuple[Failure, ...] = ()
    joins: tuple[float, ...] = ()
    check_every: int | None = None

    def profiles(self) -> list[Profile]:
        """One a replica. Raises `ValueError` on an unknown name."""
        if self.profile not in PROFILES:
            raise ValueError(f"no profile {self.profile!r}: choose one of {', '.join(PROFILES)}")
        profile = PROFILES[self.profile]
        speeds = self.speeds or (1.0,)
        factors = [speeds[number % len(speeds)] for number in range(self.replicas)]
        return [profile if factor == 1.0 else profile.faster(factor) for factor in factors]


def play(run: Run, progress: Callable[[int], None] | None = None, *, late_share_max: float | None = None) -> Records:
    """Simulate. Raises `ValueError` that names what is wrong with the run."""
    if run.policy not in POLICIES:
        raise ValueError(f"no policy {run.policy!r}: choose one of {', '.join(POLICIES)}")
    make = POLICIES[run.policy]
    policies = [
        make(
            Setting(
                rng=Random(f"{run.seed}/router/{number}"),
                config=run.config,
                first_chunk_visible=run.first_chunk_visible,
            )
        )
        for number in range(run.pickers)
    ]
    fleet = Fleet(
        run.profiles(),
        policies,
        run.source.scripts(run.seed, run.requests, run.rate),
        rng=Random(f"{run.seed}/fleet"),
        options=FleetOptions(
            scrape_seconds=run.scrape_seconds,
            metrics_age_seconds=run.metrics_age_seconds,
            failures=run.failures,
            joins=run.joins,
            late_seconds=KNEE_TTFT_SECONDS,
            late_share_max=late_share_max,
            requests=run.requests,
            check_every=run.check_every,
        ),
    )
    return fleet.run(progress)


def simulate(
    run: Run, progress: Callable[[int], None] | None = None, *, share: float | None = None
) -> tuple[Result, Records]:
    """Play a run and sum it up. `share`: of the knee, if its rate came from there."""
    began = time.perf_counter()
    records = play(run, progress)
    result = summarise(
        records,
        policy=run.policy,
        workload=run.source.name,
        seed=run.seed,
        replicas=run.replicas,
        profile=run.profile,
        rate=run.rate,
        share=share,
        wall_seconds=time.perf_counter() - began,
    )
    return result, records


class Knees:
    """The highest rate at which least-request keeps p95 TTFT under 2 s, by workload and fleet; found once each."""

    def __init__(self) -> None:
        self._found: dict[tuple[object, ...], float] = {}

    def rate(self, run: Run) -> float:
        """The knee for this run's source and replicas; its policy, seed and faults do not matter."""
        key = (run.source, run.replicas, run.profile, run.speeds, run.requests)
        if key not in self._found:
            self._found[key] = _find_knee(run)
        return self._found[key]


def _find_knee(run: Run) -> float:
    """Bisection on a logarithmic scale, from a bracket grown by doubling."""
    quiet = msgspec.structs.replace(run, policy=KNEE_POLICY, pickers=1, seed=0, failures=(), joins=(), check_every=None)

    def sustains(rate: float) -> bool:
        share_max = 1.0 - KNEE_PERCENTILE
        records = play(msgspec.structs.replace(quiet, rate=rate), late_share_max=share_max)
        late = sum(ttft > KNEE_TTFT_SECONDS for ttft in records.ttft_seconds)
        return not records.stopped_early and late <= share_max * records.ended

    low = high = 1.0
    for _ in range(_KNEE_STEPS_MAX):
        if sustains(high):
            low, high = high, high * 2
        elif low == high:
            high = low = low / 2
            if sustains(low):
                high = low * 2
                break
        else:
            break
    else:
        raise ValueError(
            f"no knee between {low:g} and {high:g}: {run.requests} requests of {run.source.name} do not load "
            f"{run.replicas} replicas enough, or always too much; give more requests, or a rate"
        )
    while high / low > KNEE_PRECISION:
        middle = sqrt(low * high)
        if sustains(middle):
            low = middle
        else:
            high = middle
    return low
