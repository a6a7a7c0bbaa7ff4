"""Decisions in a ring, and a real metrics server that shows them: for tests of those who ask."""

import asyncio
import contextlib
import logging
import threading
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from picker.decision import Booking, Finished, Picked
from picker.edge.telemetry.decision_page import decision_routes
from picker.edge.telemetry.decisions import DecisionRing
from picker.edge.telemetry.page import Telemetry
from picker.edge.telemetry.server import MetricsServer
from picker.edge.telemetry.view import PoolView
from picker.outcomes import EndpointView, Explanation, Outcome, Reason
from picker.pool.endpoint import Endpoint
from picker.pool.inflight import Charge
from picker.pool.specs import EndpointSpec

A, B, C = (f"10.0.0.{n}:8000" for n in (1, 2, 3))
NAMES = {A: "vllm-1", B: "vllm-2", C: "vllm-3"}


def decided(address: str, request_id: str, *, served: str | None = None, **more: Any) -> tuple[Picked, Finished]:
    endpoint = Endpoint(EndpointSpec(address=address, uid=address, name=NAMES[address]), 0)
    charge = Charge(endpoint, prefill_tokens=0.0, context_tokens=0.0, memory_tokens=0.0, now=0.0)
    view = EndpointView(address, NAMES[address], 0.5, {"prefix": 0.1}, 0.1, True, "picked: it is idle")
    why = Explanation("load", "it is idle", 100, 4, (view,))
    booking = Booking(charge, array("Q"), None, "m", None)
    picked = Picked((address,), Reason.LOAD, 0.5, booking, lambda: why, endpoint_name=NAMES[address])
    record = Finished(
        outcome=Outcome.COMPLETED,
        path="chat_completions",
        model="m",
        reason=Reason.LOAD,
        address=served or address,
        endpoint_name=NAMES[served or address],
        served_address=served,
        request_id=request_id,
        **more,
    )
    return picked, record


@contextmanager
def metrics_server(
    ring: DecisionRing,
    token: str | None = None,
    view: Callable[[], PoolView] | None = None,
    traffic: Callable[[Telemetry], None] = lambda _: None,
    port: int = 0,
) -> Iterator[str]:
    """host:port of a real metrics server, on a loop of its own in a thread.

    `token`: the one that it wants. `traffic`: called fifty times a second.
    """
    started, stop = threading.Event(), asyncio.Event()
    where: list[Any] = []

    async def authorize(given: str | None) -> bool:
        return given == token

    async def serve() -> None:
        telemetry = Telemetry(view or (lambda: PoolView(pool_name="pool")))
        server = MetricsServer(
            telemetry=telemetry,
            ready=lambda: True,
            host="127.0.0.1",
            port=port,
            log=logging.getLogger("test"),
            routes=decision_routes(ring),
            authorize=None if token is None else authorize,
        )
        await server.start()
        where.extend((server.port, asyncio.get_running_loop()))
        started.set()
        while not stop.is_set():
            traffic(telemetry)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), 0.02)
        await server.stop()

    thread = threading.Thread(target=asyncio.run, args=(serve(),), daemon=True)
    thread.start()
    assert started.wait(10)
    try:
        yield f"127.0.0.1:{where[0]}"
    finally:
        where[1].call_soon_threadsafe(stop.set)
        thread.join(10)
