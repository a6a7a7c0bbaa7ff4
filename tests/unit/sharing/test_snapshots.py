"""A snapshot is written and read in steps, each of which does a bounded piece of the work."""

from picker.sharing.codec import decode
from picker.sharing.snapshots import CHUNK_BYTES, CHUNK_RECORDS_MAX, NODES_STEP, STEP
from tests.unit.sharing.pair import Group, chain

ENDPOINTS = ("a", "b", "c")
TURNS = 150


def told_group() -> Group:
    """A writer that alone knows one session of many turns, each held by all, and many short prompts."""
    group = Group(2, ENDPOINTS)
    writer = group.members[0]
    for turn in range(1, TURNS):
        for name in ENDPOINTS:
            group.time += 0.001
            group.pick(writer, chain(*range(turn)), only=name)
    for session in range(400):
        group.pick(writer, chain(1_000 + session, 1), only=ENDPOINTS[session % 3])
    return group


def test_no_chunk_and_no_step_is_large_and_all_arrives():
    group = told_group()
    writer, reader = group.members
    chunks = [each for each in writer.shared.snapshot(0, group.now(writer)) if each is not None]
    largest = 1 + len(ENDPOINTS)  # what one run adds, when there is little room left
    for each in chunks:
        _, batch = decode(each)
        records = sum(1 + len(uses) for _, _, _, uses in batch.runs)
        assert records < CHUNK_RECORDS_MAX + largest
        assert len(each) < CHUNK_BYTES + 1024
    loader, entries, taken = reader.shared.loader(), 0, []
    for each in chunks:
        for _ in reader.shared.load(loader, each, int(group.now(reader) * 1e6), group.now(reader)):
            taken.append(reader.director.index.entries - entries)
            entries = reader.director.index.entries
    assert max(taken) <= STEP + largest, "entries of the index that one step made"
    assert reader.director.index.entries == writer.director.index.entries
    reader.director.index.check()
    for turn in (1, 40, TURNS - 1):
        assert reader.held(chain(*range(turn))) == dict.fromkeys(ENDPOINTS, turn)
    for session in range(400):
        assert reader.held(chain(1_000 + session, 1)) == {ENDPOINTS[session % 3]: 2}


def test_what_is_left_out_takes_steps_too():
    group = told_group()
    index = group.members[0].director.index
    nodes = sum(each is not None for each in index.holdings(0))
    assert nodes > 500
    later = int(group.now(group.members[0]) * 1e6) + 10_000  # ticks of one moment are told apart by counting on
    steps = list(index.holdings(later, 50))
    assert steps == [None] * len(steps), "nothing was used since"
    assert len(steps) >= nodes // 50
    written = list(group.members[0].shared.snapshot(later, group.now(group.members[0])))
    assert written.count(None) >= nodes // NODES_STEP


def test_two_snapshots_at_a_time_are_both_whole():
    group = told_group()
    index = group.members[0].director.index
    whole = {each[2].tobytes() for each in index.holdings(0) if each is not None}
    first, second = index.holdings(0), index.holdings(0)
    found: list[set[bytes]] = [set(), set()]
    ends = [False, False]
    while not all(ends):
        for number, reading in enumerate((first, second)):
            each = next(reading, 0)
            ends[number] = each == 0
            if isinstance(each, tuple):
                found[number].add(each[2].tobytes())
    assert found == [whole, whole]
