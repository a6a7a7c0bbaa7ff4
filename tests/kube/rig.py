"""A source on a server (scripted or real), and everything it says, for tests."""

import asyncio
import contextlib
import functools
import os
import random
import zlib
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import uvloop
import yaml

from picker.edge.kubernetes.api import KubernetesApi
from picker.edge.kubernetes.credentials import Credentials
from picker.edge.kubernetes.source import KubernetesSource, PoolTarget, SelectorTarget
from picker.kubernetes.backoff import Backoff
from picker.kubernetes.watch_messages import Timing
from picker.pool.specs import EndpointSpec

QUICK = Timing(
    idle_seconds=0.4,
    backoff=Backoff(first_seconds=0.02, most_seconds=0.1, denied_first_seconds=0.02, denied_most_seconds=0.1),
)
"""Failures are over soon. Tests of the waits themselves use the real ones."""

NS = "ns"
PODS = f"/api/v1/namespaces/{NS}/pods"
POOLS = f"/apis/inference.networking.k8s.io/v1/namespaces/{NS}/inferencepools"
OBJECTIVES = f"/apis/inference.networking.x-k8s.io/v1alpha2/namespaces/{NS}/inferenceobjectives"
OBJECTIVES_LLMD = f"/apis/llm-d.ai/v1alpha2/namespaces/{NS}/inferenceobjectives"


class Rig:
    """A running source."""

    def __init__(
        self,
        api: KubernetesApi,
        target: PoolTarget | SelectorTarget,
        timing: Timing | None = QUICK,
        objectives: bool = False,
    ) -> None:
        self.api = api
        self.lists: list[list[EndpointSpec]] = []
        self.objectives: list[dict[str, int]] = []
        self.synced_after: list[int] = []
        self.words: list[tuple[str, str]] = []
        self.source = KubernetesSource(
            target,
            on_endpoints=self.lists.append,
            on_objectives=self.objectives.append,
            on_synced=lambda: self.synced_after.append(len(self.lists)),
            log=self._log,
            rng=random.Random(1),
            api=api,
            objectives=objectives,
            timing=timing,
        )

    def _log(self, level: str, message: str, /, **fields: object) -> None:
        self.words.append((level, message))

    @property
    def names(self) -> list[str]:
        """Names of the endpoints last given, sorted."""
        return sorted(each.name for each in self.lists[-1]) if self.lists else []

    @property
    def addresses(self) -> list[str]:
        """Addresses of the endpoints last given, sorted."""
        return sorted(each.address for each in self.lists[-1]) if self.lists else []

    def said(self, part: str) -> int:
        """How often something with `part` in it was logged."""
        return sum(part in message for _, message in self.words)


async def until(condition: Callable[[], Any], seconds: float = 10.0) -> None:
    """Wait for it to become true."""
    deadline = asyncio.get_running_loop().time() + seconds
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, "did not happen"
        await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def running(
    credentials: Credentials,
    target: PoolTarget | SelectorTarget,
    *,
    check_files_seconds: float = 10.0,
    **arguments: Any,
) -> AsyncIterator[Rig]:
    """A source that runs until the end of the block."""
    async with KubernetesApi(credentials, check_files_seconds=check_files_seconds) as api:
        rig = Rig(api, target, **arguments)
        task = asyncio.create_task(rig.source.run())
        try:
            yield rig
            assert not task.done(), "the source ended"
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


def write_kubeconfig(path: Path, server: str, user: dict[str, Any], cluster: dict[str, Any] | None = None) -> Path:
    """A kubeconfig with one context; returns `path`."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "t",
        "clusters": [{"name": "t", "cluster": {"server": server, **(cluster or {})}}],
        "users": [{"name": "t", "user": user}],
        "contexts": [{"name": "t", "context": {"cluster": "t", "user": "t"}}],
    }
    path.write_text(yaml.safe_dump(config))
    return path


def pod(
    name: str,
    *,
    uid: str | None = None,
    ready: bool = True,
    ip: str | None = None,
    labels: dict[str, str] | None = None,
) -> dict[str, Any]:
    """A pod of the scripted server, with an address of its own: 10.0.0.1 for `a`."""
    if ip is None:
        number = ord(name) - ord("a") + 1 if len(name) == 1 else 256 + zlib.crc32(name.encode()) % 65_000
        ip = f"10.0.{number >> 8}.{number & 255}"
    meta = {"name": name, "namespace": NS, "uid": uid or f"uid-{name}", "labels": labels or {"app": "vllm"}}
    return {
        "metadata": meta,
        "spec": {"containers": [{"name": "m", "ports": [{"containerPort": 8000}]}]},
        "status": {
            "phase": "Running",
            "podIP": ip,
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
        },
    }


def pool(
    name: str = "p", *, uid: str = "u", labels: dict[str, str] | None = None, ports: tuple[int, ...] = (8000,)
) -> dict[str, Any]:
    """An InferencePool, complete enough for the real CRD."""
    return {
        "apiVersion": "inference.networking.k8s.io/v1",
        "kind": "InferencePool",
        "metadata": {"name": name, "namespace": NS, "uid": uid},
        "spec": {
            "selector": {"matchLabels": labels or {"app": "vllm"}},
            "targetPorts": [{"number": port} for port in ports],
            "endpointPickerRef": {"name": "epp", "port": {"number": 9002}},
        },
    }


def with_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """An async test, in a loop of its own: uvloop as in production, or asyncio's if PICKER_TEST_LOOP says so."""
    factory = None if os.environ.get("PICKER_TEST_LOOP") == "asyncio" else uvloop.new_event_loop

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(test(*args, **kwargs))

    return run
