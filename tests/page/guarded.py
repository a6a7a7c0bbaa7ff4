"""A metrics port that asks for a token: the real server, routes and pool; the review of the token is one comparison."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from picker.config import Config
from picker.director import Director
from picker.edge.telemetry.decision_page import decision_routes
from picker.edge.telemetry.decisions import DecisionRing
from picker.edge.telemetry.live.history import History
from picker.edge.telemetry.live.live import Live
from picker.edge.telemetry.live.routes import OPEN_PATHS, LiveRoutes
from picker.edge.telemetry.page import Telemetry
from picker.edge.telemetry.server import MetricsServer
from picker.edge.telemetry.view import PoolView
from picker.pool.specs import EndpointSpec
from tests.faults import raised

TOKEN = "right"


def _on() -> bool:
    return True


async def _review(token: str | None) -> bool:
    return token == TOKEN


@asynccontextmanager
async def guarded_port() -> AsyncIterator[str]:
    """Its address. The only token that it takes is `TOKEN`."""
    director = Director(Config())
    director.replace_endpoints([EndpointSpec(address="10.0.0.1:80", uid="1", name="pod")])
    telemetry, decisions, clock = Telemetry(lambda: PoolView(pool_name="p")), DecisionRing(), time.monotonic
    history = History(telemetry, director, clock=clock, wall=time.time, enabled=_on, faulted=raised)
    live = Live(
        director,
        decisions,
        history,
        pool_name="p",
        instance="1",
        clock=clock,
        wall=time.time,
        enabled=_on,
        faulted=raised,
    )
    server = MetricsServer(
        telemetry=telemetry,
        ready=_on,
        host="127.0.0.1",
        port=0,
        log=logging.getLogger("test"),
        routes=[
            *decision_routes(decisions),
            *LiveRoutes(live, director, decisions, clock=clock, enabled=_on).routes(),
        ],
        authorize=_review,
        open_paths=OPEN_PATHS,
    )
    await server.start()
    task = asyncio.create_task(live.run())
    try:
        yield f"127.0.0.1:{server.port}"
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await server.stop()
