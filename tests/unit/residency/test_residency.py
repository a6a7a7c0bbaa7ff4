"""Engine blocks become depths of our chains, and removals shorten them: on recorded events and by hand."""

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from picker.prefix.index import PrefixIndex
from picker.residency.residency import Residency
from picker.residency.wire import Cleared, Removed, Stored, decode_batch
from tests.unit.residency.recorded import frames, lines

SLOT = 3


def chain(start, blocks):
    return array("Q", range(start, start + blocks))


class World:
    def __init__(self, **more):
        self.index = PrefixIndex(bytes_max=1 << 30, capacity_blocks=10_000)
        self.residency = Residency(self.index, **more)

    def send(self, session, hashes, tokens=None):
        """256 tokens to a block of ours, as English text has."""
        self.index.record(hashes, SLOT, 1.0)
        self.residency.sent(session, SLOT, hashes, len(hashes) * 1024, tokens or len(hashes) * 256)

    def end(self, session):
        self.residency.ended(session, SLOT, None, None)

    def apply(self, *events):
        self.residency.apply(SLOT, list(events))
        self.residency.check()
        self.index.check()

    def held(self, hashes):
        return next((blocks for bits, blocks in self.index.match(hashes).steps if bits >> SLOT & 1), 0)

    def confirmed(self, hashes):
        return self.residency.confirmed(hashes, SLOT, self.held(hashes))


def stored(start, count, parent=None, session="s", size=16, counts=True, group=0):
    return Stored(list(range(start, start + count)), parent, size, session, counts, group)


def removed(*hashes, counts=True, group=0):
    return Removed(list(hashes), counts, group)


def test_stored_blocks_confirm_the_chain_as_deep_as_they_reach():
    world = World()
    world.send("s", chain(100, 4))
    world.apply(stored(1000, 40))  # 640 tokens: two of our blocks and a half
    assert (world.held(chain(100, 4)), world.confirmed(chain(100, 4))) == (4, 2)
    world.apply(stored(1040, 24, parent=1039))
    assert world.confirmed(chain(100, 4)) == 4


def test_a_removal_shortens_the_chain_there_at_that_depth():
    world = World()
    world.send("s", chain(100, 4))
    world.apply(stored(1000, 64))
    world.end("s")
    world.apply(*[removed(each) for each in range(1063, 1040, -1)])  # from the deepest on, as engines do
    assert world.held(chain(100, 4)) == 2
    world.apply(removed(1005))
    assert world.held(chain(100, 4)) == 2, "not the end of a block of ours: its neighbours tell"
    world.apply(removed(1015))
    assert world.held(chain(100, 4)) == 0, "the first block is gone: nothing below it can be used"


def test_a_block_that_a_request_on_its_way_needs_stays():
    """It waits for room while others are evicted, and will store the block again."""
    world = World()
    world.send("s", chain(100, 4))
    world.apply(stored(1000, 64))
    world.end("s")
    world.send("t", chain(100, 6))
    world.apply(removed(1063), removed(1047))
    assert world.held(chain(100, 6)) == 6
    world.apply(stored(1032, 64, parent=1031, session="t"))
    world.end("t")
    world.apply(removed(1095), removed(1079), removed(1063))
    assert world.held(chain(100, 6)) == 3


def test_what_lies_beneath_goes_too_whoever_stored_it():
    world = World()
    first = chain(100, 4)
    second = first[:2] + chain(200, 3)
    world.send("s", first)
    world.apply(stored(1000, 64))
    world.send("t", second)
    world.apply(stored(2000, 48, parent=1031, session="t"))
    assert (world.confirmed(first), world.confirmed(second)) == (4, 5)
    world.end("s")
    world.end("t")
    world.apply(removed(1031))
    assert (world.held(first), world.held(second)) == (1, 1)


def test_other_slots_keep_what_they_hold():
    world = World()
    world.send("s", chain(100, 4))
    world.index.record(chain(100, 4), 5, 1.0)
    world.apply(stored(1000, 64))
    world.end("s")
    world.apply(removed(1031))
    assert world.index.match(chain(100, 4)).steps == ((1 << SLOT, 1), (1 << 5, 4))
    world.apply(Cleared())
    assert world.index.match(chain(100, 4)).steps == ((1 << 5, 4),)


def test_a_parent_that_is_not_known_waits_for_the_answers_usage():
    """Two chains part within what the first stored: the parent is no block that is kept."""
    world = World()
    world.send("s", chain(100, 4))
    world.apply(stored(1000, 64))
    other = chain(100, 2) + chain(300, 2)
    world.send("t", other)
    world.apply(stored(3000, 28, parent=1035, session="t"))
    assert world.confirmed(other) == 2
    world.residency.ended("t", SLOT, 1024, 36 * 16)
    assert world.confirmed(other) == 4
    world.end("s")
    world.apply(removed(3027))
    assert (world.held(other), world.held(chain(100, 4))) == (3, 4)


def test_what_nobody_can_match_changes_nothing_and_is_counted():
    world = World()
    world.send("s", chain(100, 4))
    world.apply(stored(1000, 64, session=None), stored(1000, 64, session="somebody"), removed(1, 2, 3))
    assert world.held(chain(100, 4)) == 4 and world.residency.unmatched_blocks_total == 128


def test_other_tiers_and_groups_change_nothing():
    world = World()
    world.send("s", chain(100, 4))
    world.apply(stored(1000, 64), stored(1000, 64, counts=False, group=1))
    world.apply(removed(1063, counts=False), removed(1063, group=1))
    assert world.confirmed(chain(100, 4)) == 4


def test_engine_blocks_larger_than_ours():
    world = World()
    world.send("s", chain(100, 8))
    world.apply(stored(1000, 4, size=512))
    assert world.confirmed(chain(100, 8)) == 8
    world.end("s")
    world.apply(removed(1003))
    assert world.held(chain(100, 8)) in (6, 7)


def test_cleared_keeps_the_capacity_and_forgets_the_rest():
    world = World()
    world.index.set_capacity(SLOT, 4)
    world.send("s", chain(100, 4))
    world.apply(stored(1000, 64), Cleared())
    assert world.held(chain(100, 4)) == 0 and world.residency.confirmed_blocks(SLOT) == 0
    world.send("u", chain(500, 9))
    assert world.index.blocks_held == {SLOT: 4}


def test_entries_are_bounded():
    world = World(entries_max=50)
    for number in range(20):
        world.send(f"s{number}", chain(1000 * number, 8))
        world.apply(stored(100_000 * (number + 1), 128, session=f"s{number}"))
    assert world.residency.confirmed_blocks(SLOT) <= 50


def test_recorded_events_of_a_real_engine_keep_the_index_at_what_it_holds():
    """Requests with our ids, as recorded: 2,100 bytes of text are 1,219 tokens of this model, in blocks of 32.

    The cache was emptied before `p1.abc.10` and holds 200 blocks: by the events, `p1.abc.10` is evicted whole
    while `p1.abc.16` is served, and `p1.abc.12` to `16` are there.
    """
    world = World()
    prompts = {}
    for line in lines():
        if "usage" in line:
            session = line["request"]["headers"].get("X-Session-ID")
            if session is not None:
                number = len(prompts) + 1
                usage = line["usage"]
                prompts[session] = hashes = chain(1000 * number, line["request"]["text_bytes"] // 1024)
                world.index.record(hashes, SLOT, float(number))
                world.residency.sent(session, SLOT, hashes, line["request"]["text_bytes"], usage["prompt_tokens"])
                cached = usage["prompt_tokens_details"]["cached_tokens"]
                world.residency.ended(session, SLOT, usage["prompt_tokens"], cached)
        elif "frames" in line:
            world.apply(*decode_batch(frames(line)[2]).events)
        elif line.get("request") == "POST /reset_prefix_cache":
            assert world.held(prompts["p1.abc.1"]) == 1, "the engine is silent until its next step"
    held = {session: world.held(hashes) for session, hashes in prompts.items()}
    assert held["p1.abc.1"] == held["p1.abc.2"] == 0, "cleared"
    assert held["p1.abc.10"] == 0 and {held[f"p1.abc.{n}"] for n in (12, 13, 14, 15, 16)} == {2}
    assert world.residency.events_total["cleared"] == 1


# The index's own steps, against a model that is a set of prefixes a slot.

chains = st.lists(st.sampled_from([1, 2, 3]), min_size=1, max_size=6)


def hashed(path):
    """Chained: equal prefixes have equal hashes and nothing else has."""
    value, hashes = 7, []
    for step in path:
        value = (value * 31 + step) & 0xFFFFFFFF
        hashes.append(value)
    return array("Q", hashes)


@given(
    st.lists(
        st.tuples(st.sampled_from(["record", "shorten", "confirm", "clear"]), chains, st.integers(0, 1)), max_size=30
    )
)
def test_the_index_follows_a_naive_model(steps):
    index = PrefixIndex(bytes_max=1 << 30, capacity_blocks=1000)
    model = {0: set(), 1: set()}
    for number, (what, path, slot) in enumerate(steps):
        prefixes = [tuple(path[:size]) for size in range(1, len(path) + 1)]
        if what in ("record", "confirm"):
            if what == "record":
                index.record(hashed(path), slot, float(number))
            else:
                index.confirm(hashed(path), len(path), slot)
            model[slot].update(prefixes)
        elif what == "shorten":
            keep = number % len(path)
            index.shorten(hashed(path), keep, slot)
            gone = tuple(path[: keep + 1])
            model[slot] = {each for each in model[slot] if each[: keep + 1] != gone}
        else:
            index.clear(slot)
            model[slot] = set()
        index.check()
        for each in (path, *(path for _, path, _ in steps)):
            steps_found = index.match(hashed(each)).steps
            for at in (0, 1):
                depth = max((size for size in range(1, len(each) + 1) if tuple(each[:size]) in model[at]), default=0)
                assert next((blocks for bits, blocks in steps_found if bits >> at & 1), 0) == depth


@pytest.mark.parametrize("keep", [4, 9])
def test_to_shorten_beyond_what_is_held_changes_nothing(keep):
    world = World()
    world.send("s", chain(100, 4))
    world.index.shorten(chain(100, 8), keep, SLOT)
    world.index.shorten(chain(900, 2), 0, SLOT)
    assert world.held(chain(100, 4)) == 4
