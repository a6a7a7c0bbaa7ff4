"""One picker, three, and three that tell each other, through real processes: `python -m tests.bench.shared_pickers`.

Simulated model servers, a real Envoy that spreads over the pickers, a real store. Each workload is drawn once and
sent to each in turn, to caches that were emptied.
"""

import argparse
import asyncio
import contextlib
from itertools import takewhile

from picker.lab.demo import SCENES, DemoOptions
from picker.lab.demo import _draw as draw
from picker.lab.envoy import EnvoyProcess
from picker.sim.prompts import Session
from picker.sim.workloads import sessions
from tests.sharing import stage
from tests.sharing.redis_server import RedisServer

REPLICAS = 4
AGENTS_PER_SECOND, AGENTS_SECONDS = 12.0, 40.0


def drawn(workload: str, seed: int) -> list[Session]:
    """Agents as the simulator has them; chat and long context as the demo plays them, with short pauses."""
    if workload == "agents":
        found = sessions(workload, seed, AGENTS_PER_SECOND)
        return list(takewhile(lambda session: session.at_seconds < AGENTS_SECONDS, found))
    scene = next(each for each in SCENES if each.workload == workload)
    return draw(scene, DemoOptions(seed=seed, replicas=REPLICAS))


async def run(workloads: list[str], seed: int) -> None:
    with RedisServer() as store:
        async with stage.model_servers(REPLICAS) as endpoints:
            for workload in workloads:
                wanted = drawn(workload, seed)
                for name, count, config in (
                    ("one", 1, '{"epsilon": 0}'),
                    ("three", 3, '{"epsilon": 0}'),
                    ("three, shared", 3, stage.shared_config(store.url)),
                ):
                    await stage.empty(endpoints)
                    async with stage.pickers(endpoints, config, count) as pickers:
                        for picker in pickers:
                            await stage.settled(lambda p=picker: p.health("readiness") == "SERVING", "serving", 30.0)
                        envoy = await asyncio.to_thread(
                            EnvoyProcess, stage.envoy_over([each.grpc_address for each in pickers])
                        )
                        with contextlib.ExitStack() as stack:
                            stack.callback(envoy.stop)
                            await asyncio.sleep(2.0)
                            samples = await stage.drive(envoy, wanted)
                        sent = sum(picker.metric("picker_shared_bytes_sent_total") for picker in pickers)
                        print(
                            f"{workload:8} {name:14} {len(samples)} requests, {len(stage.errors(samples))} errors, "
                            f"hit rate {stage.hit_rate(samples):.3f}, TTFT {stage.mean_ttft(samples) * 1e3:.0f} ms, "
                            f"{sent / 1e6:.2f} MB told",
                            flush=True,
                        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--workload", default="agents,chat,long")
    parser.add_argument("--seed", type=int, default=3)
    options = parser.parse_args()
    asyncio.run(run(options.workload.split(","), options.seed))
