"""`make test-vllm`: Envoy and the picker before two real vLLM servers on this machine's CPU.

Sets up what is missing (5.6 GiB, once), then shows two things: that the same requests hit more cache
behind the picker than behind round robin, by vLLM's own counters; and that what the picker assumes of
vLLM is so. Writes docs/real-vllm.md and exits 0 if everything held, 1 if something did not, 2 if it
could not be set up. Nothing is left running.
"""

import argparse
import signal
import sys
import time
from types import FrameType

from rich.console import Console

from picker.lab.envoy import EnvoyError
from picker.sim.prompts import Session
from tests.bench.report import console_table
from tests.ports import free_ports
from tests.vllm import caches, page, surface, workload
from tests.vllm.contest import ORDER, Run, contest
from tests.vllm.environment import SetupError, prepare
from tests.vllm.judge import judge
from tests.vllm.servers import LOGS, Servers, VllmServer
from tests.vllm.stand import Stand

console = Console(width=200, highlight=False)


def tell(text: str) -> None:
    console.print(text, markup=False)


def main() -> int:
    parser = argparse.ArgumentParser(prog="make test-vllm", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=1, help="of the workload (default %(default)s)")
    parser.add_argument("--no-page", action="store_true", help=f"leave {page.PAGE.name} as it is")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        return _run(options.seed, write_page=not options.no_page)
    except (SetupError, EnvoyError) as error:
        tell(f"test-vllm: {error}")
        return 2
    except (OSError, AssertionError) as error:
        tell(f"test-vllm: it broke off: {type(error).__name__}: {error}. Logs of the servers: {LOGS}")
        return 1
    except KeyboardInterrupt:
        tell("Stopped; everything that was started has ended.")
        return 130


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _run(seed: int, *, write_page: bool) -> int:
    folder = prepare(tell)
    began = time.monotonic()
    first, second = free_ports(2)
    made = [VllmServer(1, first, folder, ("both", "one")), VllmServer(2, second, folder, ("both",))]
    with Servers(made, tell) as servers:
        asked = workload.sessions(seed, workload.Shape())
        distinct = _distinct_tokens(servers, asked)
        runs = contest(servers, asked, _Progress(sum(len(session.turns) for session in asked)))
        findings = judge(runs, distinct)
        with Stand(servers) as stand:
            tell("the checks: pages, APIs, refusals, adapters, salts, a restart")
            for check in (surface.all_of, caches.adapters, caches.salts, caches.emptied):
                check(stand)
            caches.restart(stand, tell)
            findings += stand.findings
    seconds = time.monotonic() - began
    ceiling = 1 - distinct / runs[0].client_prompt_tokens
    tables = [page.contest_part(runs, distinct, ceiling), page.means_part(runs), page.findings_part(findings)]
    for table in tables:
        console.print(console_table(table))
    for run in runs:
        if run.decisions:
            tell(f"picks by reason: {run.decisions}")
    failed = [each for each in findings if not each.holds]
    for each in failed:
        tell(f"FAILED {each.topic}: {each.claim} ({each.seen})")
    if write_page and not failed:
        page.write(tables, seconds)
        tell(f"{page.PAGE}: rewritten between its markers")
    held = len(findings) - len(failed)
    tell(f"{held} of {len(findings)} hold; {seconds:.0f} s. Logs of the servers: {LOGS}")
    return 1 if failed else 0


def _distinct_tokens(servers: Servers, asked: list[Session]) -> int:
    """What a cache would hold that forgets nothing, by the servers' own tokenizer."""
    sample = workload.sample_text(asked)
    return round(workload.text_bytes(asked) * servers.all[0].tokens_in(sample) / len(sample))


class _Progress:
    """A line at each run's begin and end, and now and then between."""

    def __init__(self, requests: int) -> None:
        self._requests = requests
        self._done = 0
        self._run = 1

    def __call__(self, policy: str, run: Run | None) -> None:
        if run is None:
            self._done += 1
            if self._done % 46 == 0:
                tell(f"  run {self._run} of {len(ORDER)}, {policy}: {self._done} of {self._requests} requests answered")
            return
        tell(f"run {self._run} of {len(ORDER)}, {policy}: hit rate {100 * run.hit_rate:.1f} %")
        self._done, self._run = 0, self._run + 1


if __name__ == "__main__":
    sys.exit(main())
