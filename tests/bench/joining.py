"""How long until a replica that joins carries its share: `python -m tests.bench.joining`. Simulated, some two minutes.

The work of a request is its uncached prompt tokens and its output tokens. A replica's share is 1 where it does as
much of it as the mean of all.
"""

from statistics import fmean

import numpy as np

from picker.config import Config, Routing
from picker.sim.records import Records
from picker.sim.simulate import Run, fleet_of
from picker.sim.sources import Workload

JOINS_AT = 120.0
REPLICAS = 4
SPANS = ((0, 5), (5, 10), (10, 20), (20, 60), (60, 240))
CELLS = (("chat", 40.0), ("tools", 20.0), ("long", 2.0), ("agents", 8.0), ("agents", 20.0))
SECONDS = 400
SEEDS = (1, 2, 3)


def main() -> None:
    """Print a table in Markdown, and the agents without the rule."""
    spans = " | ".join(f"{since} to {until} s" for since, until in SPANS)
    print(f"| workload, requests a second | first request after | {spans} |")
    print("|---" * (2 + len(SPANS)) + "|")
    for name, rate in CELLS:
        print(_row(name, rate, Config()), flush=True)
    print(_row("agents", 8.0, Config(routing=Routing(shared_weight=1.0))), "shared_weight 1")


def _row(name: str, rate: float, config: Config) -> str:
    runs = [_run(name, rate, seed, config) for seed in SEEDS]
    firsts = [first for first, _ in runs if first is not None]
    first = f"{min(firsts):.1f} to {max(firsts):.1f} s" if firsts else "never"
    shares = [f"{fmean(shares[at] for _, shares in runs):.2f}" for at in range(len(SPANS))]
    return f"| `{name}`, {rate:g} | {first} | {' | '.join(shares)} |"


def _run(name: str, rate: float, seed: int, config: Config) -> tuple[float | None, list[float]]:
    """Seconds until its first request, and its share in each span."""
    run = Run(
        source=Workload(name),
        policy="picker",
        rate=rate,
        requests=round(rate * SECONDS),
        replicas=REPLICAS,
        seed=seed,
        warm_up=0.0,
        joins=(JOINS_AT,),
        config=config,
    )
    records = fleet_of(run).run()
    return _first(records), [_share(records, since, until) for since, until in SPANS]


def _first(records: Records) -> float | None:
    arrived = records.column("arrived_at")[records.column("replica") == REPLICAS]
    return float(arrived.min()) - JOINS_AT if arrived.size else None


def _share(records: Records, since: float, until: float) -> float:
    arrived = records.column("arrived_at") - JOINS_AT
    work = records.column("prompt_tokens") - records.column("cached_tokens") + records.column("output_tokens")
    span = (arrived >= since) & (arrived < until)
    own = span & (records.column("replica") == REPLICAS)
    return float(np.sum(work[own]) / np.sum(work[span])) * (REPLICAS + 1)


if __name__ == "__main__":
    main()
