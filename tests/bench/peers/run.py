"""Rounds of cells: a workload at a time, every contestant in turn, in an order that changes with the round.

What fails makes its contestant absent from then on, with the reason; the others go on. Everything that
was started ends with the context it was started in, also on Ctrl-C.
"""

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from picker.lab.children import Child
from tests.bench.peers import environments, workload
from tests.bench.peers.adapters.contract import Contestant, StartError
from tests.bench.peers.cell import Cell, measure

T = TypeVar("T")


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What to run."""

    rounds: int = 3
    workloads: tuple[str, ...] = tuple(workload.WORKLOADS)
    requests: int | None = None
    """A cell; `None`: what comes within the workload's own seconds."""
    seed: int = 1
    server_ports: tuple[int, ...] = (0,) * workload.REPLICAS


class Line(msgspec.Struct, kw_only=True):
    """A contestant as the results keep it."""

    name: str
    flags: str
    version: str | None
    ours: bool
    absent: str | None = None
    """Why it did not run, or not to the end."""


class Results(msgspec.Struct, kw_only=True):
    """Of a whole run, as JSON."""

    date: str
    arguments: list[str]
    machine: dict[str, object]
    plan: Plan
    seconds: float = 0.0
    lines: list[Line]
    cells: list[Cell] = []


def order(items: Sequence[T], round_number: int) -> list[T]:
    """Round 0 as given, each odd round the one before it in reverse, each even one begun a third further on.

    So nobody always goes first, and nobody always follows the same one.
    """
    turn = (round_number // 2) * -(-len(items) // 3) % len(items) if items else 0
    found = [*items[turn:], *items[:turn]]
    return found[::-1] if round_number % 2 else found


def prepare(contestants: Sequence[Contestant], tell: Callable[[str], None]) -> list[Line]:
    """Make the environments; a contestant without one is absent from the start."""
    failed: dict[str, str] = {}
    for name in dict.fromkeys(one.environment for one in contestants if one.environment):
        try:
            environments.ensure(name, tell)
        except environments.InstallError as error:
            failed[name] = str(error)
            tell(str(error))
    return [
        Line(
            name=one.name,
            flags=one.flags,
            version=one.version,
            ours=one.ours,
            absent=None if one.environment is None else failed.get(one.environment),
        )
        for one in contestants
    ]


async def run(
    plan: Plan,
    contestants: Sequence[Contestant],
    lines: Sequence[Line],
    tell: Callable[[str], None],
    done: Callable[[Cell], None],
) -> float:
    """All cells; returns how long they took, seconds. `done` gets each cell as it ends. Raises `ChildError`."""
    began = time.monotonic()
    flags = ["--ports", ",".join(map(str, plan.server_ports))]
    capacity = ["--kv-capacity-tokens", str(workload.KV_CAPACITY_TOKENS)]
    async with Child("the model servers", "picker.lab.model_server", *flags, *capacity) as child:
        servers = child.ready.split(",")
        tell(f"model servers at {', '.join(servers)}")
        for round_number in range(plan.rounds):
            for name in plan.workloads:
                seed = workload.seed_of(plan.seed, round_number, name)
                wanted = workload.draw(name, seed, plan.requests, len(servers))
                pairs = order(list(zip(contestants, lines, strict=True)), round_number)
                for position, (contestant, line) in enumerate(pairs):
                    if line.absent is not None:
                        continue
                    cell = Cell(contestant=line.name, workload=name, round=round_number, position=position, seed=seed)
                    try:
                        done(await measure(cell, contestant, wanted, servers, child.pid))
                    except StartError as error:
                        line.absent = f"{error} ({name}, round {round_number + 1})"
                        tell(f"{line.name} goes out: {line.absent}")
    return time.monotonic() - began
