"""Batches of KV events: recorded maps, arrays of older engines, and what is no batch."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from picker.residency.sequence import Means, SequenceNumbers, number_of
from picker.residency.wire import BATCH_BYTES_MAX, Cleared, MalformedBatch, Removed, Stored, decode_batch
from tests.unit.residency.recorded import frames, lines, with_topic

encode = msgspec.msgpack.encode


def recorded():
    return [frames(line) for line in lines() if "frames" in line]


def test_every_recorded_batch_is_read_as_an_independent_decoder_reads_it():
    seen = set()
    for _, number, payload in recorded():
        batch = decode_batch(payload)
        ts, events, rank = msgspec.msgpack.decode(payload)
        assert (batch.published_at_seconds, batch.rank, batch.skipped) == (ts, rank, 0)
        assert len(batch.events) == len(events) and number_of(number) is not None
        for ours, theirs in zip(batch.events, events, strict=True):
            seen.add(type(ours).__name__)
            assert {"Stored": "BlockStored", "Removed": "BlockRemoved", "Cleared": "AllBlocksCleared"}[
                type(ours).__name__
            ] == theirs["type"]
            if isinstance(ours, Stored):
                assert (ours.block_hashes, ours.parent) == (theirs["block_hashes"], theirs["parent_block_hash"])
                assert (ours.block_tokens, ours.session_id, ours.counts) == (32, theirs.get("session_id"), True)
            elif isinstance(ours, Removed):
                assert (ours.block_hashes, ours.counts) == (theirs["block_hashes"], True)
    assert seen == {"Stored", "Removed", "Cleared"}


def test_those_with_a_topic_are_the_same():
    assert [[type(each).__name__ for each in decode_batch(payload).events] for _, _, payload in with_topic()[:1]] == [
        ["Stored"]
    ]


def test_no_token_id_is_kept():
    payload = recorded()[1][2]
    (stored,) = decode_batch(payload).events
    (theirs,) = msgspec.msgpack.decode(payload)[1]
    assert len(theirs["token_ids"]) == 32
    kept = [getattr(stored, name) for name in stored.__struct_fields__]
    assert theirs["token_ids"] not in kept and not any(isinstance(each, msgspec.Raw | memoryview) for each in kept)


# Arrays: vLLM before maps, and SGLang (sglang/srt/disaggregation/kv_events.py), whose fields grew over time.


@pytest.mark.parametrize("more", [[], ["GPU"], ["GPU", None], ["GPU", None, None, 0], ["GPU", "sql", [None], 0, None]])
def test_arrays_of_five_to_nine_fields(more):
    event = ["BlockStored", [1, 2], 7, [5] * 32, 16, None, *more]
    batch = decode_batch(
        encode([1.5, [event, ["BlockRemoved", [3], "GPU"], ["BlockRemoved", [4]], ["AllBlocksCleared"]], 2])
    )
    stored, removed, old, cleared = batch.events
    assert (stored.block_hashes, stored.parent, stored.block_tokens, stored.session_id) == ([1, 2], 7, 16, None)
    assert stored.counts and removed.block_hashes == [3] and removed.counts and old.counts
    assert isinstance(cleared, Cleared) and (batch.rank, batch.skipped) == (2, 0)


def test_hashes_may_be_bytes_and_a_rank_may_be_missing():
    batch = decode_batch(encode([1.0, [{"type": "BlockRemoved", "block_hashes": [b"\x01" * 32]}]]))
    assert batch.events[0].block_hashes == [b"\x01" * 32] and batch.rank == 0


@pytest.mark.parametrize(
    "more",
    [{"medium": "CPU"}, {"medium": "STORAGE"}, {"kv_cache_spec_kind": "sliding_window", "group_idx": 1}],
)
def test_other_tiers_and_other_kinds_of_attention_do_not_count(more):
    event = {"type": "BlockStored", "block_hashes": [1], "parent_block_hash": None, "block_size": 16, **more}
    (stored,) = decode_batch(encode([1.0, [event], 0])).events
    assert not stored.counts


def test_one_bad_event_or_an_unknown_one_costs_only_itself():
    good = {"type": "BlockRemoved", "block_hashes": [1]}
    bad = {"type": "BlockStored", "block_hashes": "no list"}
    batch = decode_batch(encode([1.0, [good, bad, {"type": "Later"}, ["Later", 1], 5, good], 0]))
    assert [each.block_hashes for each in batch.events] == [[1], [1]] and batch.skipped == 4


@pytest.mark.parametrize("payload", [b"", b"\x93", b"GET / HTTP/1.1", encode({}), encode([1.0]), encode(["x", [], 0])])
def test_what_is_no_batch_is_malformed(payload):
    with pytest.raises(MalformedBatch):
        decode_batch(payload)


def test_a_batch_beyond_the_bound_is_not_even_looked_at():
    with pytest.raises(MalformedBatch, match="exceeds"):
        decode_batch(bytes(BATCH_BYTES_MAX + 1))


@given(st.binary(max_size=200) | st.sampled_from([b"\x91" * 3000, b"\x93\xcb" + bytes(8) + b"\x91" * 3000]))
def test_any_bytes_are_a_batch_or_malformed(payload):
    try:
        decode_batch(payload)
    except MalformedBatch:
        pass


def test_numbers_tell_what_is_missing():
    heard = SequenceNumbers()
    said = [(heard.see(number).means, seen) for number, seen in ((0, None), (1, None))]
    assert [means for means, _ in said] == [Means.NEXT, Means.NEXT] and heard.expected == 2
    gap = heard.see(5)
    assert (gap.means, gap.missing) == (Means.GAP, (2, 5))
    again = heard.see(3)
    assert (again.means, again.missing) == (Means.RESTARTED, (0, 3))
    late = SequenceNumbers().see(7)
    assert (late.means, late.missing) == (Means.JOINED, (0, 7))
    assert number_of(b"\x00" * 7 + b"\x05") == 5 and number_of(b"5") is None
