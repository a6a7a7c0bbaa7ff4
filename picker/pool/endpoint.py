"""A member of the pool."""

from typing import Final

from picker.pool.specs import EndpointSpec

NEVER: Final = float("-inf")


class Load:
    """What somebody has in flight on an endpoint. Immutable by convention."""

    __slots__ = ("context_tokens", "memory_tokens", "prefill_tokens", "prefilling_requests", "requests", "sequences")

    def __init__(
        self,
        requests: int,
        sequences: int,
        prefilling_requests: int,
        prefill_tokens: float,
        context_tokens: float,
        memory_tokens: float,
    ) -> None:
        self.requests = requests
        self.sequences = sequences
        self.prefilling_requests = prefilling_requests
        self.prefill_tokens = prefill_tokens
        self.context_tokens = context_tokens
        self.memory_tokens = memory_tokens


NOTHING: Final = Load(0, 0, 0, 0.0, 0.0, 0.0)


class Endpoint:
    """A live endpoint: identity, its slot, and the load we have put on it.

    Compared by identity: a pod that was deleted and re-created under the same name and address
    is another `Endpoint`, and charges made on the old one are released on the old one.
    `slot` indexes every column of the pool and the bits of the prefix index; -1 once it left.
    The counters belong to the in-flight ledger, which mirrors them into its columns; `others` is
    what other pickers have in flight here, as they told it.
    """

    __slots__ = (
        "answered_at_seconds",
        "context_tokens",
        "in_flight_requests",
        "in_flight_sequences",
        "memory_tokens",
        "others",
        "prefill_tokens",
        "prefilled_tokens",
        "prefilling_requests",
        "readings",
        "requests_at_reading",
        "requests_since_reading",
        "slot",
        "spec",
    )

    def __init__(self, spec: EndpointSpec, slot: int) -> None:
        self.spec = spec
        self.slot = slot
        self.answered_at_seconds = NEVER
        """When content of an answer was last seen from here."""
        self.in_flight_requests = 0
        self.in_flight_sequences = 0
        """Of these requests: one may ask for several answers, or bring several prompts."""
        self.prefilling_requests = 0
        self.prefill_tokens = 0.0
        self.prefilled_tokens = 0.0
        """Of all prefills that were over, ever."""
        self.context_tokens = 0.0
        self.memory_tokens = 0.0
        self.others = NOTHING
        self.readings = 0
        """How often its KV cache's use was read."""
        self.requests_at_reading = 0
        """Of ours in flight at the last reading."""
        self.requests_since_reading = 0
        """Of these, those that are still in flight."""

    def decoding(self) -> tuple[float, float]:
        """`(sequences, their context tokens)` in flight whose prefill is over; those of other pickers too."""
        others = self.others
        requests = self.in_flight_requests + others.requests
        if not requests:
            return 0.0, 0.0
        share = 1.0 - (self.prefilling_requests + others.prefilling_requests) / requests
        sequences = self.in_flight_sequences + others.sequences
        return share * sequences, share * (self.context_tokens + others.context_tokens)

    def __repr__(self) -> str:
        return f"<Endpoint {self.spec.name} {self.spec.address} slot {self.slot}>"
