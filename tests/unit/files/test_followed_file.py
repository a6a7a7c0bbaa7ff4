"""Files that others write while we read: what counts, what is waited for, what is refused, and that nothing blocks."""

import os
import socket
from pathlib import Path

import pytest

from picker.files.followed_file import (
    AGREE_SECONDS,
    CUT_SECONDS,
    FileProblem,
    FollowedFile,
    FollowedFiles,
    read_regular,
)

LIMIT = 10_000


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def write(path: Path, content: bytes) -> None:
    """As if long ago: at the start it is believed at once."""
    path.write_bytes(content)
    os.utime(path, (1, 1))


def follow(path: Path) -> tuple[FollowedFile, Clock]:
    clock = Clock()
    return FollowedFile(path, bytes_max=LIMIT, clock=clock), clock


def test_a_change_counts_when_two_reads_agree(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write(path, b"one")
    followed, clock = follow(path)
    assert followed.content == b"one"
    assert followed.poll() is None
    write(path, b"two, half")
    assert followed.poll() is None
    clock.now += 1
    write(path, b"two, whole")
    assert followed.poll() is None  # it went on growing
    clock.now += AGREE_SECONDS / 2
    assert followed.poll() is None
    clock.now += AGREE_SECONDS
    assert followed.poll() == b"two, whole"
    assert followed.content == b"two, whole"
    assert followed.poll() is None


def test_the_beginning_of_what_was_there_has_to_stand_for_longer(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write(path, b"a\nb\nc\n")
    followed, clock = follow(path)
    write(path, b"a\nb\n")
    for _ in range(int(CUT_SECONDS)):
        assert followed.poll() is None
        clock.now += 1
    assert followed.poll() == b"a\nb\n"


@pytest.mark.parametrize("nothing", [b"", b"\n", b" \n\t\n"])
def test_an_empty_file_never_takes_the_place_of_a_filled_one(tmp_path: Path, nothing: bytes) -> None:
    path = tmp_path / "file"
    write(path, b"filled")
    followed, clock = follow(path)
    write(path, nothing)
    assert followed.poll() is None  # for this moment only, perhaps
    with pytest.raises(FileProblem, match=r"is empty"):
        followed.poll()
    for _ in range(100):
        clock.now += 10
        assert followed.poll() is None
    assert followed.content == b"filled"
    write(path, b"filled")
    assert followed.poll() is None
    write(path, nothing)
    assert followed.poll() is None
    with pytest.raises(FileProblem):  # another time: told again
        followed.poll()


def test_files_that_belong_together_settle_together(tmp_path: Path) -> None:
    paths = tmp_path / "crt", tmp_path / "key"
    for path in paths:
        write(path, b"old")
    clock = Clock()
    followed = FollowedFiles(paths, bytes_max=LIMIT, clock=clock)
    assert followed.start() == (b"old", b"old")
    write(paths[0], b"new")
    assert followed.poll() is None
    clock.now += 1
    write(paths[1], b"new")
    assert followed.poll() is None
    clock.now += 1
    assert followed.poll() == (b"new", b"new")


def test_at_the_start_a_file_that_was_just_written_is_read_until_two_reads_agree(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"")
    pieces = [b"first", b"first and second"]
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if pieces:
            path.write_bytes(pieces.pop(0))

    files = FollowedFiles((path,), bytes_max=LIMIT)
    assert files.start(wait=wait) == (b"first and second",)
    assert len(waits) == 3


def test_at_the_start_a_file_that_stays_empty_is_taken_after_a_second(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"")
    waited: list[float] = []
    assert FollowedFiles((path,), bytes_max=LIMIT).start(wait=waited.append) == (b"",)
    assert sum(waited) <= 1.01


def test_only_regular_files_are_read_and_nothing_blocks(tmp_path: Path) -> None:
    """A pipe without a writer would block `open` itself: the test's own time limit shows it."""
    pipe, folder, plug, link = (tmp_path / name for name in ("pipe", "folder", "socket", "link"))
    os.mkfifo(pipe)
    folder.mkdir()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(os.path.relpath(plug))
        link.symlink_to("link")
        for path, what in (
            (pipe, "a named pipe"),
            (folder, "a directory"),
            (Path("/dev/zero"), "a device"),
            (plug, "No such device"),  # sockets cannot even be opened
            (link, "symbolic links"),
            (tmp_path / "missing", "No such file"),
            (Path("a\0b"), "null"),
        ):
            with pytest.raises(FileProblem, match=what) as caught:
                read_regular(path, bytes_max=LIMIT)
            assert str(path) in str(caught.value)


def test_a_file_that_becomes_a_pipe_is_told_once_and_the_content_stays(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write(path, b"good")
    followed, _ = follow(path)
    path.unlink()
    os.mkfifo(path)
    assert followed.poll() is None
    with pytest.raises(FileProblem, match="named pipe"):
        followed.poll()
    assert followed.poll() is None
    assert followed.content == b"good"


def test_a_file_beyond_the_limit_is_refused_and_never_held(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with path.open("wb") as file:
        file.truncate(1 << 40)  # a hole
    with pytest.raises(FileProblem, match="larger than 10,000 bytes"):
        read_regular(path, bytes_max=LIMIT)
    write(path, b"x" * LIMIT)
    assert len(read_regular(path, bytes_max=LIMIT)) == LIMIT
