"""`picker demo`: real Envoy, simulated model servers, the same traffic by round robin and by the picker.

What runs: one process with the simulated model servers, one with the picker, two Envoys in
front of them (one with the picker, one with plain round robin), and the load client here. Each
workload is drawn once and sent twice, to caches that were emptied: the same texts at the same times.
With `--stay` everything then stays up under gentle traffic, for whoever wants to look at it.
All ports are free ones unless one is named. However it ends, nothing is left running.
"""

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable

import aiohttp
import msgspec
from rich.console import Console

from picker.lab.children import Child, ChildError
from picker.lab.demo_screen import DemoScreen, RunOutcome
from picker.lab.envoy import Balancing, BodySendMode, EnvoyConfig, EnvoyError, EnvoyProcess, envoy_binary
from picker.lab.load_client import LoadClient
from picker.sim.draws import Lengths
from picker.sim.prompts import Session
from picker.sim.statistics import summarize
from picker.sim.workloads import Chat, Long, Parameters, sessions, until

RUN_SECONDS_MAX = 60.0
"""Beyond it a run is stopped: something is wrong, or this machine is far too slow."""
ERRORS_SHARE_MAX = 0.01
CHECK_SECONDS = 0.5


class DemoError(RuntimeError):
    """The demo cannot show what it should; one line says why."""


class Scene(msgspec.Struct, frozen=True, kw_only=True):
    """One workload of the demo."""

    title: str
    workload: str
    requests_per_second: float
    """For four replicas; more replicas get more."""
    seconds: float
    """For how long sessions start."""
    lead_seconds: float = 0.0
    """How much of the workload's beginning is left out: it takes its time to reach its rate."""
    parameters: Parameters


SCENES = (
    Scene(
        title="long context",
        workload="long",
        requests_per_second=5.0,
        seconds=15.0,
        lead_seconds=10.0,
        parameters=Long(
            document_tokens=Lengths(20_000, 0.3, 12_000, 40_000),
            answer_tokens=Lengths(60, 0.4, 16, 200),
            questions_mean=8.0,
            gap_seconds=1.5,
        ),
    ),
    Scene(
        title="bursty chat",
        workload="chat",
        requests_per_second=40.0,
        seconds=12.0,
        parameters=Chat(
            system_prompts=12,
            system_tokens=Lengths(2500, 0.4, 1000, 6000),
            question_tokens=Lengths(500, 1.0, 20, 4000),
            answer_tokens=Lengths(60, 0.6, 8, 300),
            pause_seconds=Lengths(0.8, 0.6, 0.2, 4.0),
            turns_max=6,
            streaming_share=1.0,
        ),
    ),
)


GENTLE = Scene(
    title="gentle traffic",
    workload="chat",
    requests_per_second=3.0,
    seconds=0.0,
    parameters=msgspec.structs.replace(SCENES[1].parameters, burstiness=1.0),
)
"""What is sent while the demo stays up, for as long as it does."""


class DemoOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What may be chosen."""

    replicas: int = 4
    seed: int = 1
    port: int = 0
    """Envoy's, the one with the picker; 0 means any free one."""
    stay: bool = False
    """Go on after the comparison, until it is stopped."""
    kv_capacity_tokens: int = 128_000
    """A replica's KV cache: less than a whole accelerator has, so that it fills within the seconds there are."""


def demo(
    replicas: int = 4,
    seed: int = 1,
    port: int = 0,
    *,
    stay: bool = False,
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
) -> int:
    """Run it and print; returns the exit code. `loop_factory`: of the load client's loop."""
    console = Console()
    if replicas < 2:
        print("picker: the demo needs at least 2 replicas to choose between", file=sys.stderr)
        return 2
    options = DemoOptions(replicas=replicas, seed=seed, port=port, stay=stay)
    try:
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(_interruptible(run_demo(options, console)))
    except (DemoError, EnvoyError, ChildError, OSError) as error:
        print(f"picker: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        console.print("Stopped; everything that was started has ended.")
        return 130
    except asyncio.CancelledError:
        return 143
    return 0


async def _interruptible(work: Awaitable[object]) -> None:
    """SIGTERM ends it in order, as Ctrl-C does."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    await work


async def run_demo(options: DemoOptions, console: Console, scenes: tuple[Scene, ...] = SCENES) -> list[RunOutcome]:
    """The whole demo; returns its figures. Raises `DemoError`, `EnvoyError`, `ChildError`."""
    envoy_binary()  # missing: say so before anything is started
    outcomes = []
    async with _stage(options) as stage:
        with DemoScreen(console, stage.describe(options)) as screen:
            for scene in scenes:
                wanted = _draw(scene, options)
                if not wanted:
                    raise DemoError(f"seed {options.seed} draws no request of {scene.title}: choose another --seed")
                for policy, url in stage.urls.items():
                    await stage.empty_caches()
                    with screen.run(f"{scene.title}, {policy}", sum(len(one.turns) for one in wanted)) as advance:
                        outcomes.append(await _act(scene, policy, url, wanted, stage=stage, advance=advance))
            screen.results(outcomes)
        _judge(outcomes)
        if options.stay:
            console.print(
                f"Everything stays up, with about {GENTLE.requests_per_second:g} requests a second, until Ctrl-C.\n"
                f"Send your own: curl {stage.urls['picker']}/v1/chat/completions -H 'content-type: application/json' "
                '-d \'{"model": "m", "messages": [{"role": "user", "content": "Hello"}]}\'',
                highlight=False,
                soft_wrap=True,
            )
            await _stay(stage, options)
    return outcomes


async def _stay(stage: "_Stage", options: DemoOptions) -> None:
    """Gentle traffic until this is cancelled. Raises `DemoError` where a child has ended."""
    endless = sessions(GENTLE.workload, options.seed + 1, GENTLE.requests_per_second, GENTLE.parameters)
    client = LoadClient(stage.urls["picker"], on_sample=lambda _: client.samples.clear())
    traffic = asyncio.create_task(client.run(endless))
    try:
        while not traffic.done():
            stage.check()
            await asyncio.sleep(CHECK_SECONDS)
        traffic.result()
    finally:
        traffic.cancel()
        await asyncio.gather(traffic, return_exceptions=True)


def _draw(scene: Scene, options: DemoOptions) -> list[Session]:
    rate = scene.requests_per_second * options.replicas / 4
    lead = scene.lead_seconds
    drawn = until(sessions(scene.workload, options.seed, rate, scene.parameters), lead + scene.seconds)
    return [
        msgspec.structs.replace(session, at_seconds=session.at_seconds - lead)
        for session in drawn
        if session.at_seconds >= lead
    ]


class _Stage:
    """What runs during the demo."""

    def __init__(self, servers: Child, picker: Child, urls: dict[str, str]) -> None:
        self._servers = servers
        self._picker = picker
        self.endpoints = servers.ready.split(",")
        self.metrics = _ports(picker)["metrics"]
        self.urls = urls

    def describe(self, options: DemoOptions) -> str:
        return (
            f"{len(self.endpoints)} simulated model servers (8B on an H100, {options.kv_capacity_tokens:,} tokens of "
            f"KV cache each), the picker, and the real Envoy on {self.urls['picker']}\n"
            f"Look at the picker meanwhile: http://{self.metrics}, or picker top --address {self.metrics}"
        )

    async def empty_caches(self) -> None:
        async with aiohttp.ClientSession() as http:
            for endpoint in self.endpoints:
                async with http.post(f"http://{endpoint}/reset_prefix_cache") as answer:
                    answer.raise_for_status()

    def check(self) -> None:
        for child in (self._servers, self._picker):
            if not child.is_running():
                raise DemoError(f"{child.name} ended during the demo: {child.last_words() or 'without a word'}")


@contextlib.asynccontextmanager
async def _stage(options: DemoOptions) -> AsyncIterator[_Stage]:
    """Start everything, and stop it in reverse however the demo ends."""
    ports = ",".join(["0"] * options.replicas)
    capacity = str(options.kv_capacity_tokens)
    async with contextlib.AsyncExitStack() as stack:
        servers = await stack.enter_async_context(
            Child("the model servers", "picker.lab.model_server", "--ports", ports, "--kv-capacity-tokens", capacity)
        )
        # Listening on free loopback ports, in plaintext: nothing outside this machine sees it.
        flags = ("--host", "127.0.0.1", "--grpc-port", "0", "--grpc-health-port", "0", "--metrics-port", "0")
        picker = await stack.enter_async_context(
            Child(
                "the picker",
                "picker",
                "serve",
                "--insecure",
                *flags,
                "--log-level",
                "warning",
                "--endpoints",
                servers.ready,
            )
        )
        grpc = _ports(picker)["grpc"]
        endpoints = tuple(servers.ready.split(","))
        round_robin = EnvoyConfig(balancing=Balancing.ROUND_ROBIN, endpoints=endpoints)
        picked = EnvoyConfig(
            balancing=Balancing.ORIGINAL_DST,
            picker_address=grpc,
            listener_port=options.port,
            response_body=BodySendMode.STREAMED,  # so that it sees first tokens and usage, and can show them
        )
        urls = {
            name: stack.enter_context(EnvoyProcess(config)).url
            for name, config in (("round robin", round_robin), ("picker", picked))
        }
        yield _Stage(servers, picker, urls)


def _ports(picker: Child) -> dict[str, str]:
    """Its addresses by name: grpc, health, metrics."""
    return dict(part.split("=", 1) for part in picker.ready.split())


async def _act(
    scene: Scene, policy: str, url: str, wanted: list[Session], *, stage: _Stage, advance: Callable[[], None]
) -> RunOutcome:
    """Send one workload one way."""
    client = LoadClient(url, request_seconds_max=RUN_SECONDS_MAX, on_sample=lambda _: advance())
    try:
        async with asyncio.timeout(RUN_SECONDS_MAX):
            duration = await client.run(wanted)
    except TimeoutError:
        stage.check()
        raise DemoError(
            f"{scene.title}, {policy}: only {len(client.samples)} requests ended within {RUN_SECONDS_MAX:g} s; "
            "is this machine busy with something else?"
        ) from None
    stage.check()
    summary = summarize(client.samples, stage.endpoints, duration)
    return RunOutcome(title=scene.title, policy=policy, summary=summary, samples=client.samples)


def _judge(outcomes: list[RunOutcome]) -> None:
    """Figures of a run that failed are worth nothing: say so."""
    for outcome in outcomes:
        failed = [sample.error for sample in outcome.samples if sample.error is not None]
        if len(failed) > ERRORS_SHARE_MAX * len(outcome.samples):
            raise DemoError(
                f"{outcome.title}, {outcome.policy}: {len(failed)} of {len(outcome.samples)} requests failed, "
                f"the first with: {failed[0]}"
            )
