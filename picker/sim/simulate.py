"""One run: a source of requests, a policy, replicas and options; and the knee that loads are shares of.

A run is a function of its `Run`: the same one gives the same records, on every machine.
"""

import time
from collections.abc import Callable
from itertools import islice
from math import sqrt
from random import Random

import msgspec

from picker.config import Config
from picker.sim.autoscale import Autoscale
from picker.sim.fleet import Failure, Fleet, FleetOptions, Stop
from picker.sim.policies import POLICIES
from picker.sim.policies.policy import Setting
from picker.sim.profiles import DEFAULT_PROFILE, PROFILES, Profile
from picker.sim.records import Records
from picker.sim.results import Result, summarise
from picker.sim.sharing import Sharing
from picker.sim.sources import Source

KNEE_POLICY = "least_request"
KNEE_TTFT_SECONDS = 2.0
KNEE_PERCENTILE = 0.95
KNEE_PRECISION = 1.03
"""The knee is found to within this factor."""
KNEE_IDLE_FACTOR = 1.5
"""What replaces the 2 s where prompts are long: this times the 95th percentile on idle servers."""
_KNEE_STEPS_MAX = 12
_KNEE_SAMPLE = 500


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a run depends on."""

    source: Source
    policy: str
    rate: float
    """Requests a second; of a trace its speed."""
    requests: int
    warm_up: float = 0.2
    """Share of the requests that are played first and not measured."""
    seed: int = 0
    replicas: int = 8
    profile: str = DEFAULT_PROFILE
    kv_tokens: int | None = None
    """KV capacity of a replica in place of the profile's."""
    knee_ttft_seconds: float | None = None
    """What a load of 1 is measured by, in place of `late_seconds`."""
    speeds: tuple[float, ...] = ()
    """Factors of the replicas' speed, in turn; empty: all 1."""
    pickers: int = 1
    sharing: Sharing | None = None
    """How they tell each other what they decide; `None`: they do not."""
    config: Config = Config()
    first_chunk_visible: bool = True
    scrape_seconds: float | None = None
    idle_scrape_seconds: float | None = None
    metrics_age_seconds: float = 0.0
    kv_events_delay_seconds: float | None = None
    kv_events_loss: float = 0.0
    failures: tuple[Failure, ...] = ()
    joins: tuple[float, ...] = ()
    autoscale: Autoscale | None = None
    check_every: int | None = None

    def profiles(self) -> list[Profile]:
        """One a replica. Raises `ValueError` on an unknown name."""
        if self.profile not in PROFILES:
            raise ValueError(f"no profile {self.profile!r}: choose one of {', '.join(PROFILES)}")
        profile = PROFILES[self.profile]
        if self.kv_tokens is not None:
            profile = profile.with_capacity(self.kv_tokens)
        speeds = self.speeds or (1.0,)
        factors = [speeds[number % len(speeds)] for number in range(self.replicas)]
        return [profile if factor == 1.0 else profile.faster(factor) for factor in factors]


def play(run: Run, progress: Callable[[int], None] | None = None, *, stop: Stop | None = None) -> Records:
    """Simulate. Raises `ValueError` that names what is wrong with the run."""
    return fleet_of(run, stop).run(progress)


def fleet_of(run: Run, stop: Stop | None = None) -> Fleet:
    """The fleet, ready to run. Raises `ValueError` that names what is wrong with the run."""
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
    return Fleet(
        run.profiles(),
        policies,
        run.source.scripts(run.seed, run.requests, run.rate, run.warm_up),
        rng=Random(f"{run.seed}/fleet"),
        options=FleetOptions(
            scrape_seconds=run.scrape_seconds,
            idle_scrape_seconds=run.idle_scrape_seconds,
            metrics_age_seconds=run.metrics_age_seconds,
            kv_events_delay_seconds=run.kv_events_delay_seconds,
            kv_events_loss=run.kv_events_loss,
            failures=run.failures,
            joins=run.joins,
            autoscale=run.autoscale,
            stop=stop,
            requests=run.requests - int(run.warm_up * run.requests),
            sharing=run.sharing,
            check_every=run.check_every,
        ),
    )


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
        rate_unit=run.source.unit,
        share=share,
        autoscale=None if run.autoscale is None else run.autoscale.name,
        wall_seconds=time.perf_counter() - began,
    )
    return result, records


class Knees:
    """The highest rate at which least-request keeps p95 TTFT under 2 s, by workload and fleet; found once each."""

    def __init__(self) -> None:
        self._found: dict[tuple[object, ...], float] = {}

    def rate(self, run: Run) -> float:
        """The knee for this run's source and replicas; its policy, seed and faults do not matter."""
        fleet = (run.replicas, run.profile, run.kv_tokens, run.speeds)
        key = (run.source, *fleet, run.requests, run.warm_up, run.knee_ttft_seconds)
        if key not in self._found:
            self._found[key] = _find_knee(run)
        return self._found[key]


def _find_knee(run: Run) -> float:
    """Bisection on a logarithmic scale, from a bracket grown by doubling or halving."""
    quiet = msgspec.structs.replace(
        run,
        policy=KNEE_POLICY,
        pickers=1,
        sharing=None,
        seed=0,
        failures=(),
        joins=(),
        autoscale=None,
        check_every=None,
    )
    limit = late_seconds(quiet) if run.knee_ttft_seconds is None else run.knee_ttft_seconds
    share_max = 1.0 - KNEE_PERCENTILE

    def sustains(rate: float) -> bool:
        stop = Stop(late_seconds=limit, late_share_max=share_max)
        records = play(msgspec.structs.replace(quiet, rate=rate), stop=stop)
        late = sum(ttft > limit for ttft in records.ttft_seconds)
        return not records.stopped_early and late <= share_max * len(records.ttft_seconds)

    factor = 2.0 if sustains(1.0) else 0.5
    near = 1.0
    for _ in range(_KNEE_STEPS_MAX):
        far = near * factor
        if sustains(far) != (factor > 1):
            break
        near = far
    else:
        raise ValueError(
            f"no knee up to {near:.3g}: {run.requests} requests of {run.source.name} cannot load {run.replicas} "
            "replicas; give more requests, fewer or slower replicas, less KV cache, or a rate in place of a load"
            if factor > 1
            else f"no knee down to {near:.3g}: one request of {run.source.name} at a time is too much; give a rate"
        )
    low, high = min(near, far), max(near, far)
    while high / low > KNEE_PRECISION:
        middle = sqrt(low * high)
        if sustains(middle):
            low = middle
        else:
            high = middle
    return low


def late_seconds(run: Run) -> float:
    """2 s; where prompts are so long that idle servers need more, 1.5 times what those need (95th percentile)."""
    profile = run.profiles()[0]
    alone = []
    for script in islice(run.source.scripts(run.seed, run.requests, 1.0, 0.0), _KNEE_SAMPLE):
        request = script.request(0)
        tokens = request.prompt_tokens
        steps = -(-tokens // profile.batch_tokens_max)
        alone.append(
            profile.duration(prefill_tokens=tokens, token_pairs=tokens * tokens / 2)
            + (steps - 1) * profile.step_seconds
        )
    alone.sort()
    idle = alone[int(KNEE_PERCENTILE * (len(alone) - 1))] if alone else 0.0
    return max(KNEE_TTFT_SECONDS, KNEE_IDLE_FACTOR * idle)
