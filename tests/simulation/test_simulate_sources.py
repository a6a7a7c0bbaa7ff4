"""What a run is made of: planned requests, traffic met in its middle, recordings that say nothing of prompts."""

import contextlib
import json
import os
import resource
import threading
from array import array
from hashlib import blake2b
from itertools import islice
from pathlib import Path

import msgspec
import pytest

from picker import recording
from picker.edge.process.line_watch import LineWatch
from picker.files.line_writer import BLOCKS_WAITING_MAX
from picker.recording import Entry, Recorder, RecordingError
from picker.sim import recorded
from picker.sim.simulate import Run, fleet_of, play
from picker.sim.sources import Recording, Trace, Workload, first_planned, open_file, settled
from picker.sim.workloads import WORKLOADS, sessions


def planned_times(listed):
    times = []
    for session in listed:
        at = session.at_seconds
        for turn in session.turns:
            at += turn.pause_seconds
            times.append(at)
    return sorted(times)


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_run_has_the_first_requests_by_planned_time(name):
    everything = planned_times(islice(sessions(name, 3, 5.0), 400))
    chosen = [planned.session for planned in first_planned(sessions(name, 3, 5.0), 100)]
    assert planned_times(chosen) == everything[:100]


def test_the_warm_up_is_the_first_share():
    planned = first_planned(sessions("chat", 1, 5.0), 200, 0.25)
    assert sum(each.warm_turns for each in planned) == 50
    warm = planned_times(
        msgspec.structs.replace(each.session, turns=each.session.turns[: each.warm_turns]) for each in planned
    )
    assert warm == planned_times(each.session for each in planned)[:50]


def test_traffic_met_later_is_the_same_traffic():
    seconds = 100.0
    whole = [at - seconds for at in planned_times(islice(sessions("chat", 2, 4.0), 600)) if at >= seconds]
    met = list(islice(settled(sessions("chat", 2, 4.0), seconds), 300))
    starts = [session.at_seconds for session in met]
    assert starts == sorted(starts)
    assert planned_times(met)[:200] == pytest.approx(whole[:200])

    def prompt_tokens(listed):  # by what ends a session: prompts go on where they were
        found = {}
        for session in listed:
            total = sum(segment.tokens for turn in session.turns for segment in turn.segments)
            answers = sum(turn.answer.tokens for turn in session.turns)
            found[session.turns[-1].answer.id] = total + answers
        return found

    before, after = prompt_tokens(islice(sessions("chat", 2, 4.0), 600)), prompt_tokens(met)
    assert set(after) <= set(before)
    assert all(tokens == before[key] for key, tokens in after.items())


# Recordings ---------------------------------------------------------------------------------


def entry(**changes):
    return {
        "at": 1.0,
        "model": "secret-model",
        "hashes": array("Q", [11, 22, 33]),
        "prompt_bytes": 3500,
        "prompt_tokens": 880,
        "output_tokens": 70,
        "streaming": True,
        "outcome": "completed",
        **changes,
    }


def test_what_is_written_is_read_and_tells_no_names(tmp_path):
    path = tmp_path / "traffic.jsonl"
    recorder = Recorder(path, started_at="2026-01-31T12:00:00Z", key=b"k" * 32)
    recorder.record(**entry())
    recorder.record(**entry(at=2.0, hashes=array("Q", [11, 22, 44]), output_tokens=None, model=None))
    recorder.close()
    text = path.read_text("ascii")
    assert "secret-model" not in text
    assert path.stat().st_mode & 0o077 == 0
    first, second = recording.read(path)
    assert (first.at, first.prompt_tokens, first.output_tokens, first.streaming) == (1.0, 880, 70, True)
    assert second.output_tokens is None and second.model is None
    assert first.hashes()[:2] == second.hashes()[:2]
    assert first.hashes()[2] != second.hashes()[2]
    keyed = blake2b((22).to_bytes(8, "little"), key=b"k" * 32, digest_size=8).digest()
    assert first.hashes()[1] == int.from_bytes(keyed, "little")


def test_two_recordings_of_the_same_traffic_share_no_hash(tmp_path):
    found = []
    for name in ("one", "two"):
        recorder = Recorder(tmp_path / name, started_at="now")
        recorder.record(**entry())
        recorder.close()
        found.append(set(next(recording.read(tmp_path / name)).hashes()))
    assert not found[0] & found[1]


def test_a_recording_is_bounded_by_rotation_and_both_parts_are_read(tmp_path):
    path = tmp_path / "traffic.jsonl"
    recorder = Recorder(path, 100_000, started_at="now")
    for number in range(2000):
        recorder.record(**entry(at=float(number)))
        recorder.flush()
        assert path.stat().st_size <= 100_000
    recorder.close()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["traffic.jsonl", "traffic.jsonl.1"]
    numbers = [each.at for each in recording.read(path)]
    assert numbers == [float(number) for number in range(2000 - len(numbers), 2000)]
    assert len(path.read_text().splitlines()) - 1 < len(numbers)


def test_an_older_recording_is_rotated_away_but_not_read_as_this_one_s(tmp_path):
    path = tmp_path / "traffic.jsonl"
    for at in (1.0, 2.0):
        recorder = Recorder(path, started_at="now")
        recorder.record(**entry(at=at))
        recorder.close()
    assert [each.at for each in recording.read(path)] == [2.0]
    assert [each.at for each in recording.read(path.with_name("traffic.jsonl.1"))] == [1.0]


@contextlib.contextmanager
def files_limited_to(size):
    """What a full disk is to one that writes; the signal is ignored by Python."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_disk_that_is_full_loses_entries_counts_them_and_leaves_whole_lines(tmp_path):
    path = tmp_path / "traffic.jsonl"
    recorder = Recorder(path, started_at="now")
    with files_limited_to(20_000):
        for number in range(1000):
            recorder.record(**entry(at=float(number)))
        recorder.flush()
        kept = recorder.written
        assert 0 < kept < 1000 and recorder.lost == 1000 - kept
        assert recorder.problem == "File too large"
        assert path.stat().st_size <= 20_000
        assert [each.at for each in recording.read(path)] == [float(number) for number in range(kept)]
    for number in range(1000, 1010):  # there is room again
        recorder.record(**entry(at=float(number)))
    recorder.close()
    assert (recorder.written, recorder.lost, recorder.problem) == (kept + 10, 1000 - kept, None)
    assert [each.at for each in recording.read(path)][-10:] == [float(number) for number in range(1000, 1010)]


def test_a_disk_without_room_for_a_first_line_loses_all_until_there_is(tmp_path):
    path = tmp_path / "traffic.jsonl"
    recorder = Recorder(path, 70_000, started_at="now")
    with files_limited_to(10):
        for number in range(2000):  # more than the file may hold: it is rotated
            recorder.record(**entry(at=float(number)))
        recorder.flush()
    lost = recorder.lost
    recorder.record(**entry(at=9999.0))
    recorder.close()
    assert recorder.written + recorder.lost == 2001 and recorder.lost == lost > 0
    assert [each.at for each in recording.read(path)][-1] == 9999.0


def test_a_disk_that_does_not_answer_holds_nobody_and_takes_no_more_memory(tmp_path):
    recorder = Recorder(tmp_path / "traffic.jsonl", started_at="now")
    answer = threading.Event()
    append = recorder._file.append

    def stuck(block):
        answer.wait(60)
        return append(block)

    recorder._file.append = stuck  # type: ignore[method-assign]
    long = array("Q", range(4000))  # a line of 43 KB: nearly a block each
    for number in range(BLOCKS_WAITING_MAX + 20):
        recorder.record(**entry(at=float(number), hashes=long))
    assert recorder.lost > 0
    assert recorder._blocks.qsize() == BLOCKS_WAITING_MAX
    answer.set()
    recorder.close()


def test_only_a_regular_file_is_recorded_to(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, Path("/dev/null")):
        with pytest.raises(OSError, match="not a regular file"):
            Recorder(path, started_at="now")
        assert path.exists()


def test_losses_are_told_once_and_once_when_they_are_over(tmp_path):
    told = []
    now = [0.0]
    recorder = Recorder(tmp_path / "traffic.jsonl", started_at="now")
    watch = LineWatch(
        recorder, "recording", log=lambda level, message, **fields: told.append((level, fields)), clock=lambda: now[0]
    )

    def look():
        now[0] += 40
        watch.look()
        recorder.flush()
        watch.look()

    look()
    assert told == []
    with files_limited_to(200):
        for _ in range(3):
            recorder.record(**entry())
            look()
    assert [level for level, _ in told] == ["error"]
    assert told[0][1]["error"] == "File too large" and told[0][1]["lost"] == 1
    recorder.record(**entry())
    for _ in range(3):
        look()
    assert [level for level, _ in told] == ["error", "info"]
    assert told[1][1]["lost"] == 3
    recorder.close()


def test_a_killed_picker_leaves_a_readable_file(tmp_path):
    path = tmp_path / "traffic.jsonl"
    recorder = Recorder(path, started_at="now")
    for at in (1.0, 2.0):
        recorder.record(**entry(at=at))
    recorder.close()
    path.write_bytes(path.read_bytes()[:-10])
    assert [each.at for each in recording.read(path)] == [1.0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not a recording"),
        ('{"format": "other"}\n', "not a recording"),
        (
            json.dumps(
                {"format": "picker-recording", "version": 9, "id": "x", "block_bytes": 1024, "started_at": "now"}
            )
            + "\n",
            "version 9",
        ),
    ],
)
def test_a_file_that_is_no_recording_is_told(tmp_path, text, message):
    path = tmp_path / "wrong.jsonl"
    path.write_text(text)
    with pytest.raises(RecordingError, match=message):
        list(recording.read(path))


def test_a_bad_line_is_named(tmp_path):
    path = tmp_path / "traffic.jsonl"
    recorder = Recorder(path, started_at="now")
    recorder.record(**entry())
    recorder.close()
    with path.open("a") as file:
        file.write('{"at": "noon"}\n')
    with pytest.raises(RecordingError, match=r"traffic\.jsonl:3: .*\$\.at"):
        list(recording.read(path))
    with pytest.raises(RecordingError, match="cannot read the recording"):
        list(recording.read(tmp_path / "none"))


def test_blocks_that_are_no_hashes_are_told(tmp_path):
    path = tmp_path / "traffic.jsonl"
    Recorder(path, started_at="now").close()
    with path.open("ab") as file:
        file.write(msgspec.json.encode(Entry(at=0.0, blocks="!!!")) + b"\n")
    with pytest.raises(RecordingError, match=r"traffic\.jsonl"):
        recorded.scripts(path, 10)


def test_a_file_is_opened_as_what_it_is(tmp_path):
    path = tmp_path / "traffic.jsonl"
    Recorder(path, started_at="now").close()
    assert isinstance(open_file(path), Recording)
    assert isinstance(open_file(tmp_path / "mooncake.jsonl"), Trace)


@pytest.mark.parametrize("workload", ["agents", "long"])
def test_recorded_traffic_behaves_like_the_traffic_that_was_recorded(tmp_path, workload):
    live = Run(source=Workload(workload), policy="picker", rate=1.5, requests=400, replicas=2, warm_up=0.0, seed=4)
    path = tmp_path / "traffic.jsonl"
    recorder = Recorder(path, started_at="now")
    fleet = fleet_of(live)
    add = fleet.records.add

    def record(request, *, arrived_at, first_token_at, ended_at, **rest):
        recorder.record(
            at=arrived_at,
            model=request.model,
            hashes=request.block_hashes,
            prompt_bytes=request.prompt_tokens * 4,
            prompt_tokens=request.prompt_tokens,
            output_tokens=request.output_tokens,
            streaming=request.streaming,
            outcome="completed",
            duration_seconds=ended_at - arrived_at,
        )
        add(request, arrived_at=arrived_at, first_token_at=first_token_at, ended_at=ended_at, **rest)

    fleet.records.add = record  # type: ignore[method-assign]
    original = fleet.run()
    recorder.close()
    replayed = play(msgspec.structs.replace(live, source=Recording(path), rate=1.0))

    def hit_rate(records):
        return sum(records.cached_tokens) / sum(records.prompt_tokens)

    assert replayed.ended == original.ended
    assert sum(replayed.prompt_tokens) == sum(original.prompt_tokens)
    # Tails of up to 256 tokens a prompt are not known to be shared.
    assert hit_rate(replayed) == pytest.approx(hit_rate(original), abs=0.05)
