"""A member of the pool."""

from picker.pool.specs import EndpointSpec


class Endpoint:
    """A live endpoint: identity, its slot, and the load we have put on it.

    Compared by identity: a pod that was deleted and re-created under the same name and address
    is another `Endpoint`, and charges made on the old one are released on the old one.
    `slot` indexes every column of the pool and the bits of the prefix index; -1 once it left.
    The counters belong to the in-flight ledger, which mirrors them into its columns.
    """

    __slots__ = (
        "context_tokens",
        "in_flight_requests",
        "memory_tokens",
        "prefill_tokens",
        "prefilling_requests",
        "slot",
        "spec",
    )

    def __init__(self, spec: EndpointSpec, slot: int) -> None:
        self.spec = spec
        self.slot = slot
        self.in_flight_requests = 0
        self.prefilling_requests = 0
        self.prefill_tokens = 0.0
        self.context_tokens = 0.0
        self.memory_tokens = 0.0

    def __repr__(self) -> str:
        return f"<Endpoint {self.spec.name} {self.spec.address} slot {self.slot}>"
