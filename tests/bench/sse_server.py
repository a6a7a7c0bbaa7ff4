"""An upstream that streams: each POST is answered with N server-sent events, one every interval, and [DONE].

Chunked HTTP/1.1 on asyncio, bounded to 10 minutes. Requests are only looked at for their length.
"""

import asyncio
import json
import sys

import uvloop

from tests.bench.processes import METRICS_PAGE

RUN_SECONDS_MAX = 600
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(number: int, **more: object) -> bytes:
    tree = {
        "id": "chatcmpl-8a1c4c559a55",
        "object": "chat.completion.chunk",
        "created": 1_780_000_000,
        "model": "m",
        "choices": [{"index": 0, "delta": {"content": f" word{number}"}, "logprobs": None, "finish_reason": None}],
        **more,
    }
    return b"data: " + json.dumps(tree).encode() + b"\n\n"


class Server:
    """All events are made ahead: what is measured is elsewhere."""

    def __init__(self, events: int, interval_seconds: float) -> None:
        usage = {"prompt_tokens": 500, "completion_tokens": events}
        self.chunks = [chunk(event(number)) for number in range(events - 1)]
        self.last = chunk(event(events, choices=[], usage=usage)) + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"
        self.interval_seconds = interval_seconds
        page = METRICS_PAGE.read_bytes()
        self.page = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: %d\r\n\r\n%s" % (len(page), page)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                if head.startswith(b"get"):
                    writer.write(self.page)
                    continue
                if b"content-length:" in head:
                    await reader.readexactly(int(head.split(b"content-length:")[1].split(b"\r\n")[0]))
                else:
                    while await reader.readuntil(b"\r\n") != b"0\r\n":
                        await reader.readuntil(b"\r\n")
                    await reader.readuntil(b"\r\n")
                writer.write(HEAD)
                await self.stream(writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def stream(self, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        for each in self.chunks:
            if writer.is_closing():
                raise ConnectionError("the client has left")
            writer.write(each)
            due += self.interval_seconds
            if (wait := due - loop.time()) > 0:
                await asyncio.sleep(wait)
        writer.write(self.last)


async def main() -> None:
    server = await asyncio.start_server(
        Server(int(sys.argv[1]), float(sys.argv[2])).answer, "127.0.0.1", 0, limit=1 << 20
    )
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.sleep(RUN_SECONDS_MAX)


if __name__ == "__main__":
    uvloop.run(main())
