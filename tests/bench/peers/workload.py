"""What is sent: the demo's two scenes with shorter ends, and coding agents. The same for every contestant of a round.

Rates are of four replicas, as the demo's are, and rise with their number. They are near what the engines can do
without hits, and far below what two cores can carry: client and model servers take a fraction of a core.
"""

import msgspec

from picker.lab.demo import SCENES, Scene
from picker.sim.draws import Lengths
from picker.sim.prompts import Session
from picker.sim.workloads import Agents, first_requests, sessions, until

REPLICAS = 8
KV_CAPACITY_TOKENS = 128_000
"""Of a replica, as in the demo: caches fill within the seconds there are."""

_LONG, _CHAT = SCENES

WORKLOADS: dict[str, Scene] = {
    "long": msgspec.structs.replace(_LONG, seconds=7.0, lead_seconds=25.0),
    "chat": msgspec.structs.replace(
        _CHAT,
        seconds=3.5,
        parameters=msgspec.structs.replace(_CHAT.parameters, turns_max=4, pause_seconds=Lengths(0.2, 0.6, 0.05, 0.6)),
    ),
    "agents": Scene(
        title="coding agents",
        workload="agents",
        requests_per_second=36.0,
        seconds=3.0,
        parameters=Agents(
            preamble_tokens=6000,
            tool_tokens=Lengths(900, 1.0, 30, 6000),
            answer_tokens=Lengths(40, 0.6, 10, 150),
            turns_mean=4.0,
            turns_max=4,
            pause_seconds=Lengths(0.2, 0.6, 0.05, 0.6),
        ),
    ),
}


def draw(name: str, seed: int, requests: int | None = None, replicas: int = REPLICAS) -> list[Session]:
    """The sessions of a cell: of the scene's seconds, or as many as make up `requests`."""
    scene = WORKLOADS[name]
    rate = scene.requests_per_second * replicas / 4
    drawn = (
        msgspec.structs.replace(session, at_seconds=session.at_seconds - scene.lead_seconds)
        for session in sessions(scene.workload, seed, rate, scene.parameters)
        if session.at_seconds >= scene.lead_seconds
    )
    return list(until(drawn, scene.seconds) if requests is None else first_requests(drawn, requests))


def seed_of(base: int, round_number: int, workload: str) -> int:
    """One for each workload and round: texts that nobody has seen, not even a router that runs on."""
    return base + 100 * round_number + list(WORKLOADS).index(workload)
