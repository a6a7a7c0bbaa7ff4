"""What happened to each request of a run, as columns, and the load over time."""

from array import array
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from picker.sim.engine import ModelServer
from picker.sim.scripts import SimRequest

LOAD_POINTS_MAX = 600
"""Above this the load over time is thinned to half."""

Values = npt.NDArray[np.float64]


class Records:
    """Columns of ended requests, in the order of their ends. Times in seconds; NaN: never."""

    def __init__(self, replicas: int) -> None:
        self.replicas = replicas
        self.arrived_at = array("d")
        self.ttft_seconds = array("d")
        self.e2e_seconds = array("d")
        self.prompt_tokens = array("q")
        self.output_tokens = array("q")
        self.cached_tokens = array("q")
        self.replica = array("q")
        self.failed = 0
        self.ended = 0
        """Requests that are over: measured, failed, and those of the warm-up."""
        self.stopped_early = False
        self.load_at: list[float] = []
        self.load_counts: list[list[int]] = []
        self.ended_at = 0.0
        self.ceiling_hit_rate = 0.0
        self.preemptions = 0
        self.replica_seconds = 0.0
        """What the replicas cost: from the wish for each until it was gone."""
        self.busy_seconds: list[float] = []
        self._load_every = 1
        self._load_seen = 0

    def add(
        self,
        request: SimRequest,
        *,
        arrived_at: float,
        first_token_at: float | None,
        ended_at: float,
        cached_tokens: int,
        replica: int | None,
        failed: bool,
    ) -> None:
        """One request ended. Of failed ones only the number is kept, of the warm-up's nothing."""
        self.ended += 1
        if not request.measured:
            return
        if failed or first_token_at is None or replica is None:
            self.failed += 1
            return
        self.arrived_at.append(arrived_at)
        self.ttft_seconds.append(first_token_at - arrived_at)
        self.e2e_seconds.append(ended_at - arrived_at)
        self.prompt_tokens.append(request.prompt_tokens)
        self.output_tokens.append(request.output_tokens)
        self.cached_tokens.append(cached_tokens)
        self.replica.append(replica)

    def load(self, at: float, counts: list[int]) -> None:
        """Requests in flight by replica at one moment."""
        self._load_seen += 1
        if self._load_seen % self._load_every:
            return
        self.load_at.append(at)
        self.load_counts.append(counts)
        if len(self.load_at) > LOAD_POINTS_MAX:
            self.load_at = self.load_at[::2]
            self.load_counts = self.load_counts[::2]
            self._load_every *= 2

    def close(self, at: float, ceiling_hit_rate: float, servers: Sequence[ModelServer]) -> None:
        """The run is over."""
        self.ended_at = at
        self.ceiling_hit_rate = ceiling_hit_rate
        self.preemptions = sum(server.preemptions_total for server in servers)
        self.busy_seconds = [server.busy_seconds for server in servers]

    def column(self, name: str) -> Values:
        """One of the columns as floats."""
        return np.asarray(getattr(self, name), dtype=np.float64)

    def by_replica(self, weights: Values | None = None) -> Values:
        """Requests, or a sum of `weights`, by replica."""
        counts = np.bincount(np.asarray(self.replica, dtype=np.int64), weights=weights, minlength=self.replicas)
        return counts.astype(np.float64)
