"""Several real pickers, a real Envoy that spreads over them, simulated model servers, a real store."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import aiohttp
import msgspec

from picker.lab.children import Child
from picker.lab.envoy import Balancing, BodySendMode, EnvoyConfig, EnvoyProcess, build
from picker.lab.load_client import LoadClient
from picker.pool.specs import split_address
from picker.sim.statistics import Sample
from tests.envoy.picker_process import PickerProcess

MODEL_SERVERS = ("--kv-capacity-tokens", "128000")
TEXT = "It was a bright cold day in April, and the clocks were striking thirteen. " * 60


def envoy_over(pickers: Sequence[str]) -> dict[str, Any]:
    """An Envoy whose requests go to these pickers in turn."""
    config = build(
        EnvoyConfig(
            balancing=Balancing.ORIGINAL_DST,
            picker_address=pickers[0],
            request_body=BodySendMode.FULL_DUPLEX_STREAMED,
            response_body=BodySendMode.FULL_DUPLEX_STREAMED,
            picker_health_check_seconds=0.5,
        )
    )
    cluster = next(each for each in config["static_resources"]["clusters"] if each["name"] == "picker")
    addresses = [split_address(each) for each in pickers]
    cluster["load_assignment"]["endpoints"] = [
        {
            "lb_endpoints": [
                {"endpoint": {"address": {"socket_address": {"address": host, "port_value": port}}}}
                for host, port in addresses
            ]
        }
    ]
    return config


@contextlib.asynccontextmanager
async def model_servers(count: int, *flags: str) -> AsyncIterator[list[str]]:
    """In one process of their own; their addresses."""
    ports = ",".join(["0"] * count)
    async with Child("the model servers", "picker.lab.model_server", "--ports", ports, *flags) as child:
        yield child.ready.split(",")


async def empty(endpoints: Sequence[str]) -> None:
    """Their prefix caches, as vLLM's own call does."""
    async with aiohttp.ClientSession() as http:
        for endpoint in endpoints:
            async with http.post(f"http://{endpoint}/reset_prefix_cache") as answer:
                answer.raise_for_status()


def shared_config(url: str, **more: object) -> str:
    """A picker's configuration, as JSON, which is YAML. Without exploration, which would be taken for ignorance."""
    return msgspec.json.encode({"epsilon": 0, "shared_state": {"url": url, **more}}).decode()


@contextlib.asynccontextmanager
async def pickers(endpoints: Sequence[str], config: str, count: int) -> AsyncIterator[list[PickerProcess]]:
    """So many, with the same configuration, until the end of the block."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(PickerProcess(endpoints, config)) for _ in range(count)]


async def drive(envoy: EnvoyProcess, sessions: Sequence[Any]) -> list[Sample]:
    """Send a workload; every sample."""
    client = LoadClient(f"http://127.0.0.1:{envoy.port}")
    await client.run(sessions)
    return client.samples


async def converse(url: str, sessions: Sequence[int], *, request_id: str | None = None) -> tuple[list[str], float]:
    """One turn of each session: where each went, and the share of prompt tokens that was in the cache."""
    where, cached, prompt = [], 0, 0
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=20)) as http:
        for session in sessions:
            text = f"session {session}. {TEXT}"
            body = {"model": "m", "messages": [{"role": "user", "content": text}], "max_tokens": 1}
            headers = {} if request_id is None else {"x-request-id": request_id}
            async with http.post(f"{url}/v1/chat/completions", json=body, headers=headers) as answer:
                assert answer.status == 200
                usage = (await answer.json())["usage"]
                where.append(answer.headers["x-served-by"])
                cached += usage["prompt_tokens_details"]["cached_tokens"]
                prompt += usage["prompt_tokens"]
    return where, cached / prompt


def hit_rate(samples: Sequence[Sample]) -> float:
    """Prompt tokens that engines found in their caches, over all."""
    read = [(each.cached_tokens or 0, each.prompt_tokens) for each in samples if each.prompt_tokens]
    return sum(cached for cached, _ in read) / sum(prompt for _, prompt in read)


def mean_ttft(samples: Sequence[Sample]) -> float:
    """Seconds."""
    found = [each.ttft_seconds for each in samples if each.ttft_seconds is not None]
    return sum(found) / len(found)


def errors(samples: Sequence[Sample]) -> list[str]:
    """What went wrong, if anything."""
    return [each.error for each in samples if each.error is not None]


async def settled(condition: Any, what: str, seconds: float = 10.0) -> None:
    """Wait until it is so."""
    deadline = asyncio.get_running_loop().time() + seconds
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, f"after {seconds:g} s: {what}"
        await asyncio.sleep(0.05)
