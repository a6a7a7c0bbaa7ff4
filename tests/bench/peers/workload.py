"""What is sent: the demo's two scenes, and coding agents. Drawn once a round, the same for every contestant."""

import msgspec

from picker.sim.demo import SCENES, Scene
from picker.sim.prompts import Session
from picker.sim.workloads import Agents, Lengths, first_requests, sessions, until

REPLICAS = 4
KV_CAPACITY_TOKENS = 128_000
"""Of a replica, as in the demo: caches fill within the seconds there are."""

_LONG, _CHAT = SCENES

WORKLOADS: dict[str, Scene] = {
    "long": msgspec.structs.replace(_LONG, seconds=9.0),
    "chat": msgspec.structs.replace(_CHAT, seconds=6.0),
    "agents": Scene(
        title="coding agents",
        workload="agents",
        requests_per_second=32.0,
        seconds=6.0,
        parameters=Agents(
            preamble_tokens=6000,
            tool_tokens=Lengths(900, 1.0, 30, 6000),
            answer_tokens=Lengths(50, 0.6, 10, 200),
            turns_mean=6.0,
            turns_max=10,
            pause_seconds=Lengths(0.25, 0.6, 0.05, 1.0),
        ),
    ),
}
"""Rates of four replicas: near what they can do, and well below what two cores can carry."""


def draw(name: str, seed: int, requests: int | None = None) -> list[Session]:
    """The sessions of a cell: of the scene's seconds, or as many as make up `requests`."""
    scene = WORKLOADS[name]
    drawn = (
        msgspec.structs.replace(session, at_seconds=session.at_seconds - scene.lead_seconds)
        for session in sessions(scene.workload, seed, scene.requests_per_second, scene.parameters)
        if session.at_seconds >= scene.lead_seconds
    )
    return list(until(drawn, scene.seconds) if requests is None else first_requests(drawn, requests))


def seed_of(base: int, round_number: int, workload: str) -> int:
    """One for each workload and round: texts that nobody has seen, not even a router that runs on."""
    return base + 100 * round_number + list(WORKLOADS).index(workload)
