"""`picker tune`: search weights, epsilon, threshold and affinity break on your traffic, and print what to paste."""

import argparse
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from functools import partial

import msgspec
import yaml
from rich.console import Console

from picker.sim.cli_simulate import UsageError, add_run_arguments, base_run, loads, progress_bar, seeds
from picker.sim.records import Records
from picker.sim.simulate import Knees, Run, play
from picker.sim.sources import Recording, Trace
from picker.sim.tune import CONFIDENCE, Gain, Proof, Tuned, play_here, tune


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    add_run_arguments(parser)
    parser.add_argument("--trials", type=int, default=24, metavar="N", help="candidates (default %(default)s)")
    parser.add_argument(
        "--held-out",
        type=int,
        default=5,
        metavar="N",
        help="seeds for the proof, beside those of --seed (default %(default)s); of a file it is its second half",
    )
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes (default %(default)s)")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")


def run(options: argparse.Namespace) -> int:
    """Tune and print. 0: done, gain or none; 1: it could not be done; 2: wrong usage."""
    try:
        tuned = _tune(options)
    except UsageError as error:
        print(f"picker tune: {error}", file=sys.stderr)
        return 2
    except ValueError as error:
        print(f"picker tune: {error}", file=sys.stderr)
        return 1
    _print(tuned)
    return 0


def _tune(options: argparse.Namespace) -> Tuned:
    for name in ("trials", "held_out", "jobs"):
        if getattr(options, name) < 1:
            raise UsageError(f"--{name.replace('_', '-')} {getattr(options, name)}: it must be at least 1")
    base = base_run(options)
    with ExitStack() as stack:
        play_all = play_here
        if options.jobs > 1:
            pool = stack.enter_context(ProcessPoolExecutor(options.jobs))
            play_all = partial(_play_in, pool)
        track = stack.enter_context(progress_bar(options.quiet))
        rates = [options.rate]
        if options.rate is None:
            track("the knee", None)
            knee = Knees().rate(base)
            rates = [share * knee for share in loads(options)]
        runs, held_out = _parts(base, rates, seeds(options), options.held_out)
        bar = track("candidates", None)
        return tune(
            runs,
            held_out,
            trials=options.trials,
            seed=seeds(options)[0],
            play_all=play_all,
            progress=lambda done, total: bar(done),
        )


def _play_in(pool: ProcessPoolExecutor, runs: Sequence[Run]) -> list[Records]:
    return list(pool.map(play, runs))


def _parts(
    base: Run, rates: Sequence[float], searched: Sequence[int], held_out_count: int
) -> tuple[list[Run], list[Run]]:
    """Runs to search on and runs to prove on: other seeds of a workload, the second half of a file."""
    if isinstance(base.source, Trace | Recording):
        half = base.requests // 2
        if half < 100:
            raise UsageError(f"--requests {base.requests}: a file is split in halves, which need at least 100 each")
        first = msgspec.structs.replace(base, requests=half)
        second = msgspec.structs.replace(first, source=msgspec.structs.replace(base.source, skip=half))
        searching, proving = [(first, seed) for seed in searched], [(second, seed) for seed in searched]
        if isinstance(base.source, Recording):  # the same run whatever the seed
            searching, proving = searching[:1], proving[:1]
    else:
        others = [max(searched) + 1 + number for number in range(held_out_count)]
        searching, proving = [(base, seed) for seed in searched], [(base, seed) for seed in others]
    return (
        [msgspec.structs.replace(each, seed=seed, rate=rate) for each, seed in searching for rate in rates],
        [msgspec.structs.replace(each, seed=seed, rate=rate) for each, seed in proving for rate in rates],
    )


def _print(tuned: Tuned) -> None:
    out = Console(highlight=False, soft_wrap=True)
    proof = tuned.proof
    out.print(f"{tuned.tried} runs searched; proof on runs that the search never saw:")
    rows = (
        ("mean TTFT", proof.before.ttft_mean, proof.after.ttft_mean, proof.ttft_mean),
        ("p95 TTFT", proof.before.ttft_p95, proof.after.ttft_p95, proof.ttft_p95),
        ("p95 E2E", proof.before.e2e_p95, proof.after.e2e_p95, proof.e2e_p95),
    )
    for name, before, after, gain in rows:
        out.print(f"  {name:9}  {before:8.3f} s -> {after:8.3f} s   {_gain(gain)}")
    out.print(f"  together   {_gain(proof.overall)}")
    if not tuned.changes or not holds(proof):
        out.print("No change that holds up: keep the configuration as it is.")
        return
    out.print("Paste this into the configuration:\n")
    sys.stdout.write(to_yaml(tuned.changes))


def holds(proof: Proof) -> bool:
    """The whole interval of the score is a gain."""
    return proof.overall.high < 0.0


def _gain(gain: Gain) -> str:
    change, low, high = (f"{100 * each:+.1f}" for each in gain)
    return f"{change} % ({100 * CONFIDENCE:.0f} % interval {low} .. {high})"


def to_yaml(changes: dict[str, float]) -> str:
    """Changed knobs, nested as in the file."""
    tree: dict[str, object] = {}
    for path, value in changes.items():
        section, _, name = path.rpartition(".")
        inner = tree.setdefault(section, {}) if section else tree
        assert isinstance(inner, dict)
        inner[name] = value
    return yaml.safe_dump(tree, sort_keys=False)


if __name__ == "__main__":
    _parser = argparse.ArgumentParser(prog="picker tune", allow_abbrev=False)
    add_arguments(_parser)
    sys.exit(run(_parser.parse_args()))
