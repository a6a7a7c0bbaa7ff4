"""Where a run's requests come from: a seeded workload or a file, at a chosen rate."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Protocol

import msgspec

from picker.sim import traces, workloads
from picker.sim.scripts import Script, from_sessions


class Source(Protocol):
    """Scripts by seed and rate."""

    @property
    def name(self) -> str:
        """For tables."""

    def scripts(self, seed: int, requests: int, rate: float) -> Iterator[Script]:
        """Scripts of at most `requests` requests; `rate` in requests a second, of a file its speed."""


class Workload(msgspec.Struct, frozen=True):
    """A generator of `workloads.WORKLOADS`. Its rate is in requests a second."""

    name: str
    parameters: workloads.Parameters | None = None

    def scripts(self, seed: int, requests: int, rate: float) -> Iterator[Script]:
        """Sessions without end, cut after `requests` requests."""
        stream = workloads.sessions(self.name, seed, rate, self.parameters)
        return from_sessions(workloads.first_requests(stream, requests))


class Trace(msgspec.Struct, frozen=True):
    """A Mooncake or Azure file. Its rate is a speed: 2 replays twice as fast; the seed moves arrivals."""

    path: Path

    @property
    def name(self) -> str:
        """The file's, without its kind."""
        return self.path.stem.removesuffix("_trace")

    def scripts(self, seed: int, requests: int, rate: float) -> Iterator[Script]:
        """Its first `requests` requests."""
        return from_sessions(islice(traces.open_trace(self.path, seed, rate), requests))
