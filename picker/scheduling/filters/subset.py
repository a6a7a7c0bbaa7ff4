"""The subset hint of the Endpoint Picker Protocol: the proxy says which endpoints are allowed."""

import numpy as np

from picker.pool.snapshot import Mask, Snapshot
from picker.scheduling.filters.query import Query


def mask(snapshot: Snapshot, query: Query) -> Mask | None:
    """The endpoints named by address, or by host for all its ports."""
    if query.subset is None:
        return None
    allowed: Mask = np.zeros(snapshot.width, dtype=np.bool_)
    for entry in query.subset:
        found = snapshot.by_address.get(entry)
        for endpoint in (found,) if found else snapshot.by_host.get(entry.strip("[]"), ()):
            allowed[endpoint.slot] = True
    return allowed
