"""An ext_proc server that decides nothing, on the picker's own transport: what it costs is no part of a decision.

Like a picker it holds a request until its body has ended, which a prompt has to be read for; then it names one
fixed destination and echoes the body. Headers are not looked at, of a body only where it begins and ends.
Response bodies are left alone. Prints its port; bounded to 10 minutes.
"""

import asyncio
import sys

import uvloop

from picker.edge.grpc.ext_proc import METHOD
from picker.edge.grpc.h2 import H2Transport
from picker.edge.grpc.transport import Call, Handler
from picker.edge.process.malloc import tune_malloc
from picker.extproc.events import RequestBody
from picker.extproc.replies import ECHO_BYTES_MAX, ContinueResponseHeaders, EchoRequestBody, RouteOnHeaders
from picker.extproc.wire import decode, encode

RUN_SECONDS_MAX = 600
REQUEST_HEADERS, RESPONSE_HEADERS, REQUEST_BODY = 0x12, 0x1A, 0x22
"""A ProcessingRequest's first byte."""


class Fixed:
    """One exchange."""

    __slots__ = ("_body", "_call", "_destination")
    GO_ON = encode(ContinueResponseHeaders())

    def __init__(self, call: Call, destination: str) -> None:
        self._call = call
        self._destination = (destination,)
        self._body: list[bytes | memoryview] = []

    def receive(self, message: bytes) -> None:
        kind = message[0]
        if kind == REQUEST_BODY:
            event = decode(message)
            assert isinstance(event, RequestBody)
            data = event.data
            self._body += [data[at : at + ECHO_BYTES_MAX] for at in range(0, len(data), ECHO_BYTES_MAX)]
            if event.end_of_stream:
                self._answer(self._body or [b""])
        elif kind == RESPONSE_HEADERS:
            self._call.send(*self.GO_ON)
        elif kind != REQUEST_HEADERS:
            raise ValueError(f"a message that no request of the bench causes, field {kind >> 3}")

    def _answer(self, pieces: list[bytes | memoryview]) -> None:
        send = self._call.send
        send(*encode(RouteOnHeaders(self._destination)))
        for piece in pieces[:-1]:
            send(*encode(EchoRequestBody(piece, end_of_stream=False)))
        send(*encode(EchoRequestBody(pieces[-1], end_of_stream=True)))

    def half_closed(self) -> None:
        self._call.finish()

    def closed(self) -> None:
        pass


async def main() -> None:
    def opened(call: Call) -> Handler:
        return Fixed(call, sys.argv[1])

    def failed(error: BaseException) -> None:
        print(repr(error), file=sys.stderr)

    transport = H2Transport({METHOD: opened}, host="127.0.0.1", port=0, on_error=failed)
    await transport.start()
    print(transport.port, flush=True)
    await asyncio.sleep(RUN_SECONDS_MAX)
    await transport.stop()


if __name__ == "__main__":
    tune_malloc()
    uvloop.run(main())
