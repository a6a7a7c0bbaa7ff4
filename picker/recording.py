"""Recorded traffic: what a simulation needs of real requests, and nothing that could tell what they said.

One JSON object a line, after a first line that names the format:

    {"format": "picker-recording", "version": 1, "id": "5f0c...", "block_bytes": 1024, "started_at": "..."}
    {"at": 0.0312, "model": "9f2c...", "blocks": "kWJ...", "prompt_tokens": 1810, "output_tokens": 240, ...}

`at`: seconds since the recording's start; lines stand in the order of the requests' *ends*. `blocks`: the
prompt's chained block hashes, base64 of 64 bits each, and `model`, its name, both hashed once more
(BLAKE2b) with a key that is drawn for the recording and kept nowhere: equal prefixes stay equal within
it, and nobody can test whether a known text was asked. `prompt_tokens`, `output_tokens`: as the
response's usage says, else null. `prompt_bytes`: of the flattened prompt.

The writer is bounded: at `bytes_max` the file is rotated to `FILE.1` and begun anew, so at most twice that is
kept; the reader reads both parts of one recording (equal `id`). A thread writes, so that a disk that is slow or
gone holds no request; what it cannot write in time, or at all, is counted and never raised.
"""

import base64
import os
import sys
from array import array
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path

import msgspec

from picker.decision import Finished
from picker.files.line_writer import LineWriter
from picker.outcomes import Outcome
from picker.prefix.blocks import BLOCK_BYTES

FORMAT = "picker-recording"
VERSION = 1
PROMPT_BLOCKS_MAX = 16_384
"""Of one request, as written: 16 MiB of prompt, which is all that the picker reads by default."""
_HEADER_BYTES_MAX = 4096
_LINE_BYTES_MAX = 4 * 1024 * 1024


class RecordingError(ValueError):
    """A recording cannot be read; the text says which line and why."""


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """The first line."""

    format: str
    version: int
    id: str
    block_bytes: int
    started_at: str


class Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request. Unknown is `None`."""

    at: float
    model: str | None = None
    blocks: str = ""
    prompt_bytes: int = 0
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    streaming: bool = False
    outcome: str = "completed"
    status: int | None = None
    ttft_seconds: float | None = None
    duration_seconds: float | None = None

    def hashes(self) -> "array[int]":
        """The block hashes, `array('Q')`. Raises `ValueError` if they are not what the format says."""
        raw = base64.b64decode(self.blocks, validate=True)
        hashes = array("Q", raw)
        if sys.byteorder == "big":
            hashes.byteswap()
        return hashes


class Recorder(LineWriter):
    """Writes a recording. One event loop owns it; `record` costs some ten microseconds and never waits for the disk."""

    def __init__(
        self, path: Path, bytes_max: int = 256 * 1024 * 1024, *, started_at: str, key: bytes | None = None
    ) -> None:
        """Begins the file anew (an old one is rotated away). Raises `OSError` if it cannot be written.

        `started_at`: an ISO 8601 time for the reader. `key`: 32 random bytes unless given, for tests.
        """
        secret = os.urandom(32) if key is None else key
        self._keyed = blake2b(key=secret, digest_size=8)
        self._encoder = msgspec.json.Encoder()
        first = Header(
            format=FORMAT,
            version=VERSION,
            id=self._hashed(b"recording").hex(),
            block_bytes=BLOCK_BYTES,
            started_at=started_at,
        )
        super().__init__(path, bytes_max, self._encoder.encode(first) + b"\n", resumes=False)

    def finished(self, record: Finished, *, now: float) -> None:
        """`record` of an exchange that is over, in the recording's words. `now`: from the recording's start."""
        if record.outcome is Outcome.UNSEEN:
            return
        usage = record.usage
        self.record(
            at=now - record.duration_seconds,
            model=record.model,
            hashes=record.block_hashes if record.block_hashes is not None else array("Q"),
            prompt_bytes=record.request_bytes,
            prompt_tokens=usage.input_tokens if usage is not None else None,
            output_tokens=usage.output_tokens if usage is not None else None,
            streaming=record.streaming,
            outcome=record.outcome.value,
            status=record.status,
            ttft_seconds=record.ttft_seconds,
            duration_seconds=record.duration_seconds,
        )

    def record(
        self,
        *,
        at: float,
        model: str | None,
        hashes: "array[int]",
        prompt_bytes: int,
        prompt_tokens: int | None,
        output_tokens: int | None,
        streaming: bool,
        outcome: str,
        status: int | None = None,
        ttft_seconds: float | None = None,
        duration_seconds: float | None = None,
    ) -> None:
        """One request is over. `at`: when it arrived, seconds since the recording began. Never raises on I/O."""
        entry = Entry(
            at=round(at, 6),
            model=None if model is None else self._hashed(b"model" + model.encode("utf-8", "surrogatepass")).hex(),
            blocks=self._mixed(hashes),
            prompt_bytes=prompt_bytes,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            streaming=streaming,
            outcome=outcome,
            status=status,
            ttft_seconds=None if ttft_seconds is None else round(ttft_seconds, 6),
            duration_seconds=None if duration_seconds is None else round(duration_seconds, 6),
        )
        self.add(self._encoder.encode(entry) + b"\n")

    def _mixed(self, hashes: "array[int]") -> str:
        """Under the recording's key; as a chain's hashes tell prefixes apart, so do these."""
        hashed = self._hashed
        return base64.b64encode(
            b"".join([hashed(each.to_bytes(8, "little")) for each in hashes[:PROMPT_BLOCKS_MAX]])
        ).decode("ascii")

    def _hashed(self, data: bytes) -> bytes:
        hasher = self._keyed.copy()
        hasher.update(data)
        return hasher.digest()


def header(path: Path) -> Header | None:
    """A recording's first line. `None`: the file is no recording, or cannot be read."""
    try:
        with path.open("rb") as file:
            found = msgspec.json.decode(file.readline(_HEADER_BYTES_MAX), type=Header)
    except (OSError, msgspec.MsgspecError):
        return None
    return found if found.format == FORMAT else None


def read(path: Path) -> Iterator[Entry]:
    """Entries of `path`, those of its rotated first part before them, in the order of their lines.

    Raises `RecordingError`. A last line that was cut off (the picker was killed) ends a file silently.
    """
    older = path.with_name(path.name + ".1")
    this, before = header(path), header(older)
    if this is not None and before is not None and this.id == before.id:
        yield from _read_one(older)
    yield from _read_one(path)


def _read_one(path: Path) -> Iterator[Entry]:
    decode = msgspec.json.Decoder(Entry).decode
    try:
        with path.open("rb") as file:
            _check_header(file.readline(_HEADER_BYTES_MAX), path)
            number = 1
            while line := file.readline(_LINE_BYTES_MAX):
                number += 1
                if not line.endswith(b"\n"):
                    return
                try:
                    yield decode(line)
                except msgspec.MsgspecError as error:
                    raise RecordingError(f"{path}:{number}: {error}") from error
    except OSError as error:
        raise RecordingError(f"cannot read the recording {path}: {error.strerror}") from error


def _check_header(line: bytes, path: Path) -> None:
    try:
        found = msgspec.json.decode(line, type=Header)
    except msgspec.MsgspecError as error:
        raise RecordingError(f"{path}:1: not a recording of `picker serve --record`: {error}") from error
    if found.format != FORMAT or found.version != VERSION or found.block_bytes != BLOCK_BYTES:
        raise RecordingError(
            f"{path}:1: format {found.format!r} version {found.version} with blocks of {found.block_bytes} bytes; "
            f"this release reads {FORMAT!r} version {VERSION} with blocks of {BLOCK_BYTES}"
        )
