"""Engines that connect to the picker to publish, and ranks: which addresses, and whose message it is."""

import asyncio
import logging
import time
from collections.abc import Callable

import msgspec
import pytest
import zmq
import zmq.asyncio

from picker.config import ConfigError, KvEvents, load
from picker.edge.kvevents.follower import KvEventFollower
from picker.edge.kvevents.listening import address_in
from picker.edge.kvevents.sources import configured, listened
from picker.pool.specs import EndpointSpec
from picker.prefix.index import PrefixIndex
from picker.residency.residency import Residency
from tests.ports import free_ports

LOG = logging.getLogger("test")


def batch(*blocks: int) -> bytes:
    events = [{"type": "BlockRemoved", "block_hashes": [block], "medium": "GPU"} for block in blocks]
    return msgspec.msgpack.encode([time.time(), events, 0])


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def test_ranks_have_ports_of_their_own() -> None:
    settings = KvEvents(enabled=True, port=6000, replay_port=7000, ranks=3)
    assert [(each.rank, each.address, each.replay_address) for each in configured("10.0.0.1:8000", settings)] == [
        (rank, f"tcp://10.0.0.1:{6000 + rank}", f"tcp://10.0.0.1:{7000 + rank}") for rank in range(3)
    ]
    assert listened(KvEvents(listen="tcp://[::]:5557", ranks=2)) == [("tcp://[::]:5557", 0), ("tcp://[::]:5558", 1)]
    assert listened(KvEvents()) == []


@pytest.mark.parametrize("listen", ["tcp://*:0", "tcp://*:65473", "udp://*:5557", "tcp://*", "5557", "tcp://a@b:1"])
def test_an_address_that_cannot_be_listened_at_is_refused(listen: str) -> None:
    with pytest.raises(ConfigError, match=r"kv_events\.listen"):
        load(f"kv_events: {{listen: '{listen}'}}")


@pytest.mark.parametrize(
    ("topic", "address"),
    [
        (b"kv@10.0.0.1:8000@m", "10.0.0.1:8000"),
        (b"kv@10.0.0.1@meta-llama/Llama@3", "10.0.0.1"),
        (b"kv@[fd00::1]:8000@m", "[fd00::1]:8000"),
        (b"kv@@m", None),
        (b"other", None),
        (b"", None),
        (b"kv@\xff@m", None),
        (b"kv@" + b"a" * 600, None),
    ],
)
def test_a_topic_names_its_engine(topic: bytes, address: str | None) -> None:
    assert address_in(topic) == address


def test_engines_that_connect_are_told_apart_by_their_topics() -> None:
    """Engines on one socket; of others, and of two ports of one host, nothing is taken."""
    (port,) = free_ports(1)

    async def run() -> None:
        index = PrefixIndex(bytes_max=1 << 20, capacity_blocks=100)
        residency = Residency(index)
        specs = [
            EndpointSpec(address=address, uid=uid, name=uid)
            for uid, address in (("a", "127.0.0.1:1"), ("b", "127.0.0.2:1"), ("c", "127.0.0.3:1"), ("d", "127.0.0.3:2"))
        ]
        slots = {spec.uid: slot for slot, spec in enumerate(specs)}
        follower = KvEventFollower(
            KvEvents(enabled="auto", listen=f"tcp://127.0.0.1:{port}"),
            residency,
            endpoints=lambda: specs,
            slot_of=slots.get,
            clock=time.monotonic,
            log=LOG,
        )
        context = zmq.asyncio.Context()
        task = asyncio.create_task(follower.run())
        engine = context.socket(zmq.SocketType.XPUB)
        try:
            engine.connect(f"tcp://127.0.0.1:{port}")
            assert (await asyncio.wait_for(engine.recv(), 10))[0] == 1
            for topic in (b"kv@127.0.0.1:1@m", b"kv@127.0.0.2@m", b"kv@127.0.0.3@m", b"kv@10.9.9.9:1@m", b"none"):
                for number in (0, 2):
                    await engine.send_multipart([topic, number.to_bytes(8, "big"), batch(number)])
            await engine.send_multipart([b"kv@127.0.0.3:2@m", bytes(8), batch(7)])
            await until(lambda: residency.tells(slots["d"]))
            assert [residency.tells(slot) for slot in range(4)] == [True, True, False, True]
            assert [residency.whole(slot) for slot in (0, 1, 3)] == [False, False, True]
            assert (follower.heard.batches_total, follower.heard.malformed_total) == (5, 6)
            specs.pop(0)
            heard = follower.heard
            async with asyncio.timeout(10):
                while heard.malformed_total == 6:
                    await engine.send_multipart([b"kv@127.0.0.1:1@m", bytes(8), batch(1)])
                    await asyncio.sleep(0.05)
            for number in range(2000):  # a stranger's many names cost nothing
                await engine.send_multipart(
                    [b"kv@127.0.0.2@model-%d" % number, (3 + number).to_bytes(8, "big"), batch(1)]
                )
            before = heard.batches_total
            await until(lambda: heard.batches_total >= before + 1000)
            assert residency.whole(slots["d"])
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            context.destroy(linger=0)

    asyncio.run(run())
