"""A metrics server under steady traffic, for a real Prometheus to scrape."""

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from picker.edge.telemetry.page import Telemetry
from picker.edge.telemetry.server import MetricsServer

STEP_SECONDS = 0.02


@contextmanager
def metrics_server(telemetry: Telemetry, step: Callable[[int], None], **options: Any) -> Iterator[int]:
    """Its port. It runs in a thread with a loop of its own, where `step` hears 0, 1, 2, ..., fifty a second."""
    started, stop = threading.Event(), threading.Event()
    server = MetricsServer(
        telemetry=telemetry, ready=lambda: True, host="127.0.0.1", port=0, log=logging.getLogger("test"), **options
    )

    async def serve() -> None:
        await server.start()
        telemetry.config_reloaded(True)
        started.set()
        number = 0
        while not stop.is_set():
            step(number)
            number += 1
            await asyncio.sleep(STEP_SECONDS)
        await server.stop()

    thread = threading.Thread(target=asyncio.run, args=(serve(),), daemon=True)
    thread.start()
    assert started.wait(10)
    try:
        yield server.port
    finally:
        stop.set()
        thread.join(10)
