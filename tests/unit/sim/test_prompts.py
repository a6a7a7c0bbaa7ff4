"""Segments as block ids and as text: both have the prefix property."""

from hypothesis import given
from hypothesis import strategies as st

from picker.sim.prompts import Chain, Role, Segment, Session, Turn, prompts, say, text_of

said_strategy = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 70)), max_size=6)


def tokens_of(said):
    """Every token spelled out: (everything before its segment, segment, position) is what it is."""
    tokens, head = [], ()
    for segment, count in said:
        tokens += [(head, segment, position) for position in range(count)]
        head = (*head, (segment, count))  # type: ignore[assignment]
    return tokens


def ids_of(said, block_tokens=16):
    chain = Chain(block_tokens)
    for segment, count in said:
        chain.append(Segment(segment, count))
    assert chain.tokens == sum(count for _, count in said)
    return list(chain.ids)


@given(said_strategy, said_strategy)
def test_ids_agree_exactly_as_far_as_whole_blocks_of_tokens_do(one, two):
    for block in (16, 256):
        ids_one, ids_two = ids_of(one, block), ids_of(two, block)
        tokens_one, tokens_two = tokens_of(one), tokens_of(two)
        assert len(ids_one) == len(tokens_one) // block
        for index in range(min(len(ids_one), len(ids_two))):
            end = (index + 1) * block
            assert (ids_one[index] == ids_two[index]) == (tokens_one[:end] == tokens_two[:end])


def test_a_sessions_chain_only_grows():
    chain = Chain(16)
    chain.append(Segment(1, 100))
    before = list(chain.ids)
    chain.append(Segment(2, 7))
    chain.append(Segment(3, 7))
    assert list(chain.ids)[: len(before)] == before
    assert len(chain.ids) == 114 // 16


def test_text_is_ascii_of_four_bytes_a_token_and_a_prefix_of_its_longer_self():
    long = text_of(7, 5000)
    assert len(long) == len(long.encode()) == 20_000
    assert long.startswith(text_of(7, 1234))
    assert text_of(8, 10) != text_of(7, 10)
    assert long.isascii() and set(long) <= set("abcdefghijklmnopqrstuvwxyz ")


def test_messages_join_neighbours_and_keep_the_order():
    said = [
        Segment(1, 3, Role.SYSTEM),
        Segment(2, 4, Role.SYSTEM),
        Segment(3, 5),
        Segment(4, 2, Role.ASSISTANT),
        Segment(5, 2, Role.TOOL),
    ]
    messages = []
    for segment in said:
        say(messages, segment)
    assert messages == [
        {"role": "system", "content": text_of(1, 3) + text_of(2, 4)},
        {"role": "user", "content": text_of(3, 5)},
        {"role": "assistant", "content": text_of(4, 2)},
        {"role": "user", "content": text_of(5, 2)},
    ]


def test_a_turns_prompt_is_everything_said_before_it():
    turns = tuple(
        Turn(segments=(Segment(10 + i, 5),), answer=Segment(20 + i, 6, Role.ASSISTANT), pause_seconds=1.0)
        for i in (0, 1)
    )
    got = [[segment.id for segment in said] for _, said in prompts(Session(id=1, at_seconds=0.0, turns=turns))]
    assert got == [[10], [10, 20, 11]]
