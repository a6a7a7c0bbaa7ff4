"""Files that others write while we read: what counts, what is waited for, what is refused, and that nothing blocks."""

import os
import socket
from pathlib import Path

import pytest

from picker.files.followed_file import (
    AGREE_SECONDS,
    CUT_SECONDS,
    MEANING_SHARE,
    MEANT_SECONDS,
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


class Texts:
    """A file of one word, and comments, that is written anew before each look, a second after the last one."""

    def __init__(self, path: Path, word: str) -> None:
        self.path, self.number, self.asked, self.asking_seconds = path, 0, 0, 0.0
        self.clock = Clock()
        self.write(word)
        self.followed = FollowedFile(path, bytes_max=LIMIT, clock=self.clock, meaning=self.meaning)

    def meaning(self, content: bytes) -> str:
        self.asked += 1
        self.clock.now += self.asking_seconds
        (word,) = [line for line in content.decode().split("\n") if line and not line.startswith("#")]
        if word == "bad":
            raise ValueError(word)
        return word

    def write(self, text: str) -> None:
        """By rename, so there is nothing half written."""
        self.number += 1
        other = self.path.with_suffix(".new")
        write(other, f"# written at {self.number}\n{text}\n".encode())
        other.replace(self.path)

    def looks(self, *texts: str) -> list[bytes | None]:
        found = []
        for text in texts:
            self.write(text)
            self.clock.now += 1
            found.append(self.followed.poll())
        return found


SETTLED = int(MEANT_SECONDS) + 2
"""Looks, a second apart: the first makes a candidate, the second asks what it says, and that stands."""


def test_texts_that_differ_in_every_read_count_when_they_have_said_the_same_for_long(tmp_path: Path) -> None:
    texts = Texts(tmp_path / "file", "one")
    *early, last = texts.looks(*["two"] * SETTLED)
    assert early == [None] * len(early)
    assert last == texts.path.read_bytes() == texts.followed.content
    assert texts.looks(*["two"] * 20) == [None] * 20, "that is in force already"
    assert any(texts.looks(*["three"] * SETTLED))


def test_one_other_text_among_them_and_they_begin_anew(tmp_path: Path) -> None:
    texts = Texts(tmp_path / "file", "one")
    almost = ["two"] * int(MEANT_SECONDS)
    for other in ("three", "one", "bad", ""):
        assert not any(texts.looks(*almost, other))
    assert texts.followed.content.endswith(b"one\n")


def test_texts_of_which_each_says_something_else_never_count(tmp_path: Path) -> None:
    texts = Texts(tmp_path / "file", "one")
    assert not any(texts.looks(*map(str, range(40))))
    assert not any(texts.looks(*["two", "three"] * 20))


def test_texts_that_stay_bad_are_given_out_once_so_that_it_is_told(tmp_path: Path) -> None:
    texts = Texts(tmp_path / "file", "one")
    assert sum(found is not None for found in texts.looks(*["bad"] * 40)) == 1
    assert any(texts.looks(*["one"] * SETTLED))


def test_texts_of_comments_alone_are_empty_however_often_they_change(tmp_path: Path) -> None:
    texts = Texts(tmp_path / "file", "one")
    assert texts.looks("") == [None]
    texts.clock.now += 1
    with pytest.raises(FileProblem, match="nothing but comments"):
        texts.followed.poll()
    assert not any(texts.looks(*[""] * 40))
    assert texts.followed.content.endswith(b"one\n")


def test_a_cut_text_is_known_under_another_comment(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write(path, b"# at 1\na\nb\nc\n")
    clock = Clock()
    followed = FollowedFile(path, bytes_max=LIMIT, clock=clock, meaning=bytes.split)
    write(path, b"# at 2\na\nb\n")
    for _ in range(int(CUT_SECONDS)):
        assert followed.poll() is None
        clock.now += 1
    assert followed.poll() == b"# at 2\na\nb\n"


def test_what_takes_long_to_understand_is_not_asked_for_in_every_read(tmp_path: Path) -> None:
    texts = Texts(tmp_path / "file", "one")
    texts.asking_seconds = 2.0
    found = texts.looks(*["two"] * 100)
    assert any(found)
    assert texts.asked * texts.asking_seconds <= texts.clock.now / MEANING_SHARE + 2 * texts.asking_seconds


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
