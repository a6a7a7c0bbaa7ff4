"""`picker simulate`: routing policies on a workload, over simulated model servers."""

import argparse
import shlex
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import msgspec
from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from picker import config as configuration
from picker.sim import report_html
from picker.sim.autoscale import SIGNALS, Autoscale
from picker.sim.days import Day
from picker.sim.fleet import Failure
from picker.sim.policies import POLICIES
from picker.sim.profiles import DEFAULT_PROFILE, PROFILES
from picker.sim.records import Records
from picker.sim.report_table import table
from picker.sim.results import Result
from picker.sim.sharing import Sharing
from picker.sim.simulate import Knees, Run, simulate
from picker.sim.sources import Source, Workload, open_file
from picker.sim.workloads import WORKLOADS

_NIGHT = 0.02
"""Of a day's requests, so many warm the caches; unless an option says otherwise."""
DEFAULT_POLICIES = "picker,least_request,round_robin"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    add_run_arguments(parser)
    parser.add_argument(
        "--policy",
        default=DEFAULT_POLICIES,
        metavar="NAME,...",
        help=f"routing policies to compare (default %(default)s); `all` complete ones, or any of {', '.join(POLICIES)}",
    )
    parser.add_argument("--pickers", type=int, default=1, metavar="N", help="routers that share the traffic (1..4)")
    parser.add_argument("--shared", action="store_true", help="they tell each other what they decide; ours only")
    parser.add_argument(
        "--shared-delay", type=float, default=0.02, metavar="S", help="until the others hear it (default %(default)s)"
    )
    parser.add_argument(
        "--shared-loss", type=float, default=0.0, metavar="SHARE", help="of what they tell is lost (default 0)"
    )
    parser.add_argument(
        "--autoscale",
        default="",
        metavar="SIGNAL@TARGET,...",
        help=f"replicas come and go as a HorizontalPodAutoscaler would have it, by one of {', '.join(SIGNALS)}; "
        "several are compared. --replicas are there at first",
    )
    parser.add_argument("--replicas-min", type=int, default=1, metavar="N", help="with --autoscale (default 1)")
    parser.add_argument("--replicas-max", type=int, default=16, metavar="N", help="with --autoscale (default 16)")
    parser.add_argument(
        "--start-seconds", type=float, default=60.0, metavar="S", help="until a new replica serves (default 60)"
    )
    parser.add_argument(
        "--cool-down", type=float, default=300.0, metavar="S", help="before replicas go: HPA's window (default 300)"
    )
    parser.add_argument(
        "--day",
        type=float,
        metavar="S",
        help="the rate follows a day of S seconds, its peak is --rate; sets --requests",
    )
    parser.add_argument(
        "--day-low", type=float, default=0.2, metavar="SHARE", help="the night's rate, of the peak's (default 0.2)"
    )
    parser.add_argument("--json", metavar="FILE|-", help="write the results as JSON; - is standard output")
    parser.add_argument("--html", metavar="FILE", type=Path, help="write a self-contained report with plots")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes (default %(default)s)")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """What `simulate` and `tune` share."""
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--workload", choices=tuple(WORKLOADS), default="chat", help="default %(default)s")
    source.add_argument(
        "--trace", metavar="FILE", type=Path, help="a Mooncake .jsonl, an Azure .csv, or a recording of `picker serve`"
    )
    parser.add_argument("--replicas", type=int, default=8, metavar="N", help="model servers (default %(default)s)")
    parser.add_argument("--profile", choices=tuple(PROFILES), default=DEFAULT_PROFILE, help="default %(default)s")
    parser.add_argument("--kv-tokens", type=int, metavar="N", help="KV capacity of a replica, not the profile's")
    parser.add_argument("--requests", type=int, default=4000, metavar="N", help="a run (default %(default)s)")
    parser.add_argument(
        "--warm-up", type=float, metavar="SHARE", help="requests played first, not measured (default 0.2; of a trace 0)"
    )
    load = parser.add_mutually_exclusive_group()
    load.add_argument(
        "--load",
        metavar="SHARE,...",
        default="0.8",
        help="share of the knee: the highest rate at which least_request keeps p95 TTFT under 2 s, or under 1.5 "
        "times what idle servers need where prompts are that long (default %(default)s)",
    )
    load.add_argument("--rate", type=float, metavar="R", help="requests a second instead; of a trace its speed")
    parser.add_argument("--seed", default="1", metavar="N,...", help="of workload and routers (default %(default)s)")
    parser.add_argument("--config", type=Path, metavar="FILE", help="the picker's configuration")
    parser.add_argument("--scrape-seconds", type=float, metavar="S", help="for all policies; inf: gauges never read")
    parser.add_argument(
        "--idle-scrape-seconds", type=float, metavar="S", help="the same while a replica is idle, as far as is known"
    )
    parser.add_argument("--metrics-age-seconds", type=float, default=0.0, metavar="S", help="how late gauges arrive")
    parser.add_argument(
        "--events", type=float, metavar="S", help="engines publish KV events, which arrive so late (see --events-loss)"
    )
    parser.add_argument(
        "--events-loss", type=float, default=0.0, metavar="SHARE", help="of these events, so many are lost (default 0)"
    )
    parser.add_argument("--speeds", default="", metavar="X,...", help="speed factors of the replicas, in turn")
    parser.add_argument("--index-size", type=float, default=1.0, metavar="X", help="make our index X times its size")
    parser.add_argument("--fail", action="append", default=[], metavar="REPLICA@S", help="a replica dies (repeatable)")
    parser.add_argument("--join", action="append", default=[], type=float, metavar="S", help="one more (repeatable)")
    parser.add_argument("--blind", action="store_true", help="response bodies do not pass the picker")


class UsageError(ValueError):
    """An option's value does not make sense; the text says which and why."""


def base_run(options: argparse.Namespace) -> Run:
    """The run that the options describe, its policy, rate and seed still to be set. Raises `UsageError`."""
    for name in ("replicas", "requests"):
        if getattr(options, name) < 1:
            raise UsageError(f"--{name} {getattr(options, name)}: it must be at least 1")
    config = configuration.Config()
    if options.config is not None:
        try:
            config = configuration.load(options.config.read_text("utf-8"))
        except (OSError, UnicodeDecodeError, configuration.ConfigError) as error:
            raise UsageError(f"--config {options.config}: {error}") from error
    if options.index_size != 1.0:
        oversize = config.routing.index_oversize * options.index_size
        if not 0.1 <= oversize <= 10.0:
            raise UsageError(f"--index-size {options.index_size:g}: {oversize:g} times the engine's is not in 0.1..10")
        routing = msgspec.structs.replace(config.routing, index_oversize=oversize)
        config = msgspec.structs.replace(config, routing=routing)
    if options.events is not None and options.events < 0:
        raise UsageError(f"--events {options.events:g}: seconds must be at least 0")
    if not 0.0 <= options.events_loss <= 1.0:
        raise UsageError(f"--events-loss {options.events_loss:g}: it must be 0..1")
    warm_up = options.warm_up
    if warm_up is None:
        warm_up = 0.0 if options.trace is not None else 0.2
    if not 0.0 <= warm_up < 1.0:
        raise UsageError(f"--warm-up {warm_up:g}: it must be at least 0 and below 1")
    return Run(
        source=_source(options),
        policy="picker",
        rate=options.rate or 1.0,
        requests=options.requests,
        warm_up=warm_up,
        replicas=options.replicas,
        profile=options.profile,
        kv_tokens=options.kv_tokens,
        speeds=_numbers("--speeds", options.speeds),
        pickers=getattr(options, "pickers", 1),
        sharing=_sharing(options),
        config=config,
        first_chunk_visible=not options.blind,
        scrape_seconds=options.scrape_seconds,
        idle_scrape_seconds=options.idle_scrape_seconds,
        metrics_age_seconds=options.metrics_age_seconds,
        kv_events_delay_seconds=options.events,
        kv_events_loss=options.events_loss,
        failures=tuple(_failure(text, options.replicas) for text in options.fail),
        joins=tuple(options.join),
    )


def _source(options: argparse.Namespace) -> Source:
    return Workload(options.workload) if options.trace is None else open_file(options.trace)


def _numbers(option: str, text: str) -> tuple[float, ...]:
    try:
        numbers = tuple(float(part) for part in text.split(",") if part)
    except ValueError:
        raise UsageError(f"{option} {text}: expected numbers separated by commas") from None
    if any(not number > 0 for number in numbers):
        raise UsageError(f"{option} {text}: every number must be above 0")
    return numbers


def loads(options: argparse.Namespace) -> tuple[float, ...]:
    """Shares of the knee."""
    return _numbers("--load", options.load)


def seeds(options: argparse.Namespace) -> tuple[int, ...]:
    """Seeds to run."""
    try:
        return tuple(int(part) for part in options.seed.split(","))
    except ValueError:
        raise UsageError(f"--seed {options.seed}: expected whole numbers separated by commas") from None


def _failure(text: str, replicas: int) -> Failure:
    number, at, seconds = text.partition("@")
    try:
        failure = Failure(int(number), float(seconds))
    except ValueError:
        raise UsageError(f"--fail {text}: expected REPLICA@SECONDS, like 2@30") from None
    if not at or not 0 <= failure.replica < replicas:
        raise UsageError(f"--fail {text}: replicas are 0..{replicas - 1}")
    return failure


def _sharing(options: argparse.Namespace) -> Sharing | None:
    if not getattr(options, "shared", False):
        return None
    if not 0.0 <= options.shared_delay <= 60.0:
        raise UsageError(f"--shared-delay {options.shared_delay:g}: it must be 0..60 seconds")
    if not 0.0 <= options.shared_loss < 1.0:
        raise UsageError(f"--shared-loss {options.shared_loss:g}: it must be at least 0 and below 1")
    return Sharing(delay_seconds=options.shared_delay, loss_share=options.shared_loss)


def _autoscales(options: argparse.Namespace) -> list[Autoscale | None]:
    """`[None]`: nothing scales."""
    found: list[Autoscale | None] = []
    if not 1 <= options.replicas_min <= options.replicas_max:
        raise UsageError(f"--replicas-min {options.replicas_min}: at least 1, at most --replicas-max")
    for text in [part for part in options.autoscale.split(",") if part]:
        signal, at, target = text.partition("@")
        if signal not in SIGNALS or not at:
            raise UsageError(
                f"--autoscale {text}: expected SIGNAL@TARGET, like wanted@0.8, one of {', '.join(SIGNALS)}"
            )
        (number,) = _numbers("--autoscale", target) or (0.0,)
        if not number:
            raise UsageError(f"--autoscale {text}: the target is missing")
        found.append(
            Autoscale(
                signal=signal,
                target=number,
                replicas_min=options.replicas_min,
                replicas_max=options.replicas_max,
                start_seconds=options.start_seconds,
                cool_down_seconds=options.cool_down,
            )
        )
    return found or [None]


def _over_a_day(base: Run, options: argparse.Namespace) -> Run:
    """The same workload, its rate as the hours have it."""
    if not isinstance(base.source, Workload) or options.rate is None:
        raise UsageError("--day needs a --workload and a --rate, which is the peak's")
    if not options.day >= 60.0 or not 0.0 < options.day_low <= 1.0:
        raise UsageError("--day is at least 60 seconds, and --day-low above 0 and at most 1")
    day = Day(base.source, options.day, options.day_low)
    warm_up = _NIGHT if options.warm_up is None else options.warm_up
    return msgspec.structs.replace(base, source=day, requests=day.requests(options.rate), warm_up=warm_up)


def _policies(text: str) -> list[str]:
    complete = [name for name in POLICIES if "-without-" not in name]
    names = complete if text == "all" else [part for part in text.split(",") if part]
    for name in names:
        if name not in POLICIES:
            raise UsageError(f"--policy {name}: choose from {', '.join(POLICIES)}")
    return names


@contextmanager
def progress_bar(quiet: bool) -> Iterator[Callable[[str, int | None], Callable[[int], None]]]:
    """Yields `track(label, total) -> callback(done)`; on standard error, only for a person."""
    console = Console(stderr=True)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=quiet or not console.is_terminal,
    ) as progress:
        task = progress.add_task("")

        def track(label: str, total: int | None) -> Callable[[int], None]:
            progress.reset(task, description=label, total=total)
            return lambda done: progress.update(task, completed=done)

        yield track


def print_wide(shown: RenderableType) -> None:
    """To standard output; not squeezed where that is no terminal."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=180)
    console.print(shown)


def run(options: argparse.Namespace) -> int:
    """Simulate and print. 0: done; 1: it could not be done; 2: wrong usage."""
    try:
        results = _results(options)
    except UsageError as error:
        print(f"picker simulate: {error}", file=sys.stderr)
        return 2
    except ValueError as error:
        print(f"picker simulate: {error}", file=sys.stderr)
        return 1
    summaries = [result for result, _ in results]
    if options.json != "-":
        print_wide(table(summaries))
    try:
        _write(options, results)
    except OSError as error:
        print(f"picker simulate: cannot write {error.filename}: {error.strerror}", file=sys.stderr)
        return 1
    return 0


def _write(options: argparse.Namespace, results: list[tuple[Result, Records]]) -> None:
    if options.json is not None:
        summaries = [result for result, _ in results]
        encoded = msgspec.json.format(msgspec.json.encode(summaries), indent=1).decode() + "\n"
        if options.json == "-":
            sys.stdout.write(encoded)
        else:
            Path(options.json).write_text(encoded, "utf-8")
    if options.html is not None:
        options.html.write_text(report_html.page(results, command=_command()), "utf-8")


def _command() -> str:
    return shlex.join(["picker", "simulate", *(each for each in sys.argv[1:] if each != "simulate")])


def _results(options: argparse.Namespace) -> list[tuple[Result, Records]]:
    base = base_run(options)
    names = _policies(options.policy)
    if not 1 <= base.pickers <= 4:
        raise UsageError(f"--pickers {base.pickers}: 1..4")
    if options.jobs < 1:
        raise UsageError(f"--jobs {options.jobs}: it must be at least 1")
    autoscales = _autoscales(options)
    if options.day is not None:
        base = _over_a_day(base, options)
    with progress_bar(options.quiet) as track:
        rates: list[tuple[float | None, float]] = [(None, options.rate)]
        if options.rate is None:
            track("the knee", None)
            knee = Knees().rate(base)
            rates = [(share, share * knee) for share in loads(options)]
        runs = [
            (msgspec.structs.replace(base, policy=name, rate=rate, seed=seed, autoscale=scaler), share)
            for share, rate in rates
            for seed in seeds(options)
            for name in names
            for scaler in autoscales
        ]
        if options.jobs > 1:
            return _in_processes(runs, options.jobs, track)
        results = []
        for each, share in runs:
            at = "" if share is None else f" at {share:g}"
            results.append(simulate(each, track(f"{each.policy}{at}", base.requests), share=share))
        return results


def _in_processes(
    runs: list[tuple[Run, float | None]], jobs: int, track: Callable[[str, int | None], Callable[[int], None]]
) -> list[tuple[Result, Records]]:
    done = track("runs", len(runs))
    results = []
    with ProcessPoolExecutor(jobs) as pool:
        for result in pool.map(_simulate_one, runs):
            results.append(result)
            done(len(results))
    return results


def _simulate_one(run_and_share: tuple[Run, float | None]) -> tuple[Result, Records]:
    return simulate(run_and_share[0], share=run_and_share[1])


if __name__ == "__main__":
    _parser = argparse.ArgumentParser(prog="picker simulate", allow_abbrev=False)
    add_arguments(_parser)
    sys.exit(run(_parser.parse_args()))
