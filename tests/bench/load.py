"""A lean HTTP/1.1 load client on asyncio protocols: latencies from the scheduled start.

Closed loop: every connection has one request under way. Open loop: requests start at a fixed
rate, each on an idle connection (a queue forms when none is idle, and its wait counts).
Answers end by content-length or, where a picker has echoed their body, by the last chunk (no trailers).
"""

import argparse
import asyncio
import json
import sys
import time
from collections import deque
from pathlib import Path

import uvloop

UNANSWERED_SECONDS_MAX = 10.0
"""So long after the end is waited for answers; those that are missing then are errors."""


class Connection(asyncio.Protocol):
    """One keep-alive connection."""

    def __init__(self, load: "Load") -> None:
        self.load = load
        self.buffer = b""
        self.need = -1
        self.chunked = False
        self.started = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def send(self, started: float) -> None:
        self.started = started
        self.transport.write(self.load.request())

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        if self.need < 0:
            end = self.buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            head = self.buffer[: end + 2].lower()
            at = head.find(b"content-length:")
            self.chunked = b"transfer-encoding: chunked" in head
            self.need = end + 4 + (int(head[at + 15 : head.find(b"\r\n", at)]) if at > 0 else 5 * self.chunked)
            self.ok = self.buffer[9:12] == b"200"
        if len(self.buffer) >= self.need and (not self.chunked or self.buffer.endswith(b"\r\n0\r\n\r\n")):
            self.buffer, self.need = b"", -1
            self.load.done(self, time.perf_counter() - self.started, self.ok)

    def connection_lost(self, error: Exception | None) -> None:
        self.load.lost()


class Load:
    """A run."""

    def __init__(self, requests: list[bytes], seconds: float, warm_seconds: float, rate: float) -> None:
        self.bodies = requests
        self.at = 0
        self.rate = rate
        begin = time.perf_counter()
        self.count_from, self.until = begin + warm_seconds, begin + warm_seconds + seconds
        self.latencies: list[float] = []
        self.errors = 0
        self.idle: deque[Connection] = deque()
        self.waiting: deque[float] = deque()
        self.busy = 0
        self.over = asyncio.get_running_loop().create_future()

    def request(self) -> bytes:
        self.at += 1
        return self.bodies[self.at % len(self.bodies)]

    def start(self, connection: Connection, started: float) -> None:
        self.busy += 1
        connection.send(started)

    def done(self, connection: Connection, seconds: float, ok: bool) -> None:
        now = time.perf_counter()
        self.busy -= 1
        if now >= self.count_from:
            self.latencies.append(seconds)
            self.errors += not ok
        if now >= self.until:
            if not self.busy and not self.over.done():
                self.over.set_result(None)
        elif self.rate <= 0:
            self.start(connection, now)
        elif self.waiting:
            self.start(connection, self.waiting.popleft())
        else:
            self.idle.append(connection)

    def lost(self) -> None:
        if not self.over.done():
            self.over.set_exception(ConnectionError("the server closed a connection under load"))

    async def pace(self) -> None:
        began = time.perf_counter()
        number = 0
        while time.perf_counter() < self.until:
            due = began + number / self.rate
            wait = due - time.perf_counter()
            if wait > 0:
                await asyncio.sleep(wait)
            number += 1
            if self.idle:
                self.start(self.idle.popleft(), due)
            else:
                self.waiting.append(due)
        if not self.busy and not self.over.done():
            self.over.set_result(None)


async def over(load: Load, options: argparse.Namespace) -> None:
    try:
        async with asyncio.timeout(options.warm_seconds + options.seconds + UNANSWERED_SECONDS_MAX):
            await load.over
    except TimeoutError:
        load.errors += load.busy


async def run(options: argparse.Namespace, bodies: list[bytes]) -> dict[str, float]:
    load = Load(bodies, options.seconds, options.warm_seconds, options.rate)
    loop = asyncio.get_running_loop()
    made = [
        (await loop.create_connection(lambda: Connection(load), "127.0.0.1", options.port))[1]
        for _ in range(options.connections)
    ]
    if options.rate > 0:
        load.idle.extend(made)
        pacer = asyncio.create_task(load.pace())
        await over(load, options)
        await pacer
    else:
        for connection in made:
            load.start(connection, time.perf_counter())
        await over(load, options)
    found = sorted(load.latencies)
    if not found:
        return {"requests": 0, "errors": load.errors}
    return {
        "requests": len(found),
        "errors": load.errors,
        "per_second": len(found) / options.seconds,
        "p50_ms": 1e3 * found[len(found) // 2],
        "p99_ms": 1e3 * found[int(len(found) * 0.99)],
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--requests", required=True, help="file of whole HTTP requests, separated")
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--warm-seconds", type=float, default=1.0)
    parser.add_argument("--rate", type=float, default=0.0)
    options = parser.parse_args()
    bodies = Path(options.requests).read_bytes().split(b"\x00\x00bench\x00\x00")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        json.dump(runner.run(run(options, bodies)), sys.stdout)


if __name__ == "__main__":
    main()
