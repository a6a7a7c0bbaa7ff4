"""Trace files: read as their publishers describe them, refused with the line that is wrong."""

import pytest

from picker.sim.traces import TraceError, azure, mooncake, open_trace

GOOD = '{"timestamp": 3000, "input_length": 1000, "output_length": 5, "hash_ids": [7, 8]}\n'


def write(path, text):
    path.write_text(text)
    return path


def test_a_mooncake_line_is_a_session_of_one_turn(tmp_path):
    path = write(
        tmp_path / "t.jsonl", GOOD + '{"timestamp": 0, "input_length": 512, "output_length": 0, "hash_ids": [7]}\n'
    )
    one, two = mooncake(path, seed=1)
    assert [(s.id, s.tokens) for s in one.turns[0].segments] == [(7, 512)]
    assert [(s.id, s.tokens) for s in two.turns[0].segments] == [(7, 512), (8, 488)]
    assert two.turns[0].answer.tokens == 5
    assert one.turns[0].answer.tokens == 1
    assert one.at_seconds == 0.0


def test_timestamps_are_spread_over_three_seconds_and_sped_up(tmp_path):
    path = write(tmp_path / "t.jsonl", GOOD * 500)
    starts = [session.at_seconds for session in mooncake(path, seed=1)]
    assert starts == sorted(starts)
    assert 2.8 < starts[-1] <= 3.0
    assert [session.at_seconds for session in mooncake(path, seed=1)] == starts
    assert [s.at_seconds for s in mooncake(path, seed=1, speed=3.0)] == pytest.approx([at / 3 for at in starts])
    assert [s.at_seconds for s in mooncake(path, seed=2)] != starts


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("nonsense", "t.jsonl:2: "),
        ('{"timestamp": 0}', "expected timestamp, input_length"),
        (
            '{"timestamp": 0, "input_length": 1000, "output_length": 5, "hash_ids": [7]}',
            "2 blocks of 512, but hash_ids has 1",
        ),
        ('{"timestamp": 0, "input_length": 0, "output_length": 5, "hash_ids": []}', "out of range"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, words):
    with pytest.raises(TraceError, match=words):
        mooncake(write(tmp_path / "t.jsonl", GOOD + line + "\n"), seed=1)


def test_a_missing_or_empty_file_is_named(tmp_path):
    with pytest.raises(TraceError, match=r"cannot read the trace .*gone.jsonl: No such file"):
        mooncake(tmp_path / "gone.jsonl", seed=1)
    with pytest.raises(TraceError, match="is empty"):
        mooncake(write(tmp_path / "t.jsonl", "\n"), seed=1)
    with pytest.raises(TraceError, match="has no rows"):
        azure(write(tmp_path / "t.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n"))


def test_azure_rows_share_nothing(tmp_path):
    path = write(
        tmp_path / "t.csv",
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:17:03.9799600,4808,10\n"
        "2023-11-16 18:17:04.0319600,3180,8\n",
    )
    one, two = open_trace(path, seed=1)
    assert (one.at_seconds, two.at_seconds) == (0.0, pytest.approx(0.052))
    assert one.turns[0].segments[0].tokens == 4808
    assert two.turns[0].answer.tokens == 8
    assert one.turns[0].segments[0].id != two.turns[0].segments[0].id


def test_a_bad_azure_row_is_named(tmp_path):
    path = write(tmp_path / "t.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.97,many,10\n")
    with pytest.raises(TraceError, match=r"t.csv:2: .*'many'"):
        azure(path)
