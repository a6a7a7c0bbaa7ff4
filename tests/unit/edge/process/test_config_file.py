"""The configuration file: taken when it has settled, the last good one kept, never defaults by accident."""

import asyncio
import gc
import os
import sys
import threading
from pathlib import Path

import pytest

from picker import config as configuration
from picker.config import Config, ConfigError
from picker.edge.process.config_file import ConfigFile, read
from picker.files.background import TURN_SECONDS


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


TEXT = "objectives: {batch: -1}\nepsilon: 0\nlimits: {request_body_bytes_max: 1100}\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    put(path, TEXT)
    return path


def put(path: Path, text: str) -> None:
    path.write_text(text)
    os.utime(path, (1, 1))


def settled(followed: ConfigFile, clock: Clock) -> Config | None:
    first = followed.poll()
    clock.now += 1
    return first or followed.poll()


def test_no_file_is_all_defaults() -> None:
    followed = ConfigFile(None)
    assert followed.config == Config()
    assert followed.poll() is None


def test_a_file_that_is_being_written_changes_nothing(file: Path) -> None:
    clock = Clock()
    followed = ConfigFile(file, clock=clock)
    before = followed.config
    lines = TEXT.splitlines(keepends=True)
    put(file, "")
    with pytest.raises(ConfigError, match="is empty"):
        settled(followed, clock)
    put(file, TEXT)
    assert followed.poll() is before
    for count in range(1, len(lines)):
        put(file, "".join(lines[:count]))
        assert settled(followed, clock) is None
        assert followed.config is before
    put(file, TEXT)
    assert settled(followed, clock) is None
    put(file, TEXT.replace("1100", "2200"))
    changed = settled(followed, clock)
    assert changed is not None and changed.limits.request_body_bytes_max == 2200


def test_a_file_that_is_written_anew_each_second_with_the_time_in_it_is_taken(file: Path) -> None:
    clock = Clock()
    followed = ConfigFile(file, clock=clock)

    def changes(text: str) -> list[Config]:
        found = []
        for _ in range(20):
            put(file, f"# written at {clock.now}\n{text}")
            found.append(followed.poll())
            clock.now += 1
        return [config for config in found if config is not None]

    assert changes(TEXT) == []
    (changed,) = changes(TEXT.replace("1100", "2200"))
    assert changed.limits.request_body_bytes_max == 2200
    with pytest.raises(ConfigError, match="epsilom"):
        changes("epsilom: 1\n")
    assert changes("epsilom: 1\n") == []
    with pytest.raises(ConfigError, match="nothing but comments"):
        changes("")
    assert followed.config is changed


def test_a_bad_state_is_told_once_and_the_last_good_configuration_stays(file: Path) -> None:
    clock = Clock()
    followed = ConfigFile(file, clock=clock)
    good = followed.config
    put(file, "epsilom: 1")
    with pytest.raises(ConfigError, match="epsilom"):
        settled(followed, clock)
    assert settled(followed, clock) is None
    file.unlink()
    with pytest.raises(ConfigError, match="No such file"):
        settled(followed, clock)
    assert settled(followed, clock) is None
    assert followed.config is good


def test_a_file_that_is_good_again_is_told_though_nothing_changed(file: Path) -> None:
    """Else the gauge that says that a bad file waits would say so for ever."""
    clock = Clock()
    followed = ConfigFile(file, clock=clock)
    good = followed.config
    file.unlink()
    with pytest.raises(ConfigError):
        settled(followed, clock)
    put(file, TEXT)
    assert followed.poll() is good
    assert followed.poll() is None
    put(file, "epsilom: 1")
    with pytest.raises(ConfigError):
        settled(followed, clock)
    put(file, TEXT)
    assert settled(followed, clock) == good
    assert settled(followed, clock) is None


@pytest.mark.parametrize(
    ("content", "words"), [(b"\xff\xfee\0", "not UTF-8"), (b"x" * 2**21, "larger than"), (b"epsilon: 2", "epsilon")]
)
def test_a_file_that_cannot_be_used_at_the_start_is_an_error_in_words(file: Path, content: bytes, words: str) -> None:
    file.write_bytes(content)
    for use in (ConfigFile, read):
        with pytest.raises(ConfigError, match=words):
            use(file)


def test_a_byte_order_mark_is_not_part_of_the_first_key(file: Path) -> None:
    file.write_bytes(b"\xef\xbb\xbfepsilon: 0.5\n")
    assert read(file).epsilon == 0.5


def test_a_pipe_is_no_configuration_and_blocks_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="named pipe"):
        ConfigFile(tmp_path / "pipe")


def test_followed_it_tells_changes_and_bad_states_and_a_look_needs_no_waiting(file: Path) -> None:
    clock = Clock()
    followed = ConfigFile(file, clock=clock)
    told: asyncio.Queue[object] = asyncio.Queue()

    async def scenario() -> None:
        task = asyncio.create_task(followed.follow(3600, changed=told.put_nowait, refused=told.put_nowait))

        async def next_told() -> object:
            while told.empty():
                followed.look()
                clock.now += 1
                await asyncio.sleep(0.001)
            return told.get_nowait()

        put(file, "epsilon: 0.25")
        assert await next_told() is followed.config and followed.config.epsilon == 0.25
        put(file, "epsilon: 25")
        assert isinstance(await next_told(), ConfigError)
        put(file, "epsilon: 0.75")
        assert await next_told() is followed.config and followed.config.epsilon == 0.75
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_a_changed_file_is_parsed_in_a_thread_that_no_request_notices(file: Path, monkeypatch) -> None:
    """YAML of a megabyte takes seconds, and its objects collections: not on the event loop, and not as it is."""
    seen = []

    def load(text: str) -> Config:
        seen.append((threading.get_ident(), gc.isenabled(), sys.getswitchinterval() <= TURN_SECONDS))
        return Config(epsilon=0.5)

    async def change() -> Config:
        followed = ConfigFile(file)
        monkeypatch.setattr(configuration, "load", load)
        told: asyncio.Future[Config] = asyncio.get_running_loop().create_future()
        put(file, TEXT.replace("1100", "2200"))
        follows = asyncio.create_task(followed.follow(0.05, changed=told.set_result, refused=told.set_exception))
        try:
            return await told
        finally:
            follows.cancel()

    assert asyncio.run(change()).epsilon == 0.5
    [(thread, collects, yields)] = seen
    assert thread != threading.get_ident() and not collects and yields
