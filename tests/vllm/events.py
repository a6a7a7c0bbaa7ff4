"""`make test-vllm-events`: what KV events make the picker predict, and what two real vLLM found in their caches.

Caches are small, so that they evict all the time. The first server publishes at a port of its own, which it tells
(`GET /kv_event_sources`). The second one's events pass a proxy of ours, which can lose them. Then: the same requests
again after `POST /reset_prefix_cache`, which moves no counter; after kill -9 of a server; and while the proxy loses a
fifth of all messages. Each time the predicted hit rate must be within 2 points of the engines' own. Last, the first of
them without KV events, to compare.

Exits 0 if everything held, 1 if not, 2 if it could not be set up.
"""

import argparse
import json
import sys
import threading
import time
from pathlib import Path
from random import Random
from typing import Self

import zmq
from rich.console import Console

from picker.lab.envoy import EnvoyError
from picker.sim.prompts import Session
from tests.envoy.picker_process import PickerProcess, wait_until
from tests.ports import free_ports
from tests.vllm import workload
from tests.vllm.contest import CONFIG, PICKER, Run, picker_in_front, play, through_picker
from tests.vllm.environment import SetupError, prepare
from tests.vllm.page import PAGE, findings_part, write_between
from tests.vllm.servers import Servers, VllmServer
from tests.vllm.stand import Finding

console = Console(width=160, highlight=False)
BLOCKS = 500
"""16,000 tokens a server; the workload has 50,000."""
MODEL_TOKENS_MAX = 8192
SHAPE = workload.Shape(document_tokens_spread=500)
WITHIN = 0.02
LOST_SHARE = 0.2
BEGIN, END = "<!-- events: begin -->", "<!-- events: end -->"
HOSTS = ("127.0.0.1", "127.0.0.2")
"""One configured port for all servers: so each has an address of its own."""


class Proxy:
    """Between a publisher that connects to it and subscribers; a context manager. Loses what it is told to lose."""

    def __init__(self, engine_port: int, address: str) -> None:
        self.lost_share = 0.0
        self.passed = self.lost = 0
        self._rng = Random(1)
        self._context = zmq.Context()
        self._heard = self._context.socket(zmq.SUB)
        self._heard.setsockopt(zmq.SUBSCRIBE, b"")
        self._heard.bind(f"tcp://127.0.0.1:{engine_port}")
        self._told = self._context.socket(zmq.PUB)
        self._told.bind(f"tcp://{address}")
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self._ends.is_set():
            if self._heard.poll(100):
                frames = self._heard.recv_multipart()
                if self._rng.random() < self.lost_share:
                    self.lost += 1
                else:
                    self.passed += 1
                    self._told.send_multipart(frames)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()
        self._heard.close(linger=0)
        self._told.close(linger=0)
        self._context.term()


def publishing(number: int, port: int, folder: Path, endpoint: str, replay: str) -> VllmServer:
    """A server with a small cache that publishes there."""
    settings = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": endpoint,
        "replay_endpoint": replay,
        "buffer_steps": 10_000,
        "topic": "",
    }
    sizes = ("--num-gpu-blocks-override", str(BLOCKS), "--max-model-len", str(MODEL_TOKENS_MAX))
    more = (*sizes, "--kv-events-config", json.dumps(settings))
    return VllmServer(number, port, folder, ("both",), host=HOSTS[number - 1], more=more)


class Scene:
    """A picker and an Envoy before the servers. `play` notes what was predicted beside what was found."""

    def __init__(self, servers: Servers, picker: PickerProcess, url: str, findings: list[Finding]) -> None:
        self.picker = picker
        self._servers = servers
        self._url = url
        self._findings = findings

    def show(self, claim: str, holds: bool, seen: str) -> None:
        """Note a finding."""
        self._findings.append(Finding("KV events", claim, holds, seen))
        console.print(f"{'holds ' if holds else 'FAILED'} {claim} ({seen})", markup=False)

    def play(self, claim: str, asked: list[Session], *, within: float | None = WITHIN) -> tuple[float, float]:
        """Predicted and found hit rate of these requests. `within`: `None` asserts nothing."""
        before = self._booked()
        run = play(PICKER, self._servers, self._url, asked, lambda policy, run: None)
        self.picker.wait_idle()
        predicted, prompt = (now - then for now, then in zip(self._booked(), before, strict=True))
        expected, found = predicted / prompt if prompt else 0.0, run.hit_rate
        seen = f"predicted {100 * expected:.1f} %, vLLM found {100 * found:.1f} % of {prompt:,.0f} tokens{_errors(run)}"
        holds = within is None or (abs(expected - found) <= within and run.summary.errors == 0)
        self.show(claim, holds, seen)
        return expected, found

    def _booked(self) -> tuple[float, float]:
        names = ("picker_predicted_hit_tokens_total", "picker_hit_prompt_tokens_total")
        predicted, prompt = (self.picker.metric(name) for name in names)
        return predicted, prompt


def _errors(run: Run) -> str:
    return f", {run.summary.errors} errors: {run.first_error}" if run.summary.errors else ""


def told_by_events(servers: Servers, proxy: Proxy, config: str, seed: int, findings: list[Finding]) -> None:
    """All scenes with events."""
    first = workload.sessions(seed, SHAPE)
    with picker_in_front(servers, config) as picker, through_picker(picker) as envoy:
        scene = Scene(servers, picker, envoy.url, findings)
        wait_until(lambda: picker.metric("picker_kv_event_endpoints") == 2, "not both servers are listened to", 90.0)
        scene.play("caches that evict all the time", first)
        events = picker.metric("picker_kv_events_total")
        scene.show("both servers' events were heard", events > 1000, f"{events:.0f}, {proxy.passed} batches by proxy")

        for server in servers.all:
            server.empty_cache()
        scene.play("the same requests after /reset_prefix_cache", first)

        console.print("kill -9 of the second server, and a new one in its place")
        servers.all[1].kill()
        servers.all[1].start()
        servers.all[1].wait_ready()
        wait_until(lambda: picker.metric("picker_ready_endpoints") == 2, "the new server is not taken back", 60.0)
        scene.play("the same requests after kill -9 of a server", first)

        proxy.lost_share = LOST_SHARE
        scene.play("a fifth of the second one's batches is lost on the way", workload.sessions(seed + 1, SHAPE))
        replayed = picker.metric("picker_kv_event_replayed_batches_total")
        scene.show(
            "what was lost is asked for again",
            proxy.lost > 10 and replayed > proxy.lost / 2,
            f"{proxy.lost} lost, {replayed:.0f} replayed, {picker.metric('picker_kv_event_gaps_total'):.0f} gaps",
        )
        proxy.lost_share = 0.0


def estimated(servers: Servers, seed: int, findings: list[Finding]) -> None:
    """The first scenes without events: nothing of it is asserted."""
    first = workload.sessions(seed, SHAPE)
    for server in servers.all:
        server.empty_cache()
    with picker_in_front(servers) as picker, through_picker(picker) as envoy:
        scene = Scene(servers, picker, envoy.url, findings)
        scene.play("to compare, without KV events: caches that evict all the time", first, within=None)
        for server in servers.all:
            server.empty_cache()
        scene.play("to compare, without KV events: after /reset_prefix_cache", first, within=None)


def main() -> int:
    parser = argparse.ArgumentParser(prog="make test-vllm-events", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=1, help="of the workload (default %(default)s)")
    parser.add_argument("--no-page", action="store_true", help=f"leave {PAGE.name} as it is")
    options = parser.parse_args()
    findings: list[Finding] = []
    try:
        folder = prepare(console.print)
        began = time.monotonic()
        one, two, own, own_replay, inner, outer, replay = free_ports(7)
        made = [
            publishing(1, one, folder, f"tcp://*:{own}", f"tcp://*:{own_replay}"),
            publishing(2, two, folder, f"tcp://127.0.0.1:{inner}", f"tcp://{HOSTS[1]}:{replay}"),
        ]
        config = f"{CONFIG}kv_events: {{enabled: true, port: {outer}, replay_port: {replay}}}\n"
        with Proxy(inner, f"{HOSTS[1]}:{outer}") as proxy, Servers(made, console.print) as servers:
            told_by_events(servers, proxy, config, options.seed, findings)
            estimated(servers, options.seed, findings)
    except (SetupError, EnvoyError) as error:
        console.print(f"test-vllm-events: {error}", markup=False)
        return 2
    except (OSError, AssertionError) as error:
        console.print(f"test-vllm-events: it broke off: {type(error).__name__}: {error}", markup=False)
        return 1
    failed = [each for each in findings if not each.holds]
    if not options.no_page and not failed:
        write_between(BEGIN, END, [findings_part(findings)], time.monotonic() - began)
        console.print(f"{PAGE}: rewritten between its markers", markup=False)
    console.print(f"{len(findings) - len(failed)} of {len(findings)} hold; {time.monotonic() - began:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
