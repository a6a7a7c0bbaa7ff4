"""Trace files as workloads: Mooncake's JSON lines with prefix ids, Azure's CSV of arrivals.

Mooncake (FAST'25 release): one JSON object a line with `timestamp` (ms), `input_length` and
`output_length` (tokens), `hash_ids`: one a block of 512 tokens, equal id for equal prefix up to and
with that block, the last block partial. Published timestamps are whole multiples of 3 s: each is
moved by U[0, 3 s), or thousands would arrive at once.

Azure (AzurePublicDataset, LLM inference 2023): `TIMESTAMP,ContextTokens,GeneratedTokens`. Nothing
says what requests share, so none share anything.

Every request is a session of its own. Bad input is a `TraceError` with file, line and what is wrong.
"""

import csv
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from random import Random

import msgspec

from picker.sim.prompts import Role, Segment, Session, Turn

BLOCK_TOKENS = 512
JITTER_SECONDS = 3.0
_ANSWER_IDS = 1 << 48
"""Answers' segment ids, away from the trace's hash ids."""


class TraceError(ValueError):
    """A trace file is not what its format says."""


class _Line(msgspec.Struct):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[int]


def mooncake(path: Path, seed: int, speed: float = 1.0, jitter_seconds: float = JITTER_SECONDS) -> Iterator[Session]:
    """Sessions by rising start. `speed` 3 replays three times as fast; the jitter comes first."""
    rng = Random(f"{seed}/trace")
    decode = msgspec.json.Decoder(_Line).decode
    entries: list[tuple[float, int, _Line]] = []
    try:
        with path.open("rb") as file:
            for number, raw in enumerate(file, 1):
                if not raw.strip():
                    continue
                line = _checked(decode, raw, f"{path}:{number}")
                entries.append((line.timestamp / 1000 + rng.uniform(0, jitter_seconds), number, line))
    except OSError as error:
        raise TraceError(f"cannot read the trace {path}: {error.strerror}") from error
    if not entries:
        raise TraceError(f"{path} is empty")
    entries.sort(key=lambda entry: entry[:2])
    start = entries[0][0]
    return (_session(number, (at - start) / speed, line) for at, number, line in entries)


def _checked(decode: "object", raw: bytes, where: str) -> _Line:
    try:
        line = decode(raw)  # type: ignore[operator]
    except msgspec.MsgspecError as error:
        raise TraceError(f"{where}: {error}; expected timestamp, input_length, output_length, hash_ids") from error
    assert isinstance(line, _Line)
    blocks = -(-line.input_length // BLOCK_TOKENS)
    if line.input_length < 1 or line.output_length < 0 or line.timestamp < 0:
        raise TraceError(f"{where}: a length or timestamp is out of range")
    if len(line.hash_ids) != blocks:
        raise TraceError(
            f"{where}: {line.input_length} tokens are {blocks} blocks of {BLOCK_TOKENS}, "
            f"but hash_ids has {len(line.hash_ids)}"
        )
    return line


def _session(number: int, at: float, line: _Line) -> Session:
    last = line.input_length - (len(line.hash_ids) - 1) * BLOCK_TOKENS
    segments = [Segment(block, BLOCK_TOKENS) for block in line.hash_ids[:-1]]
    segments.append(Segment(line.hash_ids[-1], last))
    return _single(number, at, tuple(segments), line.output_length)


def _single(number: int, at: float, segments: tuple[Segment, ...], output_tokens: int) -> Session:
    answer = Segment(_ANSWER_IDS + number, max(1, output_tokens), Role.ASSISTANT)
    return Session(id=number, at_seconds=at, turns=(Turn(segments=segments, answer=answer),))


def azure(path: Path, speed: float = 1.0) -> Iterator[Session]:
    """Sessions by rising start."""
    entries: list[tuple[float, int, int, int]] = []
    try:
        with path.open(newline="") as file:
            for row in csv.DictReader(file):
                entries.append(_azure_row(row, f"{path}:{len(entries) + 2}"))
    except OSError as error:
        raise TraceError(f"cannot read the trace {path}: {error.strerror}") from error
    if not entries:
        raise TraceError(f"{path} has no rows")
    entries.sort()
    start = entries[0][0]
    return (
        _single(number, (at - start) / speed, (Segment(number, tokens),), output)
        for number, (at, _, tokens, output) in enumerate(entries, 1)
    )


def _azure_row(row: dict[str, str], where: str) -> tuple[float, int, int, int]:
    try:
        at = datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp()
        tokens, output = int(row["ContextTokens"]), int(row["GeneratedTokens"])
    except (KeyError, ValueError, TypeError) as error:
        raise TraceError(f"{where}: {error}; expected TIMESTAMP,ContextTokens,GeneratedTokens") from error
    return at, int(where.rpartition(":")[2]), max(1, tokens), output


def open_trace(path: Path, seed: int, speed: float = 1.0) -> Iterator[Session]:
    """Whichever of the two formats the file's name says: `.csv` or anything else."""
    return azure(path, speed) if path.suffix == ".csv" else mooncake(path, seed, speed)
