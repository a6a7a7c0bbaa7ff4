"""Several pickers that tell each other, simulated: production's batches over a network with delay and loss.

Each picker's batch reaches every other after `delay_seconds`, or not at all; what was lost leaves a gap in
the numbering, and its picker writes a snapshot, as through a store.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from random import Random

import msgspec

from picker.director import Director
from picker.sharing.attach import attach
from picker.sharing.shared import Shared
from picker.sim.policies.policy import RoutingPolicy

FLUSH_SECONDS = 0.075


class Sharing(msgspec.Struct, frozen=True, kw_only=True):
    """How the pickers of a run tell each other."""

    delay_seconds: float = 0.02
    """From a batch to its arrival, beside the time between two batches."""
    loss_share: float = 0.0
    """Of batches, for each receiver by itself."""


class Network:
    """The store between the pickers of a run."""

    def __init__(self, policies: Sequence[RoutingPolicy], sharing: Sharing, rng: Random) -> None:
        """Raises `ValueError` where a policy is none of ours."""
        self._sharing = sharing
        self._rng = rng
        self._pickers: list[Shared] = []
        self._snapshots: dict[str, list[bytes]] = {}
        for number, policy in enumerate(policies):
            director = getattr(policy, "director", None)
            if not isinstance(director, Director):
                raise ValueError("--shared: only the picker's own policies tell each other what they decide")
            self._pickers.append(attach(director, name=number + 1, started_ms=number))
        for picker in self._pickers:
            picker.settle()

    def flush(self, at: float) -> Iterator[tuple[float, "partial[None]"]]:
        """What every picker tells now: when it arrives, and what then happens."""
        for picker in self._pickers:
            picker.tick(at)
            self._answer(picker, at)
            batch = picker.flush(at)
            if batch is None:
                continue
            for other in self._pickers:
                if other is not picker and self._rng.random() >= self._sharing.loss_share:
                    yield at + self._sharing.delay_seconds, partial(self._arrive, other, batch, at)

    def check(self) -> None:
        """Assert the pickers' invariants. For tests."""
        for picker in self._pickers:
            picker.check()

    def _arrive(self, picker: Shared, batch: bytes, sent_at: float, at: float) -> None:
        picker.receive(batch, at=sent_at, now=at)
        while picker.work(at):
            pass
        for who, answer, told_us in picker.answers():
            loader = picker.loader()
            for chunk in self._snapshots.get(answer.name, ()):
                for _ in picker.load(loader, chunk, told_us - answer.begun, at):
                    pass
            picker.loaded(who, 0 if answer.whole else told_us - answer.since)

    def _answer(self, picker: Shared, at: float) -> None:
        since = picker.snapshot_due(at)
        if since is not None:
            chunks = [chunk for chunk in picker.snapshot(since, at) if chunk is not None]
            name = str(picker.name)
            self._snapshots[name] = chunks
            picker.announce(name, len(chunks), since, at)
