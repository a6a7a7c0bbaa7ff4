"""What a picker without a store knows, kept over a restart: written at the stop, read at the start.

The chunks of a snapshot, each behind its length, after the moment they were written. Younger than
`AGE_SECONDS_MAX` and of the same versions, or it is left alone.
"""

import os
import struct
from collections.abc import Callable
from pathlib import Path

from picker.sharing.codec import Refused
from picker.sharing.shared import Shared

AGE_SECONDS_MAX = 600.0
FILE_BYTES_MAX = 512 * 1024 * 1024
_HEAD = struct.Struct("<8sd")
_LENGTH = struct.Struct("<I")
_MAGIC = b"pickers1"

Tell = Callable[..., None]


def save(path: str, shared: Shared, *, now: float, wall: float, log: Tell) -> None:
    """Write it beside, then put it in place. Says so where that fails."""
    target = Path(path)
    beside = target.with_name(f".{target.name}.new")
    try:
        handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(_HEAD.pack(_MAGIC, wall))
            for chunk in shared.snapshot(0, now):
                if chunk is not None:
                    file.write(_LENGTH.pack(len(chunk)) + chunk)
            size = file.tell()
        os.replace(beside, target)
    except OSError as error:
        log("warning", "the state file could not be written: the next start is a cold one", file=path, error=str(error))
        return
    log("info", "state file written", file=path, bytes=size)


def load(path: str, shared: Shared, *, now: float, wall: float, log: Tell) -> None:
    """Take it over if it is there, young and of these versions. Says what became of it."""
    try:
        with open(path, "rb") as file:
            data = memoryview(file.read(FILE_BYTES_MAX))
    except FileNotFoundError:
        return
    except OSError as error:
        log("warning", "the state file could not be read: a cold start", file=path, error=str(error))
        return
    try:
        magic, written_at = _HEAD.unpack_from(data)
        if magic != _MAGIC:
            raise Refused("not a state file of a picker")
        age = wall - written_at
        if not 0.0 <= age <= AGE_SECONDS_MAX:
            log("info", "the state file is too old: a cold start", file=path, age_seconds=round(age))
            return
        loader, at = shared.loader(), _HEAD.size
        while at < len(data):
            (length,) = _LENGTH.unpack_from(data, at)
            at += _LENGTH.size + length
            if at > len(data):
                raise Refused("the file ends within a chunk")
            for _ in shared.load(loader, bytes(data[at - length : at]), int((now - age) * 1e6), now):
                pass
    except (Refused, struct.error) as error:
        log("warning", "the state file is not usable", file=path, error=str(error))
        return
    log("info", "state file taken over", file=path, blocks=loader.blocks, age_seconds=round(age))
