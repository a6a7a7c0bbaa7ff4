"""A pool to look at: simulated model servers with names, a real picker, the real Envoy, and traffic.

`python -m tests.page.stage [--endpoints 12] [--port 9090]` lets it run until Ctrl-C and says where the page is.
"""

import argparse
import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import yaml

from picker.lab.children import Child
from picker.lab.envoy import Balancing, BodySendMode, EnvoyConfig, EnvoyProcess
from picker.lab.load_client import LoadClient
from picker.sim.draws import Lengths
from picker.sim.workloads import Chat, sessions

CAPACITY = "60000"
CHAT = Chat(
    system_prompts=24,
    system_tokens=Lengths(2500, 0.4, 1000, 6000),
    question_tokens=Lengths(600, 1.0, 20, 4000),
    answer_tokens=Lengths(120, 0.6, 8, 400),
    pause_seconds=Lengths(1.5, 0.6, 0.3, 5.0),
    turns_max=6,
    streaming_share=1.0,
)


class Stage:
    """What runs: where the page is, and where Envoy takes requests."""

    def __init__(self, metrics: str, url: str, addresses: list[str], picker: Child) -> None:
        self.metrics = metrics
        self.url = url
        self.addresses = addresses
        self.picker = picker

    async def traffic(self, seed: int = 1, per_second: float = 20.0) -> None:
        """Chats without end; cancel it."""
        await LoadClient(self.url).run(sessions("chat", seed, per_second, CHAT))


@contextlib.asynccontextmanager
async def stage(
    endpoints: int = 12, *, port: int = 0, config: str = "", absent: int = 0, speed: float = 1.0
) -> AsyncIterator[Stage]:
    """`absent`: so many further endpoints at which nothing listens."""
    async with contextlib.AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="picker-page-")))
        ports = ",".join(["0"] * endpoints)
        servers = await stack.enter_async_context(
            Child(
                "the model servers",
                "picker.lab.model_server",
                *("--ports", ports, "--kv-capacity-tokens", CAPACITY, "--speed", str(speed)),
            )
        )
        addresses = servers.ready.split(",")
        named = [
            {"name": f"llama-8b-{number // 4}-{number % 4}", "address": address}
            for number, address in enumerate(addresses)
        ] + [
            {"name": f"absent-{number}", "address": f"127.1.{number >> 8}.{number & 255}:1"} for number in range(absent)
        ]
        (folder / "endpoints.yaml").write_text(yaml.safe_dump({"endpoints": named}))
        (folder / "config.yaml").write_text(config)
        picker = await stack.enter_async_context(
            Child(
                "the picker",
                "picker",
                *("serve", "--insecure", "--host", "127.0.0.1", "--grpc-port", "0", "--grpc-health-port", "0"),
                *("--metrics-port", str(port), "--log-level", "warning"),
                *("--endpoints-file", str(folder / "endpoints.yaml"), "--config", str(folder / "config.yaml")),
            )
        )
        ready = dict(part.split("=", 1) for part in picker.ready.split())
        envoy = EnvoyConfig(
            balancing=Balancing.ORIGINAL_DST, picker_address=ready["grpc"], response_body=BodySendMode.STREAMED
        )
        yield Stage(ready["metrics"], stack.enter_context(EnvoyProcess(envoy)).url, addresses, picker)


async def main() -> None:
    """Until Ctrl-C."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--endpoints", type=int, default=12)
    parser.add_argument("--absent", type=int, default=0)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--rate", type=float, default=20.0, help="sessions a second")
    options = parser.parse_args()
    async with stage(options.endpoints, port=options.port, absent=options.absent) as running:
        print(f"http://{running.metrics}/ shows it; requests go to {running.url}", flush=True)
        await running.traffic(per_second=options.rate)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main())
