"""A publisher as vLLM's (vllm/distributed/kv_events.py): PUB for batches, ROUTER that replays what it keeps."""

import asyncio
import contextlib

import zmq
import zmq.asyncio


class Publisher:
    """Ports of the system's choosing; `lose` batches are numbered and kept, and never published."""

    def __init__(
        self, context: "zmq.asyncio.Context", *, topic: bytes = b"", with_topic_in_replay: bool = True
    ) -> None:
        self._context = context
        self._topic = topic
        self._with_topic = with_topic_in_replay
        self.kept: dict[int, bytes] = {}
        self.number = 0
        self.asked: list[int] = []
        self._pub = context.socket(zmq.PUB)
        self.port = self._pub.bind_to_random_port("tcp://127.0.0.1")
        self._router = context.socket(zmq.ROUTER)
        self.replay_port = self._router.bind_to_random_port("tcp://127.0.0.1")
        self._task = asyncio.create_task(self._replays())

    async def publish(self, payload: bytes, *, lose: bool = False) -> None:
        number, self.number = self.number, self.number + 1
        self.kept[number] = payload
        if not lose:
            await self._pub.send_multipart([self._topic, number.to_bytes(8, "big"), payload])

    async def raw(self, frames: list[bytes]) -> None:
        await self._pub.send_multipart(frames)

    async def _replays(self) -> None:
        while True:
            identity, _, start = await self._router.recv_multipart()
            first = int.from_bytes(start, "big")
            self.asked.append(first)
            middle = [self._topic] if self._with_topic else []
            for number in sorted(each for each in self.kept if each >= first):
                await self._router.send_multipart(
                    [identity, b"", *middle, number.to_bytes(8, "big"), self.kept[number]]
                )
            await self._router.send_multipart([identity, b"", *middle, (-1).to_bytes(8, "big", signed=True), b""])

    async def close(self) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self._pub.close(linger=0)
        self._router.close(linger=0)
