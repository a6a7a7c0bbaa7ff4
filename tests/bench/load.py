"""A lean HTTP/1.1 load client on bare sockets: latencies from the scheduled start.

Closed loop: every connection has one request under way. Open loop: requests start at a fixed
rate, each on an idle connection (a queue forms when none is idle, and its wait counts).
Answers end by content-length or, where a picker has echoed their body, by the last chunk (no trailers).

It shares the cores with what it measures, so it does little: requests are bytes made beforehand, of an answer
only the status and the length are looked at, no event loop. `select` is what waits, because its timeouts
are in microseconds: epoll and libuv round a start up to the next millisecond.
"""

import argparse
import json
import select
import socket
import sys
import time
from collections import deque
from pathlib import Path

UNANSWERED_SECONDS_MAX = 10.0
"""So long after the end is waited for answers; those that are missing then are errors."""
READ_BYTES = 262_144


class Connection:
    """One keep-alive connection."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self.fileno = self.socket.fileno
        self.unsent = memoryview(b"")
        self.buffer = b""
        self.started = 0.0
        self.ok = False

    def send(self, request: bytes, started: float) -> None:
        self.started = started
        self.unsent = memoryview(request)
        self.go_on()

    def go_on(self) -> None:
        try:
            self.unsent = self.unsent[self.socket.send(self.unsent) :]
        except BlockingIOError:
            pass

    def answered(self) -> bool:
        """Read what is there. True when the answer is whole. Raises `ConnectionError` at the end of the connection."""
        data = self.socket.recv(READ_BYTES)
        if not data:
            raise ConnectionError("the server closed a connection under load")
        if self.buffer:
            data = self.buffer + data
        end = data.find(b"\r\n\r\n") + 4
        if end < 4:
            self.buffer = data
            return False
        at = data.find(b"ontent-length: ", 0, end)
        if at > 0:
            whole = len(data) >= end + int(data[at + 15 : data.find(b"\r\n", at)])
        else:
            whole = data.endswith(b"\r\n0\r\n\r\n") or b"chunked" not in data[:end]
            if not whole and len(data) > 2 * READ_BYTES:
                data = data[:end] + data[-16:]  # a stream: its head and its end are enough
        self.buffer = b"" if whole else data
        self.ok = data.startswith(b"HTTP/1.1 200")
        return whole


class Load:
    """A run."""

    def __init__(self, port: int, requests: list[bytes], options: argparse.Namespace) -> None:
        self.requests = requests
        self.sent = 0
        self.rate = options.rate
        self.idle = deque(Connection(port) for _ in range(options.connections))
        self.busy: dict[int, Connection] = {}
        self.writing: set[int] = set()
        self.latencies: list[float] = []
        self.errors = 0
        self.began = time.perf_counter()
        self.count_from = self.began + options.warm_seconds
        self.until = self.count_from + options.seconds

    def start(self, due: float) -> None:
        connection = self.idle.popleft()
        self.sent += 1
        connection.send(self.requests[self.sent % len(self.requests)], due)
        self.busy[connection.fileno()] = connection
        if connection.unsent:
            self.writing.add(connection.fileno())

    def start_due(self, now: float) -> float:
        """Start what is due; returns the seconds until the next start."""
        if self.rate <= 0:
            while self.idle and now < self.until:
                self.start(now)
            return 1.0
        while True:
            due = self.began + self.sent / self.rate
            if due >= self.until or due > now or not self.idle:
                break
            self.start(due)
        return max(0.0, due - now) if self.idle and due < self.until else 1.0

    def read(self, number: int) -> None:
        connection = self.busy[number]
        if connection.answered():
            now = time.perf_counter()
            if now >= self.count_from:
                self.latencies.append(now - connection.started)
                self.errors += not connection.ok
            del self.busy[number]
            self.idle.append(connection)

    def run(self) -> None:
        while True:
            now = time.perf_counter()
            wait = self.start_due(now)
            if now >= self.until and (not self.busy or now >= self.until + UNANSWERED_SECONDS_MAX):
                self.errors += len(self.busy)
                return
            readable, writable, _ = select.select(list(self.busy), list(self.writing), (), wait)
            for number in writable:
                connection = self.busy[number]
                connection.go_on()
                if not connection.unsent:
                    self.writing.discard(number)
            for number in readable:
                self.read(number)


def result(load: Load, seconds: float) -> dict[str, float]:
    found = sorted(load.latencies)
    if not found:
        return {"requests": 0, "errors": load.errors}
    return {
        "requests": len(found),
        "errors": load.errors,
        "per_second": len(found) / seconds,
        "p50_ms": 1e3 * found[len(found) // 2],
        "p99_ms": 1e3 * found[int(len(found) * 0.99)],
        "client_us": 1e6 * time.process_time() / max(1, load.sent),
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
    load = Load(options.port, bodies, options)
    load.run()
    json.dump(result(load, options.seconds), sys.stdout)


if __name__ == "__main__":
    main()
