"""The pool at one moment, as a value: what a decision sees of the world.

Columns have one value a slot (`width` of them). A slot without an endpoint is not `ready`.
Unknown is NaN in a column: comparisons with it are false, so unknown is neither idle nor full. In
the columns that enter sums (`foreign_requests`, `reported_context_tokens`, `capacity_tokens`) unknown
counts as the mean of those that are known; where nobody's is known nothing is added.
"""

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from picker.pool.endpoint import Endpoint

Column = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


class Snapshot:
    """Immutable; made by the datastore, kept until something changes."""

    __slots__ = (
        "by_address",
        "by_host",
        "capacity_tokens",
        "changed_slots",
        "changes",
        "endpoints",
        "foreign_requests",
        "fresh_mask",
        "gpu_utilization",
        "kv_cache_utilization",
        "label_masks",
        "ready_bits",
        "ready_count",
        "ready_mask",
        "reported_context_tokens",
        "synced",
        "waiting_requests",
        "width",
    )

    endpoints: tuple[Endpoint | None, ...]
    """The endpoint of each slot."""
    ready_mask: Mask
    ready_bits: int
    """The ready slots as a bitmask, for the prefix index."""
    ready_count: int
    waiting_requests: Column
    kv_cache_utilization: Column
    foreign_requests: Column | None
    """Waiting requests that are not ours; the mean of the known where stale or unknown. `None`: none anywhere."""
    reported_context_tokens: Column
    """kv_cache_utilization x capacity; the mean of the known where stale or unknown. It only ever raises our own count.

    An endpoint that is not read any more is at least as full as it was, in the proportion of our
    requests of then that are still in flight: to fall silent makes nobody attractive.
    """
    capacity_tokens: Column
    """The mean of the known where unknown; where nobody's is known the configured one."""
    by_address: dict[str, Endpoint]
    by_host: dict[str, list[Endpoint]]
    synced: bool
    fresh_mask: Mask
    """The slots whose last reading is recent enough to count."""
    gpu_utilization: Column | None
    """`None` where no endpoint ever reported any."""
    label_masks: dict[str, Mask | None]
    """What label selectors came to, by their text: kept until an endpoint joins, leaves or is relabelled."""
    width: int
    """Slots, with and without an endpoint."""
    changed_slots: list[int]
    """One after the other, where snapshots differed from the one that began this list. All that come of that one
    share the list, and the datastore goes on with it."""
    changes: int
    """So many of these are in this one."""

    def __init__(
        self,
        *,
        endpoints: tuple[Endpoint | None, ...],
        ready_mask: Mask,
        ready_bits: int,
        ready_count: int,
        waiting_requests: Column,
        kv_cache_utilization: Column,
        foreign_requests: Column | None,
        reported_context_tokens: Column,
        capacity_tokens: Column,
        by_address: dict[str, Endpoint],
        by_host: dict[str, list[Endpoint]],
        synced: bool,
        fresh_mask: Mask,
        gpu_utilization: Column | None,
        label_masks: dict[str, Mask | None],
        width: int,
        changed_slots: list[int],
        changes: int,
    ) -> None:
        self.endpoints = endpoints
        self.ready_mask = ready_mask
        self.ready_bits = ready_bits
        self.ready_count = ready_count
        self.waiting_requests = waiting_requests
        self.kv_cache_utilization = kv_cache_utilization
        self.foreign_requests = foreign_requests
        self.reported_context_tokens = reported_context_tokens
        self.capacity_tokens = capacity_tokens
        self.by_address = by_address
        self.by_host = by_host
        self.synced = synced
        self.fresh_mask = fresh_mask
        self.gpu_utilization = gpu_utilization
        self.label_masks = label_masks
        self.width = width
        self.changed_slots = changed_slots
        self.changes = changes

    def slots_since(self, before: "Snapshot | None") -> list[int] | None:
        """The slots whose columns differ from those of `before`; `None`: any may."""
        if before is None or before.changed_slots is not self.changed_slots or before.changes > self.changes:
            return None
        return self.changed_slots[before.changes : self.changes]


def bits_to_mask(bits: int, width: int) -> Mask:
    """A bitmask of slots as a boolean column."""
    raw = np.frombuffer(bits.to_bytes((width + 7) // 8, "little"), dtype=np.uint8)
    unpacked: Any = np.unpackbits(raw, count=width, bitorder="little")
    mask: Mask = unpacked.view(np.bool_)
    return mask


@lru_cache(maxsize=128)
def bits_to_slots(bits: int, width: int) -> npt.NDArray[np.intp]:
    """A bitmask of slots as their indices, rising; read-only. Kept: the same sets come again and again."""
    slots = np.flatnonzero(bits_to_mask(bits, width))
    slots.flags.writeable = False
    return slots


def mask_to_bits(mask: Mask) -> int:
    """The inverse of `bits_to_mask`."""
    return int.from_bytes(np.packbits(mask, bitorder="little").tobytes(), "little")
