"""`make bench-peers`: other routers and the picker, the same requests, in turn. `--json FILE` keeps the figures.

Exit code: 0 when every contestant ran to the end, 1 when one is absent, 2 for wrong arguments, 130 on Ctrl-C.
"""

import argparse
import asyncio
import datetime
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import aiohttp
import msgspec
import uvloop
from rich.console import Console

from picker.lab.children import ChildError
from picker.lab.envoy import EnvoyError, envoy_binary
from picker.pool.specs import split_address
from tests.bench.peers import contestants, report, workload
from tests.bench.peers.adapters.contract import Contestant
from tests.bench.peers.cell import Cell
from tests.bench.peers.run import Plan, Results, prepare, run
from tests.bench.report import machine


def words(text: str) -> tuple[str, ...]:
    """Comma-separated, each once."""
    return tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))


def at_least_one(text: str) -> int:
    """A whole number above 0."""
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number above 0")
    return int(text)


def arguments(given: Sequence[str]) -> tuple[Plan, list[Contestant], argparse.Namespace]:
    """What to run. Wrong ones end with a line that names what is wrong (exit code 2)."""
    parser = argparse.ArgumentParser(prog="make bench-peers", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=at_least_one, default=3)
    parser.add_argument(
        "--requests", type=at_least_one, metavar="N", help="a cell; default: what comes in some seconds"
    )
    parser.add_argument("--workload", type=words, default=tuple(workload.WORKLOADS), metavar="NAME,...")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=HOST:PORT", help="an ext_proc picker")
    parser.add_argument("--only", type=words, metavar="NAME,...", help="these contestants; `all` for every one")
    parser.add_argument(
        "--server-ports", type=words, metavar="PORT,...", help="of the model servers; default: free ones"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(given)
    if unknown := [name for name in options.workload if name not in workload.WORKLOADS]:
        parser.error(f"--workload {unknown[0]!r}: there is {', '.join(workload.WORKLOADS)}")
    if not options.workload:
        parser.error("--workload: name at least one")
    try:
        found = contestants.chosen(options.only, options.peer)
        ports = [split_address(f"127.0.0.1:{port}")[1] for port in options.server_ports or ()]
    except ValueError as error:
        parser.error(str(error))
    if not found:
        parser.error("--only: name at least one contestant")
    if options.peer and len(ports) < 2:
        parser.error(
            "--peer needs --server-ports PORT,PORT,...: a picker that runs already must know the model servers"
        )
    plan = Plan(
        rounds=options.rounds,
        workloads=options.workload,
        requests=options.requests,
        seed=options.seed,
        server_ports=tuple(ports) or Plan().server_ports,
    )
    return plan, found, options


def main(given: Sequence[str] | None = None) -> int:
    """Run it, print it; returns the exit code."""
    plan, found, options = arguments(sys.argv[1:] if given is None else given)
    console = Console(width=150, soft_wrap=True)

    def tell(line: str) -> None:
        console.print(line, markup=False, highlight=False)

    try:
        envoy_binary()
        results = Results(
            date=datetime.datetime.now(datetime.UTC).date().isoformat(),
            arguments=list(sys.argv[1:] if given is None else given),
            machine=machine(),
            plan=plan,
            lines=prepare(found, tell),
        )

        def keep() -> None:
            if options.json is not None:
                options.json.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=1))

        def done(cell: Cell) -> None:
            results.cells.append(cell)
            tell(report.progress(cell))
            keep()  # what was measured is not lost when the rest is

        keep()  # where it cannot be, that is said now
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            results.seconds = runner.run(_interruptible(plan, found, results, tell, done))
    except (ChildError, EnvoyError, OSError, aiohttp.ClientError) as error:
        print(f"bench-peers: {error}", file=sys.stderr)
        return 1
    except (KeyboardInterrupt, asyncio.CancelledError):
        tell("Stopped; everything that was started has ended.")
        return 130
    keep()
    report.show(results, console)
    return 1 if any(line.absent is not None for line in results.lines) else 0


async def _interruptible(
    plan: Plan,
    found: list[Contestant],
    results: Results,
    tell: Callable[[str], None],
    done: Callable[[Cell], None],
) -> float:
    """SIGTERM ends it in order, as Ctrl-C does."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await run(plan, found, results.lines, tell, done)


if __name__ == "__main__":
    sys.exit(main())
