"""The follower against publishers on the loopback that speak as vLLM does, with its recorded batches."""

import asyncio
import logging
import time
from array import array
from contextlib import asynccontextmanager

import msgspec
import pytest
import zmq.asyncio

from picker.config import KvEvents
from picker.edge.kvevents.follower import KvEventFollower
from picker.edge.kvevents.sources import EventSource, configured, told
from picker.pool.specs import EndpointSpec
from picker.prefix.index import PrefixIndex
from picker.residency.residency import Residency
from tests.unit.edge.kvevents.publisher import Publisher
from tests.unit.edge.loopback import LoopbackServer, answer
from tests.unit.residency.recorded import frames, lines

SLOT = 0
encode = msgspec.msgpack.encode
CHAIN = array("Q", range(100, 104))


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 60))


def stored(start, count, parent=None, session="s"):
    return {
        "type": "BlockStored",
        "block_hashes": list(range(start, start + count)),
        "parent_block_hash": parent,
        "token_ids": [7] * (16 * count),
        "block_size": 16,
        "session_id": session,
    }


def removed(*hashes):
    return {"type": "BlockRemoved", "block_hashes": list(hashes), "medium": "GPU", "group_idx": 0}


def batch(*events):
    return encode([time.time(), list(events), 0])


class World:
    def __init__(self, port, settings):
        self.index = PrefixIndex(bytes_max=1 << 30, capacity_blocks=10_000)
        self.residency = Residency(self.index)
        self.specs = [EndpointSpec(address=f"127.0.0.1:{port}", uid="a", name="a")]
        self.follower = KvEventFollower(
            settings,
            self.residency,
            endpoints=lambda: self.specs,
            slot_of=lambda uid: SLOT if self.specs else None,
            clock=time.monotonic,
            log=logging.getLogger("test.kv_events"),
            ask_seconds=0.1,
        )
        self.index.record(CHAIN, SLOT, 1.0)
        self.residency.sent("s", SLOT, CHAIN, 4096, 1024)

    @property
    def confirmed(self):
        return self.residency.confirmed(CHAIN, SLOT, self.held)

    @property
    def held(self):
        return next((blocks for _, blocks in self.index.match(CHAIN).steps), 0)

    @property
    def heard(self):
        return self.follower.heard


async def until(condition):
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.01)


@asynccontextmanager
async def following(*, tells=True, replay=True, settings=None, **more):
    """A publisher, an engine that tells of it, and a follower that listens already."""
    context = zmq.asyncio.Context()
    publisher = Publisher(context, **more)
    source = {"endpoint": f"tcp://*:{publisher.port}", "topic": ""}
    if replay:
        source["replay_endpoint"] = f"tcp://*:{publisher.replay_port}"
    page = msgspec.json.encode({"0": source})
    async with LoopbackServer(lambda head: answer(page) if tells else answer(b"", "404 Not Found")) as server:
        world = World(server.port, settings or KvEvents())
        task = asyncio.create_task(world.follower.run())
        try:
            if tells or settings is not None:
                await until(lambda: world.follower.followed)
                while not world.heard.batches_total:  # the subscription takes its time
                    await publisher.publish(batch())
                    await asyncio.sleep(0.02)
            yield world, publisher
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await publisher.close()
            context.destroy(linger=0)


def test_events_reach_the_index():
    async def body():
        async with following() as (world, publisher):
            await publisher.publish(batch(stored(1000, 64)))
            await until(lambda: world.confirmed == 4)
            world.residency.ended("s", SLOT, None, None)
            await publisher.publish(batch(removed(1063), removed(1062), removed(1047)))
            await until(lambda: world.held == 2)
            assert world.residency.whole(SLOT) and world.heard.lag_seconds < 60
            await publisher.publish(batch({"type": "AllBlocksCleared"}))
            await until(lambda: world.held == 0)

    run(body())


@pytest.mark.parametrize("with_topic", [True, False])
def test_a_gap_is_replayed(with_topic):
    async def body():
        async with following(with_topic_in_replay=with_topic) as (world, publisher):
            await publisher.publish(batch(stored(1000, 64)))
            await until(lambda: world.confirmed == 4)
            world.residency.ended("s", SLOT, None, None)
            await publisher.publish(batch(removed(1063)), lose=True)
            await publisher.publish(batch(removed(1047)), lose=True)
            await publisher.publish(batch(removed(1031)))
            await until(lambda: world.held == 1)
            heard = world.heard
            assert (heard.gaps_total, heard.replayed_total, publisher.asked) == (1, 2, [publisher.number - 3])
            assert world.residency.whole(SLOT)

    run(body())


def test_a_gap_without_a_replay_leaves_the_slot_approximate_until_it_is_cleared(caplog):
    async def body():
        async with following(replay=False) as (world, publisher):
            await publisher.publish(batch(stored(1000, 64)))
            world.residency.ended("s", SLOT, None, None)
            await publisher.publish(batch(removed(1063)), lose=True)
            await publisher.publish(batch(removed(1031)))
            await until(lambda: world.held == 1)
            assert not world.residency.whole(SLOT)
            await publisher.publish(batch({"type": "AllBlocksCleared"}))
            await until(lambda: world.residency.whole(SLOT))

    run(body())
    assert "KV events were lost" in caplog.text


def test_a_publisher_that_starts_again_has_an_empty_cache():
    async def body():
        async with following() as (world, publisher):
            await publisher.publish(batch(stored(1000, 64)))
            await until(lambda: world.confirmed == 4)
            world.residency.ended("s", SLOT, None, None)
            publisher.number = 0
            publisher.kept.clear()
            await publisher.publish(batch(stored(5000, 16, session="other")))
            await until(lambda: world.held == 0)

    run(body())


def test_malformed_batches_and_frames_are_counted_and_passed_over():
    async def body():
        async with following() as (world, publisher):
            await publisher.raw([b"", b"short", b"x"])
            await publisher.raw([b"alone"])
            await publisher.publish(b"\xc1 no msgpack")
            await publisher.publish(batch({"type": "BlockStored", "block_hashes": "none"}, stored(1000, 64)))
            await until(lambda: world.confirmed == 4)
            world.residency.ended("s", SLOT, None, None)
            assert (world.heard.malformed_total, world.heard.skipped_total) == (3, 1)

    run(body())


def test_a_flood_leaves_the_loop_to_others():
    """While 20,000 batches come at once, others on the loop have their turn again and again."""

    async def body():
        async with following() as (world, publisher):
            turns = 0
            before = world.heard.batches_total
            flood = asyncio.create_task(_publish_many(publisher, 20_000))
            while not flood.done() or world.heard.batches_total - before < 1_000:
                await asyncio.sleep(0)
                turns += 1
            await flood
            assert turns > 1_000
            world.residency.check()

    async def _publish_many(publisher, count):
        one = batch(removed(1), removed(2))
        for _ in range(count):
            await publisher.publish(one, lose=False)
            publisher.kept.clear()

    run(body())


def test_an_endpoint_that_leaves_is_not_followed_any_more_and_one_that_tells_nothing_is_asked_again():
    async def body():
        async with following(tells=False) as (world, publisher):
            await asyncio.sleep(0.3)
            assert not world.follower.followed
        async with following() as (world, publisher):
            world.specs = []
            await asyncio.sleep(1.2)
            before = world.heard.batches_total
            await publisher.publish(batch())
            await asyncio.sleep(0.1)
            assert world.heard.batches_total == before

    run(body())


def test_the_recorded_batches_of_a_real_engine_come_through():
    async def body():
        async with following() as (world, publisher):
            recorded = [frames(line)[2] for line in lines() if "frames" in line]
            before = world.heard.batches_total
            for payload in recorded:
                await publisher.publish(payload)
            await until(lambda: world.heard.batches_total - before == len(recorded))
            assert world.heard.malformed_total == world.heard.skipped_total == 0
            assert world.residency.events_total["cleared"] == 1

    run(body())


# Where they are ---------------------------------------------------------------------------------


def page(**ranks):
    return msgspec.json.encode({name[1:]: value for name, value in ranks.items()})


def test_sources_as_engines_tell_them():
    told_of = page(
        r0={"endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5558", "topic": "kv", "more": 1},
        r1={"endpoint": "tcp://[::]:5567"},
        r2={"endpoint": "tcp://10.9.9.9:5557"},  # it connects to somebody else
        r3={"endpoint": "ipc:///tmp/x"},
        r4={"endpoint": "tcp://*:x"},
    )
    assert told(told_of, "10.0.0.1:8000", KvEvents(topic="t")) == (
        EventSource(0, "tcp://10.0.0.1:5557", "tcp://10.0.0.1:5558", "t"),
        EventSource(1, "tcp://10.0.0.1:5567", None, "t"),
    )
    assert told(page(r0={"endpoint": "tcp://0.0.0.0:1"}), "[fd00::1]:80", KvEvents())[0].address == "tcp://[fd00::1]:1"


@pytest.mark.parametrize("wrong", [b"", b"[]", b"<html>", b'{"0": 5}'])
def test_a_page_that_is_none_says_so(wrong):
    with pytest.raises(ValueError, match="kv_event_sources"):
        told(wrong, "10.0.0.1:80", KvEvents())


def test_configured_where_an_engine_does_not_tell():
    assert configured("10.0.0.1:80", KvEvents(port=7, replay_port=8)) == (
        EventSource(0, "tcp://10.0.0.1:7", "tcp://10.0.0.1:8", ""),
    )
