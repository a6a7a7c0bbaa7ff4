"""Recordings as scripts: each request is played at its time, with block ids made from its block hashes.

Tokens are counted at the simulator's 4 bytes each, so that blocks of 1,024 bytes are 256 tokens for all;
a prompt that was not read counts the tokens that its usage reports. A prompt's tail beyond
its last full block is taken to be its own. What an answer leaves in a cache is seen by the next request of its
session: the first later one whose prompt contains the former's blocks and is long enough to
contain its answer too is taken for that, and the two share their ids as far as both go.
"""

from array import array
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from picker import recording
from picker.sim.profiles import BLOCK_TOKENS
from picker.sim.prompts import BYTES_PER_TOKEN
from picker.sim.scripts import PICKER_BLOCK_TOKENS, Script, SimRequest

DEFAULT_OUTPUT_TOKENS = 200
"""Tokens of an answer whose usage was not seen."""
_IN_FLIGHT_MAX = 10_000
"""Entries stand by their ends: this many more are read to find the first ones by arrival."""
_IDS_PER_BLOCK = PICKER_BLOCK_TOKENS // BLOCK_TOKENS
_OWN_IDS = 1 << 63
"""Ids of tails, away from those of blocks."""
_ANSWER_SHARE = 0.9
"""The next prompt must have room for this share of an answer's tokens; templates drop some of it."""


class RecordedScript:
    """One recorded request."""

    __slots__ = ("_hashes", "_ids", "_measured", "_model", "_number", "_streaming", "at_seconds", "output", "prompt")

    def __init__(self, entry: recording.Entry, number: int, start: float, speed: float, *, measured: bool) -> None:
        self.at_seconds = (entry.at - start) / speed
        self._hashes = entry.hashes()
        self._model = entry.model or "recorded"
        self._number = number
        self._streaming = entry.streaming
        self._measured = measured
        self.prompt = max(1, entry.prompt_bytes // BYTES_PER_TOKEN or entry.prompt_tokens or 1)
        self.output = max(1, DEFAULT_OUTPUT_TOKENS if entry.output_tokens is None else entry.output_tokens)
        self._ids: array[int] | None = None

    @property
    def hashes(self) -> "array[int]":
        """The picker's blocks."""
        return self._hashes

    def continued_by(self, other: "RecordedScript") -> None:
        """`other` is the session's next request."""
        self._ids = other.ids()

    def ids(self) -> "array[int]":
        """The engine's blocks: of the prompt, and of the answer where the next request tells them."""
        if self._ids is None:
            ids = array("Q")
            for block in self._hashes:
                first = block >> 2  # room for a block's ids below those of tails
                ids.extend(range(first, first + _IDS_PER_BLOCK))
            own = _OWN_IDS + (self._number << 24)
            ids.extend(range(own, own + (self.prompt + self.output) // BLOCK_TOKENS - len(ids)))
            self._ids = ids
        return self._ids

    def request(self, number: int) -> SimRequest:
        """The only one."""
        return SimRequest(
            number=number,
            session=self._number,
            model=self._model,
            prompt_tokens=self.prompt,
            output_tokens=self.output,
            ids=self.ids(),
            block_hashes=self._hashes,
            streaming=self._streaming,
            measured=self._measured,
        )

    def pause_seconds(self) -> float | None:
        """Nothing follows: the next request has its own time."""
        return None


def scripts(path: Path, requests: int, *, speed: float = 1.0, warm_up: float = 0.0, skip: int = 0) -> list[Script]:
    """The first `requests` completed requests by arrival, after `skip` others. Raises `RecordingError`."""
    try:
        read = sorted(islice(_playable(path), skip + requests + _IN_FLIGHT_MAX), key=lambda entry: entry.at)
        entries = read[skip : skip + requests]
        if not entries:
            raise recording.RecordingError(f"{path} holds {len(read)} completed requests: too few")
        warm = int(warm_up * len(entries))
        start = entries[0].at
        played = [
            RecordedScript(entry, number, start, speed, measured=number >= warm) for number, entry in enumerate(entries)
        ]
    except (ValueError, OverflowError) as error:
        raise recording.RecordingError(f"{path}: {error}") from error
    _join_sessions(played, entries)
    return list(played)


def _playable(path: Path) -> Iterator[recording.Entry]:
    return (entry for entry in recording.read(path) if entry.outcome in ("completed", "aborted"))


def _join_sessions(played: list[RecordedScript], entries: list[recording.Entry]) -> None:
    """Find each request's next in its session; from the last to the first, so that ids of a chain agree."""
    open_ends: dict[int, int] = {}  # hash of a prompt's last block -> the latest request that ended there
    follower: dict[int, int] = {}
    for index, script in enumerate(played):
        hashes = script.hashes
        for block in reversed(hashes):
            before = open_ends.get(block)
            if before is None:
                continue
            older, entry = played[before], entries[before]
            over = entry.duration_seconds is None or entry.at + entry.duration_seconds <= entries[index].at
            if over and script.prompt >= older.prompt + _ANSWER_SHARE * older.output:
                follower[before] = index
                del open_ends[block]
                break
        if hashes:
            open_ends[hashes[-1]] = index
    for index in range(len(played) - 1, -1, -1):
        if index in follower:
            played[index].continued_by(played[follower[index]])
