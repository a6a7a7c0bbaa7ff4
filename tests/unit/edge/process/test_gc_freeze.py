"""What survived a full collection is not walked again, and what dies later is still freed."""

import gc
import weakref

from picker.edge.process.gc_freeze import heap_frozen
from tests.bench import offline


class Thing:
    pass


def walked() -> set[int]:
    return {id(each) for each in gc.get_objects()}


def test_survivors_are_set_aside_until_the_end():
    keeper = [Thing()]
    with heap_frozen():
        assert id(keeper) not in walked()
        later = [Thing()]
        assert id(later) in walked()
        gc.collect()
        assert id(later) not in walked()
        one = weakref.ref(keeper[0])
        keeper.clear()
        assert one() is None, "reference counts go on"
        ring = Thing()
        ring.itself = ring  # type: ignore[attr-defined]
        lost = weakref.ref(ring)
        del ring
        gc.collect()
        assert lost() is None, "a young cycle is found as ever"
    assert id(later) in walked() and not gc.get_freeze_count()


def exchanges(peer: offline.Peer, groups: int) -> None:
    """On one connection: whole requests, bodies that are no JSON, and requests that are broken off."""
    opening = offline.request_step(peer.block, offline.chat_body(2_000, 1), 0)
    for _ in range(groups):
        for mode in (0, offline.FULL_DUPLEX):
            for reads in offline.requests(peer, [offline.chat_body(2_000, 1), b"{no json"], mode, 4, 20):
                for read in reads:
                    peer.feed(read)
        left = peer.opening()
        for read in peer.reads([opening.numbered(left), offline.RESET.numbered(left)]):
            peer.feed(read)
    assert not peer.errors


def test_requests_leave_no_cycles_behind():
    """So that nothing is lost by setting survivors aside."""
    peer = offline.Peer(offline.methods("whole"))
    exchanges(peer, 1)
    gc.collect()
    gc.disable()
    try:
        exchanges(peer, 40)
        assert gc.collect() == 0
    finally:
        gc.enable()
