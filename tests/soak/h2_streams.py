"""A million streams, and the memory they leave behind: `python -m tests.soak.h2_streams`.

A server process is driven over loopback by the bench's client of raw frames. Every connection
makes 10,000 calls and leaves; every tenth call is broken off in the middle of a message.
Resident memory at the end has to be within 5 % of what it was after a tenth of the streams.
"""

import argparse
import asyncio
import subprocess
import sys
import time

from tests.bench.transport import PATH, Client, frame, resident_kb

CALLS_PER_CONNECTION = 10_000


class Rough(Client):
    """Every tenth call is reset inside a message."""

    def open(self) -> bytes:
        number = self.opened
        opened = super().open()
        stream_id = number * 2 + 1
        if number % 10 == 5:
            del self.state[stream_id]
            self.ended += 1
            if self.ended == self.calls and not self.done.done():
                self.done.set_result(None)
            broken = frame(0, 0, stream_id, b"\0\0\0\xff\xffbegun") + frame(3, 0, stream_id, b"\0\0\0\x08")
            again = self.open() if self.opened < self.calls else b""
            return opened + broken + again
        return opened

    def answered(self, stream_id: int) -> bytes:
        return super().answered(stream_id) if stream_id in self.state else b""

    def finished(self, stream_id: int) -> bytes:
        return super().finished(stream_id) if stream_id in self.state else b""


async def drive(port: int, streams: int) -> None:
    loop = asyncio.get_running_loop()
    done = 0
    while done < streams:
        calls = min(CALLS_PER_CONNECTION, streams - done)
        _, client = await loop.create_connection(lambda calls=calls: Rough(64, calls, 2_048), "127.0.0.1", port)
        await client.done
        client.transport.abort()
        done += calls


def soak(streams: int, kind: str = "h2", loop: str = "uvloop") -> tuple[int, int]:
    """Resident memory of the server in KiB, after a tenth of the streams and at the end."""
    command = [sys.executable, "-m", "tests.bench.transport", "--serve", kind, "--loop", loop]
    server = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        asyncio.run(drive(port, streams // 10))
        early = resident_kb(server.pid)
        asyncio.run(drive(port, streams - streams // 10))
        return early, resident_kb(server.pid)
    finally:
        server.kill()
        server.wait()
        if server.stdout is not None:
            server.stdout.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, default=1_000_000)
    parser.add_argument("--loop", choices=("asyncio", "uvloop"), default="uvloop")
    arguments = parser.parse_args()
    began = time.monotonic()
    early, late = soak(arguments.streams, loop=arguments.loop)
    growth = late / early - 1
    print(
        f"{arguments.streams:,} streams to {PATH} in {time.monotonic() - began:.0f} s: "
        f"{early:,} KiB after a tenth, {late:,} KiB at the end ({growth:+.1%})"
    )
    return 0 if growth <= 0.05 else 1


if __name__ == "__main__":
    sys.exit(main())
